"""Child process that acts as browsers: each one holds a stream of the live part of a dashboard page.

Arguments: port of the control API, cookie of the session, and number of browsers. It reads commands from stdin, as
lines of JSON with the member ``do``:

- ``join``: all browsers open the overview; the answer follows when each has received it;
- ``expect``: a change will follow; answered at once, and again when all browsers have received a change;
- ``rest``: receive for ``seconds``.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time

_LONGEST_S = 120.0
_DATA, _END = b"data: ", b"\n\n\r\n"


class Lookers:
    """The browsers.

    Args:
        port: Port of the control API on this machine.
        cookie: Cookie of the session.
        count: Number of browsers.
    """

    def __init__(self, port: int, cookie: str, count: int) -> None:
        self._port = port
        self._cookie = cookie
        self._count = count
        self._socks: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}
        self._begun: set[int] = set()
        self._poll = select.epoll()
        self._bytes = 0

    def join(self) -> dict[str, object]:
        """Let all browsers open the overview."""
        began_s = time.monotonic()
        for _ in range(self._count):
            sock = socket.create_connection(("127.0.0.1", self._port))
            lines = ("GET /live/ HTTP/1.1", f"Host: 127.0.0.1:{self._port}", f"Cookie: {self._cookie}")
            sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            sock.settimeout(0)
            self._socks[sock.fileno()] = sock
            self._tails[sock.fileno()] = b""
            self._poll.register(sock.fileno(), select.EPOLLIN)
        moments = self._until(self._count)
        return {"seen": len(moments), "joined_s": time.monotonic() - began_s, "page_bytes": self._bytes / self._count}

    def expect(self) -> dict[str, object]:
        """Wait until all browsers have received a change."""
        say(waiting=self._count)
        return {"moments_s": sorted(self._until(self._count).values())}

    def rest(self, *, seconds: float) -> dict[str, object]:
        """Receive for `seconds`."""
        ends_s, pages = time.monotonic() + seconds, 0
        before = self._bytes
        while time.monotonic() < ends_s:
            pages += len(self._turn())
        return {"pages": pages, "bytes": self._bytes - before}

    def _until(self, count: int) -> dict[int, float]:
        moments: dict[int, float] = {}
        ends_s = time.monotonic() + _LONGEST_S
        while len(moments) < count and time.monotonic() < ends_s:
            for number in self._turn():
                moments.setdefault(number, time.monotonic())
        return moments

    def _turn(self) -> list[int]:
        """Return the browsers that have just received a complete page."""
        seen = []
        for number, _ in self._poll.poll(0.2, 1024):
            piece = self._socks[number].recv(1 << 18)
            if not piece:
                raise SystemExit("the service has ended a page")
            self._bytes += len(piece)
            heard = self._tails[number] + piece
            if _DATA in heard:
                self._begun.add(number)
            is_whole = heard.endswith(_END)
            if is_whole and number in self._begun:
                self._begun.discard(number)
                seen.append(number)
            self._tails[number] = b"" if is_whole else heard[-8:]
        return seen


def say(**message: object) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Handle commands until stdin ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lookers = Lookers(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    for line in sys.stdin:
        asked = json.loads(line)
        say(**getattr(lookers, asked.pop("do"))(**asked))


if __name__ == "__main__":
    main()
