"""A VM's side of the metadata endpoint, in bytes: nothing is added to what is sent, nor hidden of what comes back."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.spans import GUARD_S

__all__ = ["CLOSING", "EVENTS", "LATEST", "Answer", "Wire", "approval", "get", "post"]

EVENTS = "/metadata/scheduledevents"
LATEST = "2020-07-01"
_TIMEOUT_S = GUARD_S


@dataclass(frozen=True)
class Answer:
    """One HTTP answer.

    Attributes:
        head: Status line and headers as they came, with the empty line.
        headers: By lower-case name.
    """

    head: bytes
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def lasting(self) -> bytes:
        """All of it but the line that tells the time."""
        lines = self.head.split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.startswith(b"date:")) + self.body

    @property
    def closes(self) -> bool:
        """Whether it says that the connection ends here (W3)."""
        return self.headers.get("connection", "").lower() == "close"


class Wire:
    """One TCP connection to the endpoint.

    Args:
        address: Of the endpoint.
        source: Our own address, which says what VM we are.
    """

    def __init__(self, address: tuple[str, int], source: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._take(socket.create_connection(address, timeout=timeout_s, source_address=(source, 0)))

    @classmethod
    def over(cls, sock: socket.socket) -> Self:
        """Over a socket that is connected already."""
        wire = cls.__new__(cls)
        wire._take(sock)
        return wire

    def _take(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close our end."""
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send all of it, unless the server ends the connection meanwhile."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # what it said before stands in our receive buffer

    def end(self) -> None:
        """Say that we send no more."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close our end in a way that the other side notices at once as a failure."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def ask(self, data: bytes) -> Answer:
        """Send a request and read its answer."""
        self.send(data)
        return self.read(has_body=not data.startswith(b"HEAD "))

    def read(self, *, has_body: bool = True) -> Answer:
        """The next answer, and no byte of the one after it."""
        while b"\r\n\r\n" not in self._buffer:
            self._receive()
        size = self._buffer.index(b"\r\n\r\n") + 4
        head = bytes(self._buffer[:size])
        del self._buffer[:size]
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers: dict[str, str] = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} stands twice in {head!r}"
            headers[name.lower()] = value
        assert "transfer-encoding" not in headers
        if not has_body or status in {100, 204, 304}:
            return Answer(head, status, headers, b"")
        length = int(headers["content-length"])
        while len(self._buffer) < length:
            self._receive()
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return Answer(head, status, headers, body)

    def rest(self) -> bytes:
        """Everything until the server ends the connection."""
        try:
            while True:
                self._receive()
        except (ConnectionError, EOFError):
            pass
        return bytes(self._buffer)

    @property
    def is_ended(self) -> bool:
        """Whether the server ends the connection, without another byte, within the time-out."""
        return self.rest() == b""

    @property
    def has_more(self) -> bool:
        """Whether something is there to be read already."""
        self.sock.setblocking(False)
        try:
            return bool(self._buffer) or bool(self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.sock.settimeout(_TIMEOUT_S)

    def _receive(self) -> None:
        data = self.sock.recv(1 << 16)
        if not data:
            raise EOFError(f"the server ended the connection after {bytes(self._buffer)!r}")
        self._buffer += data


def get(
    version: str | None = LATEST, *headers: str, path: str = EVENTS, method: str = "GET", metadata: str | None = "true"
) -> bytes:
    """A request without a body."""
    target = path if version is None else f"{path}?api-version={version}"
    lines = [f"{method} {target} HTTP/1.1", "Host: 169.254.169.254"]
    if metadata is not None:
        lines.append(f"Metadata: {metadata}")
    return "\r\n".join([*lines, *headers, "", ""]).encode()


def post(body: bytes, version: str | None = LATEST, *headers: str, metadata: str | None = "true") -> bytes:
    """A request with a body."""
    return get(version, f"Content-Length: {len(body)}", *headers, method="POST", metadata=metadata) + body


def approval(*event_ids: str, **more: object) -> bytes:
    """The body that approves these events (R47)."""
    return json.dumps({**more, "StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()


CLOSING = get(LATEST, "Connection: close")
"""A poll after which the connection is to be closed."""
