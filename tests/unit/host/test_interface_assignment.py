"""Which interface is whose (R2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.host.interface_assignment import assign_interfaces
from forewarn.host.listener_problem import ListenerProblem
from forewarn.host.listener_settings import IdentificationMethod, ListenerSettings
from forewarn.host.network_interfaces import NetworkInterface
from tests.unit.core.builders import vm

BY_NAME = ListenerSettings(identify_by=(IdentificationMethod.INTERFACE,), interface_pattern="tap-{vm}")
BY_MAC = ListenerSettings(identify_by=(IdentificationMethod.INTERFACE,), by_mac=True)
FILE = Path("interfaces.yaml")


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
