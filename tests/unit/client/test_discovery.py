"""The bytes of endpoint discovery: what is broadcast, and what is read out of answers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forewarn.client.discovery import (
    TIMEOUT_S,
    WAITS_S,
    decode_offer,
    default_interface,
    encode_discover,
    endpoint_url,
)
from forewarn.errors import ConfigError

XID = bytes.fromhex("3903f326")
MAC = bytes.fromhex("000d3a112233")
ENDPOINT = bytes([245, 4, 168, 63, 129, 16])
END = bytes([255])


def offer(options: bytes, xid: bytes = XID, cookie: bytes = bytes.fromhex("63825363")) -> bytes:
    """A DHCP answer with these options, as a server lays it out."""
    head = bytes([2, 1, 6, 0]) + xid + bytes(8) + bytes([10, 0, 0, 4]) + bytes(8) + MAC
    return head.ljust(0xEC, b"\0") + cookie + options


# What is sent


def test_a_request_is_laid_out_as_the_sample_does() -> None:
    """R94."""
    packet = encode_discover(XID, MAC)
    assert len(packet) == 244
    assert packet[:4] == bytes([1, 1, 6, 0])
    assert packet[4:8] == XID
    assert packet[8:0x1C] == bytes(20)
    assert packet[0x1C:0x22] == MAC
    assert packet[0x22:0xEC] == bytes(202)
    assert packet[0xEC:] == bytes([0x63, 0x82, 0x53, 0x63, 53, 1, 1, 255])


@pytest.mark.parametrize(("xid", "mac"), [(b"", MAC), (XID + b"\0", MAC), (XID, b""), (XID, MAC + b"\0")])
def test_a_request_needs_four_bytes_and_six(xid: bytes, mac: bytes) -> None:
    """R94."""
    with pytest.raises(ValueError, match="expected an xid of 4 bytes and a MAC of 6"):
        encode_discover(xid, mac)


def test_the_tries_are_those_of_the_sample() -> None:
    """R94."""
    assert (WAITS_S, TIMEOUT_S) == ((0, 10, 30, 60, 60), 10)


# What is read


@pytest.mark.parametrize(
    "options",
    [
        ENDPOINT,
        ENDPOINT + END,
        bytes([53, 1, 2, 3, 4, 10, 0, 0, 1, 249, 0]) + ENDPOINT + END,
        bytes(5) + ENDPOINT + END,
        bytes([245, 3, 1, 2, 3]) + ENDPOINT + END,
        bytes([245, 0]) + ENDPOINT + END,
        ENDPOINT + bytes([245, 4, 1, 2, 3, 4]) + END,
        ENDPOINT + bytes([12, 200, 1]),
    ],
    ids=["alone", "ended", "after others", "after padding", "after a short one", "after an empty one", "first", "cut"],
)
def test_the_endpoint_stands_in_option_245(options: bytes) -> None:
    """R95: wherever among the others; 246 bytes are enough."""
    assert decode_offer(offer(options), XID) == "168.63.129.16"


@pytest.mark.parametrize(
    "options",
    [
        b"",
        END,
        bytes([0]),
        bytes([245]),
        bytes([245, 4]),
        ENDPOINT[:-1],
        bytes([245, 3, 168, 63, 129]),
        bytes([245, 5, 168, 63, 129, 16, 0]),
        END + ENDPOINT,
        bytes([12, 7]) + ENDPOINT + END,
        bytes([12, 255]) + ENDPOINT,
        bytes([245, 4, 0, 0, 0, 0]) + END,
        bytes([245, 4, 255, 255, 255, 255]) + END,
        bytes([245, 4, 224, 0, 0, 1]) + END,
    ],
)
def test_without_a_whole_option_245_nothing_is_found(options: bytes) -> None:
    """R95: nor with an address that no endpoint can have."""
    assert decode_offer(offer(options), XID) is None


def test_the_answer_to_another_is_left_alone() -> None:
    """R95: broadcasts reach everybody."""
    assert decode_offer(offer(ENDPOINT, xid=bytes(4)), XID) is None
    assert decode_offer(offer(ENDPOINT, cookie=bytes(4)), XID) is None
    assert decode_offer(encode_discover(XID, MAC), XID) is None


@given(st.binary(max_size=600), st.binary(min_size=4, max_size=4))
def test_any_bytes_are_read_without_an_error(packet: bytes, xid: bytes) -> None:
    """R95."""
    assert decode_offer(packet, xid) is None or len(packet) >= 246


@given(st.binary(max_size=400))
@example(ENDPOINT)
def test_any_options_are_read_without_an_error(options: bytes) -> None:
    """R95: an address is found only where its four bytes stand behind 245 and 4."""
    found = decode_offer(offer(options), XID)
    if found is not None:
        assert bytes([245, 4, *map(int, found.split("."))]) in options


@given(
    before=st.lists(
        st.tuples(st.integers(1, 254).filter(lambda code: code != 245), st.binary(max_size=255)), max_size=5
    ),
    address=st.tuples(st.integers(1, 223), *[st.integers(0, 255)] * 3),
    after=st.binary(max_size=20),
)
def test_the_endpoint_is_found_among_any_options(
    before: list[tuple[int, bytes]], address: tuple[int, int, int, int], after: bytes
) -> None:
    """R95."""
    options = b"".join(bytes([code, len(value)]) + value for code, value in before)
    packet = offer(options + bytes([245, 4, *address]) + after)
    assert decode_offer(packet, XID) == ".".join(map(str, address))


# What is made of it


@pytest.mark.parametrize(
    ("ip", "port", "url"),
    [
        ("168.63.129.16", 80, "http://168.63.129.16"),
        ("168.63.129.16", 8080, "http://168.63.129.16:8080"),
        (" 168.63.129.16\n", 80, "http://168.63.129.16"),
        ("fd00::10", 80, "http://[fd00::10]"),
        ("fd00::10", 8080, "http://[fd00::10]:8080"),
    ],
)
def test_an_address_makes_a_url(ip: str, port: int, url: str) -> None:
    """R96: the C# library asks on port 8080."""
    assert endpoint_url(ip, port) == url


@pytest.mark.parametrize("ip", ["", "metadata", "168.63.129", "168.63.129.16:80", "http://168.63.129.16"])
def test_what_is_no_address_makes_no_url(ip: str) -> None:
    """R96."""
    with pytest.raises(ConfigError, match="is not an IP address"):
        endpoint_url(ip)


ROUTES = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
docker0	000011AC	00000000	0001	0	0	0	0000FFFF	0	0	0
eth1	00000000	0101000A	0003	0	0	100	00000000	0	0	0
eth0	00000000	0100000A	0003	0	0	200	00000000	0	0	0
"""


def test_a_broadcast_leaves_by_the_default_route() -> None:
    """R94: so it is that card's address that the server has to know, and not a container's bridge's."""
    assert default_interface(ROUTES) == "eth1"


@pytest.mark.parametrize("routes", ["", "Iface\n", "Iface\n\nx y\n", "\n".join(ROUTES.splitlines()[:2])])
def test_without_a_default_route_nothing_is_known(routes: str) -> None:
    assert default_interface(routes) is None
