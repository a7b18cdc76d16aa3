"""What every store owes: what has changed since some position. The duties stand in `forewarn.store.contract`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.decision import Changes, Document
from forewarn.core.inventory import Inventory
from forewarn.core.model import Audience, MaintenanceState
from forewarn.errors import Conflict
from forewarn.store import SqlStore
from tests.support.world import NOW
from tests.unit.core.builders import an_event, maintenance, vm

S = MaintenanceState


def test_a_new_store_has_no_news(store: SqlStore) -> None:
    with store.read() as reader:
        assert (reader.position(), reader.news(0).documents, reader.news(0).inventory) == (0, [], None)


def test_news_are_the_present_documents_of_what_has_changed(store: SqlStore) -> None:
    """Invariant 9: whoever lost a hint asks from where it stands."""
    announce(store, "one")
    with store.read() as reader:
        first = reader.position()
    announce(store, "two")
    disable(store, "one")
    with store.read() as reader:
        all_news, later = reader.news(0), reader.news(first)
        assert all_news.position == later.position == reader.position() > first
        assert reader.news(later.position).documents == []
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
        news = reader.news(0)
        assert news.inventory == reader.inventory() == inventory
        assert reader.news(news.position).inventory is None


def test_what_failed_is_no_news(store: SqlStore) -> None:
    with pytest.raises(Conflict):
        replace_and_fail(store)
    with store.read() as reader:
        assert (reader.position(), reader.news(0).inventory) == (0, None)


def announce(store: SqlStore, name: str) -> None:
    """An audience that is shown an event."""
    made = maintenance(id=f"m-{name}", sequence=len(name) * 1000 + ord(name[0]), state=S.SCHEDULED, not_before=NOW)
    event = an_event(id=f"e-{name}", sequence=made.sequence, maintenance_id=made.id, audience=f"vm:{name}")
    audience = Audience(key=f"vm:{name}", enabled_at=NOW, epoch=1, incarnation=2, active_until=NOW)
    changes = Changes(audiences={audience.key: audience}, maintenances={made.id: made}, events={event.id: event})
    changes.created.update({made.id, event.id})
    changes.documents.append(Document(audience=audience, items=((event, made),)))
    with store.write() as tx:
        tx.save(changes)


def disable(store: SqlStore, name: str) -> None:
    with store.write() as tx:
        audience = tx.audiences([f"vm:{name}"])[f"vm:{name}"]
        gone = replace(audience, enabled_at=None, incarnation=1, active_until=None)
        [event] = [e for e in tx.load_audiences([audience.key]).events.values() if e.is_listed]
        unlisted = replace(event, is_listed=False)
        changes = Changes(audiences={gone.key: gone}, events={unlisted.id: unlisted})
        changes.documents.append(Document(audience=gone, items=()))
        tx.save(changes)


def replace_and_fail(store: SqlStore) -> None:
    with store.write() as tx:
        tx.replace_inventory(Inventory(vms=(vm("one"),)), "mark")
        msg = "it shall not be"
        raise Conflict(msg)
