"""Which ways of identifying VMs go together (R2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forewarn.errors import ConfigError
from forewarn.host.listener_settings import IdentificationMethod, ListenerSettings

FILE = Path("interfaces.yaml")


@pytest.mark.parametrize(
    "said",
    [
        {"identify_by": (IdentificationMethod.ADDRESS,)},
        {"identify_by": (IdentificationMethod.ADDRESS,), "listen": ("127.0.0.1:0", "[fd00::1]:80")},
        {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "tap-{vm}"},
        {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "{vm}"},
        {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "{vm}.0"},
        {"identify_by": (IdentificationMethod.INTERFACE,), "interface_file": FILE},
        {
            "identify_by": (IdentificationMethod.INTERFACE,),
            "by_mac": True,
            "interface_pattern": "tap-{vm}",
            "interface_file": FILE,
        },
        {"identify_by": (IdentificationMethod.SOCKET,), "socket_folder": Path("sockets"), "listen": ()},
        {
            "identify_by": (IdentificationMethod.SOCKET, IdentificationMethod.INTERFACE),
            "socket_folder": Path("sockets"),
            "by_mac": True,
        },
        {
            "identify_by": (IdentificationMethod.SOCKET, IdentificationMethod.ADDRESS),
            "socket_folder": Path("sockets"),
            "socket_group": "root",
        },
    ],
)
def test_ways_that_go_together_are_taken(said: dict[str, Any]) -> None:
    """R2."""
    assert ListenerSettings(**said).identify_by == said["identify_by"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"identify_by": ()}, "no way to identify VMs is set: choose address, interface or socket"),
        (
            {"identify_by": (IdentificationMethod.ADDRESS, IdentificationMethod.INTERFACE)},
            "cannot identify VMs by both address and interface",
        ),
        (
            {"identify_by": (IdentificationMethod.ADDRESS,), "listen": ()},
            "no address to listen on is set: expected for example 169.254.169.254:80",
        ),
        (
            {"identify_by": (IdentificationMethod.ADDRESS,), "listen": ("metadata:80",)},
            "cannot listen on 'metadata:80': expected an address",
        ),
        (
            {"identify_by": (IdentificationMethod.ADDRESS,), "interface_pattern": "tap-{vm}"},
            "an interface pattern, an interface file and matching by MAC require",
        ),
        (
            {"identify_by": (IdentificationMethod.INTERFACE,)},
            "cannot assign interfaces to VMs: set a pattern such as tap-{vm}, a file, or matching by",
        ),
        (
            {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "tap"},
            "interface pattern 'tap': expected {vm} once",
        ),
        (
            {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "{vm}-{vm}"},
            "interface pattern '{vm}-{vm}': expected {vm} once",
        ),
        (
            {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "{host}-{vm}"},
            "interface pattern '{host}-{vm}': expected {vm} once",
        ),
        (
            {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "tap/{vm}"},
            "interface pattern 'tap/{vm}': expected {vm} once",
        ),
        (
            {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "tap {vm}"},
            "interface pattern 'tap {vm}': expected {vm} once",
        ),
        (
            {"identify_by": (IdentificationMethod.INTERFACE,), "interface_pattern": "interface-of-a-{vm}"},
            "interface pattern 'interface-of-a-{vm}': a name has at most 15 characters",
        ),
        ({"identify_by": (IdentificationMethod.SOCKET,)}, "no folder is set for the Unix sockets of the VMs"),
        (
            {"identify_by": (IdentificationMethod.ADDRESS,), "socket_folder": FILE},
            "a folder and a group for sockets require",
        ),
        (
            {"identify_by": (IdentificationMethod.ADDRESS,), "socket_group": "root"},
            "a folder and a group for sockets require",
        ),
        (
            {"identify_by": (IdentificationMethod.SOCKET,), "socket_folder": FILE, "socket_group": "no-such"},
            "group 'no-such' for the Unix sockets",
        ),
        (
            {"identify_by": (IdentificationMethod.ADDRESS,), "poll_interval_s": 0.0},
            "poll interval is 0 s: expected 0.1 to 3600 s",
        ),
        (
            {"identify_by": (IdentificationMethod.ADDRESS,), "poll_interval_s": 3601.0},
            "poll interval is 3601 s: expected 0.1 to 3600 s",
        ),
    ],
)
def test_ways_that_make_no_sense_are_named(said: dict[str, Any], words: str) -> None:
    """R2."""
    with pytest.raises(ConfigError) as caught:
        ListenerSettings(**said)
    assert str(caught.value).startswith(words)
