"""Endpoint discovery without a network: an address in the environment, and a socket that never falls silent."""

from __future__ import annotations

import socket

import pytest

from forewarn.client import discovery
from forewarn.client.discovery import VARIABLE, discover, discover_async
from forewarn.errors import ConfigError, EndpointUnreachable

ENDPOINT = "168.63.129.16"


@pytest.mark.parametrize("address", [ENDPOINT, f" {ENDPOINT} ", "fd00::10"])
def test_the_address_in_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """R96: without a word on the network."""
    monkeypatch.setenv(VARIABLE, address)
    assert discover(waits_s=()) == address.strip()


@pytest.mark.parametrize("address", ["metadata", "168.63.129", "168.63.129.16:80"])
def test_what_is_no_address_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """R96."""
    monkeypatch.setenv(VARIABLE, address)
    with pytest.raises(ConfigError, match=f"^environment variable {VARIABLE} is '{address}': expected an IP addr"):
        discover(waits_s=())


@pytest.mark.parametrize("left", ["", " ", ENDPOINT])
@pytest.mark.anyio
async def test_the_environment_may_be_left_alone(monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    """R96."""
    monkeypatch.setenv(VARIABLE, left)
    with pytest.raises(EndpointUnreachable, match="in 0 tries"):
        await discover_async(waits_s=(), mac=bytes(6), use_environment=not left.strip())


class Chatty(socket.socket):
    """Always has another packet for somebody else."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        return bytes(300)

    def sendto(self, *arguments: object) -> int:
        return 244


@pytest.mark.timeout(60)
@pytest.mark.anyio
async def test_packets_for_others_do_not_stop_the_clock() -> None:
    """R94, R95: a try ends in time, also where there is always something to read."""
    with Chatty(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0)
        with pytest.raises(TimeoutError):
            await discovery._request_address(sock, bytes(6), 0.05)
