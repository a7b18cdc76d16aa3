"""What every store owes: what has changed since some position. The duties stand in `forewarn.store.contract`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument, ChangeSet
from forewarn.core.model import Audience, Host, MaintenanceState, PowerState
from forewarn.errors import Conflict
from forewarn.store import SqlStore
from tests.support.world import NOW
from tests.unit.core.builders import an_event, availability_set, maintenance, vm

S = MaintenanceState


def test_a_new_store_has_no_news(store: SqlStore) -> None:
    with store.read() as reader:
        assert (reader.get_position(), reader.get_feed_changes(0).documents, reader.get_feed_changes(0).inventory) == (
            0,
            [],
            None,
        )


def test_news_are_the_present_documents_of_what_has_changed(store: SqlStore) -> None:
    """Invariant 9: whoever lost a hint asks from where it stands."""
    announce(store, "one")
    with store.read() as reader:
        first = reader.get_position()
    announce(store, "two")
    disable(store, "one")
    with store.read() as reader:
        all_news, later = reader.get_feed_changes(0), reader.get_feed_changes(first)
        assert all_news.position == later.position == reader.get_position() > first
        assert reader.get_feed_changes(later.position).documents == []
    assert {d.audience.key: (d.audience.incarnation, len(d.items)) for d in later.documents} == {
        "vm:one": (1, 0),
        "vm:two": (2, 1),
    }
    assert {d.audience.key for d in later.documents if d.audience.enabled_at is None} == {"vm:one"}
    assert later.inventory is None


def test_an_inventory_is_news(store: SqlStore) -> None:
    inventory = Inventory(vms=(vm("one"),))
    with store.write() as tx:
        tx.replace_inventory(inventory, "mark")
    with store.read() as reader:
        news = reader.get_feed_changes(0)
        assert news.inventory == reader.get_inventory() == inventory
        assert reader.get_feed_changes(news.position).inventory is None


def test_what_failed_is_no_news(store: SqlStore) -> None:
    with pytest.raises(Conflict):
        replace_and_fail(store)
    with store.read() as reader:
        assert (reader.get_position(), reader.get_feed_changes(0).inventory) == (0, None)


def announce(store: SqlStore, name: str) -> None:
    """An audience that is shown an event."""
    made = maintenance(id=f"m-{name}", sequence=len(name) * 1000 + ord(name[0]), state=S.SCHEDULED, not_before=NOW)
    event = an_event(id=f"e-{name}", sequence=made.sequence, maintenance_id=made.id, audience=f"vm:{name}")
    audience = Audience(key=f"vm:{name}", enabled_at=NOW, epoch=1, incarnation=2, active_until=NOW)
    changes = ChangeSet(audiences={audience.key: audience}, maintenances={made.id: made}, events={event.id: event})
    changes.created.update({made.id, event.id})
    changes.documents.append(AudienceDocument(audience=audience, items=((event, made),)))
    with store.write() as tx:
        tx.save(changes)


def disable(store: SqlStore, name: str) -> None:
    with store.write() as tx:
        audience = tx.find_audiences([f"vm:{name}"])[f"vm:{name}"]
        gone = replace(audience, enabled_at=None, incarnation=1, active_until=None)
        [event] = [e for e in tx.load_audiences([audience.key]).events.values() if e.is_listed]
        unlisted = replace(event, is_listed=False)
        changes = ChangeSet(audiences={gone.key: gone}, events={unlisted.id: unlisted})
        changes.documents.append(AudienceDocument(audience=gone, items=()))
        tx.save(changes)


def replace_and_fail(store: SqlStore) -> None:
    with store.write() as tx:
        tx.replace_inventory(Inventory(vms=(vm("one"),)), "mark")
        raise Conflict("it shall not be")


HOSTS = tuple(Host(name=f"host-{n}") for n in range(3))
FLEET = tuple(replace(vm(f"vm-{n}", host=f"host-{n % 3}"), addresses=(f"10.0.0.{n}",)) for n in range(9))


def test_a_transaction_says_which_numbers_it_has_taken(store: SqlStore) -> None:
    """Invariant 9."""
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=HOSTS), "mark")
    with store.read() as reader:
        before = reader.get_position()
    with store.write() as tx:
        tx.get_inventory()
        none_taken = tx.numbers
        assert [tx.next_sequence(), tx.next_sequence()] == [before + 1, before + 2]
        assert (none_taken, tx.numbers) == (None, (before, before + 2))
    with store.read() as reader:
        assert reader.get_position() == before + 2


def test_the_store_knows_whether_the_file_applied_last_still_holds(store: SqlStore) -> None:
    """Invariant 12."""
    with store.write() as tx:
        assert not tx.is_inventory_unchanged_since("mark")
        tx.replace_inventory(Inventory(hosts=HOSTS, vms=FLEET), "mark")
        assert tx.is_inventory_unchanged_since("mark")
        assert not tx.is_inventory_unchanged_since("other")
        tx.replace_inventory(Inventory(), None, before=Inventory(vms=FLEET[:1]))
        assert tx.get_inventory_fingerprint() == "mark"
        assert not tx.is_inventory_unchanged_since("mark")
        tx.replace_inventory(Inventory(hosts=HOSTS, vms=FLEET), "mark")
        tx.save(ChangeSet(vms={FLEET[0].name: replace(FLEET[0], power_state=PowerState.DELETED)}))
        assert not tx.is_inventory_unchanged_since("mark")


def test_a_part_of_the_inventory_is_replaced_and_the_rest_stays(store: SqlStore) -> None:
    """Invariant 12: a change of one host costs what that host costs."""
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=HOSTS, vms=FLEET), "mark")
        version = tx.get_inventory_version()
    with store.read() as reader:
        position = reader.get_position()
        around = reader.get_inventory_around(["host-0"], vms=["vm-1"], addresses=["10.0.0.5"])
    assert [each.name for each in around.vms] == ["vm-0", "vm-1", "vm-3", "vm-5", "vm-6"]
    assert around.hosts == HOSTS[:1]
    moved, gone = replace(FLEET[1], host="host-0", addresses=("10.0.0.99",)), FLEET[6]
    with store.write() as tx:
        tx.replace_inventory(Inventory(vms=(moved,)), "mark", before=Inventory(vms=(FLEET[1], gone)))
        assert tx.get_inventory_version() > version
    with store.read() as reader:
        vms = {each.name: each for each in reader.get_inventory().vms}
        assert vms == {each.name: each for each in (*FLEET, moved) if each is not gone}
        assert reader.get_inventory().hosts == HOSTS
        news = reader.get_feed_changes(position)
        assert reader.get_inventory_around(["none"], vms=(), addresses=["10.0.0.1", "10.0.0.99"]).vms == (moved,)
    assert news.inventory is None
    assert {name: [each.name for each in found] for name, found in news.hosts.items()} == {
        "host-0": ["vm-0", "vm-1", "vm-3"],
        "host-1": ["vm-4", "vm-7"],
    }


def test_active_maintenances_are_found_by_what_they_hold(store: SqlStore) -> None:
    """A VM, a scope of a VM, or a host; the newest first."""
    scopes = (availability_set("web"), availability_set("db"))
    members = (vm("web-0", host="host-0", scope="web"), vm("web-1", host="host-1", scope="web"))
    fleet = (*members, vm("db-0", host="host-2", scope="db"), vm("lone", host="host-2"))
    made = {
        "of-lone": maintenance(fleet[3], id="of-lone", sequence=11),
        "of-web-1": maintenance(members[1], id="of-web-1", sequence=12),
        "of-empty-host": replace(maintenance(id="of-empty-host", sequence=13), hosts=("host-0",)),
        "of-db": maintenance(fleet[2], id="of-db", sequence=14),
        "ended": maintenance(fleet[0], id="ended", sequence=15, state=S.COMPLETED, ended_at=NOW),
    }
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=HOSTS, scopes=scopes, vms=fleet), "mark")
        tx.save(ChangeSet(maintenances=made, created=set(made)))
    with store.read() as reader:
        for hosts, vms, expected in (
            (["host-0"], (), ["of-empty-host", "of-web-1"]),
            (["host-1"], ["lone"], ["of-web-1", "of-lone"]),
            ((), ["lone"], ["of-lone"]),
            (["host-2"], (), ["of-db", "of-lone"]),
            ((), (), []),
        ):
            part = reader.get_inventory_around(hosts, vms=vms)
            found = reader.find_active_maintenances(part)
            assert [each.id for each in found] == expected
            assert found == [made[name] for name in expected]


def test_another_scope_or_host_is_news_of_the_whole_inventory(store: SqlStore) -> None:
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=HOSTS, vms=FLEET), "mark")
    with store.read() as reader:
        position = reader.get_position()
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=(Host(name="host-9"),)), "mark", before=Inventory())
    with store.read() as reader:
        news = reader.get_feed_changes(position)
        assert news.inventory == reader.get_inventory()
    assert news.hosts == {}


def test_the_version_grows_when_a_vm_changes_by_itself(store: SqlStore) -> None:
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=HOSTS, vms=FLEET), "mark")
        version = tx.get_inventory_version()
        tx.save(ChangeSet(vms={"vm-0": replace(FLEET[0], power_state=PowerState.DELETED)}))
        assert tx.get_inventory_version() > version
