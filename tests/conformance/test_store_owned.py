"""What belongs to a tenant is chosen in the query: pages are full, and what is foreign is not there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.access import Ownership
from forewarn.core.inventory import Inventory
from forewarn.core.model import AuditEntry, Claim, EntryKind, Maintenance, MaintenanceState, Scope, ScopeKind
from forewarn.core.selection import Selection
from forewarn.store import SqlStore
from tests.support.databases import save
from tests.support.world import NOW
from tests.unit.core.builders import an_event, maintenance, vm

SHOP = Ownership(scopes=frozenset({"web"}), vms=frozenset({"db", "solo", "Other_0"}))
NOBODY = Ownership()


def holding(number: int, *claims: tuple[str, str | None]) -> Maintenance:
    """A maintenance that claims these VMs in these scopes."""
    made = maintenance(id=f"m{number}", sequence=number)
    held = tuple(Claim(vm=name, host="host-1", scope=scope, fault_domain=0) for name, scope in claims)
    return replace(made, claims=held)


def ended(number: int, *claims: tuple[str, str | None]) -> Maintenance:
    return replace(holding(number, *claims), state=MaintenanceState.COMPLETED, ended_at=NOW)


@pytest.fixture
def filled(store: SqlStore) -> SqlStore:
    """A shop with a scope, a VM that stands alone, and one in a scope that only says so; and a neighbour."""
    scopes = (
        Scope(name="web", kind=ScopeKind.AVAILABILITY_SET),
        Scope(name="other", kind=ScopeKind.AVAILABILITY_SET),
        Scope(name="names", kind=ScopeKind.STANDALONE),
    )
    placed = {"Web_0": "web", "Web_1": "web", "Other_0": "other", "solo": "names", "db": None, "foe": None}
    vms = tuple(replace(vm(name), scope=scope) for name, scope in placed.items())
    with store.write() as tx:
        tx.replace_inventory(Inventory(scopes=scopes, vms=vms), "mark")
    return store


def test_vms_of_a_tenant_are_listed_in_full_pages(filled: SqlStore) -> None:
    with filled.read() as reader:
        assert [each.name for each in reader.list_vms(owned=SHOP)] == ["Web_0", "Web_1", "db", "solo"]
        assert [each.name for each in reader.get_vm_page(None, 3, SHOP)] == ["Web_0", "Web_1", "db"]
        assert [each.name for each in reader.get_vm_page("db", 3, SHOP)] == ["solo"]
        assert reader.list_vms(name="foe", owned=SHOP) == reader.list_vms(name="none", owned=SHOP) == []
        assert reader.list_vms(name="Other_0", owned=SHOP) == [], "who owns the scope owns it"
        assert reader.list_vms(owned=NOBODY) == reader.get_vm_page(None, 9, NOBODY) == []


def test_maintenances_of_a_tenant_are_those_that_claim_a_vm_of_it_also_when_they_are_over(filled: SqlStore) -> None:
    for number in range(1, 10):
        save(filled, holding(number, ("foe", None)) if number % 3 else ended(number, ("foe", None), ("Web_0", "web")))
    save(filled, ended(10, ("Other_0", "other")))
    save(filled, ended(11, ("solo", None)))
    with filled.read() as reader:
        page = reader.list_maintenances(limit=2, owned=SHOP)
        assert [m.id for m in page.items] == ["m11", "m9"]
        following = reader.list_maintenances(limit=2, before=page.next, owned=SHOP)
        assert [m.id for m in following.items] == ["m6", "m3"]
        assert following.next is None
        assert reader.get_maintenance("m9", SHOP) == reader.get_maintenance("m9")
        assert reader.get_maintenance("m8", SHOP) is reader.get_maintenance("m10", SHOP) is None
        assert reader.list_maintenances(owned=NOBODY).items == []
        assert {m.id for m in reader.list_ended_since(NOW - timedelta(days=1), 99, SHOP)} == {"m9", "m6", "m3", "m11"}
        assert reader.list_ended_since(NOW - timedelta(days=1), 99, NOBODY) == []


def test_events_of_a_tenant_are_those_about_its_vms(filled: SqlStore) -> None:
    save(filled, holding(1, ("Web_0", "web"), ("foe", None), ("db", None), ("Other_0", "other")))
    for number, audience in enumerate(("scope:web", "vm:foe", "vm:db", "scope:other", "vm:Web_0"), 1):
        name = (
            audience.partition(":")[2] if audience.startswith("vm:") else {"web": "Web_0"}.get(audience[6:], "Other_0")
        )
        made = an_event(name, id=f"E{number}", sequence=100 + number, maintenance_id="m1", audience=audience)
        save(filled, replace(made, is_listed=False))
    with filled.read() as reader:
        assert reader.find_owned_events(["E1", "E2", "E3", "E4", "E5", "E6"], SHOP) == {"E1", "E3", "E5"}
        assert reader.find_owned_events([], SHOP) == reader.find_owned_events(["E1"], NOBODY) == set()


PLACES = {
    # maintenance, audience, vm, event: whether the shop is told
    ("m1", None, None, None): True,
    ("m1", None, None, "E"): False,
    ("m1", None, "Web_0", None): True,
    ("m1", None, "foe", None): False,
    ("m1", "scope:web", None, "E"): True,
    ("m1", "scope:web", "Web_1", "E"): True,
    ("m1", "vm:foe", "foe", "E"): False,
    ("m1", "vm:foe", None, None): False,
    ("m2", None, None, None): False,
    ("m2", None, "Web_0", None): False,
    ("m9", None, "Web_0", None): False,
    (None, None, None, None): False,
    (None, "scope:web", None, None): True,
    (None, "scope:other", None, None): False,
    (None, "vm:db", None, None): True,
    (None, "vm:Web_0", None, None): True,
    (None, "vm:foe", None, None): False,
    (None, None, "solo", None): True,
    (None, None, "Other_0", None): False,
    (None, None, "gone", None): False,
}


@pytest.mark.parametrize("is_near", [False, True])
def test_entries_of_a_tenant_are_those_about_it(filled: SqlStore, *, is_near: bool) -> None:
    """Both ways to find them tell the same: all that belong to it, and a look at each of a few."""
    save(filled, ended(1, ("Web_0", "web"), ("foe", None)))
    save(filled, holding(2, ("foe", None)))
    for place in PLACES:
        save(filled, _entry(*place))
    with filled.read() as reader:
        first = reader.list_entries(limit=1).items[0].sequence
        found = reader.list_entries(after=first - 1 if is_near else 0, limit=1000, owned=SHOP).items
        told = [place for place, is_told in PLACES.items() if is_told]
        assert [(e.maintenance_id, e.audience, e.vm, e.event_id) for e in found] == told
        page = reader.list_entries(limit=3, owned=SHOP)
        assert [e.sequence for e in page.items] == [e.sequence for e in found[:3]]
        assert page.next == found[2].sequence
        newest = reader.list_entries(limit=2, newest=True, owned=SHOP).items
        assert [e.sequence for e in newest] == [e.sequence for e in found[-2:]]
        assert reader.list_entries(owned=NOBODY).items == []


def _entry(maintenance_id: str | None, audience: str | None, vm_name: str | None, event_id: str | None) -> AuditEntry:
    return AuditEntry(
        kind=EntryKind.APPROVED,
        at=NOW,
        actor="forewarn",
        maintenance_id=maintenance_id,
        audience=audience,
        vm=vm_name,
        event_id=event_id,
    )


@pytest.mark.parametrize("is_near", [False, True])
def test_a_place_that_is_foreign_tells_nothing_of_what_is_shared_with_it(filled: SqlStore, *, is_near: bool) -> None:
    """Whoever asks for a neighbour by name is not told that a maintenance of theirs hits it, too."""
    save(filled, ended(1, ("Web_0", "web"), ("foe", None), ("Other_0", "other")))
    for place in (("m1", None, None, None), ("m1", "vm:foe", "foe", "E"), ("m1", "scope:web", "Web_0", "E")):
        save(filled, _entry(*place))
    with filled.read() as reader:
        after = reader.list_entries(limit=1).items[0].sequence - 1 if is_near else 0
        for foreign in (Selection(vm="foe"), Selection(scope="other"), Selection(vm="Web_0", scope="other")):
            assert reader.list_maintenances(selection=foreign, owned=SHOP).items == []
            assert reader.list_entries(after=after, selection=foreign, owned=SHOP).items == []
        for own in (Selection(vm="Web_0"), Selection(scope="web")):
            assert [m.id for m in reader.list_maintenances(selection=own, owned=SHOP).items] == ["m1"]
            assert len(reader.list_entries(after=after, selection=own, owned=SHOP).items) == 2
