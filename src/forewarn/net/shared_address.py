"""Address that several processes listen on, each with its own socket.

With SO_REUSEPORT the kernel chooses one of the sockets for each new connection. By default it chooses by addresses and
ports, so the connections of one caller reach all processes. Here it chooses by the source address alone: one caller
always reaches the same process, which can therefore count the caller's connections and requests.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from forewarn.errors import ConfigError
from forewarn.net.listen_address import bind_listener

__all__ = ["bind_shared_listeners"]

_BACKLOG = 4096
_SO_ATTACH_REUSEPORT_CBPF = 51
"""From Linux' `asm-generic/socket.h`; Python has no name for it."""

# From Linux' `filter.h` and `bpf_common.h`: classic BPF, with offsets from the start of the IP header.
_NETWORK_HEADER = -0x100000
_LOAD_BYTE, _LOAD_WORD = 0x30, 0x20
_SHIFT_RIGHT, _MULTIPLY, _MODULO, _XOR_X = 0x74, 0x24, 0x94, 0xAC
_MOVE_A_TO_X, _JUMP, _JUMP_IF_EQUAL, _RETURN_A = 0x07, 0x05, 0x15, 0x16
_STEP_BYTES = 8
_VERSION_SHIFT = 4
_IPV4 = 4
_IPV4_SOURCE = 12
_IPV6_SOURCE_WORDS = (8, 12, 16, 20)
# Knuth's multiplicative hash: otherwise addresses with equal last bits would all reach one process.
_GOLDEN_RATIO = 0x9E3779B1
_HIGH_HALF = 16


def _encode_program(sockets: int) -> bytes:
    """Return the program that chooses one of so many sockets by the source address."""

    def step(code: int, value: int = 0, if_true: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, 0, value & 0xFFFF_FFFF)

    words = [step(_LOAD_WORD, _NETWORK_HEADER + _IPV6_SOURCE_WORDS[0])]
    for offset in _IPV6_SOURCE_WORDS[1:]:
        words += [step(_MOVE_A_TO_X), step(_LOAD_WORD, _NETWORK_HEADER + offset), step(_XOR_X)]
    steps = [
        step(_LOAD_BYTE, _NETWORK_HEADER),
        step(_SHIFT_RIGHT, _VERSION_SHIFT),
        step(_JUMP_IF_EQUAL, _IPV4, if_true=len(words) + 1),
        *words,
        step(_JUMP, 1),  # past the load of the IPv4 address
        step(_LOAD_WORD, _NETWORK_HEADER + _IPV4_SOURCE),
        step(_MULTIPLY, _GOLDEN_RATIO),
        step(_SHIFT_RIGHT, _HIGH_HALF),
        step(_MODULO, sockets),
        step(_RETURN_A),
    ]
    return b"".join(steps)


@contextmanager
def bind_shared_listeners(host: str, port: int, count: int) -> Iterator[list[socket.socket]]:
    """Yield so many sockets that listen on one address; they are closed at the end of the block.

    All connections from one source address reach the same socket, as long as all of them are open.

    Raises:
        ConfigError: The address cannot be listened on, or this kernel cannot share it.
    """
    # A socket without SO_REUSEPORT first: with it, a second service of the same user would take a part of the
    # connections instead of a refusal.
    with bind_listener(host, port) as probe:
        address = probe.getsockname()
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        try:
            sockets.extend(stack.enter_context(_open_socket(address)) for _ in range(count))
            _choose_by_source_address(sockets)
        except OSError as error:
            msg = f"cannot share {host}:{port} between {count} processes: {error.strerror}; use workers=1"
            raise ConfigError(msg, setting="workers") from error
        yield sockets


def _open_socket(address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
        sock.bind(address)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _choose_by_source_address(sockets: list[socket.socket]) -> None:
    program = _encode_program(len(sockets))
    steps = ctypes.create_string_buffer(program)
    pointer = struct.pack("HL", len(program) // _STEP_BYTES, ctypes.addressof(steps))
    # The sockets form one group, which has one program. The group exists only once they listen.
    sockets[0].setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, pointer)
