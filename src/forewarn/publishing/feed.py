"""The documents as the endpoint serves them: ready-made bytes, and who waits for the next ones.

A `Channel` belongs to one audience. The engine publishes into it after a commit. The first who asks has the bytes
made, for all api-versions; from then on every GET of any VM of that audience is answered from them (invariant 7 of the
design). A document that nobody asks for is never encoded. Publishing is a hint to whoever waits, the store is the
truth: a channel can be filled anew from it at any time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache

from forewarn.core.decision import Document
from forewarn.core.model import Audience, MaintenanceState
from forewarn.wire.imds import CONTENT_TYPE, Dialect, encode_documents

__all__ = ["Channel", "Feed", "Reply"]


class Reply:
    """One version of one document: its body, and the whole tail of the HTTP answer after the Date header.

    Attributes:
        body: The bytes of the document.
        kept: Headers and body for a connection that stays open.
        closed: The same with ``connection: close`` (W3).
    """

    __slots__ = ("body", "closed", "kept")

    def __init__(self, body: bytes, incarnation: int) -> None:
        self.body = body
        head = f'content-type: {CONTENT_TYPE}\r\netag: "{incarnation}"\r\ncontent-length: {len(body)}\r\n'.encode()
        self.kept = head + b"\r\n" + body
        self.closed = head + b"connection: close\r\n\r\n" + body


class Channel:
    """What one audience is shown now.

    Attributes:
        key: The audience's key.
        is_enabled: Whether anybody asked yet (R67); while False there are no replies.
        asked_at: When a VM of it last asked, to the second; None if not since the service started (R69).
        document: What is shown, before it was encoded; None if nobody ever asked.
        settled: Ids of shown events for which another approval is known to change nothing (R49).
    """

    __slots__ = (
        "_former",
        "_listed",
        "_render",
        "_replies",
        "_waiters",
        "asked_at",
        "document",
        "epoch",
        "incarnation",
        "is_enabled",
        "key",
        "settled",
    )

    def __init__(self, key: str, render: Callable[[Document], tuple[Reply, ...]]) -> None:
        self._render = render
        self.key = key
        self.is_enabled = False
        self.epoch = 0
        self.incarnation = 0
        self._replies: tuple[Reply, ...] | None = None
        self._former: Document | None = None
        self.document: Document | None = None
        self.asked_at: datetime | None = None
        self.settled: frozenset[str] = frozenset()
        self._listed: frozenset[str] = frozenset()
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def replies(self) -> tuple[Reply, ...]:
        """One for each api-version, in the order of the dialect's versions; none while it is disabled."""
        if self._replies is None:
            self._replies = () if self.document is None else self._render(self.document)
        return self._replies

    @property
    def before(self) -> tuple[int, tuple[Reply, ...]]:
        """The incarnation and the replies before these; for whoever is to be shown an older document."""
        former = self._former
        return (0, ()) if former is None else (former.audience.incarnation, self._render(former))

    def show(self, document: Document) -> None:
        """Take over a newer document and wake everybody who waits for one; an older one is ignored."""
        audience = document.audience
        if (audience.epoch, audience.incarnation) < (self.epoch, self.incarnation):
            return
        has_changed = (audience.epoch, audience.incarnation) != (self.epoch, self.incarnation)
        if has_changed:
            self._former = self.document
        self.epoch, self.incarnation = audience.epoch, audience.incarnation
        self.is_enabled = audience.enabled_at is not None
        self._replies = None
        self.document = document
        self._listed = frozenset(event.id for event, _ in document.items)
        started = {event.id for event, m in document.items if m.state is MaintenanceState.STARTED or event.is_settled}
        self.settled = frozenset(started | self.settled & self._listed)
        if has_changed or not self.is_enabled:
            self.wake()

    def settle(self, event_ids: Iterable[str]) -> None:
        """An approval of these is on disk: the next one, with every poll of some clients, need not go there (W5)."""
        self.settled |= self._listed.intersection(event_ids)

    def unlisted(self, event_ids: Iterable[str]) -> tuple[str, ...]:
        """Those of the ids that the document does not show."""
        return tuple(event_id for event_id in event_ids if event_id not in self._listed)

    def hide(self) -> None:
        """Show nothing: the audience is disabled."""
        self.is_enabled = False
        self._replies = None
        self.document = None
        self.settled = self._listed = frozenset()
        self.wake()

    def wake(self) -> None:
        """Let every held request look again."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def hold(self) -> asyncio.Future[None]:
        """A future that is done when the document has changed. Give it back with `let_go`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        return waiter

    def let_go(self, waiter: asyncio.Future[None]) -> None:
        """Forget a future of `hold`."""
        self._waiters.discard(waiter)


class Feed:
    """All channels of this process.

    Args:
        dialect: Decides the versions and their bytes.

    Attributes:
        documents_published: How many.
        listeners: Told of each document that was published.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.versions = dialect.versions()
        self._channels: dict[str, Channel] = {}
        self.documents_published = 0
        self.listeners: list[Callable[[Document], None]] = []
        self._render_empty = lru_cache(maxsize=1024)(self._render_empty_once)

    def channel(self, key: str) -> Channel:
        """The channel of an audience; made when there is none yet."""
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(key, self._render)
        return channel

    def publish(self, documents: Iterable[Document]) -> None:
        """Show committed documents."""
        for document in documents:
            self.channel(document.audience.key).show(document)
            self.documents_published += 1
            for listener in self.listeners:
                listener(document)

    def is_new(self, document: Document) -> bool:
        """Whether its audience is shown something else now."""
        audience, channel = document.audience, self._channels.get(document.audience.key)
        if channel is None or channel.is_enabled != (audience.enabled_at is not None):
            return True
        return (channel.epoch, channel.incarnation) != (audience.epoch, audience.incarnation)

    def wake(self, keys: Iterable[str]) -> None:
        """Let every held request of these audiences look again, though nothing has changed."""
        for key in keys:
            if key in self._channels:
                self._channels[key].wake()

    def reload(self, documents: Iterable[Document]) -> None:
        """Show exactly these documents; an audience without one is disabled."""
        keys = set()
        for document in documents:
            self.publish([document])
            keys.add(document.audience.key)
        for key, channel in self._channels.items():
            if channel.is_enabled and key not in keys:
                channel.hide()
                gone = Document(audience=Audience(key=key, epoch=channel.epoch, incarnation=channel.incarnation))
                for listener in self.listeners:
                    listener(gone)

    def asked(self) -> dict[str, datetime]:
        """When each enabled audience last asked, as far as known in this process."""
        return {key: c.asked_at for key, c in self._channels.items() if c.asked_at is not None and c.is_enabled}

    def asked_in_parts(self, size: int) -> Iterator[dict[str, datetime]]:
        """The same of at most so many audiences at a time, for those who do something else in between."""
        channels = iter(list(self._channels.values()))
        while part := list(itertools.islice(channels, size)):
            yield {c.key: c.asked_at for c in part if c.asked_at is not None and c.is_enabled}

    def asked_at(self, key: str) -> datetime | None:
        """When that audience last asked."""
        channel = self._channels.get(key)
        return None if channel is None else channel.asked_at

    def audience(self, key: str) -> Audience | None:
        """That audience as it was shown last, for any thread; None where it was shown nothing yet."""
        channel = self._channels.get(key)
        document = None if channel is None else channel.document
        return None if document is None else document.audience

    def hear(self, moments: Mapping[str, datetime]) -> None:
        """Take over when audiences asked in another process."""
        for key, moment in moments.items():
            channel = self._channels.get(key)
            if channel is not None and (channel.asked_at is None or channel.asked_at < moment):
                channel.asked_at = moment

    def all_documents(self) -> list[Document]:
        """What each audience is shown; one that was disabled is shown a document that says so."""
        return [
            channel.document
            or Document(audience=Audience(key=key, epoch=channel.epoch, incarnation=channel.incarnation))
            for key, channel in self._channels.items()
            if channel.document is not None or channel.epoch > 0
        ]

    @property
    def enabled_count(self) -> int:
        """How many audiences are enabled."""
        return sum(channel.is_enabled for channel in self._channels.values())

    def _render(self, document: Document) -> tuple[Reply, ...]:
        if document.audience.enabled_at is None:
            return ()
        incarnation = document.audience.incarnation
        if not document.items:
            return self._render_empty(incarnation)
        return self._encode(document)

    def _render_empty_once(self, incarnation: int) -> tuple[Reply, ...]:
        """Most documents are empty most of the time, and equal ones share their bytes."""
        return self._encode(Document(audience=Audience(key="", incarnation=incarnation)))

    def _encode(self, document: Document) -> tuple[Reply, ...]:
        """Versions that show the same share their bytes too."""
        bodies = encode_documents(document, self.versions, self.dialect)
        replies = {body: Reply(body, document.audience.incarnation) for body in set(bodies)}
        return tuple(replies[body] for body in bodies)
