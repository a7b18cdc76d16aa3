"""The reading half of the in-memory store."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import merge, nlargest, nsmallest
from itertools import islice, takewhile
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from forewarn.core.access import TENANT_ACTOR_PREFIX, Ownership, Token
from forewarn.core.audit_chain import Chain, ChainLink, ChainPage
from forewarn.core.label import ANY_LABELS, LabelSelector, merge_labels
from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.model import (
    ACTIVE_STATES,
    Audience,
    AuditEntry,
    Event,
    Host,
    Maintenance,
    MaintenanceState,
    Scope,
    VirtualMachine,
)
from forewarn.core.selection import EVERYTHING, Selection, matches_entry, matches_maintenance
from forewarn.core.subscription import Delivery, DeliveryState
from forewarn.core.vm_filter import ALL_VMS, VmFilter
from forewarn.store.memory_tables import ALL, Table, Tables
from forewarn.store.reader import IdempotencyRecord, Page, Reader, StoredRollout

__all__ = ["MemoryReader", "copy_as_json", "find_by_key"]

T = TypeVar("T")
V = TypeVar("V")

_PIECE = 1000
"""Number of values in a piece of a long list."""


def find_by_key(table: Table[V], keys: Iterable[str]) -> dict[str, V]:
    """Return the values of a table that exist for these keys, by key."""
    rows = table.rows
    found = {key: rows[key] for key in keys if key in rows}
    # Sorted, because the order of a set of strings differs from process to process.
    return dict(sorted(found.items(), key=itemgetter(0))) if len(found) > 1 else found


def copy_as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy, as a database that stores JSON would."""
    copy: dict[str, Any] = json.loads(json.dumps(content))
    return copy


class MemoryReader(Reader):
    """Reads in dictionaries."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def _find_rows(self, kind: type[T], keys: Iterable[str]) -> dict[str, T]:
        return find_by_key(self._tables.by_kind[kind], keys)

    def find_ids(self, kind: type[Any], prefix: str, limit: int) -> list[str]:
        return nsmallest(limit, (key for key in self._tables.by_kind[kind].rows if key.startswith(prefix)))

    def _list_rows(self, kind: type[T]) -> list[T]:
        return list(self._tables.by_kind[kind].rows.values())

    def _get_meta(self, key: str) -> str | None:
        return self._tables.meta.rows.get(key)

    def list_vms(
        self, *, host: str | None = None, name: str | None = None, owned: Ownership | None = None
    ) -> list[VirtualMachine]:
        rows = self._tables.vms.rows
        if name is not None:
            vm = rows.get(name)
            found = [vm] if vm is not None and host in (None, vm.host) else []
        else:
            index = (
                self._tables.vms_by_name.get_group(ALL) if host is None else self._tables.vms_by_host.get_group(host)
            )
            found = [rows[key] for (key,) in index]
        return [vm for vm in found if owned is None or _is_vm_owned(self._tables, owned, vm)]

    def get_vm_page(
        self, after: str | None, limit: int, owned: Ownership | None = None, wanted: VmFilter = ALL_VMS
    ) -> list[VirtualMachine]:
        rows = self._tables.vms.rows
        names = _iter_names(self._tables.vms_by_name.get_group(ALL), after, wanted.prefix)
        found = (vm for vm in map(rows.__getitem__, names) if wanted.matches(vm, self._get_labels(vm, wanted)))
        return list(islice((vm for vm in found if owned is None or _is_vm_owned(self._tables, owned, vm)), limit))

    def _get_labels(self, vm: VirtualMachine, wanted: VmFilter) -> dict[str, str]:
        """Return the labels of a VM that count for this filter."""
        host, scope = self._tables.hosts.rows.get(vm.host), self._tables.scopes.rows.get(vm.scope or "")
        of_host = () if host is None or wanted.ignores_host_labels else host.labels
        return merge_labels(of_host, () if scope is None else scope.labels, vm.labels)

    def get_host_page(
        self, after: str | None, limit: int, prefix: str = "", selector: LabelSelector = ANY_LABELS
    ) -> dict[str, list[str]]:
        rows = self._tables.hosts.rows
        names = _iter_names(self._tables.hosts_by_name.get_group(ALL), after, prefix)
        names = islice((name for name in names if selector.matches(dict(rows[name].labels))), limit)
        return {host: [name for (name,) in self._tables.vms_by_host.get_group(host)] for host in names}

    def get_scope_page(
        self,
        after: str | None,
        limit: int,
        owned: Ownership | None = None,
        prefix: str = "",
        selector: LabelSelector = ANY_LABELS,
    ) -> list[Scope]:
        rows = self._tables.scopes.rows
        names = _iter_names(self._tables.scopes_by_name.get_group(ALL), after, prefix)
        own = (rows[name] for name in names if owned is None or name in owned.scopes)
        return list(islice((scope for scope in own if selector.matches(dict(scope.labels))), limit))

    def count_vms_by_scope(self, scopes: Iterable[str]) -> dict[str, int]:
        wanted = set(scopes)
        return dict(Counter(vm.scope for vm in self._tables.vms.rows.values() if vm.scope in wanted and vm.scope))

    def iter_by_name(self, kind: type[T]) -> Iterator[list[T]]:
        rows: Mapping[str, T] = self._tables.by_kind[kind].rows
        names = iter(sorted(rows))
        while piece := list(islice(names, _PIECE)):
            yield [rows[name] for name in piece]

    def list_failed_hosts(self, limit: int) -> list[Host]:
        failed = [(h.failed_at, h) for h in self._tables.hosts.rows.values() if h.failed_at is not None]
        # Two stable sorts: hosts that failed at the same time are listed by name, and times descend.
        failed.sort(key=lambda each: each[1].name)
        failed.sort(key=lambda each: each[0], reverse=True)
        return [host for _, host in failed[:limit]]

    def get_position(self) -> int:
        return self._tables.counter

    def _find_vm_names(self, addresses: Iterable[str]) -> set[str]:
        return set(find_by_key(self._tables.addresses, addresses).values())

    def _find_vms_on(self, hosts: Iterable[str]) -> list[VirtualMachine]:
        return [vm for host in sorted(set(hosts)) for vm in self.list_vms(host=host)]

    def _find_holders(self, vms: Iterable[str], scopes: Iterable[str]) -> set[str]:
        get_ids = self._tables.holders.get_ids
        return {
            i for kind, names in (("vm", vms), ("scope", scopes)) for name in set(names) for i in get_ids(kind, name)
        }

    def _list_active_hosts(self) -> dict[str, tuple[str, ...]]:
        rows, index = self._tables.maintenances.rows, self._tables.maintenances_by_state
        active = (rows[key] for state in ACTIVE_STATES for _, key in index.get_group(state))
        return {m.id: m.hosts for m in active if m.hosts}

    def _list_enabled_audiences(self) -> list[Audience]:
        return [audience for audience in self._tables.audiences.rows.values() if audience.enabled_at is not None]

    def _list_listed_events(self, audiences: Iterable[str] | None = None) -> list[Event]:
        rows, index = self._tables.events.rows, self._tables.events_by_audience
        keys = self._tables.audiences.rows if audiences is None else audiences
        return [rows[key] for audience in keys for _, key in index.get_group(audience)]

    def _find_marked_keys(self, since: int) -> set[str]:
        return {key for sequence, key in self._tables.feed_by_sequence.get_group(ALL) if sequence > since}

    def list_maintenances(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        selection: Selection = EVERYTHING,
        owned: Ownership | None = None,
    ) -> Page[Maintenance]:
        index = self._tables.maintenances_by_state
        groups = [index.get_group(state) for state in dict.fromkeys(selection.states)]
        if not selection.states:
            groups = [self._tables.maintenances_by_sequence.get_group(ALL)]
        newest = merge(*(_iter_backwards(group, before) for group in groups), reverse=True)
        all_of_them = (self._tables.maintenances.rows[key] for _, key in newest)
        taken = (
            m for m in all_of_them if self._is_selected(selection, m) and _is_maintenance_owned(owned, selection, m)
        )
        found = list(islice(taken, limit + 1))
        return Page(found[:limit], found[limit - 1].sequence if len(found) > limit else None)

    def _is_selected(self, selection: Selection, maintenance: Maintenance) -> bool:
        if selection == EVERYTHING:
            return True
        entries = (
            self._tables.audit_log.rows[number][1]
            for (number,) in self._tables.entries_by_maintenance.get_group(maintenance.id)
        )
        return matches_maintenance(selection, maintenance, entries)

    def get_maintenance(self, maintenance_id: str, owned: Ownership | None = None) -> Maintenance | None:
        found = self._tables.maintenances.rows.get(maintenance_id)
        return found if found is not None and (owned is None or owned.select_claims(found)) else None

    def list_ended_since(self, moment: datetime, limit: int, owned: Ownership | None = None) -> list[Maintenance]:
        found = [
            (m.ended_at, m.sequence, m)
            for m in self._tables.maintenances.rows.values()
            if m.ended_at is not None and m.ended_at >= moment and _is_maintenance_owned(owned, EVERYTHING, m)
        ]
        return [m for _, _, m in nlargest(limit, found, key=itemgetter(0, 1))]

    def find_events_of(self, maintenance_ids: Iterable[str]) -> dict[str, list[Event]]:
        rows, index = self._tables.events.rows, self._tables.events_by_maintenance
        found = {i: [rows[key] for _, key in index.get_group(i)] for i in sorted(set(maintenance_ids))}
        return {i: events for i, events in found.items() if events}

    def find_event_audiences(self, event_ids: Iterable[str]) -> dict[str, str]:
        return {i: event.audience for i, event in find_by_key(self._tables.events, event_ids).items()}

    def find_owned_events(self, event_ids: Iterable[str], owned: Ownership) -> set[str]:
        maintenances = self._tables.maintenances.rows
        events = find_by_key(self._tables.events, event_ids)
        return {i for i, event in events.items() if owned.has_event(event, maintenances[event.maintenance_id])}

    def list_entries(  # noqa: PLR0913 - as the contract says
        self,
        *,
        after: int = 0,
        limit: int = 100,
        newest: bool = False,
        before: int | None = None,
        selection: Selection = EVERYTHING,
        owned: Ownership | None = None,
    ) -> Page[AuditEntry]:
        index = self._tables.entries_by_sequence.get_group(ALL)
        if selection.maintenance_id is not None:
            index = self._tables.entries_by_maintenance.get_group(selection.maintenance_id)
        first = bisect_right(index, (after,))
        last = len(index) if before is None else bisect_left(index, (before,))
        places = range(first, last)
        numbered = (index[place][0] for place in (reversed(places) if newest else places))
        found = list(islice(self._iter_entries(numbered, selection, owned), limit + 1))
        following = found[limit - 1].sequence if len(found) > limit else None
        return Page(found[:limit][::-1] if newest else found[:limit], following)

    def _iter_entries(
        self, numbers: Iterable[int], selection: Selection, owned: Ownership | None
    ) -> Iterator[AuditEntry]:
        rows, maintenances = self._tables.audit_log.rows, self._tables.maintenances.rows
        for number in numbers:
            entry = rows[number][1]
            if owned is not None and not _is_entry_owned(self._tables, owned, entry, selection):
                continue
            if selection == EVERYTHING or matches_entry(selection, entry, maintenances.get(entry.maintenance_id)):
                yield replace(entry, sequence=number)

    def get_newest_excess_at(self, entries_max: int) -> datetime | None:
        index = self._tables.entries_by_chain.get_group(Chain.EVENTS)
        count = len(index) - entries_max
        return self._tables.audit_log.rows[index[count - 1][0]][1].at if count > 0 else None

    def find_nth_newest_of_tenant(self, tenant_key: str, since: datetime, count: int) -> datetime | None:
        operations = self._tables.maintenances_by_tenant.get_group(tenant_key)
        ids = [maintenance_id for _, maintenance_id in operations[bisect_left(operations, (since,)) :]]
        numbers = sorted(number for each in ids for (number,) in self._tables.entries_by_maintenance.get_group(each))
        entries = [self._tables.audit_log.rows[number][1] for number in numbers]
        made = [entry.at for entry in entries if entry.actor.startswith(TENANT_ACTOR_PREFIX)]
        return made[-count] if len(made) >= count else None

    def get_link_page(self, after: int | None, limit: int) -> ChainPage:
        kept = [
            self._tables.entries_by_sequence.get_group(ALL),
            *(self._tables.forgotten_by_chain.get_group(c) for c in Chain),
        ]
        found: list[ChainLink] = []
        # None stands for the entries that are kept; they are of both chains.
        for chain, index in zip((None, *Chain), kept, strict=True):
            first = 0 if after is None else bisect_right(index, (after,))
            found += [self._build_link(chain, number) for (number,) in index[first : first + limit + 1]]
        found.sort(key=attrgetter("sequence"))
        audit = self._tables.entries_by_chain.get_group(Chain.AUDIT)
        return ChainPage(
            links=tuple(found[:limit]),
            heads=dict(self._tables.heads),
            oldest={Chain.AUDIT: audit[0][0]} if audit else {},
            next=found[limit - 1].sequence if len(found) > limit else None,
        )

    def _build_link(self, forgotten: Chain | None, number: int) -> ChainLink:
        if forgotten is not None:
            return self._tables.forgotten_links.rows[forgotten, number]
        _, entry, chain, digest = self._tables.audit_log.rows[number]
        return ChainLink(sequence=number, chain=chain, hash=digest, entry=entry)

    def count_by_state(self) -> Mapping[MaintenanceState, int]:
        return {state: len(self._tables.maintenances_by_state.get_group(state)) for state in MaintenanceState}

    def next_due_at(self, except_for: Iterable[str] = (), *, only_started: bool = False) -> datetime | None:
        skipped, rows = set(except_for), self._tables.maintenances.rows
        found = ((at, key) for at, _, key in self._tables.maintenances_by_due_at.get_group(ALL) if key not in skipped)
        return next((at for at, key in found if not only_started or _is_started(rows[key])), None)

    def next_inactive_at(self) -> datetime | None:
        return next((at for at, _ in self._tables.audiences_by_active_until.get_group(ALL)), None)

    def list_due(self, now: datetime, limit: int, *, only_started: bool = False) -> list[Maintenance]:
        rows = self._tables.maintenances.rows
        due = (rows[key] for _, _, key in _take_until(self._tables.maintenances_by_due_at.get_group(ALL), now))
        return list(islice(filter(_is_started, due) if only_started else due, limit))

    def list_inactive(self, before: datetime, limit: int) -> list[Audience]:
        rows, silent = self._tables.audiences.rows, self._tables.audiences_by_active_until.get_group(ALL)
        return [rows[key] for _, key in islice(_take_until(silent, before), limit)]

    def find_tokens_by_digest(self, digests: Iterable[str]) -> dict[str, Token]:
        wanted = set(digests)
        return {token.digest: token for token in self._tables.tokens.rows.values() if token.digest in wanted}

    def list_tokens(self, host: str | None = None) -> list[Token]:
        found = [token for token in self._tables.tokens.rows.values() if token.host == host]
        return sorted(found, key=attrgetter("created_at", "id"))

    def list_rollouts(self, *, is_ended: bool | None = None, limit: int = 100, skip: int = 0) -> list[StoredRollout]:
        found = [each for each in self._tables.rollouts.rows.values() if is_ended in {None, each.is_ended}]
        found.sort(key=attrgetter("id"))
        return sorted(found, key=attrgetter("created_at"), reverse=True)[skip : skip + limit]

    def get_idempotency_record(self, key: str) -> IdempotencyRecord | None:
        found = super().get_idempotency_record(key)
        return None if found is None else replace(found, outcome=copy_as_json(found.outcome))

    # Alert checks and deliveries

    def next_alert_check_at(self) -> datetime | None:
        return next((at for at, _ in self._tables.alert_checks_by_at.get_group(ALL)), None)

    def list_due_alert_checks(self, now: datetime, limit: int) -> list[AlertCheck]:
        due = _take_until(self._tables.alert_checks_by_at.get_group(ALL), now)
        return [self._tables.alert_checks.rows[key] for _, key in islice(due, limit)]

    def list_deliveries(
        self, subscription_id: str, state: DeliveryState, *, after: tuple[int, str] = (0, ""), limit: int = 100
    ) -> list[Delivery]:
        index = self._tables.deliveries_by_state.get_group((subscription_id, state))
        first = bisect_right(index, after)
        rows = self._tables.deliveries.rows
        return [rows[(subscription_id, *key)] for key in index[first : first + limit]]

    def find_deliveries(self, subscription_id: str, keys: Iterable[tuple[int, str]]) -> list[Delivery]:
        rows = self._tables.deliveries.rows
        named = ((subscription_id, *key) for key in sorted(set(keys)))
        return [rows[name] for name in named if name in rows]

    def count_deliveries(self) -> Mapping[tuple[str, DeliveryState], int]:
        return Counter((d.subscription_id, d.state) for d in self._tables.deliveries.rows.values())


def _is_started(maintenance: Maintenance) -> bool:
    return maintenance.state is MaintenanceState.STARTED


def _iter_names(index: Sequence[tuple[Any, ...]], after: str | None, prefix: str) -> Iterator[str]:
    """Yield the names in an index that come after that one and begin with `prefix`, in order."""
    first = max(bisect_left(index, (prefix,)), 0 if after is None else bisect_right(index, (after,)))
    names = (index[position][0] for position in range(first, len(index)))
    return takewhile(lambda name: name.startswith(prefix), names)


def _iter_backwards(index: Sequence[tuple[Any, ...]], before: int | None) -> Iterator[tuple[Any, ...]]:
    end = len(index) if before is None else bisect_left(index, (before,))
    return (index[position] for position in range(end - 1, -1, -1))


def _take_until(index: Sequence[tuple[Any, ...]], moment: datetime) -> Iterator[tuple[Any, ...]]:
    """Return the places whose moment has come."""
    return takewhile(lambda place: place[0] <= moment, index)


# Ownership by a tenant: the same rules as the queries in `forewarn.store.ownership`.


def _is_vm_owned(tables: Tables, owned: Ownership, vm: VirtualMachine) -> bool:
    """Return True if the VM belongs to the tenant."""
    return owned.has_vm(vm, tables.scopes.rows.get(vm.scope or ""))


def _is_maintenance_owned(owned: Ownership | None, selection: Selection, maintenance: Maintenance) -> bool:
    """Return True if the maintenance claims a VM of the tenant at the selected place; always if `owned` is None."""
    return owned is None or any(selection.matches_claim(claim) for claim in owned.select_claims(maintenance))


def _is_entry_owned(tables: Tables, owned: Ownership, entry: AuditEntry, selection: Selection) -> bool:
    """Return True if the audit log entry concerns the tenant."""

    def find_vm(name: str) -> tuple[VirtualMachine, Scope | None] | None:
        vm = tables.vms.rows.get(name)
        return None if vm is None else (vm, tables.scopes.rows.get(vm.scope or ""))

    return owned.has_entry(entry, tables.maintenances.rows.get(entry.maintenance_id or ""), find_vm, selection)
