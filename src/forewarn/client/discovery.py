"""Discovery of the metadata endpoint by DHCP, for a VM that is in no virtual network (R94 to R96).

The first answer is trusted, as with DHCP itself; so use it only on a network that you trust. The address is returned
and stored nowhere, neither in ``/etc/profile`` nor in the registry: keep it in your own configuration, as the agent
does.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path

from forewarn.errors import ConfigError, EndpointUnreachable

__all__ = ["VARIABLE", "decode_offer", "discover", "discover_async", "encode_discover", "endpoint_url"]

VARIABLE = "SCHEDULEDEVENTSIP"
"""Environment variable in which other programs leave the address that they discovered (R96)."""

# The waits and the time limit of Microsoft's sample (R94).
WAITS_S = (0.0, 10.0, 30.0, 60.0, 60.0)
"""Pause before each try."""

TIMEOUT_S = 10.0
"""Time that each try waits for an answer."""

_CLIENT = ("0.0.0.0", 68)  # noqa: S104 - the address of a client that has none yet
_SERVERS = ("255.255.255.255", 67)
_PACKET_SIZE_BYTES_MAX = 4096
# The layout of a BOOTP packet (RFC 951); the options of DHCP begin after the cookie (RFC 2131).
_XID_SIZE_BYTES = 4
_XID_AT = 4
_MAC_SIZE_BYTES = 6
_MAC_AT = 0x1C
_COOKIE_AT = 0xEC
_COOKIE = bytes.fromhex("63825363")
_OPTIONS_AT = _COOKIE_AT + len(_COOKIE)
_ADDRESS_SIZE_BYTES = 4
_PAD, _ENDPOINT, _END = 0, 245, 255
_IS_DISCOVER = bytes([53, 1, 1, _END])
_ROUTES = Path("/proc/net/route")
_INTERFACES = Path("/sys/class/net")
_ROUTE_FIELDS = 8
_ANYWHERE = "00000000"
_IS_GROUP = 1  # the multicast bit of a MAC, never set on a network card


def encode_discover(xid: bytes, mac: bytes) -> bytes:
    """Encode the DHCPDISCOVER to broadcast, 244 bytes.

    Args:
        xid: Four random bytes that identify the answer.
        mac: MAC address of the network card, six bytes.

    Raises:
        ValueError: One of them has the wrong length.

    Spec: R94
    """
    if len(xid) != _XID_SIZE_BYTES or len(mac) != _MAC_SIZE_BYTES:
        raise ValueError(f"expected an xid of 4 bytes and a MAC of 6, got {len(xid)} and {len(mac)}")
    packet = bytearray(_OPTIONS_AT + len(_IS_DISCOVER))
    packet[0:3] = 1, 1, _MAC_SIZE_BYTES  # a request, over Ethernet, with the address length
    packet[_XID_AT : _XID_AT + _XID_SIZE_BYTES] = xid
    packet[_MAC_AT : _MAC_AT + _MAC_SIZE_BYTES] = mac
    packet[_COOKIE_AT:] = _COOKIE + _IS_DISCOVER
    return bytes(packet)


def decode_offer(packet: bytes, xid: bytes) -> str | None:
    """Return the endpoint's address in a DHCP answer.

    Args:
        packet: Packet as received; may contain anything.
        xid: Transaction ID of the request.

    Returns:
        The address; None if the packet answers another request, is damaged, or names no endpoint.

    Spec: R95
    """
    is_ours = packet[_XID_AT : _XID_AT + _XID_SIZE_BYTES] == xid and packet[_COOKIE_AT:_OPTIONS_AT] == _COOKIE
    at = _OPTIONS_AT
    # Anyone on the network can send such a packet, so damaged options must end the search without an exception.
    while is_ours and at < len(packet) and packet[at] != _END:
        if packet[at] == _PAD:
            at += 1
            continue
        size = packet[at + 1] if at + 1 < len(packet) else 0
        value = packet[at + 2 : at + 2 + size]
        if packet[at] == _ENDPOINT and size == len(value) == _ADDRESS_SIZE_BYTES:
            address = ipaddress.IPv4Address(value)
            # No server can have these, and a client with such an address would only time out.
            return None if address.is_unspecified or address.is_multicast or address.is_reserved else str(address)
        at += 2 + size
    return None


def endpoint_url(ip: str, port: int = 80) -> str:
    """Return the endpoint's URL for an address, as `Client` takes it.

    Raises:
        ConfigError: `ip` is not an IP address.
    """
    try:
        address = ipaddress.ip_address(ip.strip())
    except ValueError as error:
        raise ConfigError(f"{ip!r} is not an IP address: expected for example 168.63.129.16") from error
    host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - the versions of IP
    return f"http://{host}" if port == 80 else f"http://{host}:{port}"  # noqa: PLR2004 - HTTP's own port


def discover(
    *,
    interface: str | None = None,
    mac: bytes | None = None,
    timeout_s: float = TIMEOUT_S,
    waits_s: Iterable[float] = WAITS_S,
    use_environment: bool = True,
) -> str:
    """Ask the network for the endpoint's address, and wait for the answer; at worst about 3.5 minutes.

    Needs the right to bind port 68, so root or CAP_NET_BIND_SERVICE. Not for code in an event loop: see
    `discover_async`.

    Args:
        interface: Network interface to ask on, for example ``eth0``; only Linux can choose one. None leaves it to the
            routing table.
        mac: MAC address of the network card, six bytes; None to detect it.
        timeout_s: Time that each try waits for an answer.
        waits_s: Pause before each try, in seconds; one try per pause.
        use_environment: True if an address in ``SCHEDULEDEVENTSIP`` is returned without asking the network.

    Returns:
        The IP address; `endpoint_url` converts it to a URL.

    Raises:
        ConfigError: ``SCHEDULEDEVENTSIP`` is not an address, or this machine cannot choose an interface.
        EndpointUnreachable: No answer, or no permission to ask. The message contains the remedy.

    Spec: R94 to R96
    """
    return asyncio.run(
        discover_async(
            interface=interface, mac=mac, timeout_s=timeout_s, waits_s=waits_s, use_environment=use_environment
        )
    )


async def discover_async(
    *,
    interface: str | None = None,
    mac: bytes | None = None,
    timeout_s: float = TIMEOUT_S,
    waits_s: Iterable[float] = WAITS_S,
    use_environment: bool = True,
) -> str:
    """Do the same as `discover`, in a task; may be cancelled."""
    left = os.environ.get(VARIABLE, "").strip() if use_environment else ""
    if left:
        try:
            return str(ipaddress.ip_address(left))
        except ValueError as error:
            msg = f"environment variable {VARIABLE} is {left!r}: expected an IP address, or leave it empty"
            raise ConfigError(msg) from error
    mac = mac or _find_mac(interface)
    tries = 0
    trouble = "no answer"
    for wait_s in waits_s:
        await asyncio.sleep(wait_s)
        tries += 1
        with _open_socket(interface) as sock:
            try:
                return await _request_address(sock, mac, timeout_s)
            except TimeoutError:
                trouble = "no answer"
            except OSError as error:  # The network may still be coming up.
                trouble = error.strerror or str(error)
    msg = (
        f"no DHCP server announced the metadata endpoint in {tries} tries of {timeout_s:g} s ({trouble}): "
        "use 169.254.169.254 in a virtual network; elsewhere set the address of the endpoint"
    )
    raise EndpointUnreachable(msg)


async def _request_address(sock: socket.socket, mac: bytes, timeout_s: float) -> str:
    """Broadcast a request, and return the first address in an answer to it.

    Raises:
        TimeoutError: No answer in time.
        OSError: The network cannot be used.
    """
    xid = secrets.token_bytes(_XID_SIZE_BYTES)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        sock.sendto(encode_discover(xid, mac), _SERVERS)
        while True:
            found = decode_offer(await loop.sock_recv(sock, _PACKET_SIZE_BYTES_MAX), xid)
            if found is not None:
                return found
            await asyncio.sleep(0)  # Queued packets for others would keep the time-out from running.


def _open_socket(interface: str | None) -> socket.socket:
    """Return the socket of a DHCP client.

    Raises:
        ConfigError: This system cannot choose an interface.
        EndpointUnreachable: The port is in use or not permitted.
    """
    option: int | None = getattr(socket, "SO_BINDTODEVICE", None)
    if interface is not None and option is None:
        raise ConfigError(f"cannot choose interface {interface!r} on this system: leave it out")
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.settimeout(0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        # The DHCP client of the system may listen on this port. Both then receive broadcasts.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if interface is not None and option is not None:
            sock.setsockopt(socket.SOL_SOCKET, option, interface.encode() + b"\0")
        sock.bind(_CLIENT)
    except OSError as error:
        sock.close()
        where = "every interface" if interface is None else f"interface {interface}"
        msg = (
            f"cannot listen for DHCP answers on UDP port 68 of {where}: {error.strerror or error}; "
            "run as root or with CAP_NET_BIND_SERVICE, and stop any other program that uses the port"
        )
        raise EndpointUnreachable(msg) from error
    return sock


def _find_mac(interface: str | None) -> bytes:
    """Return the MAC address of the network card that sends broadcasts.

    Raises:
        EndpointUnreachable: None could be found.
    """
    name = interface or default_interface(_read_text(_ROUTES))
    if name is not None:
        digits = _read_text(_INTERFACES / name / "address").strip().replace(":", "")
        # Loopback has the address zero, and some tunnels have one of another length.
        if len(digits) == 2 * _MAC_SIZE_BYTES and digits.strip("0"):
            return bytes.fromhex(digits)
    mac = uuid.getnode().to_bytes(_MAC_SIZE_BYTES, "big")
    if mac[0] & _IS_GROUP:  # getnode found none either, and made one up.
        raise EndpointUnreachable("cannot find a network card with a MAC address: specify the MAC address")
    return mac


def default_interface(routes: str) -> str | None:
    """Return the interface of the default route in Linux's routing table; None if it has none."""
    # Destination and mask are both zero for a default route; `/proc` lists them in hexadecimal.
    rows = (line.split() for line in routes.splitlines()[1:])
    return next((row[0] for row in rows if len(row) >= _ROUTE_FIELDS and row[1] == row[7] == _ANYWHERE), None)


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
