"""Dividing the VMs of a request into groups that each start together.

Spec: R61
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forewarn.core.causes import Cause
from forewarn.core.model import EventSource, VirtualMachine

__all__ = ["split_into_groups"]


@dataclass(slots=True)
class _StartGroup:
    """Group of VMs of which no two are in different fault domains of one scope."""

    vms: list[VirtualMachine] = field(default_factory=list)
    domain_of: dict[str, int] = field(default_factory=dict)

    def can_add(self, candidates: Iterable[VirtualMachine]) -> bool:
        """Return True if these may start together with the VMs in the group, and with each other."""
        domains = dict(self.domain_of)
        return all(
            vm.scope is None or domains.setdefault(vm.scope, vm.fault_domain) == vm.fault_domain for vm in candidates
        )

    def add(self, vms: Iterable[VirtualMachine]) -> None:
        for vm in vms:
            self.vms.append(vm)
            if vm.scope is not None:
                self.domain_of[vm.scope] = vm.fault_domain


def split_into_groups(
    vms: list[VirtualMachine], cause: Cause, source: EventSource, *, by_host: bool
) -> list[list[VirtualMachine]]:
    """Divide VMs into the groups that each start together, in the order given.

    The cause decides whether each VM's operation is separate, and whether fault domains matter; user operations are not
    serialised. If the request names hosts (`by_host`), the VMs of a host stay together, unless they are in different
    fault domains of one scope. VMs of a standalone scope count as having none.

    Returns:
        At least one group; a single empty one if there is no VM.
    """
    if not vms:
        # A host without running VMs still gets its maintenance.
        return [[]]
    if cause.is_per_vm:
        return [[vm] for vm in vms]
    if not cause.is_routine or source is not EventSource.PLATFORM:
        return [vms]
    units: dict[str, list[VirtualMachine]] = {}
    for vm in vms:
        units.setdefault(vm.host if by_host else vm.name, []).append(vm)
    waves: list[_StartGroup] = []
    for unit in units.values():
        # A host with VMs in two fault domains of a scope is the only reason to split the VMs of a host.
        for piece in [unit] if _StartGroup().can_add(unit) else _split_by_fault_domain(unit):
            group = next((wave for wave in waves if wave.can_add(piece)), None)
            if group is None:
                group = _StartGroup()
                waves.append(group)
            group.add(piece)
    return [wave.vms for wave in waves]


def _split_by_fault_domain(vms: list[VirtualMachine]) -> list[list[VirtualMachine]]:
    pieces: dict[int, list[VirtualMachine]] = {}
    for vm in vms:
        # Without a scope, nothing separates VMs from the others of their host.
        pieces.setdefault(vm.fault_domain if vm.scope is not None else 0, []).append(vm)
    return [pieces[domain] for domain in sorted(pieces)]
