"""What every store owes: reading and writing. The duties stand in `forewarn.store.contract`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from forewarn.core.inventory import Inventory
from forewarn.core.model import (
    Audience,
    AuditEntry,
    EntryKind,
    EventSource,
    EventType,
    Host,
    MaintenanceState,
    NotificationProfile,
    PowerState,
    Scope,
    ScopeKind,
    VirtualMachine,
)
from forewarn.core.policy import ExtensionAllowance, Policy
from forewarn.errors import Conflict
from forewarn.store import SqlStore
from forewarn.store.contract import IdempotencyRecord, Transaction
from forewarn.store.migrate import upgrade_schema
from tests.support.databases import Database, save
from tests.support.quiet import quiet_hours
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, availability_set, maintenance, vm

S = MaintenanceState
MICROSECOND = timedelta(microseconds=1)


def note(reason: str, at: datetime = NOW, maintenance_id: str | None = None) -> AuditEntry:
    return AuditEntry(
        kind=EntryKind.SCHEDULED, at=at, actor="operator:ann", maintenance_id=maintenance_id, reason=reason
    )


def guid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012X}"


def fail(store: SqlStore, work: Callable[[Transaction], object]) -> None:
    """Work in a transaction that fails at its end."""
    with store.write() as tx:
        work(tx)
        raise Conflict("it shall not be")


# The counter


def test_the_counter_begins_at_one_and_counts_through_transactions(store: SqlStore) -> None:
    with store.write() as tx:
        assert [tx.next_sequence(), tx.next_sequence()] == [1, 2]
    with store.write() as tx:
        assert tx.next_sequence() == 3


def test_numbers_of_a_transaction_that_failed_are_given_back(store: SqlStore) -> None:
    with pytest.raises(Conflict):
        fail(store, lambda tx: [tx.next_sequence(), tx.next_sequence()])
    with store.write() as tx:
        assert tx.next_sequence() == 1


def test_audit_log_entries_take_their_numbers_from_the_same_counter(store: SqlStore) -> None:
    with store.write() as tx:
        tx.next_sequence()
    save(store, note("a"), note("b"))
    with store.read() as reader:
        assert [e.sequence for e in reader.list_entries().items] == [2, 3]
    with store.write() as tx:
        assert tx.next_sequence() == 4


# Values


def test_nothing_is_kept_of_a_transaction_that_failed(store: SqlStore) -> None:
    def work(tx: Transaction) -> None:
        tx.replace_inventory(Inventory(hosts=(Host(name="host-1"),)), "f")
        tx.save_clock_kind("real")

    with pytest.raises(Conflict):
        fail(store, work)
    with store.read() as reader:
        assert reader.get_inventory() == Inventory()
        assert reader.get_clock_kind() is None
        assert reader.get_inventory_fingerprint() is None


def test_a_maintenance_comes_back_with_every_field_to_the_microsecond(store: SqlStore) -> None:
    moments = [NOW + n * minutes(1) + MICROSECOND * (n + 1) for n in range(7)]
    full = replace(
        maintenance(vm("web-0", scope="web", fault_domain=2), vm("db")),
        type=EventType.REBOOT,
        impact=EventType.FREEZE,
        source=EventSource.USER,
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
        assert reader.get_maintenance(full.id) == full


def test_moments_far_away_are_exact(store: SqlStore) -> None:
    far = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    early = datetime(1, 1, 1, tzinfo=UTC)
    save(store, replace(maintenance(), not_before=far, created_at=early))
    with store.read() as reader:
        found = reader.get_maintenance("maintenance-a")
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
        assert reader.find_events_of(["maintenance-a", "unknown"]) == {"maintenance-a": [plain, full]}


def test_an_audit_log_entry_comes_back_with_every_field(store: SqlStore) -> None:
    full = AuditEntry(
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
        assert reader.list_entries().items == [full]


def test_the_inventory_comes_back_with_every_field_and_vms_by_name(store: SqlStore) -> None:
    profile = NotificationProfile(enable=True, not_before_timeout=minutes(9))
    scope = Scope(
        name="fleet",
        kind=ScopeKind.SCALE_SET,
        fault_domain_count=5,
        terminate_notification=profile,
        os_image_notification=NotificationProfile(enable=True, not_before_timeout=minutes(15)),
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
        found = reader.get_inventory()
        names = ["A-1", "A1", "B", "_x", "a", "fleet_0"]
        assert [v.name for v in found.vms] == names
        assert [v.name for v in reader.list_vms(host="host-1")] == names
        assert reader.list_vms(name="fleet_0") == [full]
        assert reader.list_vms(host="host-2", name="fleet_0") == []
        assert (found.hosts, found.scopes) == (declared.hosts, declared.scopes)
        assert reader.get_inventory_fingerprint() == "fingerprint"


def test_an_inventory_replaces_the_one_before_wholly(store: SqlStore) -> None:
    before = Inventory(
        hosts=(Host(name="h"),), scopes=(availability_set(),), vms=(replace(vm("db"), addresses=("1.1.1.1",)),)
    )
    after = Inventory(hosts=(Host(name="i"),), vms=(replace(vm("web", host="i"), addresses=("1.1.1.1",)),))
    for inventory in (before, after):
        with store.write() as tx:
            tx.replace_inventory(inventory, "f")
    with store.read() as reader:
        assert reader.get_inventory() == after


def test_a_known_vm_is_not_made_again(store: SqlStore) -> None:
    same, differs, gone = vm("same"), replace(vm("differs"), size="D2"), vm("gone")
    inventory = Inventory(hosts=(Host(name="host-1"),), vms=(replace(same), vm("differs"), vm("new")))
    with store.write() as tx:
        tx.replace_inventory(inventory, "f")
    with store.read() as reader:
        found = reader.get_inventory({known.name: known for known in (same, differs, gone)})
    by_name = {each.name: each for each in found.vms}
    assert by_name == {each.name: each for each in inventory.vms}
    # A store in memory returns the VMs that it has, and needs no others.
    is_in_memory = "vms_by_name" in dir(getattr(store, "_tables", None))
    assert is_in_memory or by_name["same"] is same


@pytest.mark.parametrize("count", [1, 2500])
def test_vms_have_equal_values_in_common(count: int, store: SqlStore) -> None:
    """Tags, hosts and sizes of a million VMs are in memory once."""
    vms = tuple(replace(vm(f"vm-{n:05}"), size="D2", tags=(("role", "web"),)) for n in range(count))
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=(Host(name="host-1"),), vms=vms), "f")
    with store.read() as reader:
        found = reader.get_inventory().vms
    assert found == vms
    assert len({id(value) for each in found for value in (each.tags, each.size, each.host)}) == 3


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
        assert reader.get_maintenance("maintenance-a") == changed[0]
        assert reader.find_events_of(["maintenance-a"]) == {"maintenance-a": [changed[1]]}
        assert reader.find_audiences(["scope:web", "scope:unknown"]) == {"scope:web": changed[2]}
        assert reader.list_vms(name="db") == [changed[3]]


def test_an_outcome_is_remembered_with_its_content(store: SqlStore) -> None:
    kept = IdempotencyRecord(
        key="op/ü", fingerprint="f", outcome={"maintenances": ["a", "b"], "n": None}, at=NOW + MICROSECOND
    )
    with store.write() as tx:
        tx.save_idempotency_record(kept)
        tx.save_clock_kind("virtual")
    with store.read() as reader:
        assert reader.get_idempotency_record("op/ü") == kept
        assert reader.get_idempotency_record("op/u") is None
        assert reader.get_clock_kind() == "virtual"


# Policies


def test_policies_come_back_with_every_field_and_none_where_none_is_declared(store: SqlStore) -> None:
    full = Policy(
        approves_user_operations=True,
        approves_freezes_up_to=timedelta(seconds=9.5),
        quiet_hours=(
            quiet_hours("mon fri", "08:00", "18:30"),
            quiet_hours("sat sun", "22:00", "06:00", "America/New_York"),
        ),
        user_operations_max=3,
        approvers=("operator", "vm:web-0"),
        extension=ExtensionAllowance(max=minutes(10), times=2),
    )
    web = Scope(name="web", kind=ScopeKind.AVAILABILITY_SET, policy=full)
    declared = Inventory(
        hosts=(Host(name="host-1"),),
        scopes=(web, availability_set("wide")),
        vms=(replace(vm("db"), policy=Policy(approvers=("tenant",))), vm("web-0", scope="web")),
    )
    with store.write() as tx:
        tx.replace_inventory(declared, "f")
    with store.read() as reader:
        assert reader.get_inventory() == declared
        (zone, _) = (each.zone for each in reader.find_scopes(["web"])["web"].policy.quiet_hours)
        assert zone.rules.utcoffset(datetime(2030, 7, 1)) == timedelta(hours=2)  # noqa: DTZ001 - a local time
    with store.write() as tx:
        tx.replace_inventory(replace(declared, scopes=(availability_set("web"), availability_set("wide"))), "g")
    with store.read() as reader:
        assert reader.find_scopes(["web"])["web"].policy == Policy()


def test_how_a_maintenance_was_put_off_is_kept_and_changes(store: SqlStore) -> None:
    made = replace(maintenance(not_before=NOW), latest_start=NOW + minutes(90))
    save(store, made)
    moved = replace(made, not_before=NOW + minutes(5), deferrals=1, extensions=2, extended=timedelta(seconds=1.5))
    save(store, moved, is_new=False)
    with store.read() as reader:
        assert reader.get_maintenance(made.id) == moved


def test_it_opens_on_a_machine_that_pauses_meanwhile(
    shared_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A halted process must not keep others from writing, but a slow start is not taken for one."""

    def upgrade_late(connection: sa.Connection) -> None:
        time.sleep(1.2)  # longer than a change may leave its transaction alone where it waits 0.1 s for locks
        upgrade_schema(connection)

    monkeypatch.setattr("forewarn.store.sql.upgrade_schema", upgrade_late)
    shared_database.open(busy_timeout_ms=100).close()
