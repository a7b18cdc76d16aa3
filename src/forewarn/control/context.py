"""Context shared by all routes, and the dependencies that FastAPI injects."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Query, Request, Security
from fastapi.security import HTTPBearer

from forewarn.auth.authenticator import Authenticator
from forewarn.auth.refusal_counter import RefusalCounter
from forewarn.clock import Clock, uptime_s
from forewarn.config.settings import Settings
from forewarn.control.access import ROUTES, source_address
from forewarn.control.admission import Admission
from forewarn.control.board import BoardCache
from forewarn.control.broadcast import EntryBroadcast
from forewarn.control.host_streams import HostStreams
from forewarn.control.inventory_parser import InventoryParser
from forewarn.control.inventory_snapshot import InventorySnapshots
from forewarn.control.refusal_log import RefusalLog
from forewarn.core.access import FILE_OPERATOR, Ownership, Principal, Role
from forewarn.core.hints import SEE_HOSTS, SEE_MAINTENANCES, SEE_SCOPES, SEE_VMS
from forewarn.core.label import SELECTOR_LENGTH_MAX
from forewarn.core.limit_log import LimitLog
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import Maintenance
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.engine.engine import Engine
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.errors import Forbidden, ForewarnError, InvalidRequest, NotFound, TooManyFailures, Unauthorized
from forewarn.notifications.notifier import Notifier
from forewarn.observability.metrics import Metrics
from forewarn.publishing.host_watch import HostWatches
from forewarn.scheduling.scheduler import Scheduler
from forewarn.store.contract import Reader
from forewarn.wire.control_response import MaintenanceOut, PageOut
from forewarn.wire.json_types import NO_NUL

__all__ = [
    "BEARER",
    "Actor",
    "AfterName",
    "AfterNumber",
    "Caller",
    "Context",
    "ContextOf",
    "HostCaller",
    "IdempotencyHeader",
    "NamePrefix",
    "PageLimit",
    "SelectorText",
    "authorize_request",
    "check_caller",
    "check_host",
    "check_role",
    "cut_page",
    "describe_text",
    "find_invalid_callers",
    "find_maintenance",
    "identify_caller",
    "is_still_valid",
    "make_maintenances_out",
    "not_found_error",
    "parse_after",
    "read_maintenances_out",
]

T = TypeVar("T")

_KEY_LENGTH_MAX = 200
_SEQUENCE_MAX = (1 << 63) - 1
"""Largest integer that every store holds."""


async def _do_nothing() -> None:
    """Do nothing: there is no other process to query."""


@dataclass(slots=True, kw_only=True)
class Context:
    """Parts of the service that the control API uses.

    Attributes:
        is_loopback: True if the control address is on loopback, where health routes need no token.
        admission: Limits on how much of the service each caller may use at a time.
        journal: Recent requests of VMs.
        limits_met: Callers that met a limit of the metadata endpoint.
        refresh_endpoint_state: Fetches the counts and journal entries of the other process that answers VMs, if there
            is one.
        notifier: Sends notifications to subscribers.
        refusal_counter: Counts of refused calls.
        refusal_log: Writes refused calls into the audit log.
        is_stopping: Set when the service stops; streams then end.
        verification_lock: Lock held while the audit log is verified: one verification at a time.
        changed: Hint for streams, set and replaced at each change of the audit log.
        entry_broadcast: New audit log entries, read once for all streams.
        host_streams: Streams to the endpoints on hosts.
        inventory_parser: Reads inventories.
        inventory_snapshots: Whole inventories that are being sent.
        listing_lock: Lock held while the request journal is listed.
        boards: Current list of active and recently ended maintenances, shared by all viewers.
        began_s: Uptime at which the service was made.
    """

    settings: Settings
    engine: Engine
    hub: HostWatches
    scheduler: Scheduler
    clock: Clock
    authenticator: Authenticator
    metrics: Metrics
    is_loopback: bool
    check_ready: Callable[[], Awaitable[None]]
    journal: RequestJournal
    refusal_counter: RefusalCounter
    refusal_log: RefusalLog
    notifier: Notifier
    admission: Admission
    limits_met: LimitLog = field(default_factory=LimitLog)
    refresh_endpoint_state: Callable[[], Awaitable[None]] = _do_nothing
    inventory_size_bytes_max: int = 64 << 20
    is_stopping: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    entry_broadcast: EntryBroadcast = field(init=False)
    host_streams: HostStreams = field(init=False)
    boards: BoardCache = field(init=False)
    began_s: float = field(default_factory=uptime_s)
    inventory_parser: InventoryParser = field(default_factory=InventoryParser)
    inventory_snapshots: InventorySnapshots = field(default_factory=InventorySnapshots)
    verification_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    listing_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Create the parts that are derived from others."""
        self.entry_broadcast = EntryBroadcast(self.engine)
        self.host_streams = HostStreams(self.hub, partial(find_invalid_callers, self.engine, self.clock))
        self.boards = BoardCache(self)

    def end_streams(self) -> None:
        """End every stream because the service stops."""
        self.is_stopping.set()
        self.changed.set()
        self.host_streams.end_all()

    def wake_streams(self, _changes: ChangeSet | None = None) -> None:
        """Wake every stream."""
        # Replaced before it is set: a stream that wakes up must find the next event to wait for.
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


async def _get_context(
    request: Request,
) -> Context:  # a coroutine, since FastAPI sends every other function to a thread
    context: Context = request.app.state.context
    return context


ContextOf = Annotated[Context, Depends(_get_context)]


BEARER = HTTPBearer(
    auto_error=False,
    description="The operator's token from the service's state folder, a token created by an operator, or, if an "
    "issuer is configured, a token signed by it.",
)
"""Security scheme of the API in its OpenAPI document."""


async def authorize_request(context: Context, request: Request) -> Principal:
    """Return the caller if their role may call this route.

    Raises:
        Unauthorized: The caller is unknown.
        TooManyFailures: The caller is unknown, and their address has failed too often in this minute.
        Forbidden: The caller's role may not call the route, or the caller has no role.
    """
    caller = await identify_caller(context, request, request.headers.get("authorization"))
    check_role(caller, f"{request.method} {request.scope['route'].path}")
    return caller


def check_role(caller: Principal, route: str) -> None:
    """Raise Forbidden unless the caller's role may call this route, a key of `ROUTES`."""
    if caller.role not in ROUTES[route]:
        raise Forbidden(f"{caller.actor} may not do this: not allowed for role {caller.role}", role=caller.role.value)


def check_host(caller: Principal, name: str) -> None:
    """Raise Forbidden if a host's token is used for another host."""
    # The table of roles cannot express this: it knows the route, but not the host in the path.
    if caller.role is Role.HOST and caller.host != name:
        raise Forbidden(f"this token belongs to host {caller.host!r}")


async def identify_caller(context: Context, request: Request, header: str | None) -> Principal:
    """Return the caller that an ``Authorization`` header belongs to; looked up once for each request.

    Raises:
        Unauthorized: The caller is unknown.
        TooManyFailures: The caller is unknown, and their address has failed too often in this minute.
        Forbidden: The issuer knows the caller, but no grant matches.
    """
    looked_up, found = getattr(request.state, "identified", (None, None))
    if found is not None and looked_up == header:
        if isinstance(found, ForewarnError):
            raise found
        known: Principal = found
        return known
    try:
        caller = await context.authenticator.authenticate(
            header, context.engine.tokens.find_by_digest, context.clock.now()
        )
    except Unauthorized as error:
        wait_s = context.refusal_counter.count_failure(source_address(request), uptime_s())
        if wait_s is None:
            raise
        # Checked only after the lookup, so that a valid token works even if others behind the same address fail.
        msg = f"{error.message}; too many calls without a valid token from {source_address(request)}"
        raise TooManyFailures(msg, retry_after_s=max(1, round(wait_s))) from error
    request.state.caller = caller
    return caller


async def check_caller(
    context: ContextOf, request: Request, _declared: Annotated[object, Security(BEARER)]
) -> Principal:
    """Return the caller if they may call the route; every route but the health routes depends on this."""
    return await authorize_request(context, request)


Caller = Annotated[Principal, Depends(check_caller)]


async def _get_actor(caller: Caller) -> str:
    return caller.actor


Actor = Annotated[str, Depends(_get_actor)]


async def _check_host_caller(caller: Caller, name: str) -> Principal:
    """Return the caller; raise Forbidden if a host's token is used for another host."""
    check_host(caller, name)
    return caller


HostCaller = Annotated[Principal, Depends(_check_host_caller)]
"""Caller of a route about one host, which that host's own token may call too."""


async def _read_idempotency_key(
    request: Request,
    caller: Caller,
    actor: Actor,
    idempotency_key: Annotated[
        str | None,
        Header(max_length=_KEY_LENGTH_MAX, description="A change repeated with the same key takes effect once."),
    ] = None,
) -> IdempotencyKey | None:
    if idempotency_key is None:
        return None
    if not idempotency_key.strip():
        raise InvalidRequest("the Idempotency-Key is empty")
    # Starlette caches the body, so the route can read it again.
    asked = f"{actor}\n{request.method}\n{request.url.path}\n".encode() + await request.body()
    # With the caller in front, because two callers may choose the same key. Two tenants may have tokens of the same
    # name, and so the same actor; their scopes and VMs differ.
    owner = "" if caller.ownership is None else caller.ownership.key
    return IdempotencyKey(key=f"{actor}/{owner}/{idempotency_key}", fingerprint=hashlib.sha256(asked).hexdigest())


IdempotencyHeader = Annotated[IdempotencyKey | None, Depends(_read_idempotency_key)]

PageLimit = Annotated[int, Query(ge=1, description="Maximum number of items.")]
"""Query parameter ``limit``; the setting ``page_size_max`` bounds it too."""

AfterNumber = Annotated[str | None, Query(max_length=32, description="`next` of the previous page.")]
"""Query parameter ``after`` of a list whose items are numbered; see `parse_after`."""

AfterName = Annotated[str | None, Query(max_length=128, description="`next` of the previous page.")]
"""Query parameter ``after`` of a list by name."""

NamePrefix = Annotated[
    str | None,
    Query(max_length=128, pattern=NO_NUL, description="Only items whose names begin with this text."),
]
"""Query parameter ``prefix`` of a list by name."""

SelectorText = Annotated[
    str | None,
    Query(
        max_length=SELECTOR_LENGTH_MAX,
        pattern=NO_NUL,
        description="Only items with these labels, such as `rack=r1,model!=x`, `team in (db,web)`, `gpu` or `!gpu`. "
        "All conditions must hold.",
        examples=["rack=r1,model!=x"],
    ),
]
"""Query parameter ``selector`` of a list of objects that have labels."""


def parse_after(text: str | None) -> int | None:
    """Return the number in a page's ``after``; None if there is no ``after``.

    Raises:
        InvalidRequest: The text is not a number that the stores can hold.
    """
    if text is None:
        return None
    # `isdecimal` alone accepts digits of other scripts.
    if not text.isascii() or not text.isdecimal() or int(text) > _SEQUENCE_MAX:
        raise InvalidRequest("after must be the `next` of the previous page")
    return int(text)


def cut_page(items: Sequence[T], after: str | None, size: int) -> tuple[Sequence[T], str | None]:
    """Return a page of a list that is in memory, and the `after` of the next page; None at the end.

    Raises:
        InvalidRequest: `after` is not a `next`.
    """
    begin = parse_after(after) or 0
    return items[begin : begin + size], str(begin + size) if begin + size < len(items) else None


def describe_text(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    """Return the description of a successful response that is text, for the OpenAPI document."""
    return {200: {"content": {media_type: {"schema": {"type": "string"}}}, "description": description}}


async def find_invalid_callers(engine: Engine, clock: Clock, callers: Collection[Principal]) -> set[Principal]:
    """Return those of these callers whose token was revoked or has expired."""
    now = clock.now()
    # A token from the table may be revoked; one of an issuer can only expire.
    ids = {caller.token_id for caller in callers if caller.token_id is not None}
    gone = await engine.tokens.find_invalid(ids, now) if ids else set()
    expired = (caller for caller in callers if caller.expires_at is not None and now >= caller.expires_at)
    return {caller for caller in callers if caller.token_id in gone} | set(expired)


async def is_still_valid(context: Context, caller: Principal) -> bool:
    """Return True if the token that a stream began with is neither revoked nor expired."""
    return not await find_invalid_callers(context.engine, context.clock, [caller])


def not_found_error(name: str, kind: str) -> NotFound:
    """Return the NotFound error for a name; the same message if the object exists but belongs to others."""
    hint = {"host": SEE_HOSTS, "maintenance": SEE_MAINTENANCES, "scope": SEE_SCOPES, "vm": SEE_VMS}[kind]
    return NotFound(f"{kind} {name!r} does not exist", hint=hint, **{"id" if kind == "maintenance" else kind: name})


def find_maintenance(reader: Reader, maintenance_id: str, owned: Ownership | None = None) -> Maintenance:
    """Return a maintenance; with `owned`, only if it affects that tenant.

    Raises:
        NotFound: There is none with that id.
    """
    found = reader.get_maintenance(maintenance_id, owned)
    if found is None:
        raise not_found_error(maintenance_id, "maintenance")
    return found


def make_maintenances_out(
    context: Context, reader: Reader, maintenances: list[Maintenance], caller: Principal
) -> list[MaintenanceOut]:
    """Return maintenances with their events, as that caller may see them."""
    events = reader.find_events_of(m.id for m in maintenances)
    return [
        MaintenanceOut.from_model(
            caller.redact_maintenance(m),
            caller.redact_events(m, events.get(m.id, ())),
            partial(context.engine.committer.would_warn, m.cause),
        )
        for m in maintenances
    ]


async def read_maintenances_out(
    context: Context, maintenances: list[Maintenance], caller: Principal = FILE_OPERATOR
) -> PageOut[MaintenanceOut]:
    """Return the maintenances that a command returned, as they are now; the default caller sees everything."""

    def read(reader: Reader) -> list[MaintenanceOut]:
        # Read again, in one view with their events: another command may have changed them since. A queued one may have
        # been announced, and the events of what it was before would have no status.
        found = reader.find_maintenances(maintenance.id for maintenance in maintenances)
        current = [found.get(maintenance.id, maintenance) for maintenance in maintenances]
        return make_maintenances_out(context, reader, current, caller)

    return PageOut(items=await context.engine.read(read))
