"""Child process that acts as the endpoints of many hosts: each one holds its host's watch on one replica.

Arguments: port of the control API, number of hosts, number of the first host (default: 0), and the hosts' source
address (default: chosen by the kernel). It reads commands from stdin, as lines of JSON with the member
``do``:

- ``join``: all hosts connect, at most ``window`` of them at a time; the answer follows when all have their state;
- ``expect``: ``count`` hosts will receive a change; answered at once, and again when all of them have it;
- ``rest``: receive for ``seconds``;
- ``leave``: end all watches.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time
from collections.abc import Callable

from bench.fleet import host_name, token_of

_LONGEST_S = 900.0
_END = b"}\n\r\n"
"""End of a message in the stream: the end of its last line, and the end of its chunk."""

_STATE, _DOCUMENT = b'"kind":"state"', b'"kind":"document"'


class Crowd:
    """The hosts.

    Args:
        port: Port of the control API on this machine.
        count: Number of hosts.
        first: Number of the first host.
        address: Source address of all connections; empty: chosen by the kernel.
    """

    def __init__(self, port: int, count: int, first: int = 0, address: str = "") -> None:
        self._port = port
        self._count = count
        self._first = first
        self._address = address
        self._socks: dict[int, socket.socket] = {}
        self._heard: dict[int, bytearray] = {}
        self._asking: dict[int, float] = {}
        self._poll = select.epoll()

    def join(self, *, window: int) -> dict[str, object]:
        """Connect all hosts, at most `window` of them at a time, and receive their states."""
        began_s = time.monotonic()
        took_s: list[float] = []
        sizes: list[int] = []
        waiting = list(range(self._first, self._first + self._count))[::-1]

        def take(number: int, heard: bytes) -> None:
            if number not in self._asking:
                return
            if not heard.startswith(b"HTTP/1.1 200 ") or _STATE not in heard:
                raise SystemExit(f"a state was expected, not {heard[:300]!r}")
            took_s.append(time.monotonic() - self._asking.pop(number))
            sizes.append(len(heard))

        while len(took_s) < self._count:
            while waiting and len(self._asking) < window:
                self._ask(waiting.pop())
            self._turn(take)
            if time.monotonic() - began_s > _LONGEST_S:
                msg = f"{len(took_s)} of {self._count} hosts have heard their state after {_LONGEST_S:.0f} s"
                raise SystemExit(msg)
        return {
            "joined_s": time.monotonic() - began_s,
            "took_s": sorted(took_s),
            "state_bytes": sum(sizes) / len(sizes),
        }

    def _ask(self, host: int) -> None:
        sock = socket.socket()
        sock.settimeout(0)
        if self._address:
            sock.bind((self._address, 0))
        sock.connect_ex(("127.0.0.1", self._port))
        name = host_name(host)
        lines = (f"GET /v1/hosts/{name}/watch HTTP/1.1", "Host: control", f"Authorization: Bearer {token_of(name)}")
        number = sock.fileno()
        self._socks[number] = sock
        self._heard[number] = bytearray(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._asking[number] = time.monotonic()
        self._poll.register(number, select.EPOLLOUT)

    def _turn(self, take: Callable[[int, bytes], None]) -> None:
        for number, event in self._poll.poll(0.2, 1024):
            heard, sock = self._heard[number], self._socks[number]
            if event & select.EPOLLOUT and not event & select.EPOLLHUP:
                sock.sendall(heard)
                heard.clear()
                self._poll.modify(number, select.EPOLLIN)
                continue
            piece = sock.recv(1 << 18)
            if not piece:
                raise SystemExit(f"the replica has ended a watch; before that it said {bytes(heard)[:300]!r}")
            heard += piece
            if heard.endswith(_END):
                take(number, bytes(heard))
                heard.clear()

    def expect(self, *, count: int) -> dict[str, object]:
        """Wait until `count` hosts have received a change."""
        moments: dict[int, float] = {}

        def take(number: int, heard: bytes) -> None:
            if _DOCUMENT in heard:
                moments.setdefault(number, time.monotonic())

        say(waiting=count)
        ends_s = time.monotonic() + _LONGEST_S
        while len(moments) < count and time.monotonic() < ends_s:
            self._turn(take)
        return {"count": count, "heard": len(moments), "moments_s": sorted(moments.values())}

    def rest(self, *, seconds: float) -> dict[str, object]:
        """Receive for `seconds`, and count the messages."""
        ends_s = time.monotonic() + seconds
        lines = 0

        def take(_number: int, _heard: bytes) -> None:
            nonlocal lines
            lines += 1

        while time.monotonic() < ends_s:
            self._turn(take)
        return {"lines": lines}

    def leave(self) -> dict[str, object]:
        """End all watches."""
        for number, sock in self._socks.items():
            self._poll.unregister(number)
            sock.close()
        self._socks.clear()
        self._heard.clear()
        return {}


def say(**message: object) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Handle commands until stdin ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port, count, first = (int(word) for word in [*sys.argv[1:4], "0"][:3])
    crowd = Crowd(port, count, first, "".join(sys.argv[4:5]))
    for line in sys.stdin:
        asked = json.loads(line)
        say(**getattr(crowd, asked.pop("do"))(**asked))


if __name__ == "__main__":
    main()
