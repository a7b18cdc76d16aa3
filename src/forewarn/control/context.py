"""Context shared by all routes, and the dependencies that FastAPI injects."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Annotated

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPBearer

from forewarn.auth.authenticator import Tokens
from forewarn.auth.rejections import Refusals
from forewarn.clock import Clock
from forewarn.control.access import admit
from forewarn.control.admission import Admission
from forewarn.control.broadcast import EntryBroadcast
from forewarn.control.parsing import InventoryParser
from forewarn.control.refusal import RefusalLog
from forewarn.core.access import FILE_OPERATOR, Principal, Role
from forewarn.core.decision import Changes
from forewarn.core.difference import RemovalLimit
from forewarn.core.limit_log import LimitLog
from forewarn.core.model import Event, Maintenance
from forewarn.endpoint.request_journal import Journal
from forewarn.engine.engine import Engine
from forewarn.engine.transaction import Key
from forewarn.errors import Forbidden, InvalidRequest, NotFound
from forewarn.notifications.notifier import Notifier
from forewarn.observability.metrics import Metrics
from forewarn.publishing.host_watch import Hub
from forewarn.scheduling.scheduler import Scheduler
from forewarn.store.contract import Reader
from forewarn.wire.control import MaintenanceOut

__all__ = [
    "BEARER",
    "Actor",
    "Caller",
    "Context",
    "ContextOf",
    "HostActor",
    "HostCaller",
    "IdempotencyKey",
    "check_caller",
    "is_still_known",
    "missing",
    "reader_maintenances",
    "show",
    "show_all",
]

_KEY_LENGTH_MAX = 200


async def _nothing() -> None:
    """Do nothing: there is no other process to query."""


@dataclass(slots=True, kw_only=True)
class Context:
    """Parts of the service that the control API uses.

    Attributes:
        is_open: True if the control address is on loopback, where health routes need no token.
        admission: Limits on how much of the service each caller may use at a time.
        body_size_bytes_max: Maximum size of a request body.
        page_size_max: Maximum number of items in one page.
        request_vms_max: Maximum number of hosts and VMs in one request.
        journal: Recent requests of VMs.
        limits_met: Callers that met a limit of the metadata endpoint.
        look: Fetches the counts and journal entries of the other process that answers VMs, if there is one.
        notifier: Sends notifications to subscribers.
        has_faults: True if operators may inject faults.
        may_run_commands: True if a rollout may name a command that is run here.
        refusals: Counts of refused calls.
        refused: Writes refused calls into the audit log.
        token_lifetime, token_lifetime_max: Default and maximum lifetime of a person's token.
        token_names_max: Maximum number of scopes and VMs of a token.
        session_lifetime: Maximum duration of a dashboard session.
        removals: Limit on the VMs that an inventory may remove without confirmation.
        is_stopping: Set when the service stops; streams then end.
        verifying: Lock held while the audit log is verified: one verification at a time.
        changed: Hint for streams, set and replaced at each change of the audit log.
        entries: New audit log entries, read once for all streams.
        parser: Reads inventories.
        listing: Lock held while the request journal is listed.
    """

    engine: Engine
    hub: Hub
    scheduler: Scheduler
    clock: Clock
    tokens: Tokens
    metrics: Metrics
    is_open: bool
    check_ready: Callable[[], Awaitable[None]]
    journal: Journal
    refusals: Refusals
    refused: RefusalLog
    notifier: Notifier
    admission: Admission
    limits_met: LimitLog = field(default_factory=LimitLog)
    look: Callable[[], Awaitable[None]] = _nothing
    token_lifetime: timedelta = timedelta(days=90)
    token_lifetime_max: timedelta = timedelta(days=366)
    token_names_max: int = 1000
    session_lifetime: timedelta = timedelta(hours=12)
    removals: RemovalLimit = field(default_factory=RemovalLimit)
    has_faults: bool = False
    may_run_commands: bool = False
    body_size_bytes_max: int = 1 << 20
    inventory_size_bytes_max: int = 64 << 20
    page_size_max: int = 1000
    request_vms_max: int = 10_000
    is_stopping: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    entries: EntryBroadcast = field(init=False)
    parser: InventoryParser = field(default_factory=InventoryParser)
    verifying: asyncio.Lock = field(default_factory=asyncio.Lock)
    listing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Create the parts that are derived from others."""
        self.entries = EntryBroadcast(self.engine)

    def stop(self) -> None:
        """End every stream because the service stops."""
        self.is_stopping.set()
        self.changed.set()

    def notice(self, _changes: Changes | None = None) -> None:
        """Wake every stream."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


async def _context(request: Request) -> Context:  # a coroutine, since FastAPI sends every other function to a thread
    context: Context = request.app.state.context
    return context


ContextOf = Annotated[Context, Depends(_context)]


BEARER = HTTPBearer(
    auto_error=False,
    description="The operator's token, from the state folder of the service; or one that an operator has made; or, "
    "where an issuer is set, one that it has signed.",
)
"""Security scheme of the API in its OpenAPI document."""


async def check_caller(
    context: ContextOf, request: Request, _declared: Annotated[object, Security(BEARER)]
) -> Principal:
    """Return the caller if they may call the route; every route but the health routes depends on this."""
    return await admit(context, request)


Caller = Annotated[Principal, Depends(check_caller)]


async def _actor(caller: Caller) -> str:
    return caller.actor


Actor = Annotated[str, Depends(_actor)]


async def _host_caller(caller: Caller, name: str) -> Principal:
    """Return the caller; raise Forbidden if a host's token is used for another host."""
    if caller.role is Role.HOST and caller.host != name:
        msg = f"this token is that of host {caller.host!r}"
        raise Forbidden(msg)
    return caller


HostCaller = Annotated[Principal, Depends(_host_caller)]
"""Caller of a route about one host, which that host's own token may call too."""


async def _host_actor(caller: HostCaller) -> str:
    return caller.actor


HostActor = Annotated[str, Depends(_host_actor)]


async def _key(
    request: Request,
    actor: Actor,
    idempotency_key: Annotated[
        str | None,
        Header(max_length=_KEY_LENGTH_MAX, description="Repeating a change under the same key does it once."),
    ] = None,
) -> Key | None:
    if idempotency_key is None:
        return None
    if not idempotency_key.strip():
        msg = "the Idempotency-Key is empty"
        raise InvalidRequest(msg)
    asked = f"{actor}\n{request.method}\n{request.url.path}\n".encode() + await request.body()
    return Key(key=f"{actor}/{idempotency_key}", fingerprint=hashlib.sha256(asked).hexdigest())


IdempotencyKey = Annotated[Key | None, Depends(_key)]


async def is_still_known(context: Context, caller: Principal) -> bool:
    """Return True if the token that a stream began with is neither revoked nor expired."""
    now = context.clock.now()
    if caller.token_id is not None:
        return await context.engine.is_token_taken(caller.token_id, now)
    return caller.expires_at is None or now < caller.expires_at


def missing(name: str, kind: str) -> NotFound:
    """Return the NotFound error for a name; the same message if the object exists but belongs to others."""
    msg = f"{kind} {name!r} does not exist: see 'forewarn {kind} list'"
    return NotFound(msg, **{"id" if kind == "maintenance" else kind: name})


def reader_maintenances(
    context: Context, reader: Reader, maintenances: list[Maintenance], caller: Principal = FILE_OPERATOR
) -> list[MaintenanceOut]:
    """Return maintenances with their events, as that caller may see them."""
    return _shown(context, caller, maintenances, reader.events_of(m.id for m in maintenances))


async def show_all(
    context: Context, maintenances: list[Maintenance], caller: Principal = FILE_OPERATOR
) -> list[MaintenanceOut]:
    """Return the maintenances that a command returned, with their events."""
    ids = [m.id for m in maintenances]

    def read(reader: Reader) -> dict[str, list[Event]]:
        return reader.events_of(ids)

    return _shown(context, caller, maintenances, await context.engine.read(read))


def _shown(
    context: Context, caller: Principal, maintenances: list[Maintenance], events: Mapping[str, list[Event]]
) -> list[MaintenanceOut]:
    return [
        MaintenanceOut.of(
            caller.shown(m),
            caller.shown_events(m, events.get(m.id, ())),
            partial(context.engine.would_warn, m.cause),
        )
        for m in maintenances
    ]


async def show(context: Context, maintenance_id: str, caller: Principal = FILE_OPERATOR) -> MaintenanceOut:
    """Return one maintenance in its current state.

    Raises:
        NotFound: No maintenance of the caller has that id.
    """

    def read(reader: Reader) -> MaintenanceOut | None:
        found = reader.maintenance(maintenance_id, caller.owned)
        return None if found is None else reader_maintenances(context, reader, [found], caller)[0]

    shown = await context.engine.read(read)
    if shown is None:
        raise missing(maintenance_id, "maintenance")
    return shown
