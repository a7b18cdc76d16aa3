"""Filter on the list of VMs."""

from __future__ import annotations

from dataclasses import dataclass

from forewarn.core.model import VirtualMachine

__all__ = ["ALL_VMS", "VmFilter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFilter:
    """Filter on the list of VMs; a field that is None or empty takes all.

    `matches` defines what it takes, without a database. A store may use any faster way.

    Attributes:
        host: VMs that are on this host.
        scope: VMs of this scope.
        prefix: VMs whose names begin with this text.
    """

    host: str | None = None
    scope: str | None = None
    prefix: str = ""

    def matches(self, vm: VirtualMachine) -> bool:
        """Return True if it takes this VM."""
        return self.host in {None, vm.host} and self.scope in {None, vm.scope} and vm.name.startswith(self.prefix)


ALL_VMS = VmFilter()
"""The filter that takes all VMs."""
