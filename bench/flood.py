"""Measure how much memory a flood of unauthenticated requests costs a service.

    python -m bench.flood PID PORT [ATTACK…]

Run it against a `forewarn serve` on this machine. It runs each attack once, from loopback, and prints the memory of the
process before the attack, at its maximum, and afterwards, in MiB.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

_PIECE = b"X" * (64 << 10)
_REST_S = 2.0
_TOTAL_BYTES = 1500 << 20


def memory_mib(pid: int) -> float:
    """Return the resident memory of the process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _connected(port: int, count: int, start: bytes) -> list[socket.socket]:
    socks = []
    for number in range(count):
        with contextlib.suppress(OSError):
            source = (f"127.0.{1 + number // 250}.{1 + number % 250}", 0)
            sock = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=source)
            sock.sendall(start)
            socks.append(sock)
    return socks


def _flood(port: int, start: bytes, look: Callable[[], None]) -> None:
    """Send `_TOTAL_BYTES` in all, and reconnect when the service closes a connection."""
    sent = 0
    while sent < _TOTAL_BYTES:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(start)
            for _ in range(1600):
                sock.sendall(_PIECE)
                sent += len(_PIECE)
        sent += len(_PIECE)
        look()


def _headers(port: int, look: Callable[[], None]) -> None:
    _flood(port, b"GET /v1/vms HTTP/1.1\r\nX: ", look)


def _bodies(port: int, look: Callable[[], None]) -> None:
    _flood(port, b"PUT /v1/inventory HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n", look)


def _idle(port: int, look: Callable[[], None]) -> None:
    socks = _connected(port, 1500, b"")
    look()
    for sock in socks:
        sock.close()


def _unfinished(port: int, look: Callable[[], None]) -> None:
    socks = _connected(port, 1500, b"GET /v1/vms HTTP/1.1\r\nX: " + b"x" * 16000)
    look()
    for sock in socks:
        sock.close()


ATTACKS: dict[str, Callable[[int, Callable[[], None]], None]] = {
    "headers": _headers,
    "bodies": _bodies,
    "idle": _idle,
    "unfinished": _unfinished,
}


def main() -> None:
    """Run the attacks that the command line names, or all."""
    pid, port = int(sys.argv[1]), int(sys.argv[2])
    for name in sys.argv[3:] or ATTACKS:
        most_mib = before_mib = memory_mib(pid)

        def look() -> None:
            nonlocal most_mib
            most_mib = max(most_mib, memory_mib(pid))

        ATTACKS[name](port, look)
        look()
        time.sleep(_REST_S)
        print(f"{name}: before {before_mib:.0f} MiB, most {most_mib:.0f} MiB, after {memory_mib(pid):.0f} MiB")


if __name__ == "__main__":
    main()
