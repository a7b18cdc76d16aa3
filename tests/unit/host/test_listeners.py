"""Which interface is whose, and what may be said about it (R2)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.errors import ConfigError
from forewarn.host.listeners import (
    INTERFACES_FILE_BYTES_MAX,
    IdentificationMethod,
    ListenAddress,
    ListenerProblem,
    ListenerSettings,
    NetworkInterface,
    _explain_error,
    assign_interfaces,
    read_interface_file,
)
from tests.unit.core.builders import vm

BY_NAME = ListenerSettings(identify_by=(IdentificationMethod.INTERFACE,), interface_pattern="tap-{vm}")
BY_MAC = ListenerSettings(identify_by=(IdentificationMethod.INTERFACE,), by_mac=True)
FILE = Path("interfaces.yaml")


# What is said


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


# The file


def test_a_file_says_which_interface_is_whose(tmp_path: Path) -> None:
    """R2."""
    path = tmp_path / "interfaces.yaml"
    path.write_text("interfaces:\n  vnet0: web-0\n  vnet1: '1'\n")
    assert read_interface_file(path) == {"vnet0": "web-0", "vnet1": "1"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "1: expected a VM for each interface, as in 'interfaces: {vnet0: web-0}'"),
        ("vnet0: web-0", "1: unknown key 'vnet0'"),
        ("interfaces:\n  vnet0: web-0\n  vnet0: web-1\n", "3: duplicate key 'vnet0'"),
        ("interfaces:\n  vnet0: [web-0]\n", "2: interfaces.vnet0: input should be a valid string"),
        ("interfaces: {a-name-of-16-chr: web-0}", "1: interfaces.a-name-of-16-chr: string should have at most 15"),
        ("interfaces: ]", "1: not valid YAML"),
        ("#" * (INTERFACES_FILE_BYTES_MAX + 1), " 1048577 bytes exceed the limit of 1048576 for a mapping"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "interfaces.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_interface_file(path)
    assert str(caught.value).startswith(f"{path}:{words}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read .*none\.yaml: no such file or directory$"):
        read_interface_file(tmp_path / "none.yaml")


# Whose an interface is


def test_by_the_pattern_each_vm_has_the_interface_of_its_name() -> None:
    """R2."""
    lo, web, other = NetworkInterface("lo", 1), NetworkInterface("tap-web-0", 2), NetworkInterface("tap-web-00", 3)
    owners, troubles = assign_interfaces(BY_NAME, [vm("web-0"), vm("db")], [lo, web, other], {})
    assert owners == {web: "web-0"}
    assert troubles == []


def test_a_vm_whose_interface_cannot_have_its_name_is_told_of() -> None:
    long = vm("a-name-of-a-database")
    owners, troubles = assign_interfaces(BY_NAME, [long], [NetworkInterface("tap-a-name-of-a", 2)], {})
    assert owners == {}
    assert troubles == [
        ListenerProblem(
            long.name,
            "pattern tap-{vm} gives an interface name of more than 15 characters: assign the interface in a file",
        )
    ]


def test_the_file_names_what_the_pattern_cannot_and_goes_before_it() -> None:
    """R2."""
    both = replace(BY_NAME, interface_file=FILE)
    taps = [NetworkInterface("tap-web-0", 2), NetworkInterface("vnet0", 3)]
    owners, troubles = assign_interfaces(
        both, [vm("web-0"), vm("a-name-of-a-database")], taps, {"vnet0": "a-name-of-a-database"}
    )
    assert owners == {taps[0]: "web-0", taps[1]: "a-name-of-a-database"}
    assert troubles == []
    owners, _ = assign_interfaces(both, [vm("web-0"), vm("db")], taps, {"tap-web-0": "db"})
    assert owners == {taps[0]: "db"}


def test_a_vm_that_only_the_file_knows_gets_nothing() -> None:
    """R2."""
    owners, troubles = assign_interfaces(
        replace(BY_NAME, interface_file=FILE), [vm("db")], [NetworkInterface("vnet0", 2)], {"vnet0": "web-0"}
    )
    assert owners == {}
    assert troubles == [
        ListenerProblem("web-0", "interfaces.yaml names it, but it is not in the inventory of this host")
    ]


@pytest.mark.parametrize("said", ["52:54:00:AB:cd:01", "525400abcd01", "52-54-00-ab-cd-01", "5254.00ab.cd01"])
def test_by_mac_a_tap_is_known_by_all_but_its_first_byte(said: str) -> None:
    """R2: as libvirt names taps."""
    tap, guest = NetworkInterface("vnet0", 2, "fe5400abcd01"), NetworkInterface("vnet1", 3, "525400abcd01")
    owners, troubles = assign_interfaces(BY_MAC, [replace(vm("web-0"), mac_address=said)], [tap, guest], {})
    assert owners == {tap: "web-0"}
    assert troubles == []


def test_without_a_mac_or_with_that_of_another_a_vm_has_no_interface() -> None:
    """R2: an interface that might be one VM's or another's is nobody's."""
    vms = [
        replace(vm("web-0"), mac_address="52:54:00:ab:cd:01"),
        replace(vm("web-1"), mac_address="02:54:00:ab:cd:01"),
        vm("db"),
    ]
    owners, troubles = assign_interfaces(
        BY_MAC, vms, [NetworkInterface("vnet0", 2, "fe5400abcd01"), NetworkInterface("lo", 1)], {}
    )
    assert owners == {}
    same = "its mac_address equals that of another VM, except perhaps in the first byte: change it"
    assert troubles == [
        ListenerProblem("db", "its interface is unknown: set its mac_address in the inventory"),
        ListenerProblem("web-0", same),
        ListenerProblem("web-1", same),
    ]


def test_a_vm_without_a_mac_may_be_named_otherwise() -> None:
    tap = NetworkInterface("vnet7", 2, "fe5400abcd01")
    assert assign_interfaces(replace(BY_MAC, interface_file=FILE), [vm("db")], [tap], {"vnet7": "db"}) == (
        {tap: "db"},
        [],
    )


def test_a_port_of_a_bridge_is_told_of() -> None:
    tap = NetworkInterface("tap-db", 2, is_bridge_port=True)
    owners, troubles = assign_interfaces(BY_NAME, [vm("db")], [tap], {})
    assert owners == {tap: "db"}
    assert troubles[0].vm == "db"
    assert troubles[0].reason.startswith("its interface is a bridge port")


names = st.text("ab-.0", min_size=1, max_size=4).map(lambda rest: f"v{rest}")


@settings(max_examples=50)
@given(vms=st.sets(names, max_size=6), taps=st.sets(names, max_size=6), named=st.dictionaries(names, names, max_size=4))
def test_an_interface_is_only_given_to_a_vm_that_is_named_for_it(
    vms: set[str], taps: set[str], named: dict[str, str]
) -> None:
    """R2: whatever there is, what an interface gets is what the file says, or else its own name."""
    ways = ListenerSettings(
        identify_by=(IdentificationMethod.INTERFACE,), interface_pattern="{vm}", interface_file=FILE
    )
    interfaces = [NetworkInterface(name, index) for index, name in enumerate(sorted(taps), 1)]
    owners, _ = assign_interfaces(ways, [vm(name) for name in vms], interfaces, named)
    for interface in interfaces:
        told = named.get(interface.name)
        expected = told if told in vms else interface.name
        assert owners.get(interface) == (expected if expected in vms else None)


# What is told


@pytest.mark.parametrize(
    ("place", "number", "words"),
    [
        (
            ListenAddress(vm="db", host="169.254.169.254", port=80),
            errno.EACCES,
            "169.254.169.254:80: permission denied; run as root or with CAP_NET_BIND_SERVICE",
        ),
        (
            ListenAddress(host="169.254.169.254", port=80),
            errno.EADDRNOTAVAIL,
            (
                "169.254.169.254:80: cannot assign requested address; "
                "add it to this host, for example with 'ip address add 169.254.169.254/32 dev lo'"
            ),
        ),
        (
            ListenAddress(host="fd00::10", port=80),
            errno.EADDRNOTAVAIL,
            (
                "[fd00::10]:80: cannot assign requested address; "
                "add it to this host, for example with 'ip address add fd00::10/128 dev lo'"
            ),
        ),
        (
            ListenAddress(host="127.0.0.1", port=80, interface="tap-db", index=2),
            errno.EADDRINUSE,
            "127.0.0.1:80: address already in use; run 'ss -ltnp' to find the process that listens there",
        ),
        (ListenAddress(host="127.0.0.1", port=80), errno.EIO, "127.0.0.1:80: input/output error; check the address"),
        (
            ListenAddress(vm="db", path=Path("/run/vms/db.sock")),
            errno.EADDRINUSE,
            (
                "/run/vms: address already in use; "
                "another process listens on its socket: stop it or choose another folder"
            ),
        ),
    ],
)
def test_why_a_vm_cannot_be_answered_is_told_with_what_to_do(place: ListenAddress, number: int, words: str) -> None:
    assert _explain_error(place, OSError(number, os.strerror(number))) == words
