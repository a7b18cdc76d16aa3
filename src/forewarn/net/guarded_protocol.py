"""uvicorn's protocol with limits on unauthenticated clients.

It limits the size of the request line with its headers, the bytes that belong to no body (trailers, chunk extensions),
and the number of pipelined requests. The listener supplies the response to a malformed request. The listener also
limits the duration of a request: it checks `GuardedProtocol.is_receiving` from time to time.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

__all__ = ["GuardedProtocol", "RefusalReason"]

# uvicorn stops reading while a request waits, but a single read may hold thousands of short ones.
_PIPELINE_MAX = 64
# So far below zero that no body raises the count of unparsed bytes above its limit.
_IN_BODY = -(1 << 62)


class RefusalReason(Enum):
    """Reason for refusing a connection before the app sees a request."""

    MALFORMED = auto()
    TOO_LARGE = auto()
    TOO_SLOW = auto()
    BUSY = auto()
    TOO_OFTEN = auto()


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with its parsing state exposed, and with limits on headers and pipelining.

    Attributes:
        is_receiving: True while a request has begun and not yet arrived in full.
        requests_begun: Number of requests that have begun.
        stays_open: True if the last request leaves the connection open.
        header_size_bytes_max: Maximum size of the request line with headers.
        pipeline_max: Maximum number of requests that wait behind the one being answered.
    """

    is_receiving = False
    requests_begun = 0
    stays_open = True
    header_size_bytes_max = 16 << 10
    pipeline_max = _PIPELINE_MAX
    _unparsed_bytes = 0
    _head_bytes = 0
    _header_bytes = 0
    _bodiless_bytes = 0
    _trailer_bytes = 0
    _refusal_reason = RefusalReason.MALFORMED
    _running_cycle: RequestResponseCycle | None = None

    def send_refusal(self, reason: RefusalReason) -> None:
        """Send the response for this fault and close."""
        raise NotImplementedError

    def refuse_slow_request(self) -> None:
        """Refuse the arriving request; only close if the client would take the refusal for an older response."""
        if not self.transport.is_closing() and self.is_answerable:
            self.send_refusal(RefusalReason.TOO_SLOW)
        else:
            self.transport.close()

    def is_throttled(self) -> bool:
        """Return True if the request whose headers have arrived is to be refused without calling the app."""
        return False

    @property
    def is_idle(self) -> bool:
        """True if no request is arriving, being answered, or waiting."""
        return (
            not self.is_receiving and not self.pipeline and (self.cycle is None or self.cycle.response_complete)  # type: ignore[redundant-expr] # it is None at first
        )

    @property
    def is_in_body(self) -> bool:
        """True if the headers of the arriving request are complete and its body is not."""
        return self._unparsed_bytes < 0

    @property
    def held_bytes(self) -> int:
        """Number of bytes held for the newest request until it is answered."""
        if self.is_receiving and not self.is_in_body:
            return self._unparsed_bytes
        is_answered = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr] # as above
        return 0 if is_answered else self._head_bytes + len(self.cycle.body)

    @property
    def has_complete_request(self) -> bool:
        """True if a request that has arrived in full waits for its response."""
        if self.is_receiving and self.is_in_body:
            return bool(self.pipeline)  # the arriving request is the newest one
        if self.is_receiving:
            return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr] # as above
        return not self.is_idle

    @property
    def is_answerable(self) -> bool:
        """True if the client would match a response written now to the arriving request, not to an older one."""
        if not self.is_in_body:
            return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr] # as above
        return not self.pipeline and not self.cycle.response_started

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        self._bodiless_bytes += len(data)
        super().data_received(data)
        # The parser reports a header only when it is complete, so `on_header` never sees one that does not end.
        has_too_much = max(self._unparsed_bytes, self._bodiless_bytes) > self.header_size_bytes_max
        if self.is_receiving and has_too_much and not self.transport.is_closing():
            self._refusal_reason = RefusalReason.TOO_LARGE
            self.send_400_response("")

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the request being answered, too: uvicorn notifies only the newest one."""
        self.pipeline.clear()
        if self._running_cycle is not None:
            self._running_cycle.disconnected = True
            self._running_cycle.message_event.set()
        super().connection_lost(exc)
        self._drop_references()

    def detach(self) -> None:
        """Forget the connection: another protocol has taken it over."""
        self.pipeline.clear()
        self.parser = None  # type: ignore[assignment] # as uvicorn does it when the connection is lost
        self.cycle = None  # type: ignore[assignment] # its request refers to this connection
        self._running_cycle = None
        self._drop_references()

    def _drop_references(self) -> None:
        # These are no longer read, and they form reference cycles. Dropping them frees the memory of a flood of
        # connections at once, without the garbage collector.
        self.headers: list[tuple[bytes, bytes]] = []
        self.app_state, self.scope = {}, {}  # type: ignore[typeddict-item] # see above

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        self.is_receiving = True
        self.requests_begun += 1
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_in_body:
            self._header_bytes += len(name) + len(value) + 4
            if self._header_bytes > self.header_size_bytes_max:
                self._refusal_reason = RefusalReason.TOO_LARGE
                raise ValueError("headers are too large")  # the parser turns it into `send_400_response`
            super().on_header(name, value)
            return
        # A trailer: uvicorn would append it to the headers, which the app has already read.
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self.header_size_bytes_max:
            self._refusal_reason = RefusalReason.TOO_LARGE
            raise ValueError("trailers are too large")

    def on_headers_complete(self) -> None:
        size_bytes = len(self.url) + self._header_bytes
        if size_bytes > self.header_size_bytes_max:
            self._refusal_reason = RefusalReason.TOO_LARGE
            raise ValueError("headers are too large")
        if len(self.pipeline) >= self.pipeline_max:
            raise ValueError("too many requests at once")
        if self.is_throttled():
            self._refusal_reason = RefusalReason.TOO_OFTEN
            raise ValueError("too many requests were refused")
        super().on_headers_complete()
        self._unparsed_bytes = _IN_BODY  # the reader of the body limits its size
        self._bodiless_bytes = 0
        self._head_bytes = size_bytes
        self._trailer_bytes = 0
        self.stays_open = self.cycle.keep_alive

    def on_body(self, body: bytes) -> None:
        self._bodiless_bytes = 0  # counts only bytes outside the body: trailers, chunk extensions
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.is_receiving = False
        self._unparsed_bytes = 0
        self._bodiless_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the listener closes idle connections
        if self.flow.write_paused:
            self.transport.pause_reading()  # uvicorn has just resumed it, although the client does not read

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature; the answer is the listener's
        """Refuse a malformed request; earlier requests are answered first, and the last response closes."""
        if self.is_answerable:
            self.send_refusal(self._refusal_reason)
        elif not self.is_in_body:
            self.cycle.keep_alive = False
            # Nothing more is parsed; a request that still counted as arriving would time out and cut off that response.
            self.is_receiving = False
        else:
            self.transport.close()
