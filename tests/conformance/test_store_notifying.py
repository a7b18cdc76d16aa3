"""What every store owes to those who are told of what happens. The duties stand in `store.contract`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import MaintenanceState
from forewarn.core.subscription import Delivery, DeliveryState, NotificationKind, Subscription, SubscriptionState
from forewarn.errors import StoreUnavailable
from forewarn.store import Store
from tests.support.databases import save
from tests.support.world import NOW, minutes
from tests.unit.core.builders import maintenance

WAITING, DEAD = DeliveryState.WAITING, DeliveryState.DEAD

CHAT = Subscription(
    id="s-1",
    name="chat",
    url="https://chat.example/hook?key=1",
    secret="whsec_c2VjcmV0",
    former_secret="whsec_Zm9ybWVy",
    former_until=NOW + minutes(1),
    scopes=("web", "db"),
    vms=("vm-1",),
    kinds=("scheduled",),
    state=SubscriptionState.PAUSED,
    reason="the receiver answered 410 Gone",
    is_given_up=True,
    cursor=17,
    created_at=NOW,
    created_by="operator:ann",
    failing_since=NOW,
)


def a_delivery(sequence: int, subject: str = "e-1", *, of: str = "s-1", **changed: object) -> Delivery:
    made = Delivery(
        subscription_id=of, sequence=sequence, subject=subject, kind=NotificationKind.LATE, at=NOW, next_at=NOW
    )
    return replace(made, **changed)  # type: ignore[arg-type] # fields of a delivery


def test_a_subscription_comes_back_as_it_was_and_as_it_was_changed(store: Store) -> None:
    plain = replace(CHAT, id="s-0", name="mail", former_secret=None, former_until=None, scopes=(), failing_since=None)
    with store.write() as tx:
        tx.save_subscription(CHAT)
        tx.save_subscription(replace(plain, created_at=NOW + minutes(1)))
        tx.save_subscription(replace(CHAT, cursor=18))
    with store.read() as reader:
        assert reader.list_subscriptions() == [replace(CHAT, cursor=18), replace(plain, created_at=NOW + minutes(1))]


def test_one_subscription_is_found_by_its_id(store: Store) -> None:
    with store.write() as tx:
        tx.save_subscription(CHAT)
    with store.read() as reader:
        assert reader.get_subscription("s-1") == CHAT
        assert reader.get_subscription("chat") is None


def test_deliveries_are_found_by_their_keys(store: Store) -> None:
    made = [a_delivery(1), a_delivery(1, "e-2"), a_delivery(2, state=DEAD), a_delivery(1, of="s-2")]
    with store.write() as tx:
        tx.save_deliveries(made)
    keys = [(2, "e-1"), (1, "e-2"), (1, "e-2"), (2, "e-2"), (7, "e-1")]
    with store.read() as reader:
        assert reader.find_deliveries("s-1", keys) == [made[1], made[2]]
        assert reader.find_deliveries("s-1", []) == []


def test_a_name_is_taken_once(store: Store) -> None:
    with store.write() as tx:
        tx.save_subscription(CHAT)
    with pytest.raises(StoreUnavailable), store.write() as tx:
        tx.save_subscription(replace(CHAT, id="s-2"))
    with store.read() as reader:
        assert reader.list_subscriptions() == [CHAT]


def test_deliveries_come_in_the_order_of_their_keys_and_page_by_page(store: Store) -> None:
    made = [a_delivery(1, "b"), a_delivery(1, "C"), a_delivery(3), a_delivery(2), a_delivery(10)]
    others = [a_delivery(1, of="s-2"), a_delivery(4, state=DEAD, next_at=None, last_error="answered 500", attempts=3)]
    with store.write() as tx:
        tx.save_deliveries([*made, *others])
    with store.read() as reader:
        assert [d.key for d in reader.list_deliveries("s-1", WAITING, limit=3)] == [(1, "C"), (1, "b"), (2, "e-1")]
        assert [d.key for d in reader.list_deliveries("s-1", WAITING, after=(1, "C"))] == [
            (1, "b"),
            (2, "e-1"),
            (3, "e-1"),
            (10, "e-1"),
        ]
        assert reader.list_deliveries("s-1", DEAD) == [others[1]]
        assert dict(reader.count_deliveries()) == {("s-1", WAITING): 5, ("s-1", DEAD): 1, ("s-2", WAITING): 1}


def test_a_delivery_is_changed_and_forgotten(store: Store) -> None:
    with store.write() as tx:
        tx.save_deliveries([a_delivery(1), a_delivery(2), a_delivery(1, of="s-2")])
        tx.save_deliveries([a_delivery(2, state=DEAD, next_at=None)])
        tx.delete_deliveries("s-1", [(1, "e-1"), (7, "unknown")])
    with store.read() as reader:
        assert reader.list_deliveries("s-1", WAITING) == []
        assert reader.list_deliveries("s-1", DEAD) == [a_delivery(2, state=DEAD, next_at=None)]
        assert len(reader.list_deliveries("s-2", WAITING)) == 1


def test_of_a_delivery_saved_twice_at_once_the_last_one_counts(store: Store) -> None:
    last = a_delivery(1, last_error='größe "x" \\ \n \x01 \u2028 %s ? :a')
    with store.write() as tx:
        tx.save_deliveries([a_delivery(1), a_delivery(2), last])
    with store.read() as reader:
        assert reader.list_deliveries("s-1", WAITING) == [last, a_delivery(2)]


def test_a_subscription_is_forgotten_with_its_deliveries(store: Store) -> None:
    with store.write() as tx:
        tx.save_subscription(CHAT)
        tx.save_deliveries([a_delivery(1), a_delivery(2, state=DEAD), a_delivery(1, of="s-2")])
        tx.delete_subscription("s-1")
    with store.read() as reader:
        assert reader.list_subscriptions() == []
        assert dict(reader.count_deliveries()) == {("s-2", WAITING): 1}


def test_a_transaction_that_fails_changes_nothing(store: Store) -> None:
    with store.write() as tx:
        tx.save_subscription(CHAT)
        tx.save_deliveries([a_delivery(1)])
    with pytest.raises(StoreUnavailable):
        _fail(store)
    with store.read() as reader:
        assert reader.list_subscriptions() == [CHAT]
        assert reader.list_deliveries("s-1", WAITING) == [a_delivery(1)]


def test_looks_are_saved_with_changes_and_come_when_they_are_due(store: Store) -> None:
    looks = {f"m-{n}": AlertCheck(maintenance_id=f"m-{n}", at=NOW + minutes(n)) for n in (3, 1, 2)}
    with store.write() as tx:
        tx.save(ChangeSet(alert_checks=dict(looks)))
    with store.read() as reader:
        assert reader.next_alert_check_at() == NOW + minutes(1)
        assert reader.list_due_alert_checks(NOW + minutes(2), 10) == [looks["m-1"], looks["m-2"]]
        assert reader.list_due_alert_checks(NOW + minutes(2), 1) == [looks["m-1"]]
    with store.write() as tx:
        tx.save(ChangeSet(alert_checks={"m-1": None, "m-2": replace(looks["m-2"], at=NOW + minutes(9)), "m-7": None}))
    with store.read() as reader:
        assert reader.next_alert_check_at() == NOW + minutes(3)


def test_what_is_old_is_forgotten(store: Store) -> None:
    ended = maintenance(id="m-1", sequence=1, state=MaintenanceState.COMPLETED, ended_at=NOW)
    save(store, ended)
    with store.write() as tx:
        tx.save_alert_checks({"m-1": AlertCheck(maintenance_id="m-1", at=NOW)})
        tx.save_deliveries([a_delivery(1), a_delivery(2, at=NOW + minutes(5))])
        tx.prune_history(NOW + minutes(1), NOW, 10)
    with store.read() as reader:
        assert reader.next_alert_check_at() is None
        assert [d.sequence for d in reader.list_deliveries("s-1", WAITING)] == [2]
        assert reader.find_maintenances(["m-1", "unknown"]) == {}


def _fail(store: Store) -> None:
    with store.write() as tx:
        tx.delete_subscription("s-1")
        raise StoreUnavailable("the disk is full")
