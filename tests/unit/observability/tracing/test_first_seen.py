"""An event is seen when its audience has asked after it was published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from forewarn.clock import VirtualClock
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, Event
from forewarn.observability.tracing import Tracing
from forewarn.observability.tracing.first_seen import FirstSeenDetector
from forewarn.observability.tracing.maintenance_spans import MaintenanceSpan
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, maintenance, vm

WEB = Audience(key="scope:web", scope="web", enabled_at=NOW, epoch=1, incarnation=1)
DB = Audience(key="vm:db", enabled_at=NOW, epoch=1, incarnation=1)
SCHEDULED = maintenance(vm("web-0"), not_before=NOW + minutes(15))
ONE = replace(an_event(), id="ONE")
TWO = replace(an_event(), id="TWO")


class Kept(Tracing):
    is_on = True

    def __init__(self) -> None:
        self.moments: list[MaintenanceSpan] = []

    def export_spans(self, moments: Iterable[MaintenanceSpan]) -> None:
        self.moments += moments


class World:
    def __init__(self, waiting_max: int = 100) -> None:
        self.told = Kept()
        self.clock = VirtualClock(NOW)
        self.asked: dict[str, datetime] = {}
        self.sights = FirstSeenDetector(self.told, self.clock, self.asked.get, waiting_max)

    def show(self, *events: Event, audience: Audience = WEB) -> None:
        self.sights.note_document(
            AudienceDocument(audience=audience, items=tuple((event, SCHEDULED) for event in events))
        )

    def ask(self, after_s: float, key: str = "scope:web") -> None:
        self.asked[key] = NOW + timedelta(seconds=after_s)
        self.sights.export_seen()

    def seen(self) -> list[object]:
        return [moment.attributes["forewarn.event.id"] for moment in self.told.moments]


@pytest.fixture
def world() -> World:
    made = World()
    made.sights.is_begun = True
    return made


def test_a_request_after_the_publication_is_the_first_sight(world: World) -> None:
    world.show(ONE)
    world.ask(0)
    assert world.seen() == []
    world.ask(2)
    (moment,) = world.told.moments
    assert (moment.name, moment.began_at, moment.ended_at) == ("seen", NOW, NOW + timedelta(seconds=2))
    assert moment.maintenance_id == SCHEDULED.id
    assert moment.attributes["forewarn.audience"] == "scope:web"
    assert "forewarn.vm" not in moment.attributes


def test_an_audience_of_one_vm_names_it(world: World) -> None:
    world.show(ONE, audience=DB)
    world.ask(1, "vm:db")
    assert world.told.moments[0].attributes["forewarn.vm"] == "db"


def test_it_is_told_once_and_of_new_events_only(world: World) -> None:
    world.show(ONE)
    world.ask(1)
    world.clock.advance(timedelta(seconds=2))
    world.show(ONE, TWO)
    world.ask(3)
    world.ask(4)
    assert world.seen() == ["ONE", "TWO"]


def test_an_event_that_goes_away_unseen_is_not_waited_for(world: World) -> None:
    world.show(ONE)
    world.show()
    world.ask(5)
    assert world.seen() == []
    assert (world.sights._waiting, world.sights._unseen, world.sights._shown) == (0, {}, {})


def test_what_was_published_before_it_began_is_not_new() -> None:
    """After a restart the documents are published again, and VMs may have seen them long ago."""
    world = World()
    world.show(ONE)
    world.sights.is_begun = True
    world.show(ONE, TWO)
    world.ask(1)
    assert world.seen() == ["TWO"]


def test_no_more_are_waited_for_than_there_may_be() -> None:
    world = World(waiting_max=1)
    world.sights.is_begun = True
    world.show(ONE, TWO)
    world.ask(1)
    assert len(world.seen()) == 1
    world.show(replace(ONE, id="THREE"), audience=DB)
    world.ask(2, "vm:db")
    assert world.seen()[1:] == ["THREE"]
