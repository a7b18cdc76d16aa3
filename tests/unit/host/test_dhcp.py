"""What is answered to whom by DHCP, in bytes (R94, R95)."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from forewarn.client.discovery import decode_offer, encode_discover
from forewarn.errors import ConfigError
from forewarn.host.dhcp import (
    LEASE_MAX_S,
    PACKET_BYTES_MAX,
    DhcpLease,
    DhcpMessageType,
    DhcpRequest,
    DhcpResponder,
    decide_answer,
    decode_request,
    encode_answer,
)

XID = bytes.fromhex("3903f326")
MAC = bytes.fromhex("525400112233")
NONE = IPv4Address(0)
ENDPOINT = IPv4Address("168.63.129.16")
SERVER = IPv4Address("10.0.0.1")
LEASE = DhcpLease(address=IPv4Address("10.0.0.2"), prefix=24, gateway=SERVER, duration_s=600)
ASKS = bytes([55, 2, 3, 245])


def packet(options: bytes, at: int = 0, value: bytes = b"", address: IPv4Address = NONE) -> bytes:
    """A question with these options; with other bytes at one place."""
    head = bytearray(bytes([1, 1, 6, 0]) + XID + bytes(4) + address.packed + bytes(12) + MAC)
    head = head.ljust(0xEC, b"\0") + bytes.fromhex("63825363") + options
    head[at : at + len(value)] = value
    return bytes(head)


def question(
    kind: DhcpMessageType,
    address: IPv4Address = NONE,
    wanted: IPv4Address = NONE,
    server: IPv4Address = NONE,
    *,
    is_bare: bool = False,
) -> DhcpRequest:
    xid = int.from_bytes(XID)
    return DhcpRequest(
        kind=kind, xid=xid, mac=MAC, address=address, requested_address=wanted, server=server, is_bare=is_bare
    )


def answer_to(asked: DhcpRequest, lease: DhcpLease | None = None) -> tuple[bytes, dict[int, bytes]]:
    """The whole answer, and its options."""
    decision = decide_answer(asked, lease, SERVER)
    assert decision is not None
    made = encode_answer(asked, *decision, endpoint=ENDPOINT, server=SERVER)
    options: dict[int, bytes] = {}
    at = 240
    while made[at] != 255:
        options[made[at]] = made[at + 2 : at + 2 + made[at + 1]]
        at += 2 + made[at + 1]
    return made, options


# What is asked


def test_the_sample_of_the_protocol_asks() -> None:
    """R94: it lists no options, and means this one."""
    assert decode_request(encode_discover(XID, MAC)) == question(DhcpMessageType.DISCOVER, is_bare=True)


def test_a_client_that_lists_the_option_asks() -> None:
    """R94."""
    found = decode_request(packet(bytes([53, 1, 8, 0]) + ASKS + b"\xff", address=LEASE.address))
    assert found == question(DhcpMessageType.INFORM, address=LEASE.address)


@pytest.mark.parametrize(
    ("options", "is_bare"),
    [
        ([55, 1, 245], True),
        ([55, 2, 245, 245, 0, 0], True),
        ([55, 3, 1, 3, 245], False),
        ([61, 1, 0], False),
        ([50, 4, 10, 0, 0, 2], False),
        ([55, 1, 245, 57, 2, 5, 220], False),
    ],
)
def test_who_says_anything_of_itself_may_want_an_address(options: list[int], is_bare: bool) -> None:
    """R94."""
    found = decode_request(packet(bytes([53, 1, 1, *options, 255])))
    assert found is not None
    assert found.is_bare is is_bare


def test_what_a_client_says_of_addresses_is_read() -> None:
    options = bytes([53, 1, 3, 50, 4, 10, 0, 0, 2, 54, 4, 10, 0, 0, 1]) + ASKS + b"\xff"
    assert decode_request(packet(options)) == question(DhcpMessageType.REQUEST, wanted=LEASE.address, server=SERVER)


def test_a_long_option_may_come_in_pieces() -> None:
    assert decode_request(packet(bytes([53, 1, 1, 55, 1, 3, 55, 1, 245, 255]))) == question(DhcpMessageType.DISCOVER)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        packet(b"")[:239],
        packet(b""),
        packet(b"\xff"),
        packet(bytes([53, 1, 1])),
        packet(bytes([53, 1])),
        packet(bytes([53])),
        packet(bytes([53, 2, 1, 1, 255])),
        packet(bytes([53, 0, 255])),
        packet(bytes([53, 1, 4, 255])),
        packet(bytes([53, 1, 7, 255])),
        packet(bytes([53, 1, 1, 50, 3, 10, 0, 0, 255])),
        packet(bytes([53, 1, 1, 54, 5, 10, 0, 0, 1, 1, 255])),
        packet(bytes([53, 1, 1, 55, 200, 245, 255])),
        packet(bytes([53, 1, 1, 255]), 0, b"\x02"),
        packet(bytes([53, 1, 1, 255]), 1, b"\x06"),
        packet(bytes([53, 1, 1, 255]), 2, b"\x10"),
        packet(bytes([53, 1, 1, 255]), 24, bytes([10, 0, 0, 9])),
        packet(bytes([53, 1, 1, 255]), 28, b"\x01"),
        packet(bytes([53, 1, 1, 255]), 0xEC, b"\x00"),
        packet(bytes([53, 1, 1, 255])).ljust(PACKET_BYTES_MAX + 1, b"\0"),
    ],
    ids=lambda packet: f"{len(packet)}: {packet[240:250].hex()}",
)
def test_what_is_damaged_or_no_question_to_us_is_dropped(damaged: bytes) -> None:
    """R94."""
    assert decode_request(damaged) is None


def test_who_asks_for_other_options_is_left_to_the_network_s_own_server() -> None:
    """R94."""
    assert decode_request(packet(bytes([53, 1, 1, 55, 3, 1, 3, 6, 255]))) is None


@given(st.binary(max_size=400))
@example(packet(bytes([53, 1, 1, 255])))
def test_any_packet_is_a_question_or_none(content: bytes) -> None:
    """R94."""
    for whole in (content, packet(content)):
        found = decode_request(whole)
        assert found is None or found.kind in set(DhcpMessageType)


# What is answered


def test_the_client_reads_the_endpoint_out_of_the_answer() -> None:
    """R94, R95: the two halves of Forewarn, byte by byte."""
    asked = decode_request(encode_discover(XID, MAC))
    assert asked is not None
    made, options = answer_to(asked)
    assert decode_offer(made, XID) == str(ENDPOINT)
    assert len(made) >= 246
    assert made[:4] == bytes([2, 1, 6, 0])
    assert made[4:8] == XID
    assert made[0x1C:0x22] == MAC
    assert made[0xEC:0xF0] == bytes.fromhex("63825363")
    assert options[245] == ENDPOINT.packed


def test_without_a_lease_no_address_is_offered_and_only_to_who_wants_none() -> None:
    """R95: real clients take an offer of 0.0.0.0, and have no address for long."""
    made, options = answer_to(question(DhcpMessageType.DISCOVER, is_bare=True))
    assert made[16:20] == bytes(4)
    assert options == {53: b"\x02", 245: ENDPOINT.packed}
    assert decide_answer(question(DhcpMessageType.DISCOVER), None, SERVER) is None


def test_who_has_an_address_is_told_the_endpoint_alone() -> None:
    """R95."""
    made, options = answer_to(question(DhcpMessageType.INFORM, address=LEASE.address), LEASE)
    assert made[12:20] == LEASE.address.packed + bytes(4)
    assert options == {53: b"\x05", 54: SERVER.packed, 245: ENDPOINT.packed}


@pytest.mark.parametrize("lease", [None, LEASE])
def test_a_request_to_another_server_is_none_of_our_business(lease: DhcpLease | None) -> None:
    asked = question(DhcpMessageType.REQUEST, wanted=LEASE.address, server=IPv4Address("10.0.0.254"))
    assert decide_answer(asked, lease, SERVER) is None


def test_a_request_is_not_answered_where_no_lease_was_told() -> None:
    assert decide_answer(question(DhcpMessageType.REQUEST, wanted=LEASE.address, server=SERVER), None, SERVER) is None


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (question(DhcpMessageType.DISCOVER), DhcpMessageType.OFFER),
        (question(DhcpMessageType.REQUEST, wanted=LEASE.address, server=SERVER), DhcpMessageType.ACK),
        (question(DhcpMessageType.REQUEST, wanted=LEASE.address), DhcpMessageType.ACK),
        (question(DhcpMessageType.REQUEST, address=LEASE.address), DhcpMessageType.ACK),
    ],
)
def test_where_a_lease_was_told_it_is_offered_and_given(asked: DhcpRequest, kind: DhcpMessageType) -> None:
    """R95."""
    made, options = answer_to(asked, LEASE)
    assert made[16:20] == LEASE.address.packed
    assert options == {
        53: bytes([kind]),
        54: SERVER.packed,
        51: (600).to_bytes(4),
        1: bytes([255, 255, 255, 0]),
        3: SERVER.packed,
        245: ENDPOINT.packed,
    }


@pytest.mark.parametrize(("wanted", "address"), [(SERVER, NONE), (NONE, SERVER), (NONE, NONE)])
def test_another_address_than_the_lease_s_is_refused(wanted: IPv4Address, address: IPv4Address) -> None:
    made, options = answer_to(question(DhcpMessageType.REQUEST, wanted=wanted, address=address), LEASE)
    assert made[12:20] == bytes(8)
    assert options == {53: b"\x06", 54: SERVER.packed}


@pytest.mark.parametrize("kind", [DhcpMessageType.OFFER, DhcpMessageType.ACK, DhcpMessageType.NAK])
def test_an_answer_is_no_question(kind: DhcpMessageType) -> None:
    assert decide_answer(question(kind), LEASE, SERVER) is None


# What may be said


@pytest.mark.parametrize("address", ["", "metadata", "fd00::1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1"])
def test_an_endpoint_that_no_guest_could_reach_is_refused(address: str) -> None:
    """R95."""
    with pytest.raises(ConfigError, match=r"cannot announce .* as the endpoint's address: expected for example"):
        DhcpResponder(address, frozenset)


@pytest.mark.parametrize(("prefix", "duration_s"), [(0, 600), (33, 600), (24, 59), (24, LEASE_MAX_S + 1)])
def test_a_lease_out_of_range_is_refused(prefix: int, duration_s: int) -> None:
    with pytest.raises(ConfigError, match=r"^invalid lease of 10\.0\.0\.2/\d+ for \d+ s: expected a prefix of"):
        DhcpLease(address=LEASE.address, prefix=prefix, duration_s=duration_s)


def test_guests_cannot_fill_the_log() -> None:
    responder = DhcpResponder(str(ENDPOINT), list)
    with capture_logs() as logs:
        for second in (7, 7, 7, 8, 8, 9):
            responder._second = second
            responder._log_rate_limited("announced the endpoint by DHCP")
    assert [line["lines_left_out"] for line in logs] == [0, 2, 1]
