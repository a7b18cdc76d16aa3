"""Loading of a working set, the same for all stores: what a decision about some targets may touch."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from forewarn.core.maintenance.decision import WorkingSet
from forewarn.core.model import (
    Event,
    EventType,
    Maintenance,
    MaintenanceState,
    VirtualMachine,
    audience_key,
    split_audience_keys,
)
from forewarn.store.reader import Reader

__all__ = ["WorkingSetLoader"]


class WorkingSetLoader(Reader):
    """Loading what a decision needs, within a transaction."""

    def load_targets(self, hosts: Iterable[str], vms: Iterable[str]) -> WorkingSet:
        """Load the input of planning: those hosts and VMs, their scopes, audiences, documents and current holders."""
        hosts = list(hosts)
        state = WorkingSet(hosts=self.find_hosts(hosts))
        found = [*self._find_vms_on(hosts), *self._find_rows(VirtualMachine, vms).values()]
        self._add_vms(state, found)
        holders = self._find_holders([vm.name for vm in found], [vm.scope for vm in found if vm.scope is not None])
        self._add_maintenances(state, holders)
        self._complete_state(state)
        return state

    def load_maintenances(
        self, ids: Iterable[str], *, with_neighbours: bool = False, into: WorkingSet | None = None
    ) -> WorkingSet:
        """Load those maintenances, complete and in focus.

        Args:
            ids: Ids of maintenances; unknown ones are left out.
            into: Working set to add to; None for a new one.
            with_neighbours: True to take the active maintenances that share a VM or scope into focus too, as ending one
                may free them.
        """
        state = WorkingSet() if into is None else into
        ids = set(ids)
        self._add_maintenances(state, ids)
        state.focus |= ids & state.maintenances.keys()
        self._add_neighbours(state)
        if with_neighbours:
            state.focus |= {m.id for m in state.maintenances.values() if m.is_active}
            # The focus has grown, and its new members need their neighbours as well.
            self._add_neighbours(state)
        self._complete_state(state)
        return state

    def load_events(self, ids: Iterable[str]) -> WorkingSet:
        """Load those events, finished ones included, to be approved.

        Their maintenances are in focus unless another vote is missing: then an approval changes only its event, and
        nothing else is loaded for it.
        """
        events = self._find_rows(Event, ids)
        maintenances = self.find_maintenances({e.maintenance_id for e in events.values()})
        active = {i: m for i, m in maintenances.items() if m.is_active}
        given = Counter(e.maintenance_id for e in events.values() if e.is_listed and not e.is_approved)
        missing = {i for i, count in self._count_unapproved(active).items() if count > given[i]}
        decided = {i: m for i, m in maintenances.items() if i not in missing}
        # If a scope couples its deletes, one approval may start the others too (R92).
        has_deletes = any(m.type is EventType.TERMINATE and m.is_active for m in decided.values())
        state = self.load_maintenances(
            list(decided), with_neighbours=has_deletes, into=WorkingSet(maintenances=decided)
        )
        self._add_tenants(state, [(e, maintenances[e.maintenance_id]) for e in events.values()])
        state.maintenances.update(maintenances)
        # Including finished ones, whose approval is accepted without effect (R55).
        state.events.update(events)
        return state

    def load_audiences(self, keys: Iterable[str], *, with_waiting: bool = False) -> WorkingSet:
        """Load those audiences with their documents; the maintenances of their listed events are in focus.

        Args:
            keys: Keys of the audiences.
            with_waiting: True to take the scheduled maintenances of their VMs into focus too, each with all its VMs: an
                audience that is being enabled must see them (R70b).
        """
        keys = list(keys)
        ids = set(self._find_listed(keys).values())
        holders = self._find_holders(*split_audience_keys(keys)) if with_waiting else set()
        found = self.find_maintenances(ids | holders)
        waiting = {i for i, m in found.items() if i in holders and m.state is MaintenanceState.SCHEDULED}
        ids |= waiting
        state = WorkingSet(maintenances={i: m for i, m in found.items() if i in ids})
        self.load_maintenances(ids, into=state)
        state.audiences.update(self.find_audiences(keys))
        self._complete_state(state, waiting)
        return state

    def _add_maintenances(self, state: WorkingSet, ids: Iterable[str]) -> None:
        missing = [i for i in ids if i not in state.maintenances]
        if missing:
            state.maintenances.update(self.find_maintenances(missing))

    def _add_neighbours(self, state: WorkingSet) -> None:
        focus = [state.maintenances[i] for i in state.focus if state.maintenances[i].is_active]
        claims = [claim for m in focus for claim in m.claims]
        self._add_maintenances(state, self._find_holders([c.vm for c in claims], [c.scope for c in claims if c.scope]))

    def _complete_state(self, state: WorkingSet, waiting: Collection[str] = ()) -> None:
        """Add what a decision about the focus may touch: events, VMs, scopes, audiences with their documents."""
        for events in self.find_events_of(m.id for m in state.maintenances.values() if m.is_active).values():
            state.events.update((e.id, e) for e in events)
        needed = _find_needed_vms(state, waiting)
        lone = self._find_vms_with_policy(_find_lone_vms(state) - needed)
        self._add_vms(state, [*self._find_rows(VirtualMachine, needed).values(), *lone])
        vm_audiences = {audience_key(vm, state.scopes.get(vm.scope or "")) for vm in state.vms.values()}
        keys = vm_audiences | {e.audience for e in state.events.values()} | set(state.audiences)
        state.audiences.update(self.find_audiences(keys - set(state.audiences)))
        # Only the ids: most of these events are loaded already, and turning rows into values takes the time.
        others = self._find_listed(state.audiences).keys() - state.events.keys()
        listed = self._find_rows(Event, others)
        state.events.update(listed)
        self._add_maintenances(state, {e.maintenance_id for e in listed.values()})

    def _add_vms(self, state: WorkingSet, vms: Iterable[VirtualMachine]) -> None:
        state.vms.update((vm.name, vm) for vm in vms)
        names = {vm.scope for vm in state.vms.values() if vm.scope is not None}
        names |= {c.scope for i in state.focus for c in state.maintenances[i].claims if c.scope is not None}
        state.scopes.update(self.find_scopes(names - set(state.scopes)))

    def _add_tenants(self, state: WorkingSet, events: Iterable[tuple[Event, Maintenance]]) -> None:
        """Add the tenants that get these events, if they may have a policy."""
        # All VMs of an event have one owner, so any of them leads to the tenant.
        claims = [c for event, maintenance in events for c in maintenance.claims if c.vm == event.resources[0]]
        lone = {c.vm for c in claims if c.scope is None}
        state.vms.update((vm.name, vm) for vm in self._find_vms_with_policy(lone - state.vms.keys()))
        names = {c.scope for c in claims if c.scope is not None} | {v.scope for v in state.vms.values() if v.scope}
        state.scopes.update(self.find_scopes(names - state.scopes.keys()))

    # Primitives

    @abstractmethod
    def _count_unapproved(self, maintenance_ids: Iterable[str]) -> Mapping[str, int]:
        """Return the numbers of their listed events that are not approved, by the id of the maintenance."""

    @abstractmethod
    def _find_vms_with_policy(self, names: Iterable[str]) -> list[VirtualMachine]:
        """Return those of the VMs that have a policy, or a scope that may have one: few, and so quickly read."""

    @abstractmethod
    def _find_listed(self, audiences: Iterable[str]) -> dict[str, str]:
        """Return the ids of the listed events of these audiences, each with the id of its maintenance."""


def _find_lone_vms(state: WorkingSet) -> set[str]:
    """Return the VMs without a scope that a scheduled maintenance in focus holds: each has its own policy."""
    scheduled = (m for i in state.focus if (m := state.maintenances[i]).state is MaintenanceState.SCHEDULED)
    return {claim.vm for m in scheduled for claim in m.claims if claim.scope is None} - state.vms.keys()


def _find_needed_vms(state: WorkingSet, waiting: Collection[str] = ()) -> set[str]:
    """Return the VMs of maintenances that may still be announced, or that remove VMs when they end."""
    needed = {name for i in waiting for name in state.maintenances[i].vms}
    for i in state.focus:
        maintenance = state.maintenances[i]
        is_queued = maintenance.state is MaintenanceState.QUEUED
        if is_queued or (maintenance.is_active and maintenance.type in {EventType.PREEMPT, EventType.TERMINATE}):
            needed.update(maintenance.vms)
    return needed - set(state.vms)
