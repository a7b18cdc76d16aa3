"""Working set of one decision, and the changes that the decision makes.

A command loads what it needs into a `WorkingSet`, opens a `Draft` over it, and lets the functions of this package
change the draft. The result is a `ChangeSet`: everything that the engine must commit in one transaction, computed
without any I/O.

`Draft.finish` compares each audience's array of events before and after. Where it differs, the incarnation grows by
exactly one, however many events changed: R42 and R43 hold by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.alert_schedule import AlertCheck, AlertThresholds, get_next_check
from forewarn.core.maintenance.lifecycle import AUDIT_LOG_KIND, EVENT_STATUS, Trigger, apply_trigger
from forewarn.core.model import (
    Audience,
    AuditEntry,
    EntryKind,
    Event,
    EventStatus,
    EventType,
    Host,
    Maintenance,
    MaintenanceState,
    Scope,
    VirtualMachine,
)

__all__ = ["AudienceDocument", "ChangeSet", "DecisionRules", "Draft", "WorkingSet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRules:
    """Settings that decisions depend on.

    Attributes:
        initial_incarnation: First DocumentIncarnation of an epoch (R45, A6).
        announce_delay: Time from enabling to the first event (R68), 0 to 300 s.
        start_delay: Time from the last approval to the start (A24).
        disable_after: Silence that disables a scope (R69).
        restart_grace: Minimum time after a start of the service before silence counts: no VM can ask while it is down.
        notice_max: Maximum notice that a caller may ask for.
        user_operations_max: Maximum number of pending user operations for one audience (R88: ten in the preview); None
            if unlimited.
        policy_delay: Minimum time for which an event approved by policy is shown as Scheduled.
        deferrals_max: Maximum number of deferrals of one maintenance.
        tenant_entries_max: Audit log entries that one tenant may cause in 24 hours by its user operations; further user
            operations are refused.
        hosts_may_join_scopes: True if a host, with its own token, may put VMs into scopes of which it runs none yet.
        alert_thresholds: Thresholds for conditions that no transition reports.
        assumes_spot: True if VMs without a declared priority may be evicted, too: for tests, whose inventories declare
            little.
    """

    initial_incarnation: int = 1
    announce_delay: timedelta = timedelta(0)
    start_delay: timedelta = timedelta(0)
    disable_after: timedelta = timedelta(hours=24)
    restart_grace: timedelta = timedelta(minutes=10)
    notice_max: timedelta = timedelta(days=90)
    user_operations_max: int | None = None
    policy_delay: timedelta = timedelta(seconds=5)
    deferrals_max: int = 20
    tenant_entries_max: int = 1000
    hosts_may_join_scopes: bool = True
    alert_thresholds: AlertThresholds = field(default_factory=AlertThresholds)
    assumes_spot: bool = False


@dataclass(slots=True, kw_only=True)
class WorkingSet:
    """Loaded working set, complete for the maintenances in `focus`: all that share a VM or scope with them are loaded.

    Attributes:
        hosts: Existing hosts among those that the command named, by name.
        focus: Ids of the maintenances that may be announced or started by this decision.
    """

    hosts: dict[str, Host] = field(default_factory=dict)
    vms: dict[str, VirtualMachine] = field(default_factory=dict)
    scopes: dict[str, Scope] = field(default_factory=dict)
    audiences: dict[str, Audience] = field(default_factory=dict)
    maintenances: dict[str, Maintenance] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    focus: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudienceDocument:
    """Content of one audience's document: listed events with their maintenances, in order of creation (R27, R29)."""

    audience: Audience
    items: tuple[tuple[Event, Maintenance], ...] = ()


@dataclass(slots=True, kw_only=True)
class ChangeSet:
    """Values to commit: new objects by key, new audit log entries, and the documents that changed.

    Attributes:
        created: Ids of the maintenances and events that did not exist before.
        pruned_maintenances: Number of maintenances deleted since the previous change that deleted some.
        pruned_entries: Number of audit log entries deleted, counted in the same way.
        alert_checks: Next check of each maintenance, by its id; None to cancel the check.
    """

    hosts: dict[str, Host] = field(default_factory=dict)
    vms: dict[str, VirtualMachine] = field(default_factory=dict)
    audiences: dict[str, Audience] = field(default_factory=dict)
    maintenances: dict[str, Maintenance] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    entries: list[AuditEntry] = field(default_factory=list)
    documents: list[AudienceDocument] = field(default_factory=list)
    pruned_maintenances: int = 0
    pruned_entries: int = 0
    alert_checks: dict[str, AlertCheck | None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to commit."""
        return not (self.hosts or self.vms or self.audiences or self.maintenances or self.events or self.entries)

    @property
    def next_due_at(self) -> datetime | None:
        """Earliest time at which the scheduler must check one of the changed maintenances; None if there is none."""
        moments = [m.due_at for m in self.maintenances.values() if m.due_at is not None]
        moments += [check.at for check in self.alert_checks.values() if check is not None]
        return min(moments, default=None)


class Draft:
    """A decision in progress: the loaded state, overlaid by the changes so far.

    Args:
        state: Loaded working set; never changed.
        now: The moment of the decision.
        rules: The settings.
        new_id: Id generator; called as ``new_id("event")`` or ``new_id("maintenance")``.
        new_sequence: Next number of the store's one counter; later calls return larger numbers.
        actor: Author of the decision, for the audit log.
        may_start: True if due maintenance may start now; see `forewarn.core.clock_jump`.
    """

    def __init__(  # noqa: PLR0913 - the context of a decision, one argument each
        self,
        state: WorkingSet,
        *,
        now: datetime,
        rules: DecisionRules,
        new_id: Callable[[str], str],
        new_sequence: Callable[[], int],
        actor: str,
        may_start: bool = True,
    ) -> None:
        self.may_start = may_start
        self.now = now
        self.rules = rules
        self.actor = actor
        self.new_id = new_id
        self.new_sequence = new_sequence
        self._focus = set(state.focus)
        self._changed = set(state.focus)
        self._changed_by: dict[str, str] = {}
        self._before = state
        self._changes = ChangeSet()
        # When the last pending delete of a scope is ready to start; only of scopes that couple their deletes. The
        # settlement keeps it up to date.
        self.deletes_ready_at: dict[str, datetime | None] = {}
        self.hosts = dict(state.hosts)
        self.vms = dict(state.vms)
        # Not copied, because no decision changes a scope.
        self.scopes = state.scopes
        self.audiences = dict(state.audiences)
        self.maintenances = dict(state.maintenances)
        self.events = dict(state.events)
        self._events_of: dict[str, list[str]] = {}
        # None until a decision asks who holds something: approvals, of which most start nothing, never do.
        self._holders: dict[tuple[str, str], list[str]] | None = None
        for event in state.events.values():
            self._events_of.setdefault(event.maintenance_id, []).append(event.id)

    # Reading

    def get_events(self, maintenance_id: str) -> list[Event]:
        """Return the events of a maintenance, in order of creation."""
        return sorted((self.events[i] for i in self._events_of.get(maintenance_id, ())), key=lambda e: e.sequence)

    def find_neighbours(self, maintenance: Maintenance) -> list[Maintenance]:
        """Return the other active maintenances that hold a VM or a scope of it, oldest first."""
        return sorted(self.iter_neighbours(maintenance), key=lambda m: m.sequence)

    def iter_neighbours(self, maintenance: Maintenance) -> Iterator[Maintenance]:
        """Yield the other active maintenances that hold a VM or a scope of it, for a search that the first may end."""
        return self._iter_holders(maintenance, maintenance.claim_keys)

    def find_on_same_vms(self, maintenance: Maintenance) -> list[Maintenance]:
        """Return the other active maintenances that hold a VM of it: in a large scope, few of its neighbours."""
        return list(self._iter_holders(maintenance, [("vm", vm) for vm in maintenance.vms]))

    def find_pending_deletes(self, scope: str) -> list[Maintenance]:
        """Return the scheduled Terminates of a scope."""
        holders = (self.maintenances[i] for i in self._index_holders().get(("scope", scope), ()))
        return [m for m in holders if m.type is EventType.TERMINATE and m.state is MaintenanceState.SCHEDULED]

    def is_in_focus(self, maintenance: Maintenance) -> bool:
        """Return True if this decision may announce or start it."""
        return maintenance.id in self._focus

    @property
    def has_focus(self) -> bool:
        """True if this decision may announce or start anything."""
        return bool(self._focus)

    def take_changed(self) -> list[Maintenance]:
        """Return the maintenances that changed since the last call, themselves or an event; at first, all in focus."""
        ids, self._changed = self._changed, set()
        return [self.maintenances[i] for i in ids]

    def take_authors(self) -> dict[str, str]:
        """Return who changed which maintenance since the last call, itself or an event: the actor by the id."""
        authors, self._changed_by = self._changed_by, {}
        return authors

    def _iter_holders(self, maintenance: Maintenance, keys: Iterable[tuple[str, str]]) -> Iterator[Maintenance]:
        """Yield the other active maintenances that hold one of these."""
        holders = self._index_holders()
        seen = {maintenance.id}
        for key in keys:
            for other_id in holders.get(key, ()):
                if other_id not in seen:
                    seen.add(other_id)
                    # Ended maintenances stay in the index, so they are filtered out here.
                    if (other := self.maintenances[other_id]).is_active:
                        yield other

    def _index_holders(self) -> dict[tuple[str, str], list[str]]:
        """Return the ids of the maintenances by what they hold, indexed on first use."""
        if self._holders is None:
            self._holders = {}
            for maintenance in self.maintenances.values():
                self._add_holder(self._holders, maintenance)
        return self._holders

    @staticmethod
    def _add_holder(holders: dict[tuple[str, str], list[str]], maintenance: Maintenance) -> None:
        for key in maintenance.claim_keys:
            holders.setdefault(key, []).append(maintenance.id)

    # Changing

    @contextmanager
    def acting_as(self, actor: str) -> Iterator[None]:
        """Record the changes made inside under a different actor."""
        own, self.actor = self.actor, actor
        try:
            yield
        finally:
            self.actor = own

    def add_to_focus(self, maintenance: Maintenance) -> None:
        """Let this decision announce or start a new maintenance."""
        self._focus.add(maintenance.id)

    def set_due_time(self, maintenance: Maintenance, due_at: datetime | None) -> None:
        """Store when the scheduler must check it again; no other maintenance depends on that."""
        self.maintenances[maintenance.id] = self._changes.maintenances[maintenance.id] = replace(
            maintenance, due_at=due_at
        )

    def put(self, item: Maintenance | Event | Audience | Host | VirtualMachine) -> None:
        """Store the new value of one object."""
        if isinstance(item, Maintenance):
            self._note_change(item.id)
            if item.id not in self.maintenances:
                # Claims never change afterwards, so an existing maintenance is not indexed again.
                if self._holders is not None:
                    self._add_holder(self._holders, item)
                self._changes.created.add(item.id)
            self.maintenances[item.id] = self._changes.maintenances[item.id] = item
        elif isinstance(item, Event):
            self._note_change(item.maintenance_id)
            if item.id not in self.events:
                self._changes.created.add(item.id)
                self._events_of.setdefault(item.maintenance_id, []).append(item.id)
            self.events[item.id] = self._changes.events[item.id] = item
        elif isinstance(item, Audience):
            self.audiences[item.key] = self._changes.audiences[item.key] = item
        elif isinstance(item, Host):
            self.hosts[item.name] = self._changes.hosts[item.name] = item
        else:
            self.vms[item.name] = self._changes.vms[item.name] = item

    def _note_change(self, maintenance_id: str) -> None:
        self._changed.add(maintenance_id)
        self._changed_by[maintenance_id] = self.actor

    def record(self, kind: EntryKind, **about: str | None) -> None:
        """Append an audit log entry with this moment and actor; `about` may name a different ``actor``."""
        actor = about.pop("actor", None) or self.actor
        # The store numbers the entries when it commits them.
        self._changes.entries.append(AuditEntry(kind=kind, at=self.now, actor=actor, sequence=0, **about))

    def record_event(self, kind: EntryKind, event: Event, **about: str | None) -> None:
        """Append an audit log entry about an event; see `record`."""
        self.record(kind, maintenance_id=event.maintenance_id, event_id=event.id, audience=event.audience, **about)

    def apply_trigger(
        self, maintenance: Maintenance, trigger: Trigger, *, is_new: bool = False, reason: str | None = None
    ) -> Maintenance:
        """Take one transition of the lifecycle, store the result, and record it in the audit log."""
        changed = apply_trigger(maintenance, None if is_new else maintenance.state, trigger, self.now)
        self.put(changed)
        self.record(AUDIT_LOG_KIND[changed.state], maintenance_id=changed.id, reason=reason)
        # The events of an ended maintenance leave the document; then the VMs recover (R79).
        if not changed.is_active:
            for event in self.get_events(changed.id):
                if event.is_listed:
                    self.put(replace(event, is_listed=False))
        return changed

    # The result

    def finish(self) -> ChangeSet:
        """Increment the incarnation of each document that changed, and return the changes to commit."""
        if self.rules.alert_thresholds.is_on:
            self._schedule_alert_checks()
        before = _summarize_documents(self._before.events.values(), self._before.maintenances)
        after = _summarize_documents(self.events.values(), self.maintenances)
        keys = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        # An audience that was enabled or disabled needs a new document even if its events are the same.
        keys |= self._changes.audiences.keys()
        items = self._list_document_items(keys)
        for key in sorted(keys):
            audience = self.audiences[key]
            was = self._before.audiences.get(key)
            # A new epoch starts at the initial incarnation, which must not be incremented at once (R45, R46).
            is_same_epoch = was is not None and was.epoch == audience.epoch
            if audience.enabled_at is not None and is_same_epoch and before.get(key) != after.get(key):
                audience = replace(audience, incarnation=audience.incarnation + 1)
                self.put(audience)
            self._changes.documents.append(AudienceDocument(audience=audience, items=tuple(items[key])))
        return self._changes

    def _schedule_alert_checks(self) -> None:
        """Schedule the next check of each maintenance that changed."""
        for entry in self._changes.entries:
            if entry.kind in _MOVES and entry.maintenance_id is not None:
                # Only the final state counts, however many steps of this decision led to it.
                maintenance = self.maintenances[entry.maintenance_id]
                check = get_next_check(maintenance, self.now, self.rules.alert_thresholds)
                self._changes.alert_checks[maintenance.id] = check

    def _list_document_items(self, keys: set[str]) -> dict[str, list[tuple[Event, Maintenance]]]:
        """Return the listed events of each of those audiences, in order of creation."""
        items: dict[str, list[tuple[Event, Maintenance]]] = {key: [] for key in keys}
        for event in sorted(self.events.values(), key=lambda e: e.sequence):
            if event.is_listed and event.audience in items:
                items[event.audience].append((event, self.maintenances[event.maintenance_id]))
        return items


# A queued maintenance has no NotBefore yet, so it can be neither unseen nor late.
_MOVES = (frozenset(AUDIT_LOG_KIND.values()) - {EntryKind.QUEUED}) | {EntryKind.DEFERRED, EntryKind.EXTENDED}


def _summarize_documents(
    events: Iterable[Event], maintenances: dict[str, Maintenance]
) -> dict[str, list[tuple[int, str, EventStatus, datetime | None]]]:
    """Return id, status and NotBefore of each listed event by audience (nothing else ever changes, R40)."""
    arrays: dict[str, list[tuple[int, str, EventStatus, datetime | None]]] = {}
    for event in events:
        if event.is_listed:
            maintenance = maintenances[event.maintenance_id]
            status = EVENT_STATUS[maintenance.state]
            # A started event shows no NotBefore, so a change of it must not count.
            not_before = maintenance.not_before if maintenance.state is MaintenanceState.SCHEDULED else None
            arrays.setdefault(event.audience, []).append((event.sequence, event.id, status, not_before))
    for array in arrays.values():
        array.sort()
    return arrays
