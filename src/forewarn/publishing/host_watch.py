"""Watches of hosts: each document change goes to the watchers of the hosts whose VMs it concerns.

A watcher receives the newest document of each audience, and may miss those before it. So the queue of a slow watcher is
bounded by the number of audiences on its host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Host, Scope, VirtualMachine
from forewarn.errors import LimitExceeded, NotFound
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.publishing.inventory_index import InventoryDelta
from forewarn.wire.hostfeed import HostFeedState, encode_document_line

__all__ = ["Declared", "DocumentChange", "HostWatch", "HostWatches"]

Declared = tuple[tuple[VirtualMachine, ...], tuple[Scope, ...]]
"""VMs of a host in the inventory, and their scopes."""


class DocumentChange:
    """A changed document and its line in the stream, encoded once for all watchers."""

    def __init__(self, document: AudienceDocument) -> None:
        self.document = document

    @cached_property
    def encoded_line(self) -> bytes:
        """Encoded line for the stream to hosts."""
        return encode_document_line(self.document)


class HostWatch:
    """Changes that one watcher has not received yet.

    Attributes:
        host: Name of the host.
        audiences: Keys of the audiences of its VMs.
        declared: VMs of the host, with their scopes.
    """

    __slots__ = ("_is_woken", "_must_restart", "_waiter", "_waiting", "audiences", "declared", "host")

    def __init__(self, host: str) -> None:
        self.host = host
        self.audiences: frozenset[str] = frozenset()
        self.declared: Declared = ((), ())
        self._waiting: dict[str, DocumentChange] = {}
        self._must_restart = True
        self._is_woken = True
        self._waiter: asyncio.Future[None] | None = None

    def queue_change(self, change: DocumentChange) -> None:
        """Queue a changed document, in the place of an older one of its audience."""
        self._waiting[change.document.audience.key] = change
        self.wake()

    def restart(self) -> None:
        """Discard queued changes and have the watcher start over: everything may have changed."""
        self._must_restart = True
        self._waiting.clear()
        self.wake()

    def wake(self) -> None:
        """Wake the watcher to take its changes."""
        self._is_woken = True
        _release_waiter(self._waiter)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until woken or timed out; return True if woken.

        One task may wait at a time.
        """
        # A wake since the changes were last taken is remembered, so that no change is lost between two waits. A future
        # and a timer, because one change may wake thousands: `asyncio.timeout` and an `Event` took a quarter longer
        # until the last of them had it.
        if not self._is_woken:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, _release_waiter, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._is_woken

    def take_changes(self) -> list[DocumentChange] | None:
        """Take the queued changes; None if the watcher must start over with the full state."""
        self._is_woken = False
        changes, self._waiting = list(self._waiting.values()), {}
        if self._must_restart:
            # The state is built after this, so it contains the changes that are dropped here.
            self._must_restart = False
            return None
        return changes


def _release_waiter(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class HostWatches:
    """All watchers of this process.

    Args:
        feed: Source of changed documents.
        identity: Inventory of hosts, VMs and audiences.
        first_answer_delay_s: Time for which endpoints hold enabling GETs, in seconds (R67).
        position: Returns the number of the last change up to which this process has seen everything.
        watches_max: Maximum number of watches.
    """

    def __init__(
        self,
        feed: Feed,
        identity: Identity,
        first_answer_delay_s: float,
        position: Callable[[], int],
        watches_max: int,
    ) -> None:
        self._feed = feed
        self._identity = identity
        self._first_answer_delay_s = first_answer_delay_s
        self._position = position
        self._watches_max = watches_max
        # Dictionaries, which keep the order: watchers are woken in the order in which they came.
        self._watches: dict[HostWatch, None] = {}
        self._by_audience: dict[str, dict[HostWatch, None]] = {}
        feed.listeners.append(self._queue_document)
        identity.listeners.append(self._restart_watches)

    def __len__(self) -> int:
        """Return the number of watches."""
        return len(self._watches)

    def begin_watch(self, host: str) -> HostWatch:
        """Begin to watch a host; end it with `end_watch`.

        Raises:
            NotFound: There is no such host.
            LimitExceeded: There are too many watches already.
        """
        if host not in self._identity.hosts:
            raise NotFound(f"host {host!r} does not exist: see 'forewarn host list'", host=host)
        # Each watch holds a connection and a queue for as long as the host likes.
        if len(self._watches) >= self._watches_max:
            raise LimitExceeded(f"{len(self._watches)} endpoints watch already (watches_max)")
        watch = HostWatch(host)
        self._watches[watch] = None
        self._add_watch(watch, self._read_declared(host))
        return watch

    def end_watch(self, watch: HostWatch) -> None:
        """End a watch."""
        self._watches.pop(watch, None)
        self._remove_watch(watch)

    def wake_watches(self) -> None:
        """Wake all watchers: the service stops."""
        for watch in self._watches:
            watch.wake()

    def build_state(self, watch: HostWatch) -> HostFeedState:
        """Return the full current state of a watched host."""
        vms, scopes = watch.declared
        documents = (self._feed.find_document(key) for key in sorted(watch.audiences))
        return HostFeedState(
            host=watch.host,
            position=self._position(),
            inventory=Inventory(hosts=(Host(name=watch.host),), scopes=scopes, vms=vms),
            dialect=self._feed.dialect,
            first_answer_delay_s=self._first_answer_delay_s,
            documents=tuple(document for document in documents if document is not None),
        )

    def _read_declared(self, host: str) -> Declared:
        vms = tuple(self._identity.vms_of(host))
        names = {vm.scope for vm in vms if vm.scope is not None}
        return vms, tuple(self._identity.get_scope(name) for name in sorted(names))

    def _add_watch(self, watch: HostWatch, declared: Declared) -> None:
        watch.declared = declared
        watch.audiences = frozenset(self._identity.get_audience_key(vm.name) for vm in declared[0])
        for key in watch.audiences:
            self._by_audience.setdefault(key, {})[watch] = None

    def _remove_watch(self, watch: HostWatch) -> None:
        for key in watch.audiences:
            watches = self._by_audience.get(key, {})
            watches.pop(watch, None)
            if not watches:
                self._by_audience.pop(key, None)

    def _queue_document(self, document: AudienceDocument) -> None:
        watches = self._by_audience.get(document.audience.key)
        if watches:
            change = DocumentChange(document)
            for watch in watches:
                watch.queue_change(change)

    def _restart_watches(self, delta: InventoryDelta | None) -> None:
        """Restart the watches of hosts whose declaration changed, and only those: the rest may be thousands."""
        hosts = None if delta is None else delta.hosts
        watches = list(self._watches) if hosts is None else [watch for watch in self._watches if watch.host in hosts]
        for watch in watches:
            declared = self._read_declared(watch.host)
            if declared == watch.declared:
                watch.declared = declared  # releases the memory of the previous inventory
                continue
            self._remove_watch(watch)
            self._add_watch(watch, declared)
            watch.restart()
