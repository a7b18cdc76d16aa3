"""Who watches which host's documents: each change goes to the watchers of the hosts whose VMs it concerns.

A watcher is told of the newest document of each audience, and may have missed those before it. So what waits for a slow
one is bounded by how many audiences its host has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from forewarn.core.decision import Document
from forewarn.core.inventory import Inventory
from forewarn.core.model import Host
from forewarn.errors import LimitExceeded, NotFound
from forewarn.feed import Feed
from forewarn.identity import Identity
from forewarn.wire.hostfeed import HostState

__all__ = ["Hub", "Watch"]


class Watch:
    """What one watcher has yet to hear.

    Attributes:
        host: Whose documents it watches.
        audiences: The keys of these.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.audiences: frozenset[str] = frozenset()
        self._waiting: dict[str, Document] = {}
        self._is_anew = True
        self._woken = asyncio.Event()

    def tell(self, document: Document) -> None:
        """A document has changed."""
        self._waiting[document.audience.key] = document
        self._woken.set()

    def begin_anew(self) -> None:
        """Everything may have changed."""
        self._is_anew = True
        self._waiting.clear()
        self._woken.set()

    async def wait(self, timeout_s: float) -> bool:
        """Until there is something to hear; hands back whether there is."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> list[Document] | None:
        """What there is to hear; None: everything, from the beginning."""
        self._woken.clear()
        documents, self._waiting = list(self._waiting.values()), {}
        if self._is_anew:
            self._is_anew = False
            return None
        return documents


class Hub:
    """All watchers of this process.

    Args:
        feed: Tells of documents.
        identity: Tells whose they are.
        first_answer_delay_s: How long enabling GETs are held, for the endpoints (R67).
        position: Tells up to which change this process has seen everything.
        watches_max: How many there may be.
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
        self._watches: set[Watch] = set()
        self._by_audience: dict[str, set[Watch]] = {}
        feed.listeners.append(self._tell)
        identity.listeners.append(self._begin_anew)

    def __len__(self) -> int:
        """How many watch."""
        return len(self._watches)

    def watch(self, host: str) -> Watch:
        """Begin to watch a host; end it with `forget`.

        Raises:
            NotFound: There is no such host.
            LimitExceeded: Too many watch already.
        """
        if host not in self._identity.hosts:
            msg = f"host {host!r} does not exist: see 'forewarn host list'"
            raise NotFound(msg, host=host)
        if len(self._watches) >= self._watches_max:
            msg = f"{len(self._watches)} endpoints watch already (watches_max)"
            raise LimitExceeded(msg)
        watch = Watch(host)
        self._watches.add(watch)
        self._enter(watch)
        return watch

    def forget(self, watch: Watch) -> None:
        """It watches no more."""
        self._watches.discard(watch)
        self._leave(watch)

    def state(self, watch: Watch) -> HostState:
        """All that there is to know about a host now."""
        vms = tuple(self._identity.vms_of(watch.host))
        names = {vm.scope for vm in vms if vm.scope is not None}
        scopes = tuple(self._identity.scope(name) for name in sorted(names))
        channels = [self._feed.channel(key) for key in sorted(watch.audiences)]
        return HostState(
            host=watch.host,
            position=self._position(),
            inventory=Inventory(hosts=(Host(name=watch.host),), scopes=scopes, vms=vms),
            dialect=self._feed.dialect,
            first_answer_delay_s=self._first_answer_delay_s,
            documents=tuple(channel.document for channel in channels if channel.document is not None),
        )

    def _enter(self, watch: Watch) -> None:
        watch.audiences = frozenset(self._audiences(watch.host))
        for key in watch.audiences:
            self._by_audience.setdefault(key, set()).add(watch)

    def _leave(self, watch: Watch) -> None:
        for key in watch.audiences:
            watches = self._by_audience.get(key, set())
            watches.discard(watch)
            if not watches:
                self._by_audience.pop(key, None)

    def _audiences(self, host: str) -> Iterable[str]:
        return (self._identity.audience(vm.name) for vm in self._identity.vms_of(host))

    def _tell(self, document: Document) -> None:
        for watch in self._by_audience.get(document.audience.key, ()):
            watch.tell(document)

    def _begin_anew(self) -> None:
        for watch in self._watches:
            self._leave(watch)
            self._enter(watch)
            watch.begin_anew()
