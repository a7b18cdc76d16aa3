"""Child processes that act as VMs.

``poll`` and ``hold`` record when they first see each incarnation. ``crowd`` holds thousands of long polls. Arguments:
mode, port of the metadata endpoint, and for ``crowd`` the number of polls. Each process prints a line when it is ready,
and one with its results. ``poll`` and ``hold`` end when they read a line from stdin, and all modes after `_LONGEST_S`.
"""

from __future__ import annotations

import json
import re
import resource
import select
import socket
import sys
import threading
import time

from bench.document import PATH

POLLS_PER_VM = 50
_LONGEST_S = 300.0
_ETAG = re.compile(rb'\r\netag: "(\d+)"\r\n', re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


def request(known: int | None = None) -> bytes:
    """Return a GET request; given a known incarnation, a long poll for the next one."""
    lines = [f"GET {PATH} HTTP/1.1", "Host: 169.254.169.254", "Metadata: true"]
    if known is not None:
        lines += [f'If-None-Match: "{known}"', "Prefer: wait=300"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def receive(sock: socket.socket) -> int:
    """Receive one answer, and return its incarnation."""
    answer = sock.recv(65536)
    while answer and not _is_whole(answer):
        answer += sock.recv(65536)
    match = _ETAG.search(answer)
    if not answer.startswith(b"HTTP/1.1 200 ") or match is None:
        raise SystemExit(f"200 was expected, not {answer[:200]!r}")
    return int(match[1])


def _is_whole(answer: bytes) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head + b"\r\n")
    return bool(separator) and length is not None and len(body) >= int(length[1])


def watch(port: int, *, holds: bool) -> None:
    """Send request after request, and record when each incarnation was first seen."""
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    seen: list[tuple[int, float]] = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(_LONGEST_S)
        last: int | None = None
        plain = request()
        ends_s = time.monotonic() + _LONGEST_S
        requests = 0
        while not ended.is_set() and time.monotonic() < ends_s:
            sock.sendall(request(last) if holds and last is not None else plain)
            incarnation = receive(sock)
            now_s = time.monotonic()
            requests += 1
            if incarnation != last:
                if last is None:
                    say(ready=True)
                else:
                    seen.append((incarnation, now_s))
                last = incarnation
    say(seen=seen, requests=requests)


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.buffer.readline()
    ended.set()


def crowd_address(number: int) -> str:
    """Return the address of one VM of the crowd."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def crowd(port: int, count: int) -> None:
    """Hold `count` long polls from many VMs, and receive the answer to each."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with socket.create_connection(("127.0.0.1", port), source_address=(crowd_address(0), 0)) as sock:
        sock.sendall(request())
        known = receive(sock)
    asked = request(known)
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    for number in range(count):
        source = crowd_address(number // POLLS_PER_VM), 0
        sock = socket.create_connection(("127.0.0.1", port), timeout=30, source_address=source)
        sock.sendall(asked)
        sock.settimeout(0)
        socks[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
    say(asked=count)
    answers = dict.fromkeys(socks, b"")
    moments: list[float] = []
    wrong: list[str] = []
    ends_s = time.monotonic() + _LONGEST_S
    while len(moments) < count and time.monotonic() < ends_s:
        for number, _ in poll.poll(1.0, 1024):
            piece = socks[number].recv(65536)
            answer = answers[number] = answers[number] + piece
            if piece and not _is_whole(answer):
                continue
            moments.append(time.monotonic())
            poll.unregister(number)
            match = _ETAG.search(answer)
            if not (answer.startswith(b"HTTP/1.1 200 ") and match and int(match[1]) > known):
                wrong.append(repr(answer[:200]))
    say(first_s=min(moments), last_s=max(moments), answers=len(moments), wrong=wrong[:3])
    for sock in socks.values():
        sock.close()


def say(**message: object) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the mode that the command line names."""
    mode, port = sys.argv[1], int(sys.argv[2])
    if mode == "crowd":
        crowd(port, int(sys.argv[3]))
    else:
        watch(port, holds=mode == "hold")


if __name__ == "__main__":
    main()
