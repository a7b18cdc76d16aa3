"""Dividing the VMs of a request into groups that each start together.

Spec: R61
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from forewarn.core.causes import Cause
from forewarn.core.model import EventSource, VirtualMachine

__all__ = ["split_into_groups"]


@dataclass(slots=True)
class _StartGroup:
    """Group of VMs of which no two are in different fault domains of one scope, and not too many in one scope."""

    unavailable_max: Mapping[str, int]
    vms: list[VirtualMachine] = field(default_factory=list)
    domain_of: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def can_add(self, candidates: Sequence[VirtualMachine]) -> bool:
        """Return True if these may start together with the VMs in the group, and with each other."""
        # Most groups are full, and there may be a thousand, so nothing is built before that is known.
        free: dict[str, int] = {}
        for vm in candidates:
            if vm.scope is None:
                continue
            if self.domain_of.get(vm.scope, vm.fault_domain) != vm.fault_domain:
                return False
            if vm.scope in self.unavailable_max:
                free[vm.scope] = free.get(vm.scope, self.unavailable_max[vm.scope] - self.counts[vm.scope]) - 1
                if free[vm.scope] < 0:
                    return False
        domains = dict(self.domain_of)
        return all(
            vm.scope is None or domains.setdefault(vm.scope, vm.fault_domain) == vm.fault_domain for vm in candidates
        )

    def add(self, vms: Iterable[VirtualMachine]) -> None:
        for vm in vms:
            self.vms.append(vm)
            if vm.scope is not None:
                self.domain_of[vm.scope] = vm.fault_domain
                self.counts[vm.scope] += 1


def split_into_groups(
    vms: list[VirtualMachine],
    cause: Cause,
    source: EventSource,
    *,
    by_host: bool,
    unavailable_max: Mapping[str, int] | None = None,
) -> list[list[VirtualMachine]]:
    """Divide VMs into the groups that each start together, in the order given.

    The cause decides whether each VM's operation is separate, and whether fault domains matter; user operations are not
    serialised. If the request names hosts (`by_host`), the VMs of a host stay together, unless they are in different
    fault domains of one scope, or more VMs of a scope than it allows to be unavailable (`unavailable_max`, by scope).
    VMs of a standalone scope count as having none.

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
    limits = unavailable_max or {}
    waves: list[_StartGroup] = []
    for unit in units.values():
        # The VMs of a host are split only if no group could hold them all.
        for piece in [unit] if _StartGroup(limits).can_add(unit) else _split_unit(unit, limits):
            group = next((wave for wave in waves if wave.can_add(piece)), None)
            if group is None:
                group = _StartGroup(limits)
                waves.append(group)
            group.add(piece)
    return [wave.vms for wave in waves]


def _split_unit(vms: list[VirtualMachine], unavailable_max: Mapping[str, int]) -> list[list[VirtualMachine]]:
    """Split the VMs of a host into pieces that may each start together, as few as possible by fault domain."""
    pieces: list[list[VirtualMachine]] = []
    for domain in _split_by_fault_domain(vms):
        counts: Counter[str] = Counter()
        # VMs beyond the limit of their scope go into the next piece, and so on.
        rounds: dict[int, list[VirtualMachine]] = {}
        for vm in domain:
            number = 0
            if vm.scope is not None and vm.scope in unavailable_max:
                number = counts[vm.scope] // unavailable_max[vm.scope]
                counts[vm.scope] += 1
            rounds.setdefault(number, []).append(vm)
        pieces += [rounds[number] for number in sorted(rounds)]
    return pieces


def _split_by_fault_domain(vms: list[VirtualMachine]) -> list[list[VirtualMachine]]:
    pieces: dict[int, list[VirtualMachine]] = {}
    for vm in vms:
        # Without a scope, nothing separates VMs from the others of their host.
        pieces.setdefault(vm.fault_domain if vm.scope is not None else 0, []).append(vm)
    return [pieces[domain] for domain in sorted(pieces)]
