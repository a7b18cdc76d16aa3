from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.model import Maintenance, MaintenanceState
from forewarn.core.outlook import Trouble, outlook
from forewarn.core.request import Request
from forewarn.dashboard import words
from forewarn.dashboard.board import Item
from tests.support.world import World, minutes
from tests.unit.core.builders import availability_set, vm

WEB_0 = vm("web-0", scope="web", fault_domain=0)
WEB_1 = vm("web-1", host="host-2", scope="web", fault_domain=1)
DB = vm("db")


def world() -> World:
    return World(WEB_0, WEB_1, DB, scopes=(availability_set(),))


def item(made: World, it: Maintenance) -> Item:
    current = made.maintenances[it.id]
    events = tuple(event for event in made.events.values() if event.maintenance_id == it.id)
    others = [m for m in made.maintenances.values() if m.is_active and m.id != it.id]
    return Item(current, events, outlook(current, events, others, lambda _key: made.now, made.now))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
    ],
)
def test_a_few_names_and_how_many_more(names: list[str], expected: str) -> None:
    assert words.listed(names) == expected


def test_it_says_whom_a_scheduled_one_waits_for() -> None:
    made = world()
    it = made.plan_one(Request(cause="host-maintenance", hosts=("host-1",)))
    assert words.next_words(item(made, it)) == "It starts as soon as db and web approve, at the latest"
    made.approve("db", next(event.id for event in made.events.values() if event.audience == "vm:db"))
    assert words.next_words(item(made, it)) == "It starts as soon as web approves, at the latest"
    assert words.approvals(item(made, it).events) == "1 of 2"


def test_it_says_behind_whom_a_queued_one_waits() -> None:
    made = world()
    first = made.plan_one(Request(cause="host-maintenance", hosts=("host-1",)))
    second = made.plan_one(Request(cause="host-maintenance", hosts=("host-2",)))
    assert words.next_words(item(made, second)) == f"It is announced when {first.id} is over"
    named = replace(item(made, second), behind=(first,))
    assert words.next_words(named) == "It is announced when Freeze of host-1 is over"
    same = made.plan_one(Request(cause="host-maintenance", hosts=("host-1",)))
    named = replace(item(made, same), behind=(first,))
    assert words.next_words(named) == "It is announced when the other Freeze of host-1 is over"
    assert words.approvals(item(made, second).events) == "nobody is asked"


def test_it_says_what_becomes_of_one_under_way_and_of_one_that_is_over() -> None:
    made = world()
    it = made.plan_one(Request(cause="host-maintenance", hosts=("host-1",), duration_s=60))
    made.force_start(it)
    assert words.next_words(item(made, it)) == "It is under way, and is expected to be over"
    made.advance(minutes(4))
    assert words.next_words(item(made, it)) == "It is under way, and should have been over"
    made.complete(it)
    assert words.next_words(item(made, it)) == "It is over"
    other = made.plan_one(Request(cause="host-maintenance", hosts=("host-1",)))
    made.cancel(other)
    assert words.next_words(item(made, other)) == "It was taken back, and does not happen"


def test_every_state_and_trouble_has_a_sign_or_a_word() -> None:
    assert set(words.STATES) == set(MaintenanceState)
    assert len(set(words.STATES.values())) == len(words.STATES)
    assert set(words.TROUBLES) == set(Trouble)
    assert len({word for word, _ in words.TROUBLES.values()}) == len(words.TROUBLES)
