"""Assignment of network interfaces to VMs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from forewarn.core.model import VirtualMachine
from forewarn.host.listener_problem import ListenerProblem
from forewarn.host.listener_settings import INTERFACE_NAME_MAX, VM_PLACEHOLDER, ListenerSettings
from forewarn.host.network_interfaces import NetworkInterface

__all__ = ["assign_interfaces"]

_MAC_DIGITS = 12
_TAP_PREFIX = "fe"  # libvirt gives a tap the MAC of its guest, except for the first byte
_BRIDGED = (
    "its interface is a bridge port, so its packets arrive at the bridge: "
    "identify VMs on a bridge by address, or make the bridge leave their packets to the interface (broute)"
)


def assign_interfaces(
    settings: ListenerSettings,
    vms: Iterable[VirtualMachine],
    interfaces: Iterable[NetworkInterface],
    named_vms: Mapping[str, str],
) -> tuple[dict[NetworkInterface, str], list[ListenerProblem]]:
    """Assign interfaces to VMs.

    Args:
        settings: Settings; the file takes precedence over the pattern, the pattern over MACs.
        vms: VMs of this host.
        interfaces: Interfaces of this host, with MACs if `settings.by_mac` is set.
        named_vms: Content of the file: names of VMs by interface name.

    Returns:
        Name of the VM by interface, and the problems found.
    """
    declared = list(vms)
    names = {vm.name for vm in declared}
    strange = f"{settings.interface_file} names it, but it is not in the inventory of this host"
    troubles = [ListenerProblem(vm, strange) for vm in named_vms.values() if vm not in names]
    patterned = {settings.interface_pattern.replace(VM_PLACEHOLDER, vm.name): vm.name for vm in declared}
    # Without a pattern, the name is empty.
    by_name = {name: vm for name, vm in patterned.items() if 0 < len(name) <= INTERFACE_NAME_MAX}
    # Merged last, so that the file takes precedence over the pattern.
    by_name |= {name: vm for name, vm in named_vms.items() if vm in names}
    by_mac: dict[str, str] = {}
    reached = set(by_name.values())
    if settings.by_mac:
        by_mac, more = _assign_by_mac(declared, reached)
        troubles += more
    elif settings.interface_pattern:
        too_long = (
            f"pattern {settings.interface_pattern} gives an interface name of more than {INTERFACE_NAME_MAX} characters"
        )
        too_long += ": assign the interface in a file"
        troubles += [ListenerProblem(vm.name, too_long) for vm in declared if vm.name not in reached]
    owners: dict[NetworkInterface, str] = {}
    for interface in interfaces:
        owner = by_name.get(interface.name) or by_mac.get(interface.mac)
        if owner is not None:
            owners[interface] = owner
            if interface.is_bridge_port:
                troubles.append(ListenerProblem(owner, _BRIDGED))
    return owners, troubles


def _assign_by_mac(vms: Iterable[VirtualMachine], assigned: set[str]) -> tuple[dict[str, str], list[ListenerProblem]]:
    """Return the VM by the MAC of its tap, and problems of VMs without a usable MAC that have no other interface."""
    found: dict[str, list[str]] = {}
    troubles = []
    for vm in vms:
        digits = re.sub(r"[:.\-]", "", vm.mac_address).lower()
        if len(digits) == _MAC_DIGITS:
            found.setdefault(_TAP_PREFIX + digits[2:], []).append(vm.name)
        elif vm.name not in assigned:
            troubles.append(ListenerProblem(vm.name, "its interface is unknown: set its mac_address in the inventory"))
    for mac, names in list(found.items()):
        if len(names) > 1:
            # Given to neither: either VM could otherwise see and approve the events of the other.
            del found[mac]
            reason = "its mac_address equals that of another VM, except perhaps in the first byte: change it"
            troubles += [ListenerProblem(name, reason) for name in names]
    return {mac: names[0] for mac, names in found.items()}, troubles
