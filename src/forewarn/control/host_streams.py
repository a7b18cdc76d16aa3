"""Streams of lines to the endpoints on hosts: first the full state, then each changed document, and `alive` in between.

There may be thousands of them, for days. So a stream has no task and no timer: a change queues the stream to be
written, and one task writes the `alive` lines of all streams and checks the tokens that they began with.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextvars import copy_context
from datetime import datetime
from operator import attrgetter
from typing import Protocol

import structlog

from forewarn.control.admission import WatchCharge
from forewarn.control.stream_connection import StreamConnection, StreamSource
from forewarn.core.access import Principal
from forewarn.errors import ForewarnError
from forewarn.publishing.host_watch import HostWatch, HostWatches
from forewarn.wire.hostfeed import ALIVE, encode_state_line

__all__ = ["HostStream", "HostStreams", "StreamableConnection"]

_log = structlog.get_logger("forewarn.control")

# The endpoint on a host connects again after 15 s of silence, so a line may be late without harm.
_ALIVE_S = 5.0
_GROUPS = 20
"""Number of groups of streams. The groups take turns, so that no turn writes to all streams."""

_CHECKED_TURNS = 12
"""Turns of a group after which its tokens are checked again: a minute."""

_WRITTEN_AT_ONCE = 64
"""Streams written before the event loop handles other work."""


class StreamableConnection(Protocol):
    """A connection whose response in progress can become a stream; see `ListenerConnection.begin_stream`."""

    def begin_stream(self, source: StreamSource) -> StreamConnection | None:
        """Have the rest of the response written by the source; return None if the client is gone."""


class HostStream:
    """Stream to the endpoint on one host.

    Args:
        streams: Streams to which this one belongs.
        host: Name of the host.
        caller: Caller whose token the stream began with.
        charge: Charge to the caller's account; None if there is none.
        version: Version of the endpoint; empty if it does not say.
        began_at: Time at which the stream began; None if unknown.

    Attributes:
        caller: As above.
        version: As above.
        began_at: As above.
        group: Group of the stream, from 0.

    Raises:
        NotFound: There is no such host.
        LimitExceeded: There are too many watches already.
    """

    __slots__ = ("_charge", "_connection", "_streams", "_watch", "began_at", "caller", "group", "version")

    def __init__(  # noqa: PLR0913 - the facts of one stream
        self,
        streams: HostStreams,
        host: str,
        caller: Principal,
        charge: WatchCharge | None,
        *,
        version: str = "",
        began_at: datetime | None = None,
    ) -> None:
        self._streams = streams
        self._charge = charge
        self._connection: StreamConnection | None = None
        self._watch: HostWatch = streams.hub.begin_watch(host, self)
        self.caller = caller
        self.version = version
        self.began_at = began_at
        self.group = 0

    @property
    def host(self) -> str:
        """Name of the host."""
        return self._watch.host

    @property
    def waiting_count(self) -> int | None:
        """Number of changed documents that were not written yet; None if the full state has to be written."""
        return self._watch.waiting_count

    @property
    def is_writable(self) -> bool:
        """True if the client takes what is written."""
        return self._connection is not None and self._connection.is_writable

    def begin(self, connection: StreamableConnection) -> None:
        """Begin to write lines; the head of the response is written. Ends the stream if the client is gone."""
        self._connection = connection.begin_stream(self)
        if self._connection is None:
            self.close()
            return
        if self._charge is not None:
            self._charge.keep(self.end)
        self._streams.add_stream(self)
        self.write_changes()

    def wake(self) -> None:
        """Have the changes of the watch written soon."""
        self._streams.queue_stream(self)

    def resume(self) -> None:
        """Write what is waiting, now that the client has taken what was written."""
        self._streams.queue_stream(self)

    def write_changes(self) -> None:
        """Write the lines that the host has not received; nothing while the client does not take them."""
        if self._connection is None or not self._connection.is_writable:
            return
        changes = self._watch.take_changes()
        if changes is None:
            self._connection.write(encode_state_line(self._streams.hub.build_state(self._watch)))
        elif changes:
            self._connection.write(b"".join(change.encoded_line for change in changes))

    def write_alive(self) -> None:
        """Write a line that says only that the service is alive."""
        if self._connection is not None and self._connection.is_writable:
            self._connection.write(ALIVE)

    def end(self) -> None:
        """End the response and forget the stream."""
        connection = self._connection
        self.close()
        if connection is not None:
            connection.finish()

    def close(self) -> None:
        """Forget the stream. May be repeated."""
        self._connection = None
        self._streams.remove_stream(self)
        self._streams.hub.end_watch(self._watch)
        if self._charge is not None:
            self._charge.release()


class HostStreams:
    """All streams to hosts of this process.

    Args:
        hub: Watches of hosts.
        find_invalid: Returns those of these callers whose token was revoked or has expired.
    """

    def __init__(
        self, hub: HostWatches, find_invalid: Callable[[Collection[Principal]], Awaitable[Collection[Principal]]]
    ) -> None:
        self.hub = hub
        self._find_invalid = find_invalid
        # The context of the service, for all that outlives the request or the change that starts it.
        self._context = copy_context()
        # Dictionaries, which keep the order.
        self._groups: list[dict[HostStream, None]] = [{} for _ in range(_GROUPS)]
        self._turn = 0
        self._queue: deque[HostStream] = deque()
        self._is_writing = False
        self._has_ended = False
        self._unchecked: dict[HostStream, None] = {}
        self._alive_task: asyncio.Task[None] | None = None
        self._check_task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Return the number of streams."""
        return sum(len(group) for group in self._groups)

    def list_streams(self) -> list[HostStream]:
        """Return the streams by the name of the host."""
        return sorted((stream for group in self._groups for stream in group), key=attrgetter("host"))

    def add_stream(self, stream: HostStream) -> None:
        """Add a stream that has begun."""
        if self._has_ended:
            stream.end()
            return
        # The group whose turn has just passed: the next one comes when an `alive` line is due.
        stream.group = (self._turn - 1) % _GROUPS
        self._groups[stream.group][stream] = None
        if self._alive_task is None or self._alive_task.done():
            self._alive_task = asyncio.create_task(self._keep_alive(), context=self._context)

    def remove_stream(self, stream: HostStream) -> None:
        """Remove a stream that has ended. May be repeated."""
        self._groups[stream.group].pop(stream, None)

    def queue_stream(self, stream: HostStream) -> None:
        """Have the changes of a stream written soon."""
        self._queue.append(stream)
        if not self._is_writing:
            self._is_writing = True
            self._schedule_writing()

    def end_all(self) -> None:
        """End every stream, and each new one, because the service stops."""
        self._has_ended = True
        for group in self._groups:
            for stream in list(group):
                stream.end()
        for task in (self._alive_task, self._check_task):
            if task is not None:
                task.cancel()

    def _schedule_writing(self) -> None:
        asyncio.get_running_loop().call_soon(self._write_some, context=self._context)

    def _write_some(self) -> None:
        for _ in range(min(len(self._queue), _WRITTEN_AT_ONCE)):
            self._write(self._queue.popleft(), HostStream.write_changes)
        if self._queue:
            self._schedule_writing()
        else:
            self._is_writing = False

    def _write(self, stream: HostStream, write: Callable[[HostStream], None]) -> None:
        try:
            write(stream)
        except Exception:  # noqa: BLE001 - one stream must not end the others
            _log.exception("cannot write to the endpoint on a host")
            stream.end()

    async def _keep_alive(self) -> None:
        """Write `alive` lines and check tokens, one group after another, until there are no streams."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while len(self):
            due_s += _ALIVE_S / _GROUPS
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            turn, self._turn = self._turn, self._turn + 1
            group = turn % _GROUPS
            streams = list(self._groups[group])
            for stream in streams:
                self._write(stream, HostStream.write_alive)
            if streams and turn // _GROUPS % _CHECKED_TURNS == group % _CHECKED_TURNS:
                self._check_tokens(streams)

    def _check_tokens(self, streams: list[HostStream]) -> None:
        self._unchecked.update(dict.fromkeys(streams))
        if self._check_task is None or self._check_task.done():
            self._check_task = asyncio.create_task(self._end_invalid(), context=self._context)

    async def _end_invalid(self) -> None:
        while self._unchecked:
            streams, self._unchecked = self._unchecked, {}
            try:
                invalid = await self._find_invalid({stream.caller for stream in streams})
            except ForewarnError as error:
                # Hosts keep their streams during an outage of the database, in which no token is revoked either.
                _log.warning("cannot check the tokens of hosts", error=error.message)
                continue
            for stream in streams:
                if stream.caller in invalid:
                    stream.end()
