"""DHCP responder that announces the metadata endpoint to guests (R94, R95).

A guest that requests option 245 gets the address of the endpoint and nothing else; the network's DHCP server still
assigns addresses. A client that wants an address must get no answer from us: udhcpc and dhclient accept even an offer
of 0.0.0.0 that names no server, if it comes first. So two messages are answered: a bare DHCPDISCOVER, as in the
protocol's sample, and a DHCPINFORM from a client with an address. An address is offered only if a lease is configured
for the guest.

The socket is bound to the broadcast address. So it does not receive unicast packets for another DHCP server on this
host.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import structlog

from forewarn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = [
    "DhcpLease",
    "DhcpMessageType",
    "DhcpRequest",
    "DhcpResponder",
    "decide_answer",
    "decode_request",
    "encode_answer",
]

_log = structlog.get_logger("forewarn.host")

ANSWERS_PER_S_MAX = 50
"""Maximum number of answers per interface and second; further questions are dropped, and clients retry."""

PACKET_BYTES_MAX = 1500
"""Maximum size of a question."""

LEASE_MIN_S, LEASE_MAX_S = 60, 365 * 86400
"""Shortest and longest lease, in seconds."""

_READ_MAX = 64  # packets in one iteration of the event loop
_SERVER_PORT, _CLIENT_PORT = 67, 68
_EVERYBODY = "255.255.255.255"
_NOBODY = "0.0.0.0"  # noqa: S104 - "no address" in DHCP
_HEAD = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s4s")
_COOKIE = bytes.fromhex("63825363")
_ANSWER_BYTES_MIN = 300  # as in BOOTP, for old clients; R95 requires 246
_PKTINFO = struct.Struct("=i4s4s")
_IP_PKTINFO = 8  # named in Python only from 3.14 on
_REQUEST, _REPLY, _ETHERNET, _MAC_BYTES = 1, 2, 1, 6
_IS_GROUP = 1  # multicast bit of a MAC, never set for a network card
_PAD, _MASK, _ROUTER, _WANTED, _SECONDS, _KIND, _SERVER, _ASKED, _ENDPOINT, _END = 0, 1, 3, 50, 51, 53, 54, 55, 245, 255


class DhcpMessageType(IntEnum):
    """Kinds of DHCP messages used here."""

    DISCOVER = 1
    OFFER = 2
    REQUEST = 3
    ACK = 5
    NAK = 6
    INFORM = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DhcpLease:
    """Address for a guest.

    Attributes:
        prefix: Length of the network's prefix in bits, 1 to 32.
        gateway: Default gateway; None if none is sent.
        duration_s: Duration in seconds, a minute to a year.

    Raises:
        ConfigError: A value is out of range.
    """

    address: ipaddress.IPv4Address
    prefix: int
    gateway: ipaddress.IPv4Address | None = None
    duration_s: int = 3600

    def __post_init__(self) -> None:
        if not (1 <= self.prefix <= self.address.max_prefixlen and LEASE_MIN_S <= self.duration_s <= LEASE_MAX_S):
            expected = f"expected a prefix of 1 to 32 bits and a duration of {LEASE_MIN_S} to {LEASE_MAX_S} s"
            raise ConfigError(f"invalid lease of {self.address}/{self.prefix} for {self.duration_s} s: {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DhcpRequest:
    """Request of a DHCP client.

    Attributes:
        xid: Transaction id, copied to the answer.
        mac: MAC address, six bytes.
        address: Current address of the client; 0.0.0.0 if none.
        requested_address: Requested address; 0.0.0.0 if not given.
        server: Server that the client selected; 0.0.0.0 for any.
        is_bare: True if it requests only option 245 and has no other options; clients that want an address never do.
        flags: Flags, copied to the answer.
    """

    kind: DhcpMessageType
    xid: int
    mac: bytes
    address: ipaddress.IPv4Address
    requested_address: ipaddress.IPv4Address
    server: ipaddress.IPv4Address
    is_bare: bool = False
    flags: int = 0


def decode_request(packet: bytes) -> DhcpRequest | None:
    """Decode the question in a packet.

    Args:
        packet: Packet as received; may hold anything.

    Returns:
        Question; None if the packet is malformed, came over a relay, is of another kind, or does not request option
        245. A packet without a list of requested options, as in the sample of R94, counts as requesting it.

    Spec: R94
    """
    if not _HEAD.size < len(packet) <= PACKET_BYTES_MAX:
        return None
    op, medium, size, _, xid, _, flags, address, _, _, relay, mac, _, _, cookie = _HEAD.unpack_from(packet)
    options = _parse_options(packet[_HEAD.size :])
    is_well_formed = (op, medium, size, cookie, any(relay)) == (_REQUEST, _ETHERNET, _MAC_BYTES, _COOKIE, False)
    if not is_well_formed or mac[0] & _IS_GROUP or options is None:
        return None
    asked = set(options.get(_ASKED, [_ENDPOINT]))
    if _ENDPOINT not in asked:
        return None
    try:
        return DhcpRequest(
            kind=DhcpMessageType(int.from_bytes(options.get(_KIND, b"\0"))),
            xid=xid,
            mac=mac[:_MAC_BYTES],
            address=ipaddress.IPv4Address(address),
            requested_address=ipaddress.IPv4Address(options.get(_WANTED, bytes(4))),
            server=ipaddress.IPv4Address(options.get(_SERVER, bytes(4))),
            is_bare=asked == {_ENDPOINT} and options.keys() <= {_KIND, _ASKED},
            flags=flags,
        )
    except ValueError:  # an option of the wrong length, or another kind
        return None


def _parse_options(content: bytes) -> dict[int, bytes] | None:
    """Return the options by code; None if the end marker is missing."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(content) and content[at] != _END:
        if content[at] == _PAD:
            at += 1
            continue
        end = at + 2 + content[at + 1] if at + 1 < len(content) else len(content)
        # A repeated option continues the earlier one (RFC 3396).
        found[content[at]] = found.get(content[at], b"") + content[at + 2 : end]
        at = end
    return found if at < len(content) else None


def decide_answer(
    question: DhcpRequest, lease: DhcpLease | None, server: ipaddress.IPv4Address
) -> tuple[DhcpMessageType, DhcpLease | None] | None:
    """Return the kind of answer and its lease; None for no answer.

    Args:
        question: Question to answer.
        lease: Lease for the guest; None if another server assigns its address.
        server: Address of this server.
    """
    if question.kind is DhcpMessageType.INFORM:
        # The answer to a DHCPINFORM carries no lease (RFC 2131, section 4.3.5).
        return DhcpMessageType.ACK, None
    if question.kind is DhcpMessageType.DISCOVER:
        return None if lease is None and not question.is_bare else (DhcpMessageType.OFFER, lease)
    # A request that names another server accepts that server's offer, and is not ours to answer.
    if question.kind is not DhcpMessageType.REQUEST or lease is None or int(question.server) not in {0, int(server)}:
        return None
    # A client that renews its lease names the address in the header, not in the option (RFC 2131, section 4.3.2).
    wanted = question.requested_address if int(question.requested_address) else question.address
    return (DhcpMessageType.ACK, lease) if wanted == lease.address else (DhcpMessageType.NAK, None)


def encode_answer(
    question: DhcpRequest,
    kind: DhcpMessageType,
    lease: DhcpLease | None,
    *,
    endpoint: ipaddress.IPv4Address,
    server: ipaddress.IPv4Address,
) -> bytes:
    """Encode the answer, at least 300 bytes; an offer without a lease names no server, so no client can request it.

    Spec: R95
    """
    given = bytes(4) if lease is None else lease.address.packed
    address = question.address.packed if kind is DhcpMessageType.ACK else bytes(4)
    none = bytes(4)
    fields = (question.xid, 0, question.flags, address, given, none, none, question.mac, b"", b"", _COOKIE)
    packet = bytearray(_HEAD.pack(_REPLY, _ETHERNET, _MAC_BYTES, 0, *fields))
    options: list[tuple[int, bytes]] = [(_KIND, bytes([kind]))]
    if kind is not DhcpMessageType.OFFER or lease is not None:
        options.append((_SERVER, server.packed))
    if lease is not None:
        mask = ipaddress.IPv4Network((0, lease.prefix)).netmask
        options += [(_SECONDS, lease.duration_s.to_bytes(4)), (_MASK, mask.packed)]
        if lease.gateway is not None:
            options.append((_ROUTER, lease.gateway.packed))
    if kind is not DhcpMessageType.NAK:
        options.append((_ENDPOINT, endpoint.packed))
    for code, value in options:
        packet += bytes([code, len(value)]) + value
    packet.append(_END)
    return bytes(packet.ljust(_ANSWER_BYTES_MIN, bytes([_PAD])))


class DhcpResponder:
    """DHCP responder on some interfaces of this host.

    Args:
        endpoint: IPv4 address of the metadata endpoint, as guests reach it.
        interfaces: Returns the names of the interfaces to answer on.
        server: IPv4 address of this host to answer from; empty for the endpoint's.
        lease: Returns the lease of a guest by interface and MAC (as ``52:54:00:12:34:56``); None to offer no addresses.

    Attributes:
        answered: Number of answered packets.
        dropped: Number of packets not answered, for any reason.

    Raises:
        ConfigError: An address is invalid.

    Spec: R94, R95
    """

    def __init__(
        self,
        endpoint: str,
        interfaces: Callable[[], Collection[str]],
        *,
        server: str = "",
        lease: Callable[[str, str], DhcpLease | None] | None = None,
    ) -> None:
        self.answered = 0
        self.dropped = 0
        self._endpoint = _parse_address(endpoint)
        self._server = _parse_address(server or endpoint)
        self._interfaces = interfaces
        self._lease = lease or (lambda _interface, _mac: None)
        self._second = 0
        self._answers_this_second: dict[int, int] = {}
        self._last_line_s: int | None = None
        self._lines_skipped = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[DhcpResponder]:
        """Answer guests until the block ends.

        Raises:
            ConfigError: The port cannot be bound.
        """
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            # Without it, a DHCP server on this host could not use the port at the same time.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
            try:
                sock.bind((_EVERYBODY, _SERVER_PORT))
            except OSError as error:
                msg = (
                    f"cannot answer DHCP on UDP port {_SERVER_PORT}: {error.strerror}; run as root or with "
                    "CAP_NET_BIND_SERVICE, and stop any other program that uses the port"
                )
                raise ConfigError(msg) from error
            loop.add_reader(sock.fileno(), self._read_packets, sock)
            try:
                yield self
            finally:
                loop.remove_reader(sock.fileno())

    def _read_packets(self, sock: socket.socket) -> None:
        now_s = int(asyncio.get_running_loop().time())
        if now_s != self._second:
            self._second = now_s
            self._answers_this_second.clear()
        # Asked once per batch; a guest that is added meanwhile repeats its question.
        interfaces = self._interfaces()
        for _ in range(_READ_MAX):
            try:
                # Room for one byte too many, so that an oversized packet is refused instead of cut off.
                packet, ancillary, _, _ = sock.recvmsg(PACKET_BYTES_MAX + 1, socket.CMSG_SPACE(_PKTINFO.size))
            except BlockingIOError:
                return
            except OSError as error:
                self._log_rate_limited("cannot receive a DHCP packet", error=str(error))
                return
            index = next((_PKTINFO.unpack(info)[0] for _, kind, info in ancillary if kind == _IP_PKTINFO), 0)
            try:
                name = socket.if_indextoname(index)
            except OSError:  # it has just disappeared
                name = ""
            # This host may be in other networks as well, whose questions are not for us.
            if name not in interfaces or not self._answer_packet(sock, packet, name, index):
                self.dropped += 1

    def _answer_packet(self, sock: socket.socket, packet: bytes, name: str, index: int) -> bool:
        """Answer a packet from an interface; return True if an answer was sent."""
        question = decode_request(packet)
        if question is None or self._answers_this_second.get(index, 0) >= ANSWERS_PER_S_MAX:
            return False
        # Counted before the decision, so that questions without an answer are limited, too.
        self._answers_this_second[index] = self._answers_this_second.get(index, 0) + 1
        mac = question.mac.hex(":")
        decision = decide_answer(question, self._lease(name, mac), self._server)
        # A guest without an address can be reached by broadcast only.
        to = str(question.address) if question.kind is DhcpMessageType.INFORM else _NOBODY
        # The packet names the address, so a forged one must not direct the answer to a group or to this host.
        if decision is None or (to != _NOBODY and not _is_unicast(question.address)):
            return False
        answer = encode_answer(question, *decision, endpoint=self._endpoint, server=self._server)
        # The answer must leave by the interface of the question; the routing table would choose one for all broadcasts.
        info = _PKTINFO.pack(index, self._server.packed, bytes(4))
        address = (_EVERYBODY if to == _NOBODY else to, _CLIENT_PORT)
        try:
            sock.sendmsg([answer], [(socket.IPPROTO_IP, _IP_PKTINFO, info)], 0, address)
        except OSError as error:
            self._log_rate_limited(
                "cannot send a DHCP answer", interface=name, server=str(self._server), error=str(error)
            )
            return False
        self.answered += 1
        self._log_rate_limited("announced the endpoint by DHCP", interface=name, mac=mac, kind=question.kind.name)
        return True

    def _log_rate_limited(self, message: str, **facts: str) -> None:
        """Log at most one line per second: a guest must not be able to fill the log."""
        if self._last_line_s == self._second:
            self._lines_skipped += 1
            return
        self._last_line_s = self._second
        _log.info(message, **facts, lines_left_out=self._lines_skipped)
        self._lines_skipped = 0


def _parse_address(text: str) -> ipaddress.IPv4Address:
    try:
        address = ipaddress.IPv4Address(text.strip())
    except ValueError:
        address = ipaddress.IPv4Address(0)
    if not _is_unicast(address):
        raise ConfigError(f"cannot announce {text!r} as the endpoint's address: expected for example 169.254.169.254")
    return address


def _is_unicast(address: ipaddress.IPv4Address) -> bool:
    """Return True if the address can belong to a single machine in a network."""
    return not (address.is_unspecified or address.is_multicast or address.is_reserved or address.is_loopback)
