"""What every route may use, and what FastAPI hands to it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPBearer

from forewarn.auth import Tokens
from forewarn.clock import Clock
from forewarn.commit import Key
from forewarn.core.decision import Changes
from forewarn.core.model import Event, Maintenance
from forewarn.engine import Engine
from forewarn.errors import InvalidRequest, NotFound
from forewarn.hub import Hub
from forewarn.journal import Journal
from forewarn.metrics import Metrics
from forewarn.scheduler import Scheduler
from forewarn.store.contract import Reader
from forewarn.wire.control import MaintenanceOut

__all__ = ["BEARER", "Actor", "Context", "ContextOf", "IdempotencyKey", "reader_maintenances", "show", "show_all"]

_KEY_LENGTH_MAX = 200


@dataclass(slots=True, kw_only=True)
class Context:
    """The parts of the service that the control API works with.

    Attributes:
        body_size_bytes_max: Largest request body.
        page_size_max: Most items in one page.
        request_vms_max: Most hosts or VMs in one request.
        journal: What VMs asked lately.
        has_faults: Whether operators may inject faults.
        may_run_commands: Whether a rollout may name a command that is run here.
        is_stopping: Set when the service stops; streams end.
        changed: Set, and replaced, at each change of the ledger: a hint for streams.
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
    has_faults: bool = False
    may_run_commands: bool = False
    body_size_bytes_max: int = 1 << 20
    inventory_size_bytes_max: int = 64 << 20
    page_size_max: int = 1000
    request_vms_max: int = 10_000
    is_stopping: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """The service stops: every stream ends."""
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
    auto_error=False, description="The operator's token, from the state folder of the service; or that of a host."
)
"""How tokens are sent, for the description of the API."""


async def _actor(context: ContextOf, request: Request, _declared: Annotated[object, Security(BEARER)]) -> str:
    return context.tokens.actor(request.headers.get("authorization"))


Actor = Annotated[str, Depends(_actor)]


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


def reader_maintenances(reader: Reader, maintenances: list[Maintenance]) -> list[MaintenanceOut]:
    """Maintenances with their events."""
    events = reader.events_of(m.id for m in maintenances)
    return [MaintenanceOut.of(m, events.get(m.id, [])) for m in maintenances]


async def show_all(context: Context, maintenances: list[Maintenance]) -> list[MaintenanceOut]:
    """What commands answered, with the events."""
    ids = [m.id for m in maintenances]

    def read(reader: Reader) -> dict[str, list[Event]]:
        return reader.events_of(ids)

    events = await context.engine.read(read)
    return [MaintenanceOut.of(m, events.get(m.id, [])) for m in maintenances]


async def show(context: Context, maintenance_id: str) -> MaintenanceOut:
    """One maintenance as it is now.

    Raises:
        NotFound: There is none of that id.
    """

    def read(reader: Reader) -> MaintenanceOut | None:
        found = reader.maintenance(maintenance_id)
        return None if found is None else reader_maintenances(reader, [found])[0]

    shown = await context.engine.read(read)
    if shown is None:
        msg = f"maintenance {maintenance_id!r} does not exist: see 'forewarn maintenance list'"
        raise NotFound(msg, id=maintenance_id)
    return shown
