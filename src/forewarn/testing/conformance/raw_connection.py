"""One TCP connection to an endpoint: sends raw bytes, and reads answers with h11."""

from __future__ import annotations

import errno
import os
import socket
import time
from dataclasses import dataclass

import h11

from forewarn.errors import EndpointUnreachable
from forewarn.testing.conformance.raw_reply import RawReply
from forewarn.testing.conformance.raw_request import RawRequest

__all__ = ["EndpointAddress", "RawConnection"]

_HEAD_BYTES_MAX = 64 << 10
_BODY_BYTES_MAX = 16 << 20
_RECEIVED_BYTES = 1 << 16
_CONTINUE_WAIT_S = 1.0
# Bytes beyond the answer mostly arrive with it. This wait adds up over some 400 requests.
_SURPLUS_WAIT_S = 0.001


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Address of an endpoint.

    Attributes:
        host: Name or address.
        port: Port for plain HTTP.
        prefix: Prefix of its paths; mostly empty.
        source_address: Local address to send from; None for the system's choice.
    """

    host: str
    port: int
    prefix: str = ""
    source_address: str | None = None

    @property
    def netloc(self) -> str:
        """Value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"  # noqa: PLR2004 - the port of HTTP

    @property
    def url(self) -> str:
        """URL of the endpoint."""
        return f"http://{self.netloc}{self.prefix}"


class RawConnection:
    """A connection; requests and answers alternate on it.

    Args:
        address: Address of the endpoint.
        timeout_s: Time limit for the connection, and for each complete answer.

    Raises:
        EndpointUnreachable: There is no connection.
    """

    def __init__(self, address: EndpointAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._unread_bytes = b""
        source = None if address.source_address is None else (address.source_address, 0)
        try:
            self._sock = socket.create_connection((address.host, address.port), timeout_s, source)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            reason = "the connection timed out" if isinstance(error, TimeoutError) else _describe_error(error)
            msg = f"cannot reach endpoint {address.url}: {reason}"
            raise EndpointUnreachable(msg, url=address.url, connected=False) from error

    def close(self) -> None:
        """Close our end."""
        self._sock.close()

    def send_request(self, request: RawRequest, timeout_s: float | None = None) -> RawReply:
        """Send a request and read its answer; a body that expects a 100 waits for it, for a second at most.

        Raises:
            EndpointUnreachable: There was no complete answer.
        """
        began_s = time.perf_counter()
        deadline_s = began_s + (timeout_s or self._timeout_s)
        head, body = request.encode_head(self._address.netloc, self._address.prefix), request.encode_body()
        is_asking = any(name.lower() == "expect" for name, _ in request.headers)
        try:
            self._send_bytes(head if is_asking else head + body, deadline_s)
            return self._read_reply(request.method, body if is_asking else b"", began_s, deadline_s)
        except TimeoutError as error:
            waited = f"{time.perf_counter() - began_s:.3g}"
            raise self._build_error(request, f"got no answer within {waited} s", timed_out=True) from error
        except (OSError, EOFError) as error:
            raise self._build_error(request, f"got no answer: {_describe_error(error)}") from error
        except h11.RemoteProtocolError as error:
            raise self._build_error(request, f"got an answer that is not HTTP/1.1: {error}") from error

    def is_ended(self, within_s: float) -> bool:
        """Return True if the other side ends the connection in time, without another request."""
        deadline_s = time.perf_counter() + within_s
        try:
            self._sock.settimeout(_compute_remaining_s(deadline_s))
            # Data may still come before the end; only an empty read is the end.
            while self._sock.recv(_RECEIVED_BYTES):
                self._sock.settimeout(_compute_remaining_s(deadline_s))
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def _build_error(self, request: RawRequest, reason: str, *, timed_out: bool = False) -> EndpointUnreachable:
        msg = f"{request.method} {request.target} {reason}"
        return EndpointUnreachable(msg, url=self._address.url, connected=True, timed_out=timed_out)

    def _send_bytes(self, data: bytes, deadline_s: float) -> None:
        self._sock.settimeout(_compute_remaining_s(deadline_s))
        try:
            self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # the answer sent before the reset may still be in our receive buffer

    def _read_reply(self, method: str, held_body: bytes, began_s: float, deadline_s: float) -> RawReply:
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
        # The request was sent as raw bytes; the parser only needs its method.
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "endpoint")]))
        parser.send(h11.EndOfMessage())
        # Bytes beyond the previous answer belong to this one, if the endpoint sends both early.
        if self._unread_bytes:
            parser.receive_data(self._unread_bytes)
        interim: list[int] = []
        body = bytearray()
        is_late = False
        event = self._read_event(parser, deadline_s, _CONTINUE_WAIT_S if held_body else None)
        # Without a 100 in time the body is sent all the same, as curl does after a second.
        while event is None or isinstance(event, h11.InformationalResponse):
            is_late = is_late or event is None
            interim += [] if event is None else [event.status_code]
            if held_body:
                self._send_bytes(held_body, deadline_s)
                held_body = b""
            event = self._read_event(parser, deadline_s)
        response = event
        while isinstance(event := self._read_event(parser, deadline_s), h11.Data):
            body += event.data
            if len(body) > _BODY_BYTES_MAX:
                raise EOFError(f"the body exceeds {_BODY_BYTES_MAX} bytes")
        if not isinstance(response, h11.Response):
            raise EOFError("the connection ended")  # noqa: TRY004 - not an answer, whatever its type
        self._unread_bytes = bytes(parser.trailing_data[0]) or self._read_surplus()
        return RawReply(
            status=response.status_code,
            http_version=response.http_version.decode("latin-1"),
            headers=tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in response.headers.raw_items()),
            body=bytes(body),
            interim=tuple(interim),
            is_late=is_late,
            surplus=self._unread_bytes,
            elapsed_s=time.perf_counter() - began_s,
        )

    def _read_event(self, parser: h11.Connection, deadline_s: float, wait_s: float | None = None) -> object:
        """Return the next event; None if nothing has arrived within `wait_s`, if that is given."""
        while (event := parser.next_event()) is h11.NEED_DATA:
            left_s = _compute_remaining_s(deadline_s)
            self._sock.settimeout(left_s if wait_s is None else min(left_s, wait_s))
            try:
                parser.receive_data(self._sock.recv(_RECEIVED_BYTES))
            except TimeoutError:
                if wait_s is None:
                    raise
                return None
        return event

    def _read_surplus(self) -> bytes:
        """Return the bytes that have already arrived after the answer."""
        self._sock.settimeout(_SURPLUS_WAIT_S)
        try:
            return self._sock.recv(_RECEIVED_BYTES)
        except OSError:
            return b""


def _compute_remaining_s(deadline_s: float) -> float:
    left_s = deadline_s - time.perf_counter()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in {errno.ECONNRESET, errno.EPIPE}:
        return "the connection was reset"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
