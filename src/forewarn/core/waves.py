"""Dividing the VMs of a request into groups that each start together.

Spec: R61
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forewarn.core.causes import Cause
from forewarn.core.model import Source, VirtualMachine

__all__ = ["split"]


@dataclass(slots=True)
class _Wave:
    """Group of VMs of which no two are in different fault domains of one scope."""

    vms: list[VirtualMachine] = field(default_factory=list)
    domain_of: dict[str, int] = field(default_factory=dict)

    def takes(self, vms: Iterable[VirtualMachine]) -> bool:
        """Return True if these may start together with the VMs in the group, and with each other."""
        domains = dict(self.domain_of)
        return all(vm.scope is None or domains.setdefault(vm.scope, vm.fault_domain) == vm.fault_domain for vm in vms)

    def add(self, vms: Iterable[VirtualMachine]) -> None:
        for vm in vms:
            self.vms.append(vm)
            if vm.scope is not None:
                self.domain_of[vm.scope] = vm.fault_domain


def split(vms: list[VirtualMachine], cause: Cause, source: Source, *, by_host: bool) -> list[list[VirtualMachine]]:
    """Divide VMs into the groups that each start together, in the order given.

    A host's VMs stay together, unless they are in different fault domains of one scope.

    Args:
        vms: Affected VMs; those of a standalone scope count as having none.
        cause: Cause that decides whether each VM's operation is separate, and whether fault domains matter.
        source: Source; user operations are not serialised.
        by_host: True if the request names hosts, whose VMs stay together.

    Returns:
        At least one group; a single empty one if there is no VM.
    """
    if not vms:
        return [[]]
    if cause.is_per_vm:
        return [[vm] for vm in vms]
    if not cause.is_routine or source is not Source.PLATFORM:
        return [vms]
    units: dict[str, list[VirtualMachine]] = {}
    for vm in vms:
        units.setdefault(vm.host if by_host else vm.name, []).append(vm)
    waves: list[_Wave] = []
    for unit in units.values():
        for piece in [unit] if _Wave().takes(unit) else _by_fault_domain(unit):
            home = next((wave for wave in waves if wave.takes(piece)), None)
            if home is None:
                home = _Wave()
                waves.append(home)
            home.add(piece)
    return [wave.vms for wave in waves]


def _by_fault_domain(vms: list[VirtualMachine]) -> list[list[VirtualMachine]]:
    pieces: dict[int, list[VirtualMachine]] = {}
    for vm in vms:
        pieces.setdefault(vm.fault_domain if vm.scope is not None else 0, []).append(vm)
    return [pieces[domain] for domain in sorted(pieces)]
