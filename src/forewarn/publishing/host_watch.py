"""Watches of hosts: each document change goes to the watchers of the hosts whose VMs it concerns.

A watcher receives the newest document of each audience, and may miss those before it. So the queue of a slow watcher is
bounded by the number of audiences on its host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Protocol

from forewarn.core.hints import SEE_HOSTS
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Host, Scope, VirtualMachine, audience_key, split_audience_keys
from forewarn.errors import LimitExceeded, NotFound
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.publishing.inventory_index import InventoryDelta
from forewarn.wire.hostfeed import HostFeedState, encode_document_line

__all__ = ["Declared", "DocumentChange", "HostWatch", "HostWatches", "Watcher"]

Declared = tuple[Sequence[VirtualMachine], tuple[Scope, ...]]
"""VMs of a host in the inventory, and their scopes."""

_NO_WATCHES: tuple[HostWatch, ...] = ()


class DocumentChange:
    """A changed document and its line in the stream, encoded once for all watchers."""

    def __init__(self, document: AudienceDocument) -> None:
        self.document = document

    @cached_property
    def encoded_line(self) -> bytes:
        """Encoded line for the stream to hosts."""
        return encode_document_line(self.document)


class Watcher(Protocol):
    """Takes the changes of a watch when it is woken."""

    def wake(self) -> None:
        """Take the changes soon; called once until they are taken."""


class HostWatch:
    """Changes that one watcher has not received yet.

    Args:
        host: Name of the host.
        watcher: Woken when there are changes.

    Attributes:
        host: Name of the host.
        declared: VMs of the host, with their scopes.
    """

    __slots__ = ("_is_woken", "_must_restart", "_waiting", "_watcher", "declared", "host")

    def __init__(self, host: str, watcher: Watcher) -> None:
        self.host = host
        self.declared: Declared = ((), ())
        self._watcher = watcher
        # None while nothing waits, as almost always: thousands of empty dictionaries would take more memory.
        self._waiting: dict[str, DocumentChange] | None = None
        self._must_restart = True
        # The watcher begins by taking changes, without being woken.
        self._is_woken = True

    @property
    def waiting_count(self) -> int | None:
        """Number of changed documents that the watcher has not taken; None if it has to take the full state."""
        if self._must_restart:
            return None
        waiting = self._waiting
        return 0 if waiting is None else len(waiting)

    def queue_change(self, change: DocumentChange) -> None:
        """Queue a changed document, in the place of an older one of its audience."""
        if self._waiting is None:
            self._waiting = {}
        self._waiting[change.document.audience.key] = change
        self._wake()

    def restart(self) -> None:
        """Discard queued changes and have the watcher start over: everything may have changed."""
        self._must_restart = True
        self._waiting = None
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._watcher.wake()

    def take_changes(self) -> list[DocumentChange] | None:
        """Take the queued changes; None if the watcher must start over with the full state."""
        self._is_woken = False
        waiting, self._waiting = self._waiting, None
        if self._must_restart:
            # The state is built after this, so it contains the changes that are dropped here.
            self._must_restart = False
            return None
        return [] if waiting is None else list(waiting.values())


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
        # Dictionaries and tuples, which keep the order: watchers are woken in the order in which they came.
        self._watches: dict[HostWatch, None] = {}
        self._by_host: dict[str, tuple[HostWatch, ...]] = {}
        # Only of audiences with several VMs. The only host of a standalone VM is found in the inventory: an entry for
        # each VM would take several times the memory of everything else that a watch holds.
        self._by_shared_audience: dict[str, dict[HostWatch, None]] = {}
        feed.listeners.append(self._queue_document)
        identity.listeners.append(self._restart_watches)

    def __len__(self) -> int:
        """Return the number of watches."""
        return len(self._watches)

    def begin_watch(self, host: str, watcher: Watcher) -> HostWatch:
        """Begin to watch a host; end it with `end_watch`.

        Raises:
            NotFound: There is no such host.
            LimitExceeded: There are too many watches already.
        """
        if host not in self._identity.hosts:
            raise NotFound(f"host {host!r} does not exist", hint=SEE_HOSTS, host=host)
        # Each watch holds a connection and a queue for as long as the host likes.
        if len(self._watches) >= self._watches_max:
            raise LimitExceeded(f"{len(self._watches)} endpoints watch already (watches_max)")
        watch = HostWatch(host, watcher)
        self._watches[watch] = None
        self._by_host[host] = (*self._by_host.get(host, ()), watch)
        self._add_watch(watch, self._read_declared(host))
        return watch

    def end_watch(self, watch: HostWatch) -> None:
        """End a watch. May be repeated."""
        if self._watches.pop(watch, watch) is watch:
            return
        rest = tuple(each for each in self._by_host[watch.host] if each is not watch)
        if rest:
            self._by_host[watch.host] = rest
        else:
            del self._by_host[watch.host]
        self._remove_watch(watch)

    def build_state(self, watch: HostWatch) -> HostFeedState:
        """Return the full current state of a watched host."""
        vms, scopes = watch.declared
        documents = (self._feed.find_document(key) for key in sorted(_list_audiences(watch.declared)))
        return HostFeedState(
            host=watch.host,
            position=self._position(),
            inventory=Inventory(hosts=(Host(name=watch.host),), scopes=scopes, vms=tuple(vms)),
            dialect=self._feed.dialect,
            first_answer_delay_s=self._first_answer_delay_s,
            documents=tuple(document for document in documents if document is not None),
        )

    def _read_declared(self, host: str) -> Declared:
        # Not copied: the identity replaces these lists, and never changes them.
        vms = self._identity.vms_of(host)
        names = {vm.scope for vm in vms if vm.scope is not None}
        return vms, tuple(self._identity.get_scope(name) for name in sorted(names))

    def _add_watch(self, watch: HostWatch, declared: Declared) -> None:
        watch.declared = declared
        for key in _list_shared_audiences(declared):
            self._by_shared_audience.setdefault(key, {})[watch] = None

    def _remove_watch(self, watch: HostWatch) -> None:
        for key in _list_shared_audiences(watch.declared):
            watches = self._by_shared_audience.get(key, {})
            watches.pop(watch, None)
            if not watches:
                self._by_shared_audience.pop(key, None)

    def _queue_document(self, document: AudienceDocument) -> None:
        watches = self._find_watches(document.audience.key)
        if watches:
            change = DocumentChange(document)
            for watch in watches:
                watch.queue_change(change)

    def _find_watches(self, key: str) -> Collection[HostWatch]:
        if not self._watches:
            return _NO_WATCHES
        vms, _ = split_audience_keys([key])
        if not vms:
            return self._by_shared_audience.get(key, _NO_WATCHES)
        found = self._identity.find_declared(vms[0])
        # The VM may have moved into a scope meanwhile, and its host then watches the scope's document instead.
        if found is None or audience_key(*found) != key:
            return _NO_WATCHES
        return self._by_host.get(found[0].host, _NO_WATCHES)

    def _restart_watches(self, delta: InventoryDelta | None) -> None:
        """Restart the watches of hosts whose declaration changed, and only those: the rest may be thousands."""
        if delta is None or delta.hosts is None:
            watches = list(self._watches)
        else:
            watches = [watch for host in delta.hosts for watch in self._by_host.get(host, ())]
        for watch in watches:
            declared = self._read_declared(watch.host)
            if declared == watch.declared:
                watch.declared = declared  # releases the memory of the previous inventory
                continue
            self._remove_watch(watch)
            self._add_watch(watch, declared)
            watch.restart()


def _list_audiences(declared: Declared) -> set[str]:
    """Return the keys of the audiences of a host's VMs."""
    vms, scopes = declared
    by_name = {scope.name: scope for scope in scopes}
    return {audience_key(vm, None if vm.scope is None else by_name[vm.scope]) for vm in vms}


def _list_shared_audiences(declared: Declared) -> set[str]:
    """Return the keys of those audiences that may have VMs on other hosts."""
    vms, scopes = declared
    if not scopes:
        return set()
    scoped = [vm for vm in vms if vm.scope is not None]
    _, names = split_audience_keys(_list_audiences((scoped, scopes)))
    return {f"scope:{name}" for name in names}
