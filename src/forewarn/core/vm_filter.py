"""Filter on the list of VMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.core.label import ANY_LABELS, LabelSelector
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
        selector: VMs whose labels it selects.
        ignores_host_labels: True if the labels of hosts do not count, for a tenant, who may not learn of hosts.
    """

    host: str | None = None
    scope: str | None = None
    prefix: str = ""
    selector: LabelSelector = ANY_LABELS
    ignores_host_labels: bool = False

    def matches(self, vm: VirtualMachine, labels: Mapping[str, str]) -> bool:
        """Return True if it takes this VM, which has these labels; see `merge_labels`."""
        return (
            self.host in {None, vm.host}
            and self.scope in {None, vm.scope}
            and vm.name.startswith(self.prefix)
            and self.selector.matches(labels)
        )


ALL_VMS = VmFilter()
"""The filter that takes all VMs."""
