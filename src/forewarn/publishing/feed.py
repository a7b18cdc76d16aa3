"""Documents as the endpoint serves them: encoded replies, and the requests that wait for the next ones.

A `Channel` belongs to one audience. The engine publishes into it after a commit. The first GET encodes the document for
all api-versions; from then on every GET of any VM of that audience is answered from these bytes (invariant 7 of the
design). A document that is never requested is never encoded, and while it is empty, it has not even a channel.
Publishing only wakes held requests; the source of truth is the store, from which a channel can be filled again at any
time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache

from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, MaintenanceState
from forewarn.publishing.idle_audiences import IdleAudiences
from forewarn.wire.imds import CONTENT_TYPE, Dialect, encode_documents

__all__ = ["Channel", "EncodedReply", "Feed"]

_PART = 1000


class EncodedReply:
    """One document in one api-version: its body, and the rest of the HTTP answer after the Date header.

    Attributes:
        body: Encoded document.
        keep_alive_bytes: Headers and body for a connection that stays open.
        closing_bytes: The same with ``connection: close`` (W3).
    """

    __slots__ = ("body", "closing_bytes", "keep_alive_bytes")

    def __init__(self, body: bytes, incarnation: int) -> None:
        self.body = body
        head = f'content-type: {CONTENT_TYPE}\r\netag: "{incarnation}"\r\ncontent-length: {len(body)}\r\n'.encode()
        self.keep_alive_bytes = head + b"\r\n" + body
        self.closing_bytes = head + b"connection: close\r\n\r\n" + body


class Channel:
    """Current document of one audience.

    Attributes:
        key: Key of the audience.
        is_enabled: True once a VM has asked (R67); while False there are no replies.
        last_polled_at: Time of the last request by one of its VMs, to the second; None if none since the start (R69).
        document: Current document, not encoded; None if no VM ever asked.
        settled: Ids of shown events for which another approval is known to change nothing (R49).
    """

    __slots__ = (
        "_former",
        "_listed",
        "_render",
        "_replies",
        "_waiters",
        "document",
        "epoch",
        "incarnation",
        "is_enabled",
        "key",
        "last_polled_at",
        "settled",
    )

    def __init__(self, key: str, render: Callable[[AudienceDocument], tuple[EncodedReply, ...]]) -> None:
        self._render = render
        self.key = key
        self.is_enabled = False
        self.epoch = 0
        self.incarnation = 0
        self._replies: tuple[EncodedReply, ...] | None = None
        self._former: AudienceDocument | None = None
        self.document: AudienceDocument | None = None
        self.last_polled_at: datetime | None = None
        self.settled: frozenset[str] = frozenset()
        self._listed: frozenset[str] = frozenset()
        # A dictionary, which keeps the order: waiters are released in the order in which they came. None, not an empty
        # one, which would take a third of the memory of a channel: few requests wait at a time.
        self._waiters: dict[asyncio.Future[None], None] | None = None

    @property
    def replies(self) -> tuple[EncodedReply, ...]:
        """One reply for each api-version, in the order of the dialect's versions; none while it is disabled."""
        if self._replies is None:
            self._replies = () if self.document is None else self._render(self.document)
        return self._replies

    @property
    def previous_replies(self) -> tuple[int, tuple[EncodedReply, ...]]:
        """Incarnation and replies of the previous document, for faults that show an outdated one."""
        former = self._former
        return (0, ()) if former is None else (former.audience.incarnation, self._render(former))

    def show_document(self, document: AudienceDocument) -> None:
        """Show a newer document and wake held requests; ignore an older one."""
        audience = document.audience
        # Commits here and changes read from the database may arrive in any order; VMs must never see a document go
        # back.
        if (audience.epoch, audience.incarnation) < (self.epoch, self.incarnation):
            return
        has_changed = (audience.epoch, audience.incarnation) != (self.epoch, self.incarnation)
        if has_changed:
            # Kept as it is, not encoded: only an injected fault ever shows it.
            self._former = self.document
        self.epoch, self.incarnation = audience.epoch, audience.incarnation
        self.is_enabled = audience.enabled_at is not None
        self._replies = None
        self.document = document
        self._listed = frozenset(event.id for event, _ in document.items)
        # Approving a Started event, or one that is approved, changes nothing (R49).
        started = {event.id for event, m in document.items if m.state is MaintenanceState.STARTED or event.is_settled}
        # Approvals known to be on disk stay known, for the events that are still listed.
        self.settled = frozenset(started | self.settled & self._listed)
        # A document published again unchanged leaves held requests waiting, as their clients have seen it.
        if has_changed or not self.is_enabled:
            self.wake_waiters()

    def mark_settled(self, event_ids: Iterable[str]) -> None:
        """Note that these approvals are on disk: clients that repeat them with every poll cause no more writes (W5)."""
        # Only ids of shown events, so that the set never outgrows the document.
        self.settled |= self._listed.intersection(event_ids)

    @property
    def current_document(self) -> AudienceDocument:
        """Current document; while the audience is disabled, one that says so."""
        gone = Audience(key=self.key, epoch=self.epoch, incarnation=self.incarnation)
        return self.document or AudienceDocument(audience=gone)

    @property
    def has_events(self) -> bool:
        """True if the current document shows events."""
        return bool(self._listed)

    @property
    def has_waiters(self) -> bool:
        """True if a request waits for the next document."""
        return bool(self._waiters)

    def find_unlisted(self, event_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the ids that the document does not show."""
        return tuple(event_id for event_id in event_ids if event_id not in self._listed)

    def disable(self) -> None:
        """Show nothing: the audience is disabled."""
        # Epoch and incarnation stay, so that a late, older document is still recognized as older.
        self.is_enabled = False
        self._replies = None
        self.document = None
        self.settled = self._listed = frozenset()
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake every held request."""
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def add_waiter(self) -> asyncio.Future[None]:
        """Return a future that is done when the document has changed. Release it with `remove_waiter`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None
        return waiter

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        """Release a future from `add_waiter`."""
        if self._waiters is not None:
            self._waiters.pop(waiter, None)


class Feed:
    """All channels of this process.

    Args:
        dialect: Variant of the protocol: its versions and their encoding.

    Attributes:
        documents_published: Number of documents published.
        listeners: Functions called with each published document, except the empty ones that the process begins with.
        begin_listeners: Functions called when the documents that the process begins with have been published.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.versions = dialect.list_versions()
        self._channels: dict[str, Channel] = {}
        # An audience is either here or has a channel.
        self._idle = IdleAudiences()
        self._render = self._encode_if_enabled  # one bound method for all channels
        self.documents_published = 0
        self.listeners: list[Callable[[AudienceDocument], None]] = []
        self.begin_listeners: list[Callable[[], None]] = []
        self._render_empty = lru_cache(maxsize=1024)(self._render_empty_once)

    def channel(self, key: str) -> Channel:
        """Return the channel of an audience, created on first use."""
        channel = self._channels.get(key)
        if channel is None:
            channel = Channel(key, self._render)
            audience = self._idle.get(key)
            if audience is not None:
                channel.last_polled_at = self._idle.last_polled_at(key)
                channel.show_document(AudienceDocument(audience=audience))
            # In this order, so that other threads find the audience at any time; see `find_document`.
            self._channels[key] = channel
            self._idle.pop(key)
        return channel

    def release_channel(self, key: str) -> bool:
        """Make an audience idle again, if its channel is no longer needed; return True if it was done.

        Only an enabled audience with an empty document for which no request waits becomes idle, so that nothing of it
        is lost. Nothing else may hold the channel: it shows no later document.
        """
        channel = self._channels.get(key)
        if channel is None or not channel.is_enabled or channel.has_events or channel.has_waiters:
            return False
        self._idle.put(channel.current_document.audience)
        if channel.last_polled_at is not None:
            self._idle.merge_polls({key: channel.last_polled_at})
        # Last, as in `channel`.
        del self._channels[key]
        return True

    def publish_documents(self, documents: Iterable[AudienceDocument]) -> None:
        """Show committed documents."""
        for document in documents:
            if document.items or document.audience.key in self._channels:
                self.channel(document.audience.key).show_document(document)
            else:
                self._idle.put(document.audience)
            self.documents_published += 1
            for listener in self.listeners:
                listener(document)

    def is_new(self, document: AudienceDocument) -> bool:
        """Return whether the audience is shown something else now."""
        shown, audience = self.find_audience(document.audience.key), document.audience
        if shown is None or (shown.enabled_at is None) != (audience.enabled_at is None):
            return True
        return (shown.epoch, shown.incarnation) != (audience.epoch, audience.incarnation)

    def wake_audiences(self, keys: Iterable[str]) -> None:
        """Wake every held request of these audiences, though nothing has changed."""
        for key in keys:
            if key in self._channels:
                self._channels[key].wake_waiters()

    def replace_documents(self, documents: Iterable[AudienceDocument], idle: IdleAudiences | None = None) -> None:
        """Show exactly these documents; an audience without one is disabled.

        Args:
            documents: Documents.
            idle: Enabled audiences that see an empty document, in addition to those of `documents`. The feed owns them
                from now on.
        """
        idle = IdleAudiences() if idle is None else idle
        begins = not self._channels and not self._idle
        if begins:
            # As they are: to publish a million documents takes seconds.
            self._idle = idle
            self.documents_published += len(idle)
        else:
            empty = (AudienceDocument(audience=audience) for audience in idle)
            self.publish_documents(document for document in empty if self.is_new(document))
        shown = list(documents)
        self.publish_documents(shown)
        keys = {document.audience.key for document in shown}
        gone = [] if self._idle is idle else self._idle.disable_others(keys, idle)
        for key, channel in self._channels.items():
            if channel.is_enabled and key not in keys and key not in idle:
                channel.disable()
                gone.append(channel.current_document.audience)
        for audience in gone:
            for listener in self.listeners:
                listener(AudienceDocument(audience=audience))
        if begins:
            for begun in self.begin_listeners:
                begun()

    def last_polls(self) -> dict[str, datetime]:
        """Return the time of each enabled audience's last request, as far as this process knows."""
        return dict(itertools.chain.from_iterable(part.items() for part in self.last_polls_in_parts(_PART)))

    def last_polls_in_parts(self, size: int) -> Iterator[dict[str, datetime]]:
        """Yield the same in parts of at most `size` audiences, so that other work can run in between."""
        # A copy, since channels may be added between two parts.
        channels = iter(list(self._channels.values()))
        while part := list(itertools.islice(channels, size)):
            yield {c.key: c.last_polled_at for c in part if c.last_polled_at is not None and c.is_enabled}
        polls = self._idle.iter_polls()
        while idle := dict(itertools.islice(polls, size)):
            yield idle

    def last_polled_at(self, key: str) -> datetime | None:
        """Return the time of the audience's last request; None if unknown."""
        channel = self._channels.get(key)
        return self._idle.last_polled_at(key) if channel is None else channel.last_polled_at

    def find_audience(self, key: str) -> Audience | None:
        """Return the audience as of its current document; None if it has none. Safe on any thread."""
        idle, channel = self._find(key)
        if channel is None or (channel.document is None and channel.epoch == 0):
            return idle
        return channel.current_document.audience

    def find_document(self, key: str) -> AudienceDocument | None:
        """Return the current document of an audience; None if no VM of it ever asked. Safe on any thread."""
        idle, channel = self._find(key)
        if idle is not None:
            return AudienceDocument(audience=idle)
        return None if channel is None else channel.document

    def _find(self, key: str) -> tuple[Audience | None, Channel | None]:
        """Return the idle audience or the channel; both None if there is neither."""
        idle = self._idle.get(key)
        if idle is not None:
            return idle, None
        channel = self._channels.get(key)
        # Between the two look-ups the event loop may have released the channel.
        return (None, channel) if channel is not None else (self._idle.get(key), None)

    def encode_document(self, document: AudienceDocument) -> tuple[EncodedReply, ...]:
        """Return one reply for each api-version, as `Channel.replies`."""
        return self._render(document)

    def merge_polls(self, moments: Mapping[str, datetime]) -> None:
        """Take over times of requests answered by another process."""
        for key, moment in moments.items():
            channel = self._channels.get(key)
            # Reports of another process may be older than what is known here; the time never goes back.
            if channel is not None and (channel.last_polled_at is None or channel.last_polled_at < moment):
                channel.last_polled_at = moment
        self._idle.merge_polls(moments)

    def all_documents(self) -> list[AudienceDocument]:
        """Return each audience's document; for a disabled audience, a document that says so."""
        shown = [c.current_document for c in self._channels.values() if c.document is not None or c.epoch > 0]
        return shown + [AudienceDocument(audience=audience) for audience in self._idle]

    @property
    def enabled_count(self) -> int:
        """Number of enabled audiences."""
        return self._idle.enabled_count + sum(channel.is_enabled for channel in self._channels.values())

    def _encode_if_enabled(self, document: AudienceDocument) -> tuple[EncodedReply, ...]:
        if document.audience.enabled_at is None:
            return ()
        incarnation = document.audience.incarnation
        if not document.items:
            return self._render_empty(incarnation)
        return self._encode_versions(document)

    def _render_empty_once(self, incarnation: int) -> tuple[EncodedReply, ...]:
        """Encode an empty document: most documents are empty, and those of one incarnation share their bytes."""
        return self._encode_versions(AudienceDocument(audience=Audience(key="", incarnation=incarnation)))

    def _encode_versions(self, document: AudienceDocument) -> tuple[EncodedReply, ...]:
        """Encode a document for all api-versions; equal encodings share one reply."""
        bodies = encode_documents(document, self.versions, self.dialect)
        replies = {body: EncodedReply(body, document.audience.incarnation) for body in set(bodies)}
        return tuple(replies[body] for body in bodies)
