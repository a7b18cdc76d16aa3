"""What every store owes to who asks later: claims that stay, selections, pages that end early."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from forewarn.core.model import AuditEntry, EntryKind, MaintenanceState
from forewarn.core.selection import Selection
from forewarn.store import SqlStore, Store
from forewarn.store.contract import Page
from tests.support.databases import save
from tests.support.world import NOW, minutes
from tests.unit.core.builders import maintenance, vm

S = MaintenanceState
WEB = vm("web-0", scope="web", host="host-1")
LONE = vm("lone", host="host-2")


def note(reason: str | None = None, kind: EntryKind = EntryKind.STARTED, minute: int = 0, **about: str) -> AuditEntry:
    return AuditEntry(kind=kind, at=NOW + minutes(minute), actor=about.pop("actor", "forewarn"), reason=reason, **about)  # type: ignore[arg-type] # names of fields that are text


def reasons(page: Page[AuditEntry]) -> list[str | None]:
    return [entry.reason for entry in page.items]


def ids_of(store: SqlStore, **what: str) -> list[str]:
    with store.read() as reader:
        return [m.id for m in reader.list_maintenances(selection=Selection(**what)).items]  # type: ignore[arg-type] # words


def test_what_has_touched_a_vm_is_found_after_its_end_and_holds_nobody_any_more(store: SqlStore) -> None:
    made = maintenance(WEB, LONE, id="m", not_before=NOW)
    save(store, WEB, LONE, made)
    with store.write() as tx:
        assert set(tx.load_targets((), ["lone"]).maintenances) == {"m"}
    save(store, replace(made, state=S.CANCELED, ended_at=NOW), is_new=False)
    with store.write() as tx:
        assert tx.load_targets((), ["lone"]).maintenances == {}
    for place in ({"vm": "lone"}, {"scope": "web"}, {"host": "host-2"}, {"vm": "web-0", "host": "host-1"}):
        assert ids_of(store, **place) == ["m"]
    assert ids_of(store, vm="web-0", host="host-2") == []
    with store.write() as tx:
        tx.prune_history(NOW + minutes(1), NOW, 10)
    assert ids_of(store, vm="lone") == []


def test_entries_that_tenants_made_for_one_tenants_operations_are_counted_from_the_newest(store: Store) -> None:
    old, *recent = (
        replace(maintenance(LONE, id=f"m-{n}", sequence=n), created_at=NOW + minutes(n), tenant_key="red")
        for n in range(3)
    )
    foreign = replace(maintenance(WEB, id="m-3", sequence=3), tenant_key="blue")
    save(
        store,
        *(old, *recent, foreign, maintenance(WEB, id="m-4", sequence=4)),
        *(note(actor=f"tenant:{n}", minute=n, maintenance_id=f"m-{n}") for n in range(5)),
        note(actor="tenant:other", minute=6, maintenance_id="m-1"),
        note(actor="operator:tenant:", minute=7, maintenance_id="m-1"),
        note(actor="forewarn", minute=7, maintenance_id="m-1"),
        note(actor="tenant:1", minute=8),
    )

    def newest(since: int, key: str = "red") -> list[datetime | None]:
        with store.read() as reader:
            return [reader.find_nth_newest_of_tenant(key, NOW + minutes(since), count) for count in (1, 2, 3, 4)]

    assert newest(0) == [NOW + minutes(6), NOW + minutes(2), NOW + minutes(1), NOW]
    assert newest(1) == [NOW + minutes(6), NOW + minutes(2), NOW + minutes(1), None]
    assert newest(0, "blue") == [NOW + minutes(3), None, None, None]
    assert newest(0, "green") == [None] * 4


def test_entries_of_a_place_are_those_of_its_maintenances_and_those_that_name_it(store: SqlStore) -> None:
    save(
        store,
        maintenance(WEB, id="of web", state=S.COMPLETED, started_at=NOW, ended_at=NOW),
        maintenance(LONE, id="of lone", sequence=2),
        note("web starts", maintenance_id="of web"),
        note("lone starts", maintenance_id="of lone"),
        note("web enabled", EntryKind.ENABLED, audience="scope:web"),
        note("lone enabled", EntryKind.ENABLED, audience="vm:lone"),
        note("web changed", EntryKind.VM_CHANGED, vm="web-0"),
    )
    with store.read() as reader:

        def told(**what: str) -> list[str | None]:
            return reasons(reader.list_entries(selection=Selection(**what)))  # type: ignore[arg-type] # words

        assert told(vm="web-0") == ["web starts", "web changed"]
        assert told(scope="web") == ["web starts", "web enabled"]
        assert told(host="host-2") == ["lone starts"]
        assert told(vm="lone") == ["lone starts", "lone enabled"]
        assert told(vm="lone", scope="web") == []


def test_the_end_of_the_audit_log_is_read_backwards_page_by_page(store: SqlStore) -> None:
    save(store, *(note(str(n)) for n in range(1, 8)))
    with store.read() as reader:
        last = reader.list_entries(newest=True, limit=3)
        assert reasons(last) == ["5", "6", "7"]
        middle = reader.list_entries(newest=True, limit=3, before=last.next)
        assert reasons(middle) == ["2", "3", "4"]
        first = reader.list_entries(newest=True, limit=3, before=middle.next)
        assert (reasons(first), first.next) == (["1"], None)


@pytest.mark.parametrize("is_newest", [False, True])
def test_a_page_that_has_looked_enough_says_where_to_go_on(store: SqlStore, *, is_newest: bool) -> None:
    save(store, *(note("NEEDLE %" if n in {3, 18} else "straw") for n in range(1, 21)))
    selection = Selection(text="needle %", scan_max=4)
    found: list[int] = []
    place: int | None = None
    with store.read() as reader:
        for _ in range(20):
            where = {"before": place} if is_newest else {"after": place or 0}
            page = reader.list_entries(newest=is_newest, selection=selection, limit=5, **where)
            found += [entry.sequence for entry in page.items]
            place = page.next
            if place is None:
                break
    assert place is None
    assert sorted(found) == [3, 18]


def test_moments_are_exact_where_the_clock_was_put_back_a_little(store: SqlStore) -> None:
    save(store, *(note(str(minute), minute=minute) for minute in (0, 10, 200, 170, 210, 400)))
    with store.read() as reader:
        within = Selection(since=NOW + minutes(170), until=NOW + minutes(210))
        assert reasons(reader.list_entries(selection=within)) == ["200", "170"]
        assert reasons(reader.list_entries(selection=within, newest=True)) == ["200", "170"]


def test_the_moment_of_what_is_too_much(store: SqlStore) -> None:
    save(store, *(note(str(n), minute=n) for n in range(5)))
    with store.read() as reader:
        assert reader.get_newest_excess_at(5) is None
        assert reader.get_newest_excess_at(3) == NOW + minutes(1)
        assert reader.get_newest_excess_at(0) == NOW + minutes(4)


def test_the_first_and_the_last_moment_there_are_choose_all(store: SqlStore) -> None:
    everything = Selection(since=datetime.min.replace(tzinfo=UTC), until=datetime.max.replace(tzinfo=UTC))
    with store.read() as reader:
        assert reader.list_maintenances(selection=everything).items == reader.list_maintenances().items
        assert reader.list_entries(selection=everything).items == reader.list_entries().items
