"""Network interfaces of this host: their list, and reports of the kernel that something has changed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NetworkInterface", "list_interfaces", "watch_interfaces"]

_INTERFACES = Path("/sys/class/net")
_SIOCGIFHWADDR = 0x8927
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100
_SOL_NETLINK, _NETLINK_NO_ENOBUFS = 270, 5
# Bounds one callback; messages that are left make the socket readable again.
_MESSAGES_READ_MAX = 1000


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """Network interface of this host.

    Attributes:
        index: Number of the interface; Linux reuses numbers only after it has used all.
        mac: Twelve hexadecimal digits; empty if not requested, or if it has none.
        is_bridge_port: True if it is a port of a bridge, so that its packets arrive at the bridge instead.
    """

    name: str
    index: int
    mac: str = ""
    is_bridge_port: bool = False


def list_interfaces(*, with_macs: bool = False) -> list[NetworkInterface]:
    """List the network interfaces of this network namespace.

    Raises:
        OSError: The system cannot list them.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return [
            NetworkInterface(
                name, index, _read_mac(control, name) if with_macs else "", (_INTERFACES / name / "brport").exists()
            )
            for index, name in socket.if_nameindex()
        ]


def _read_mac(control: socket.socket, name: str) -> str:
    with suppress(OSError):  # it has just disappeared
        answer = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("256s", os.fsencode(name)))
        # In `struct ifreq`, 16 bytes of name and 2 bytes of address family come first.
        return answer[18:24].hex()
    return ""


@contextmanager
def watch_interfaces(on_change: Callable[[], None]) -> Iterator[None]:
    """Call a function whenever the kernel reports a change of interfaces or addresses, while the block runs.

    Args:
        on_change: Called on the event loop, with nothing about the change: the report is only a hint.

    Raises:
        OSError: The kernel does not report changes to this process.
    """
    loop = asyncio.get_running_loop()

    def read_messages() -> None:
        on_change()
        with suppress(OSError):  # nothing left to read
            for _ in range(_MESSAGES_READ_MAX):
                netlink.recv(1)  # the kernel discards the rest of each message

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE) as netlink:
        # A report lost for lack of room adds nothing to those that took the room. As an error on the socket, it would
        # end its watch: libuv stops watching a descriptor that has an error.
        netlink.setsockopt(_SOL_NETLINK, _NETLINK_NO_ENOBUFS, 1)
        netlink.bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
        loop.add_reader(netlink.fileno(), read_messages)
        try:
            yield
        finally:
            loop.remove_reader(netlink.fileno())
