"""What every store owes: reading and writing. The duties stand in `forewarn.store.contract`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.model import (
    Audience,
    Claim,
    Entry,
    EntryKind,
    EventType,
    Host,
    MaintenanceState,
    NotificationProfile,
    PowerState,
    Scope,
    ScopeKind,
    Source,
    VirtualMachine,
)
from forewarn.errors import Conflict
from forewarn.store import SqlStore
from forewarn.store.contract import Outcome
from tests.support.databases import save
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, availability_set, maintenance, vm

S = MaintenanceState
MICROSECOND = timedelta(microseconds=1)


def note(reason: str, at: datetime = NOW, maintenance_id: str | None = None) -> Entry:
    return Entry(kind=EntryKind.SCHEDULED, at=at, actor="operator:ann", maintenance_id=maintenance_id, reason=reason)


def guid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012X}"


# The counter


def test_the_counter_begins_at_one_and_counts_through_transactions(store: SqlStore) -> None:
    with store.write() as tx:
        assert [tx.next_sequence(), tx.next_sequence()] == [1, 2]
    with store.write() as tx:
        assert tx.next_sequence() == 3


def test_numbers_of_a_transaction_that_failed_are_given_back(store: SqlStore) -> None:
    with pytest.raises(Conflict), store.write() as tx:
        tx.next_sequence()
        tx.next_sequence()
        raise Conflict("it shall not be")
    with store.write() as tx:
        assert tx.next_sequence() == 1


def test_ledger_entries_take_their_numbers_from_the_same_counter(store: SqlStore) -> None:
    with store.write() as tx:
        tx.next_sequence()
    save(store, note("a"), note("b"))
    with store.read() as reader:
        assert [e.sequence for e in reader.entries().items] == [2, 3]
    with store.write() as tx:
        assert tx.next_sequence() == 4


# Values


def test_nothing_is_kept_of_a_transaction_that_failed(store: SqlStore) -> None:
    with pytest.raises(Conflict), store.write() as tx:
        tx.replace_inventory(Inventory(hosts=(Host(name="host-1"),)), "f")
        tx.keep_clock("real")
        raise Conflict("it shall not be")
    with store.read() as reader:
        assert reader.inventory() == Inventory()
        assert reader.clock() is None
        assert reader.fingerprint() is None


def test_a_maintenance_comes_back_with_every_field_to_the_microsecond(store: SqlStore) -> None:
    moments = [NOW + n * minutes(1) + MICROSECOND * (n + 1) for n in range(7)]
    full = replace(
        maintenance(vm("web-0", scope="web", fault_domain=2), vm("db")),
        type=EventType.REBOOT,
        impact=EventType.FREEZE,
        source=Source.USER,
        description="Wartung für 東京 🛠, 'quoted' \"twice\" \\ and %s",
        duration_s=-1,
        state=S.COMPLETED,
        created_at=moments[0],
        notice=timedelta(days=7, microseconds=1),
        requested_not_before=moments[1],
        not_before=moments[2],
        due_at=moments[3],
        started_at=moments[4],
        impacted_at=moments[5],
        ended_at=moments[6],
        attempts=3,
        force_reason="",
        hosts=("host-1", "höst-2"),
    )
    save(store, full)
    with store.read() as reader:
        assert reader.maintenance(full.id) == full


def test_moments_far_away_are_exact(store: SqlStore) -> None:
    far = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    early = datetime(1, 1, 1, tzinfo=UTC)
    save(store, replace(maintenance(), not_before=far, created_at=early))
    with store.read() as reader:
        found = reader.maintenance("maintenance-a")
    assert found is not None
    assert (found.created_at, found.not_before) == (early, far)
    assert found.created_at.tzinfo is UTC


def test_an_event_comes_back_with_every_field(store: SqlStore) -> None:
    plain = an_event("web-0", "Größe_1")
    full = replace(
        an_event("db", id=guid(2), sequence=2, audience="vm:db", approved_at=NOW + MICROSECOND),
        update_domain=4,
        is_iaas=False,
        is_listed=False,
    )
    save(store, maintenance(), full, plain)
    with store.read() as reader:
        assert reader.events_of(["maintenance-a", "unknown"]) == {"maintenance-a": [plain, full]}


def test_a_ledger_entry_comes_back_with_every_field(store: SqlStore) -> None:
    full = Entry(
        kind=EntryKind.APPROVED,
        at=NOW + MICROSECOND,
        actor="vm:WestNO_0",
        maintenance_id="m",
        event_id=guid(1),
        audience="scope:web",
        vm="WestNO_0",
        source_address="fd00::1",
        api_version="2020-07-01",
        reason="größer\nals 1",
    )
    save(store, full)
    with store.read() as reader:
        assert reader.entries().items == [full]


def test_the_inventory_comes_back_with_every_field_and_vms_by_name(store: SqlStore) -> None:
    profile = NotificationProfile(enable=True, not_before_timeout=minutes(9))
    scope = Scope(
        name="fleet",
        kind=ScopeKind.SCALE_SET,
        fault_domain_count=5,
        terminate_notification=profile,
        os_image_notification=NotificationProfile(enable=True, not_before_timeout=minutes(15)),
        approves_user_operations=True,
        couples_deletes=True,
    )
    full = VirtualMachine(
        name="fleet_0",
        host="host-1",
        scope="fleet",
        fault_domain=4,
        update_domain=3,
        addresses=("10.0.0.1", "fd00::1"),
        vm_id="id",
        size="Standard_D2",
        location="westno",
        zone="1",
        resource_group="rg",
        subscription_id="sub",
        os_type="Linux",
        priority="Spot",
        tags=(("b", "2"), ("a", "größer")),
        mac_address="00-0D-3A",
        terminate_notification=profile,
        power_state=PowerState.DEALLOCATED,
    )
    others = tuple(vm(name) for name in ("B", "a", "_x", "A-1", "A1"))
    declared = Inventory(hosts=(Host(name="host-1"),), scopes=(scope,), vms=(full, *others))
    with store.write() as tx:
        tx.replace_inventory(declared, "fingerprint")
    with store.read() as reader:
        found = reader.inventory()
        names = ["A-1", "A1", "B", "_x", "a", "fleet_0"]
        assert [v.name for v in found.vms] == names
        assert [v.name for v in reader.vms(host="host-1")] == names
        assert reader.vms(name="fleet_0") == [full]
        assert reader.vms(host="host-2", name="fleet_0") == []
        assert (found.hosts, found.scopes) == (declared.hosts, declared.scopes)
        assert reader.fingerprint() == "fingerprint"


def test_an_inventory_replaces_the_one_before_wholly(store: SqlStore) -> None:
    before = Inventory(hosts=(Host(name="h"),), scopes=(availability_set(),), vms=(replace(vm("db"), addresses=("1.1.1.1",)),))
    after = Inventory(hosts=(Host(name="i"),), vms=(replace(vm("web", host="i"), addresses=("1.1.1.1",)),))
    for inventory in (before, after):
        with store.write() as tx:
            tx.replace_inventory(inventory, "f")
    with store.read() as reader:
        assert reader.inventory() == after


def test_saving_the_same_key_again_changes_the_row(store: SqlStore) -> None:
    audience = Audience(key="scope:web", scope="web", enabled_at=NOW, epoch=1, incarnation=1, active_until=NOW)
    save(store, maintenance(), an_event(), audience, vm("db"))
    changed = (
        replace(maintenance(), attempts=2, not_before=NOW + MICROSECOND),
        an_event(approved_at=NOW),
        replace(audience, incarnation=2),
        replace(vm("db"), power_state=PowerState.DELETED),
    )
    save(store, *changed, is_new=False)
    with store.read() as reader:
        assert reader.maintenance("maintenance-a") == changed[0]
        assert reader.events_of(["maintenance-a"]) == {"maintenance-a": [changed[1]]}
        assert reader.audiences(["scope:web", "scope:unknown"]) == {"scope:web": changed[2]}
        assert reader.vms(name="db") == [changed[3]]


def test_an_outcome_is_remembered_with_its_content(store: SqlStore) -> None:
    kept = Outcome(key="op/ü", fingerprint="f", content={"maintenances": ["a", "b"], "n": None}, at=NOW + MICROSECOND)
    with store.write() as tx:
        tx.keep_outcome(kept)
        tx.keep_clock("virtual")
    with store.read() as reader:
        assert reader.outcome("op/ü") == kept
        assert reader.outcome("op/u") is None
        assert reader.clock() == "virtual"


# Lists


def test_maintenances_come_newest_first_and_page_by_page(store: SqlStore) -> None:
    states = [S.SCHEDULED, S.COMPLETED]
    made = [
        replace(
            maintenance(id=f"m{n}", sequence=n, state=states[n % 2]), ended_at=NOW if n % 2 else None
        )
        for n in range(1, 8)
    ]
    save(store, *made)
    with store.read() as reader:
        first = reader.maintenances(limit=3)
        assert [m.id for m in first.items] == ["m7", "m6", "m5"]
        second = reader.maintenances(limit=4, before=first.next)
        assert [m.id for m in second.items] == ["m4", "m3", "m2", "m1"]
        assert second.next is None
        ended = reader.maintenances(states=[S.COMPLETED, S.FAILED], limit=2)
        assert [m.id for m in ended.items] == ["m7", "m5"]
        assert [m.id for m in reader.maintenances(states=[S.COMPLETED], before=ended.next).items] == ["m3", "m1"]
        assert dict(reader.counts()) == dict.fromkeys(S, 0) | {S.SCHEDULED: 3, S.COMPLETED: 4}


def test_ledger_entries_come_oldest_first_and_page_by_page(store: SqlStore) -> None:
    save(store, *(note(str(n), maintenance_id="a" if n % 2 else "b") for n in range(1, 8)))
    with store.read() as reader:
        first = reader.entries(limit=3)
        assert [e.reason for e in first.items] == ["1", "2", "3"]
        assert first.next == 3
        second = reader.entries(after=3, limit=4)
        assert [e.reason for e in second.items] == ["4", "5", "6", "7"]
        assert second.next is None
        assert [e.reason for e in reader.entries(newest=True, limit=2).items] == ["6", "7"]
        assert [e.reason for e in reader.entries(maintenance_id="a", after=1, limit=2).items] == ["3", "5"]
        assert reader.entries(after=7).items == []


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
        documents = {d.audience.key: d for d in reader.documents()}
    assert documents.keys() == set(keys)
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
        assert len(tx.load_request((), [m.name for m in machines]).vms) == count
        assert len(list(tx.documents())) == count


# Deadlines


def test_what_is_due_comes_in_order_of_its_moment_then_of_creation(store: SqlStore) -> None:
    due = [("late", 1, 3), ("tie-2", 5, 2), ("tie-1", 4, 2), ("soon", 6, 1), ("future", 2, 9)]
    save(
        store,
        *(replace(maintenance(id=id_, sequence=n, not_before=NOW), due_at=NOW + minutes(m)) for id_, n, m in due),
        maintenance(id="never", sequence=9, not_before=NOW),
    )
    with store.read() as reader:
        assert [m.id for m in reader.due(NOW + minutes(3), 9)] == ["soon", "tie-1", "tie-2", "late"]
        assert [m.id for m in reader.due(NOW + minutes(3), 2)] == ["soon", "tie-1"]
        assert reader.due(NOW + minutes(1) - MICROSECOND, 9) == []
        assert reader.next_due_at() == NOW + minutes(1)
        assert reader.next_due_at(["soon", "tie-1"]) == NOW + minutes(2)
        assert reader.next_due_at(id_ for id_, _, _ in due) is None


def test_who_is_silent_is_found_at_the_microsecond(store: SqlStore) -> None:
    """R69."""
    for key, minute in (("vm:b", 1), ("vm:a", 1), ("vm:c", 0), ("vm:d", 2)):
        save(store, Audience(key=key, enabled_at=NOW, epoch=1, active_until=NOW + minutes(minute)))
    save(store, Audience(key="vm:off", epoch=3))
    with store.read() as reader:
        assert [a.key for a in reader.silent(NOW + minutes(1), 9)] == ["vm:c", "vm:a", "vm:b"]
        assert [a.key for a in reader.silent(NOW + minutes(1) - MICROSECOND, 9)] == ["vm:c"]
        assert [a.key for a in reader.silent(NOW + minutes(2), 1)] == ["vm:c"]
        assert reader.next_silent_at() == NOW


def test_nothing_is_due_or_silent_in_an_empty_store(store: SqlStore) -> None:
    with store.read() as reader:
        assert reader.next_due_at() is None
        assert reader.next_silent_at() is None
        assert reader.due(NOW, 9) == []
        assert reader.silent(NOW, 9) == []
        assert list(reader.documents()) == []


def test_a_touch_moves_forward_never_back_and_enables_nobody(store: SqlStore) -> None:
    """R69: what is remembered late must not undo what is known."""
    on = Audience(key="vm:on", enabled_at=NOW, epoch=1, active_until=NOW)
    off = Audience(key="vm:off", epoch=1)
    save(store, on, off)
    with store.write() as tx:
        tx.touch({})
        tx.touch({"vm:on": NOW - minutes(1), "vm:off": NOW, "vm:unknown": NOW})
        assert tx.audiences(["vm:on", "vm:off", "vm:unknown"]) == {"vm:on": on, "vm:off": off}
        tx.touch({"vm:on": NOW + MICROSECOND})
        assert tx.audiences(["vm:on"])["vm:on"].active_until == NOW + MICROSECOND


# Pruning


def test_pruning_forgets_what_ended_long_ago_with_all_that_belongs_to_it(store: SqlStore) -> None:
    old = [maintenance(id=f"old-{n}", sequence=n, state=S.CANCELED, ended_at=NOW - minutes(9 - n)) for n in range(3)]
    kept = maintenance(id="kept", sequence=8, state=S.CANCELED, ended_at=NOW)
    active = maintenance(id="active", sequence=9, not_before=NOW)
    events = [an_event(id=guid(m.sequence), sequence=m.sequence, maintenance_id=m.id, is_listed=False) for m in [*old, kept]]
    ids = [m.id for m in [*old, kept, active]]
    early = NOW - minutes(100)
    save(store, *old, kept, active, *events, *(note("x", early, maintenance_id=i) for i in ids), note("y", early), note("z"))
    with store.write() as tx:
        tx.keep_outcome(Outcome(key="old", fingerprint="", content={}, at=NOW - MICROSECOND))
        tx.keep_outcome(Outcome(key="new", fingerprint="", content={}, at=NOW))
        assert tx.prune(NOW, NOW, 2) == 2
        assert {m.id for m in tx.maintenances().items} == {"old-2", "kept", "active"}
        assert tx.prune(NOW, NOW, 2) == 1
        assert tx.prune(NOW, NOW, 2) == 0
    with store.read() as reader:
        assert {m.id for m in reader.maintenances().items} == {"kept", "active"}
        assert reader.events_of(ids).keys() == {"kept"}
        assert [(e.maintenance_id, e.reason) for e in reader.entries().items] == [("kept", "x"), ("active", "x"), (None, "z")]
        assert reader.outcome("old") is None
        assert reader.outcome("new") is not None


def test_claims_hold_vm_host_scope_and_fault_domain(store: SqlStore) -> None:
    made = maintenance(vm("web-0", scope="web", fault_domain=3, host="host-7"), vm("db"))
    save(store, made)
    with store.read() as reader:
        found = reader.maintenance(made.id)
    assert found is not None
    assert found.claims == (
        Claim(vm="web-0", host="host-7", scope="web", fault_domain=3),
        Claim(vm="db", host="host-1", scope=None, fault_domain=0),
    )
