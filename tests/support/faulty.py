"""A metadata endpoint that misbehaves, down to single bytes. A test says what becomes of each request, in order."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.support.ports import reserve_port
from tests.support.spans import GUARD_S

__all__ = [
    "Act",
    "Faulty",
    "Heard",
    "Turn",
    "document",
    "drip",
    "event",
    "faulty",
    "nothing",
    "raw",
    "reset",
    "says",
    "when",
]

EVENT_ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
_STEP_S = 0.01


@dataclass(frozen=True)
class Heard:
    """A request.

    Attributes:
        headers: By lower-case name.
        connection: The number of its connection; the first is 1.
        at_s: When it had arrived, on the clock of `time.perf_counter`.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    at_s: float

    @property
    def version(self) -> str:
        """Its api-version."""
        return self.target.partition("api-version=")[2].partition("&")[0]

    @property
    def is_conditional(self) -> bool:
        """Whether it may be answered with 304."""
        return "if-none-match" in self.headers


@dataclass
class Turn:
    """One request and the connection on which it is to be answered."""

    heard: Heard
    sock: socket.socket
    is_over: threading.Event

    def send(self, data: bytes) -> None:
        """Send these bytes."""
        self.sock.sendall(data)

    def is_left(self) -> bool:
        """Whether the client has closed the connection, or the test has ended."""
        self.sock.settimeout(_STEP_S)
        try:
            return self.is_over.is_set() or not self.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            self.sock.settimeout(None)


Act: TypeAlias = Callable[[Turn], bool]
"""What to do about a request; whether the connection stays open afterwards."""


def event(event_id: str = EVENT_ID, **members: object) -> dict[str, object]:
    """A Freeze of ``vm-1``; members may be added, changed, or with None left out."""
    whole: dict[str, object] = {
        "EventId": event_id,
        "EventStatus": "Scheduled",
        "EventType": "Freeze",
        "ResourceType": "VirtualMachine",
        "Resources": ["vm-1"],
        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": 5,
    }
    return {name: value for name, value in (whole | members).items() if value is not None}


def document(incarnation: int, *events: Mapping[str, object]) -> bytes:
    """A body of these events."""
    return json.dumps({"DocumentIncarnation": incarnation, "Events": events}).encode()


def says(
    body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None, *, after_s: float = 0.0
) -> Act:
    """A whole answer; ``Connection: close`` among its headers is kept to."""

    def act(turn: Turn) -> bool:
        time.sleep(after_s)
        given = {"content-type": "application/json; charset=utf-8", **(headers or {})}
        size = {} if status == 304 else {"content-length": str(len(body))}
        lines = [f"{name}: {value}" for name, value in (given | size).items()]
        turn.send("\r\n".join([f"HTTP/1.1 {status} Said", *lines, "", ""]).encode() + body)
        return given.get("connection") != "close"

    return act


def raw(data: bytes, *, keep: bool = False) -> Act:
    """Exactly these bytes, and the end of the connection."""

    def act(turn: Turn) -> bool:
        turn.send(data)
        return keep

    return act


def reset(data: bytes = b"") -> Act:
    """These bytes, and then no connection any more."""

    def act(turn: Turn) -> bool:
        turn.send(data)
        time.sleep(_STEP_S)  # a reset overtakes what has not been read
        turn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return act


def nothing(data: bytes = b"") -> Act:
    """These bytes, and then nothing, for as long as the client waits."""

    def act(turn: Turn) -> bool:
        turn.send(data)
        while not turn.is_left():
            pass
        return False

    return act


def drip(data: bytes, every_s: float = 0.02) -> Act:
    """One byte after the other, each long before any time-out."""

    def act(turn: Turn) -> bool:
        for at in range(len(data)):
            turn.send(data[at : at + 1])
            time.sleep(every_s)
            if turn.is_over.is_set():
                break
        return False

    return act


def when(condition: Callable[[Heard], bool], then: Act, otherwise: Act) -> Act:
    """One act or another, as the request is."""
    return lambda turn: (then if condition(turn.heard) else otherwise)(turn)


@dataclass
class Faulty:
    """The endpoint.

    Attributes:
        heard: Every request, in the order in which they came.
        connections: How many there were.
    """

    port: int = field(default_factory=reserve_port)
    heard: list[Heard] = field(default_factory=list)
    connections: int = 0
    _script: list[Act] = field(default_factory=list)
    _listener: socket.socket | None = None
    _open: set[socket.socket] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def script(self, *acts: Act) -> None:
        """What becomes of the next requests; the last act is repeated for ever."""
        with self._lock:
            self._script = list(acts)

    def asked(self, method: str = "GET") -> list[Heard]:
        """The requests of that method."""
        return [heard for heard in self.heard if heard.method == method]

    def refuse(self) -> None:
        """Take no connection any more, and cut those that are open."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        with self._lock:
            for sock in self._open:
                _shut(sock)

    def listen(self) -> None:
        """Take connections, on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port))
        listener.settimeout(_STEP_S)
        self._listener = listener
        self._start(self._accept, listener)

    def stop(self) -> None:
        """End everything."""
        self._is_over.set()
        self.refuse()
        for thread in self._threads:
            thread.join(GUARD_S)
            assert not thread.is_alive()

    # Inside

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - handed on
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._is_over.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(sock)
                self.connections += 1
            self._start(self._serve, sock, self.connections)

    def _serve(self, sock: socket.socket, number: int) -> None:
        buffer = bytearray()
        try:
            while (heard := _read(sock, buffer, number)) is not None:
                with self._lock:
                    self.heard.append(heard)
                    act = self._script.pop(0) if len(self._script) > 1 else self._script[0]
                if not act(Turn(heard, sock, self._is_over)):
                    break
        except OSError:
            pass  # the client is gone
        finally:
            with self._lock:
                self._open.discard(sock)
                sock.close()


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # it may be closed already
        sock.shutdown(socket.SHUT_RDWR)


def _read(sock: socket.socket, buffer: bytearray, number: int) -> Heard | None:
    """The next request; None at the end of the connection."""
    while b"\r\n\r\n" not in buffer:
        if not (data := sock.recv(1 << 16)):
            return None
        buffer += data
    head, _, rest = bytes(buffer).partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    size = int(headers.get("content-length", "0"))
    while len(rest) < size:
        if not (data := sock.recv(1 << 16)):
            return None
        rest += data
    buffer[:] = rest[size:]
    return Heard(method, target, headers, rest[:size], number, time.perf_counter())


@contextmanager
def faulty(*acts: Act) -> Iterator[Faulty]:
    """An endpoint on loopback that acts so, stopped at the end."""
    made = Faulty()
    made.script(*(acts or (says(document(1)),)))
    made.listen()
    try:
        yield made
    finally:
        made.stop()
