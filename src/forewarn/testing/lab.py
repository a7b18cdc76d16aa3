"""A complete service for one test: in this process, in memory, on virtual time.

Everything but the clock is real: the endpoint answers on a real socket, and every rule is the service's own.
Nothing happens unless the test advances the time.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from forewarn.clock import Clock, VirtualClock
from forewarn.config.loading import make_settings
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance import decision
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Event, Maintenance
from forewarn.endpoint.authority import Authority
from forewarn.engine.transaction import IdSource
from forewarn.errors import InvalidRequest, NotFound
from forewarn.publishing.feed import Channel
from forewarn.server.backend import Backend
from forewarn.store import MemoryStore
from forewarn.store.contract import Reader
from forewarn.util.ids import SeededIds
from forewarn.wire.advice import Advice, find_advice_for_all
from forewarn.wire.document import Document, decode_document
from forewarn.wire.document import Event as ShownEvent
from forewarn.wire.exchange import Exchange
from forewarn.wire.imds import encode_document

__all__ = ["ACTOR", "Announced", "Lab"]

ACTOR = "operator:test"
"""Actor in the audit log for all actions of a test."""

Announced: TypeAlias = tuple[Maintenance, list[Event]]
"""A maintenance with its events."""

_ADDRESS = "127.0.0.1"
_USUAL: dict[str, Any] = {
    "clock": "virtual",
    "fault_injection": True,
    # VMs of a test send requests only when the test does, so a VM that has not been seen is no alert.
    "unseen_before": None,
    "late_start_after": None,
    "late_end_after": None,
}
_DOCUMENTS_MAX = 10_000
_GRACE_S = 0.2


class Lab:
    """A service on one event loop; `running` starts and stops it.

    Args:
        inventory: Hosts, scopes and VMs.
        clock: Clock of the service; None for a virtual one.
        is_enabled: True if every VM has already sent a request, so events are announced to it from the start (R67).
        new_id: Source of ids; None for the same ids in every run.
        settings: Settings of `forewarn serve`; those for files and addresses are ignored.

    Attributes:
        approval_hook: Called for an approval by a VM, in place of the engine; None for the engine.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        clock: Clock | None = None,
        is_enabled: bool = True,
        new_id: IdSource | None = None,
        **settings: Any,  # noqa: ANN401 - settings are of any kind
    ) -> None:
        self.inventory = inventory
        self.clock = clock or VirtualClock()
        self._is_enabled = is_enabled
        self.approval_hook: Callable[[Sequence[str], Approver], Awaitable[ApprovalResult]] | None = None
        self._store = MemoryStore()
        self.backend = Backend(
            make_settings(**_USUAL | settings),
            store=self._store,
            clock=self.clock,
            new_id=new_id or SeededIds(),
            wrap_authority=lambda authority: _HookedAuthority(authority, self),
            assumes_spot=True,
        )
        self._urls: dict[str, str] = {}
        self._shown_documents: dict[str, deque[decision.AudienceDocument]] = {}
        self.backend.engine.listeners.append(self._remember_documents)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Lab]:
        """Start the service, and stop it when the block ends."""
        async with AsyncExitStack() as stack:
            # Registered first and so closed last, when nothing uses the store any more.
            stack.callback(self._store.close)
            engine = self.backend.engine
            await engine.inventory.apply(self.inventory, "test", actor=ACTOR)
            if self._is_enabled:
                for vm in self.inventory.vms:
                    await self.record_request(vm.name)
            await stack.enter_async_context(self.backend.scheduling())
            await stack.enter_async_context(self.backend.answering([], _GRACE_S))
            yield self

    # VMs

    @property
    def default_vm(self) -> str:
        """Name of the VM used where none is given: the first."""
        return self.inventory.vms[0].name

    async def open_endpoint(self, vm: str | None = None) -> str:
        """Return the base URL at which that VM, and only that VM, reaches the endpoint.

        Raises:
            NotFound: There is no such VM.
        """
        name = vm or self.default_vm
        self.backend.identity.get_audience_key(name)
        if name not in self._urls:
            # One socket for each VM: all callers have the same address, so the socket identifies the VM.
            sock = socket.create_server((_ADDRESS, 0))
            await self.backend.endpoint.listen([sock], name)
            self._urls[name] = f"http://{_ADDRESS}:{sock.getsockname()[1]}"
        return self._urls[name]

    def get_channel(self, vm: str | None = None) -> Channel:
        """Return the channel of the documents for that VM.

        Raises:
            NotFound: There is no such VM.
        """
        return self.backend.feed.channel(self.backend.identity.get_audience_key(vm or self.default_vm))

    async def record_request(self, vm: str | None = None) -> None:
        """Record a request by that VM, as if by a GET: the first one enables the service for its scope (R67)."""
        key = self.backend.identity.get_audience_key(vm or self.default_vm)
        # A standalone VM is its own audience, and has no scope that could be enabled.
        await self.backend.engine.authority.enable(key, key.partition(":")[2] if key.startswith("scope:") else None)
        # Audiences that have not polled for a day are disabled by this time (R67).
        self.backend.feed.channel(key).last_polled_at = self.clock.now()

    def get_document(self, vm: str | None = None) -> Document:
        """Return the current document of that VM, in the newest version; without events until its first request."""
        replies = self.get_channel(vm).replies
        return decode_document(replies[-1].body) if replies else Document(incarnation=0)

    def find_own_events(self, vm: str) -> dict[str, ShownEvent]:
        """Return the events in the current document of that VM that affect it, by id."""
        return {event.id: event for event in self.get_document(vm).events if event.affects(vm)}

    def get_document_bytes(self, vm: str, version: str) -> bytes:
        """Return the current document of that VM as bytes, in one version; empty until its first request.

        Raises:
            NotFound: There is no such version.
        """
        replies = self.get_channel(vm).replies
        names = [row.name for row in self.backend.feed.versions]
        if version not in names:
            raise NotFound(f"there is no api-version {version!r}: expected one of {', '.join(names)}")
        return replies[names.index(version)].body if replies else b""

    def list_documents(self, vm: str | None = None) -> list[Document]:
        """Return every document shown to that VM so far, oldest first; at most the last 10,000."""
        feed = self.backend.feed
        shown = self._shown_documents.get(self.backend.identity.get_audience_key(vm or self.default_vm), ())
        # Encoded and decoded, so that a test sees what a client of the newest api-version reads.
        return [decode_document(encode_document(one, feed.versions[-1], feed.dialect)) for one in shown]

    def _remember_documents(self, changes: ChangeSet) -> None:
        for document in changes.documents:
            # Until its scope is enabled, a VM is not shown the document, so it must not count as shown.
            if document.audience.enabled_at is not None:
                self._shown_documents.setdefault(document.audience.key, deque(maxlen=_DOCUMENTS_MAX)).append(document)

    # Operations

    async def carry_out(self, request: MaintenanceRequest) -> list[Announced]:
        """Carry out an operator's request; return what was announced."""
        made = await self.backend.engine.maintenances.schedule(request, actor=ACTOR)
        return [await self.fetch_maintenance(maintenance.id) for maintenance in made]

    async def fetch_maintenance(self, maintenance_id: str) -> Announced:
        """Return a maintenance with its events, as they are now.

        Raises:
            NotFound: There is none with that id.
        """

        def read(reader: Reader) -> Announced | None:
            found = reader.get_maintenance(maintenance_id)
            return None if found is None else (found, reader.find_events_of([maintenance_id]).get(maintenance_id, []))

        if (found := await self.backend.engine.read(read)) is None:
            raise NotFound(f"maintenance {maintenance_id!r} does not exist", id=maintenance_id)
        return found

    async def approve_events(self, event_ids: Sequence[str]) -> None:
        """Approve events on behalf of their VMs.

        Raises:
            NotFound: There is no such event.
        """
        approval = await self.backend.engine.authority.approve(event_ids, Approver(actor=ACTOR))
        if approval.unknown:
            raise NotFound(f"no event has the id {', '.join(approval.unknown)}")

    async def advance(self, by: timedelta) -> datetime:
        """Advance virtual time; everything due on the way happens at its own moment, in order."""
        if by < timedelta(0):
            raise InvalidRequest("time cannot be advanced by a negative span")
        return await self.backend.scheduler.advance_clock(by)

    # Observations

    def list_requests(self, vm: str | None = None) -> list[Exchange]:
        """Return the requests to the endpoint, oldest first; of one VM, or of all."""
        return self.backend.journal.list_exchanges(vm=vm or "")

    def list_warnings(self) -> list[tuple[Exchange, Advice]]:
        """Return the requests in which a client relied on something that real endpoints refuse or do not promise.

        On virtual time the polling rate is not judged: a whole test may take no time at all.
        """
        found = [(exchange, row) for exchange, rows in find_advice_for_all(self.list_requests()) for row in rows]
        return [(exchange, row) for exchange, row in found if row.code != "rate" or not self.clock.is_virtual]


class _HookedAuthority:
    """Authority of a lab, whose `approval_hook` goes before the engine."""

    def __init__(self, authority: Authority, lab: Lab) -> None:
        self.feed = authority.feed
        self.identity = authority.identity
        self._authority = authority
        self._lab = lab

    async def enable(self, key: str, scope: str | None) -> None:
        await self._authority.enable(key, scope)

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        return await (self._lab.approval_hook or self._authority.approve)(event_ids, approver)
