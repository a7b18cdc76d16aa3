"""Domain rules of a rollout: which hosts may be in flight together.

The *footprint* of a host is what its maintenance touches: its running VMs, and for each scope the fault and update
domains that they are in. Everything in flight is *occupied*. A host may go if nothing in its footprint is occupied by
another, and if no scope would have two domains in flight.

What is in flight is recorded twice, by the claims of maintenances and by the hosts on which VMs run now: a VM may be
moved in the middle, and then both count.

Spec: R34, R61
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.conflicts import is_routine
from forewarn.core.model import Maintenance, MaintenanceState, PowerState, ScopeKind, VirtualMachine
from forewarn.core.rollout.rollout import RolloutSpec

__all__ = ["FAULT_DOMAIN", "UPDATE_DOMAIN", "HostFootprint", "InventorySurvey", "Occupancy", "blocks_hosts"]

FAULT_DOMAIN = "fault domain"
UPDATE_DOMAIN = "update domain"

_SELECTED = {FAULT_DOMAIN: "one_fault_domain", UPDATE_DOMAIN: "one_update_domain"}
"""Kinds of domains, and the rule of a specification that allows a scope only one of them in flight at a time."""


def blocks_hosts(maintenance: Maintenance) -> bool:
    """Return True if a maintenance outside the rollout blocks hosts: it has started, or ours would queue behind it.

    One that only waits for its moment and is not routine does not block: a user may restart a VM in a month. Spec: R61.
    """
    is_going_on = maintenance.state is MaintenanceState.STARTED
    return is_going_on or (maintenance.is_active and is_routine(maintenance))


@dataclass(slots=True)
class HostFootprint:
    """VMs and domains that the maintenance of a host touches.

    Attributes:
        vms: Names of its running VMs.
        domains: Domains of the VMs, by kind of domain and scope.
    """

    vms: set[str] = field(default_factory=set)
    domains: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    def find_split_scope(self) -> tuple[str, str, list[int]] | None:
        """Return kind, scope and domains if this host alone spans several domains of a scope; None if it does not."""
        for (kind, scope), domains in self.domains.items():
            if len(domains) > 1:
                return kind, scope, sorted(domains)
        return None


class InventorySurvey:
    """Inventory data about the named hosts and VMs, collected in one pass; footprints are made on demand.

    The specification selects the kinds of domains.
    """

    def __init__(
        self, inventory: Inventory, spec: RolloutSpec, hosts: Iterable[str], vms: Collection[str] = ()
    ) -> None:
        self.kinds = tuple(kind for kind, name in _SELECTED.items() if getattr(spec, name))
        self.hosts = frozenset(host.name for host in inventory.hosts)
        self._standalone_scopes = frozenset(
            scope.name for scope in inventory.scopes if scope.kind is ScopeKind.STANDALONE
        )
        self._running: dict[str, list[VirtualMachine]] = {host: [] for host in hosts}
        self._vms: dict[str, VirtualMachine] = {}
        self._footprints: dict[str, HostFootprint] = {}
        for vm in inventory.vms:
            if vm.host in self._running and vm.power_state is PowerState.RUNNING:
                self._running[vm.host].append(vm)
            if vm.name in vms:
                self._vms[vm.name] = vm

    def vms_of(self, host: str) -> list[VirtualMachine]:
        """Return the VMs that run on that host."""
        return self._running[host]

    def get_footprint(self, host: str) -> HostFootprint:
        """Return the footprint of one of the hosts named at the start."""
        if host not in self._footprints:
            self._footprints[host] = footprint = HostFootprint(vms={vm.name for vm in self._running[host]})
            for vm in self._running[host]:
                for kind, scope, domain in self.domains_of(vm):
                    footprint.domains.setdefault((kind, scope), set()).add(domain)
        return self._footprints[host]

    def domains_of_named_vm(self, name: str) -> Iterable[tuple[str, str, int]]:
        """Return the `domains_of` one of the VMs named at the start; empty if it is gone."""
        return self.domains_of(self._vms[name]) if name in self._vms else ()

    def domains_of(self, vm: VirtualMachine) -> Iterable[tuple[str, str, int]]:
        """Yield kind, scope and domain of a VM for each selected kind; nothing for a standalone VM."""
        if vm.scope is not None and vm.scope not in self._standalone_scopes:
            for kind in self.kinds:
                yield kind, vm.scope, vm.fault_domain if kind == FAULT_DOMAIN else vm.update_domain


class Occupancy:
    """Hosts, VMs and domains in flight, and their holders.

    Args:
        survey: Inventory data of the hosts in flight, and of those that may follow.
    """

    def __init__(self, survey: InventorySurvey) -> None:
        self._survey = survey
        self._hosts: dict[str, str] = {}
        self._vms: dict[str, str] = {}
        self._domains: dict[tuple[str, str], dict[int, str]] = {}

    def add_host(self, host: str) -> None:
        """Add a host in flight, with all that runs on it now."""
        self._hosts.setdefault(host, host)
        footprint = self._survey.get_footprint(host)
        for vm in footprint.vms:
            self._vms.setdefault(vm, host)
        for key, domains in footprint.domains.items():
            for domain in domains:
                self._domains.setdefault(key, {}).setdefault(domain, host)

    def add_maintenance(self, maintenance: Maintenance) -> None:
        """Add a maintenance in flight, with everything that it claimed, as it was then and as it is now."""
        holder = f"maintenance {maintenance.id}"
        for host in maintenance.hosts:
            self._hosts.setdefault(host, holder)
        for claim in maintenance.claims:
            self._vms.setdefault(claim.vm, holder)
            if claim.scope is not None and FAULT_DOMAIN in self._survey.kinds:
                self._domains.setdefault((FAULT_DOMAIN, claim.scope), {}).setdefault(claim.fault_domain, holder)
            # A claim has no update domain, so that comes from the inventory, like the domains after a move.
            for kind, scope, domain in self._survey.domains_of_named_vm(claim.vm):
                self._domains.setdefault((kind, scope), {}).setdefault(domain, holder)

    def find_obstacle(self, host: str) -> str | None:
        """Return the reason why that host may not go now; None if it may."""
        if host in self._hosts:
            return f"it is held by {self._hosts[host]}"
        footprint = self._survey.get_footprint(host)
        held = footprint.vms & self._vms.keys()
        if held:
            # The smallest name, so that the same situation always gives the same message.
            return f"vm {min(held)} is held by {self._vms[min(held)]}"
        for (kind, scope), domains in footprint.domains.items():
            for domain, holder in self._domains.get((kind, scope), {}).items():
                # Sharing a domain with what is in flight is allowed, but only if this host touches no other one.
                if domains != {domain}:
                    return f"{kind} {domain} of scope {scope} is held by {holder}"
        return None
