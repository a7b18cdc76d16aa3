"""What every store owes: lists, deadlines and forgetting. The duties stand in `forewarn.store.contract`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from forewarn.core.inventory import Inventory
from forewarn.core.model import (
    Audience,
    AuditEntry,
    Claim,
    EntryKind,
    Host,
    MaintenanceState,
    Scope,
    ScopeKind,
    VirtualMachine,
)
from forewarn.core.selection import Selection
from forewarn.store import SqlStore
from forewarn.store.contract import IdempotencyRecord, PruneResult
from forewarn.store.reader import StoredRollout
from tests.support.databases import read_documents, save
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, maintenance, vm

S = MaintenanceState
ENDED, COMPLETED = Selection(states=(S.COMPLETED, S.FAILED)), Selection(states=(S.COMPLETED,))
MICROSECOND = timedelta(microseconds=1)


def note(reason: str, at: datetime = NOW, maintenance_id: str | None = None) -> AuditEntry:
    return AuditEntry(kind=EntryKind.SCHEDULED, at=at, actor="forewarn", maintenance_id=maintenance_id, reason=reason)


def guid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012X}"


# Lists


def test_maintenances_come_newest_first_and_page_by_page(store: SqlStore) -> None:
    states = [S.SCHEDULED, S.COMPLETED]
    made = [
        replace(maintenance(id=f"m{n}", sequence=n, state=states[n % 2]), ended_at=NOW if n % 2 else None)
        for n in range(1, 8)
    ]
    save(store, *made)
    with store.read() as reader:
        first = reader.list_maintenances(limit=3)
        assert [m.id for m in first.items] == ["m7", "m6", "m5"]
        second = reader.list_maintenances(limit=4, before=first.next)
        assert [m.id for m in second.items] == ["m4", "m3", "m2", "m1"]
        assert second.next is None
        ended = reader.list_maintenances(selection=ENDED, limit=2)
        assert [m.id for m in ended.items] == ["m7", "m5"]
        assert [m.id for m in reader.list_maintenances(selection=COMPLETED, before=ended.next).items] == ["m3", "m1"]
        assert dict(reader.count_by_state()) == dict.fromkeys(S, 0) | {S.SCHEDULED: 3, S.COMPLETED: 4}


def test_what_has_ended_lately_comes_in_the_order_of_its_end(store: SqlStore) -> None:
    ends = [3, None, 1, 3, -1, 0]
    save(
        store,
        *(
            replace(
                maintenance(id=f"m{n}", sequence=n, state=S.SCHEDULED if end is None else S.COMPLETED),
                ended_at=None if end is None else NOW + timedelta(seconds=end),
            )
            for n, end in enumerate(ends, 1)
        ),
    )
    with store.read() as reader:
        assert [m.id for m in reader.list_ended_since(NOW, 9)] == ["m4", "m1", "m3", "m6"]
        assert [m.id for m in reader.list_ended_since(NOW, 2)] == ["m4", "m1"]
        assert reader.list_ended_since(NOW + timedelta(seconds=4), 2) == []


def test_audit_log_entries_come_oldest_first_and_page_by_page(store: SqlStore) -> None:
    save(store, *(note(str(n), maintenance_id="a" if n % 2 else "b") for n in range(1, 8)))
    with store.read() as reader:
        first = reader.list_entries(limit=3)
        assert [e.reason for e in first.items] == ["1", "2", "3"]
        assert first.next == 3
        second = reader.list_entries(after=3, limit=4)
        assert [e.reason for e in second.items] == ["4", "5", "6", "7"]
        assert second.next is None
        assert [e.reason for e in reader.list_entries(newest=True, limit=2).items] == ["6", "7"]
        assert [
            e.reason for e in reader.list_entries(selection=Selection(maintenance_id="a"), after=1, limit=2).items
        ] == [
            "3",
            "5",
        ]
        assert reader.list_entries(after=7).items == []


def test_the_documents_are_those_of_enabled_audiences_in_order_of_creation(store: SqlStore) -> None:
    """R27, R29."""
    keys = ["scope:web", "scope:Web", "vm:a_b", "vm:a-b", "vm:db"]
    audiences = [Audience(key=k, enabled_at=NOW, epoch=1, incarnation=5, active_until=NOW) for k in keys]
    gone = Audience(key="vm:gone", epoch=1)
    # Numbers run against the order of keys and of ids.
    events = [
        an_event("x", id=guid(100 - n), sequence=n, audience=keys[-n % 4], is_listed=n % 5 > 0) for n in range(1, 21)
    ]
    save(store, maintenance(), *audiences, gone, *events)
    with store.read() as reader:
        documents = read_documents(reader)
        with_events, empty = reader.get_documents()
    assert documents.keys() == set(keys)
    assert empty == [audiences[-1]]
    assert {d.audience.key: d for d in with_events} == {key: documents[key] for key in keys[:-1]}
    for key, document in documents.items():
        shown = [(e.sequence, m.id) for e, m in document.items]
        assert shown == [(e.sequence, "maintenance-a") for e in events if e.audience == key and e.is_listed]


def test_many_rows_do_not_fit_one_statement_and_come_back_all_the_same(store: SqlStore) -> None:
    count = 1203
    machines = [vm(f"vm-{n}") for n in range(count)]
    audiences = [Audience(key=f"vm:vm-{n}", enabled_at=NOW, epoch=1, active_until=NOW) for n in range(count)]
    events = [an_event(f"vm-{n}", id=guid(n), sequence=n, audience=f"vm:vm-{n}") for n in range(count)]
    held = maintenance(*machines, not_before=NOW)
    save(store, held, *audiences, *events, *machines)
    with store.write() as tx:
        state = tx.load_maintenances([held.id], with_neighbours=True)
        assert len(state.events) == len(state.audiences) == count
        assert tx.load_events(e.id for e in events).events.keys() == {e.id for e in events}
        assert len(tx.load_targets((), [m.name for m in machines]).vms) == count
        assert len(tx.get_documents()[0]) == count


# Deadlines


def test_what_is_due_comes_in_order_of_its_moment_then_of_creation(store: SqlStore) -> None:
    due = [("late", 1, 3), ("tie-2", 5, 2), ("tie-1", 4, 2), ("soon", 6, 1), ("future", 2, 9)]
    save(
        store,
        *(replace(maintenance(id=id_, sequence=n, not_before=NOW), due_at=NOW + minutes(m)) for id_, n, m in due),
        maintenance(id="never", sequence=9, not_before=NOW),
    )
    with store.read() as reader:
        assert [m.id for m in reader.list_due(NOW + minutes(3), 9)] == ["soon", "tie-1", "tie-2", "late"]
        assert [m.id for m in reader.list_due(NOW + minutes(3), 2)] == ["soon", "tie-1"]
        assert reader.list_due(NOW + minutes(1) - MICROSECOND, 9) == []
        assert reader.next_due_at() == NOW + minutes(1)
        assert reader.next_due_at(["soon", "tie-1"]) == NOW + minutes(2)
        assert reader.next_due_at(id_ for id_, _, _ in due) is None


def test_who_is_silent_is_found_at_the_microsecond(store: SqlStore) -> None:
    """R69."""
    for key, minute in (("vm:b", 1), ("vm:a", 1), ("vm:c", 0), ("vm:d", 2)):
        save(store, Audience(key=key, enabled_at=NOW, epoch=1, active_until=NOW + minutes(minute)))
    save(store, Audience(key="vm:off", epoch=3))
    with store.read() as reader:
        assert [a.key for a in reader.list_inactive(NOW + minutes(1), 9)] == ["vm:c", "vm:a", "vm:b"]
        assert [a.key for a in reader.list_inactive(NOW + minutes(1) - MICROSECOND, 9)] == ["vm:c"]
        assert [a.key for a in reader.list_inactive(NOW + minutes(2), 1)] == ["vm:c"]
        assert reader.next_inactive_at() == NOW


def test_nothing_is_due_or_silent_in_an_empty_store(store: SqlStore) -> None:
    with store.read() as reader:
        assert reader.next_due_at() is None
        assert reader.next_inactive_at() is None
        assert reader.list_due(NOW, 9) == []
        assert reader.list_inactive(NOW, 9) == []
        assert reader.get_documents() == ([], [])


def test_a_touch_moves_forward_never_back_and_enables_nobody(store: SqlStore) -> None:
    """R69: what is remembered late must not undo what is known."""
    on = Audience(key="vm:on", enabled_at=NOW, epoch=1, active_until=NOW)
    off = Audience(key="vm:off", epoch=1)
    save(store, on, off)
    with store.write() as tx:
        tx.extend_active_until({})
        tx.extend_active_until({"vm:on": NOW - minutes(1), "vm:off": NOW, "vm:unknown": NOW})
        assert tx.find_audiences(["vm:on", "vm:off", "vm:unknown"]) == {"vm:on": on, "vm:off": off}
        tx.extend_active_until({"vm:on": NOW + MICROSECOND})
        assert tx.find_audiences(["vm:on"])["vm:on"].active_until == NOW + MICROSECOND


# Pruning


def test_pruning_forgets_what_ended_long_ago_with_all_that_belongs_to_it(store: SqlStore) -> None:
    old = [maintenance(id=f"old-{n}", sequence=n, state=S.CANCELED, ended_at=NOW - minutes(9 - n)) for n in range(3)]
    kept = maintenance(id="kept", sequence=8, state=S.CANCELED, ended_at=NOW)
    active = maintenance(id="active", sequence=9, not_before=NOW)
    events = [
        an_event(id=guid(m.sequence), sequence=m.sequence, maintenance_id=m.id, is_listed=False) for m in [*old, kept]
    ]
    ids = [m.id for m in [*old, kept, active]]
    early = NOW - minutes(100)
    save(
        store,
        *old,
        kept,
        active,
        *events,
        *(note("x", early, maintenance_id=i) for i in ids),
        note("y", early),
        note("z"),
    )
    with store.write() as tx:
        tx.save_idempotency_record(IdempotencyRecord(key="old", fingerprint="", outcome={}, at=NOW - MICROSECOND))
        tx.save_idempotency_record(IdempotencyRecord(key="new", fingerprint="", outcome={}, at=NOW))
        assert tx.prune_history(NOW, NOW, 2) == PruneResult(maintenances=2, entries=2)
        assert {m.id for m in tx.list_maintenances().items} == {"old-2", "kept", "active"}
        assert tx.prune_history(NOW, NOW, 2) == PruneResult(maintenances=1, entries=2)
        assert not tx.prune_history(NOW, NOW, 2)
    with store.read() as reader:
        assert {m.id for m in reader.list_maintenances().items} == {"kept", "active"}
        assert reader.find_events_of(ids).keys() == {"kept"}
        assert [(e.maintenance_id, e.reason) for e in reader.list_entries().items] == [
            ("kept", "x"),
            ("active", "x"),
            (None, "z"),
        ]
        assert reader.get_idempotency_record("old") is None
        assert reader.get_idempotency_record("new") is not None


def test_claims_hold_vm_host_scope_and_fault_domain(store: SqlStore) -> None:
    made = maintenance(vm("web-0", scope="web", fault_domain=3, host="host-7"), vm("db"))
    save(store, made)
    with store.read() as reader:
        found = reader.get_maintenance(made.id)
    assert found is not None
    assert found.claims == (
        Claim(vm="web-0", host="host-7", scope="web", fault_domain=3),
        Claim(vm="db", host="host-1", scope=None, fault_domain=0),
    )


def test_hosts_scopes_and_vms_come_by_name_some_at_a_time(store: SqlStore) -> None:
    names = [f"vm-{number}" for number in range(2500)] + ["B", "a", "Ä"]
    inventory = Inventory(
        hosts=(Host(name="host-b"), Host(name="host-B")),
        scopes=(Scope(name="web", kind=ScopeKind.AVAILABILITY_SET),),
        vms=tuple(vm(name) for name in names),
    )
    with store.write() as tx:
        tx.replace_inventory(inventory, None, Inventory())
    with store.read() as reader:
        pieces = list(reader.iter_by_name(VirtualMachine))
        assert max(map(len, pieces)) <= 1000
        assert [each.name for piece in pieces for each in piece] == sorted(names)
        assert pieces[0][0] == next(each for each in inventory.vms if each.name == "B")
        assert [[host.name for host in piece] for piece in reader.iter_by_name(Host)] == [["host-B", "host-b"]]
        assert [scope for piece in reader.iter_by_name(Scope) for scope in piece] == list(inventory.scopes)


def test_rollouts_come_newest_first_and_those_of_earlier_pages_are_skipped(store: SqlStore) -> None:
    with store.write() as tx:
        for number in range(5):
            at, is_ended = NOW + minutes(number), number % 2 == 0
            tx.save_rollout(
                StoredRollout(id=f"id-{number}", name="kernel", created_at=at, is_ended=is_ended, content="{}")
            )
    with store.read() as reader:
        assert [each.id for each in reader.list_rollouts(limit=2)] == ["id-4", "id-3"]
        assert [each.id for each in reader.list_rollouts(limit=2, skip=2)] == ["id-2", "id-1"]
        assert [each.id for each in reader.list_rollouts(limit=2, skip=4)] == ["id-0"]
        assert reader.list_rollouts(skip=(1 << 63) - 1) == []
        assert [each.id for each in reader.list_rollouts(is_ended=True, skip=1)] == ["id-2", "id-0"]
