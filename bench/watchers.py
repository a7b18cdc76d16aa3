"""The child that plays the endpoints of many hosts: each holds the watch of its host on one replica.

Arguments: port of the control API, and how many hosts. It is told, in lines of JSON, what to ``do``:

- ``join``: every host asks, at most ``window`` of them at the same time; answered when all have heard their state;
- ``expect``: ``count`` of them are going to hear of a change; answered at once, and once more when they all have;
- ``rest``: listen for so many ``seconds``;
- ``leave``: end every watch.
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

_LONGEST_S = 240.0
_END = b"}\n\r\n"
"""How a piece of the stream ends: the last line of it, and the end of its chunk."""

_STATE, _DOCUMENT = b'"kind":"state"', b'"kind":"document"'


class Crowd:
    """The hosts.

    Args:
        port: Of the control API, on this machine.
        count: How many.
    """

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self._socks: dict[int, socket.socket] = {}
        self._heard: dict[int, bytearray] = {}
        self._asking: dict[int, float] = {}
        self._poll = select.epoll()

    def join(self, *, window: int) -> dict[str, object]:
        """Every host asks, at most `window` of them at the same time, and hears its state."""
        began_s = time.monotonic()
        took_s: list[float] = []
        sizes: list[int] = []
        waiting = list(range(self._count))[::-1]

        def take(number: int, heard: bytes) -> None:
            if number not in self._asking:
                return
            if not heard.startswith(b"HTTP/1.1 200 ") or _STATE not in heard:
                msg = f"a state was expected, not {heard[:300]!r}"
                raise SystemExit(msg)
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
                msg = f"the replica has ended a watch; before that it said {bytes(heard)[:300]!r}"
                raise SystemExit(msg)
            heard += piece
            if heard.endswith(_END):
                take(number, bytes(heard))
                heard.clear()

    def expect(self, *, count: int) -> dict[str, object]:
        """So many hosts hear of a change."""
        moments: dict[int, float] = {}

        def take(number: int, heard: bytes) -> None:
            if _DOCUMENT in heard:
                moments.setdefault(number, time.monotonic())

        say(waiting=count)
        ends_s = time.monotonic() + _LONGEST_S
        while len(moments) < count and time.monotonic() < ends_s:
            self._turn(take)
        return {"heard": len(moments), "moments_s": sorted(moments.values())}

    def rest(self, *, seconds: float) -> dict[str, object]:
        """Listen for so long, whatever is said."""
        ends_s = time.monotonic() + seconds
        lines = 0

        def take(_number: int, _heard: bytes) -> None:
            nonlocal lines
            lines += 1

        while time.monotonic() < ends_s:
            self._turn(take)
        return {"lines": lines}

    def leave(self) -> dict[str, object]:
        """End every watch."""
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
    """Play until stdin ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(*(int(argument) for argument in sys.argv[1:3]))
    for line in sys.stdin:
        asked = json.loads(line)
        say(**getattr(crowd, asked.pop("do"))(**asked))


if __name__ == "__main__":
    main()
