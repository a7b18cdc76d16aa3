"""Couriers on virtual time, with a receiver in memory: what is sent how often, in which order, and what is kept."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.core.subscription import DeliveryBackoff, DeliveryState, Subscription
from forewarn.engine.leader_election import Leadership
from forewarn.engine.subscriptions import find_subscription
from forewarn.errors import InvalidRequest, StoreUnavailable
from forewarn.net.outbound import PostOutcome
from forewarn.notifications.notifier import DeliveryPolicy, Notifier
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.world import minutes
from tests.unit.core.builders import availability_set, vm

pytestmark = pytest.mark.anyio

NAMES = ["db", "web", "app"]
WORLD = inventory(*(vm(name, addresses=(f"10.0.0.{n}",)) for n, name in enumerate(NAMES, 1)))
TAKEN = PostOutcome(status=204, error="")
BUSY = PostOutcome(status=503, error="answered 503")
HABITS = DeliveryPolicy(
    backoff=DeliveryBackoff(pause_first=timedelta(seconds=4), pause_max=minutes(2), age_max=minutes(90)), waiting_max=20
)


class Inbox:
    """What was posted, and what it answers."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.taken: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], PostOutcome] = lambda _event: TAKEN

    async def post(self, _url: str, body: bytes, headers: dict[str, str], _now: datetime) -> PostOutcome:
        event = json.loads(body)
        assert headers["webhook-id"] == event["id"]
        await asyncio.sleep(0)
        self.posted.append(event)
        answer = self.answer(event)
        if answer.is_accepted:
            self.taken.append(event)
        return answer

    async def close(self) -> None:
        pass

    def story(self, subject: str) -> list[str]:
        """The kinds that it took of that subject, in order."""
        return [event["type"].split(".")[-2] for event in self.taken if event["subject"] == subject]

    @property
    def tries(self) -> Counter[str]:
        return Counter(event["id"] for event in self.posted)


class Told(Notifier):
    """Posts into an inbox."""

    inbox: Inbox

    def make_client(self) -> Inbox:
        return self.inbox


@asynccontextmanager
async def notifying(world: Simulated, inbox: Inbox, habits: DeliveryPolicy = HABITS) -> AsyncIterator[Told]:
    told = Told(world.engine, world.clock, lambda: pytest.fail("nothing is asked"), habits)
    told.inbox = inbox
    task = asyncio.create_task(told.run())
    await quiet()
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await told.stop()


async def quiet() -> None:
    """Until nobody has anything to do any more."""
    for _ in range(300):
        await asyncio.sleep(0)


async def pass_time(world: Simulated, by: timedelta) -> None:
    await world.advance(by)
    await quiet()


async def subscribe(world: Simulated) -> Subscription:
    return await world.engine.subscriptions.create("chat", "http://receiver/", actor="operator:ann")


def now_is(world: Simulated) -> Subscription:
    found: Subscription = world.read(lambda reader: find_subscription(reader, "chat"))
    return found


def kept(world: Simulated, state: DeliveryState) -> list[Any]:
    of = now_is(world).id
    found: list[Any] = world.read(lambda reader: reader.list_deliveries(of, state))
    return found


LIFE = ["scheduled", "started", "completed"]


async def test_everything_is_told_once_and_the_cursor_is_where_the_audit_log_ends() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    async with notifying(world, inbox):
        maintenance = await world.schedule_one("host-maintenance", *NAMES)
        await pass_time(world, minutes(40))
        events = world.events_of(maintenance)
    assert [inbox.story(event.id) for event in events] == [LIFE] * 3
    assert set(inbox.tries.values()) == {1}
    assert now_is(world).cursor >= max(entry.sequence for entry in world.entries(maintenance))


async def test_one_event_that_is_never_taken_holds_up_only_itself_and_its_siblings_are_told_once() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    async with notifying(world, inbox):
        first = await world.schedule_one("host-maintenance", *NAMES)
        (bad, *others) = [event.id for event in world.events_of(first)]
        assert bad
        await quiet()
        inbox.answer = lambda event: BUSY if event["subject"] == bad else TAKEN
        await pass_time(world, minutes(40))
        later = await world.schedule_one("host-maintenance", "web")
        await pass_time(world, minutes(40))
        others += [event.id for event in world.events_of(later)]
        assert [inbox.story(other) for other in others] == [LIFE] * 3
        tries = {event["id"]: inbox.tries[event["id"]] for event in inbox.posted if event["subject"] in others}
        assert set(tries.values()) == {1}
        # Its first is tried again and again; the next of it waits behind.
        assert {d.subject for d in kept(world, DeliveryState.WAITING)} == {bad}
        assert len({event["id"] for event in inbox.posted if event["subject"] == bad}) == 2
        inbox.answer = lambda _event: TAKEN
        await pass_time(world, minutes(3))
        await pass_time(world, minutes(3))
    assert inbox.story(bad) == LIFE
    assert kept(world, DeliveryState.WAITING) == []
    assert now_is(world).failing_since is None


async def test_a_receiver_that_is_down_is_left_alone_and_gets_everything_when_it_is_back() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    inbox.answer = lambda _event: BUSY
    made = []
    async with notifying(world, inbox):
        for _ in range(12):
            made.append(await world.schedule_one("host-maintenance", *NAMES))
            await pass_time(world, timedelta(seconds=1))
            await world.cancel(made[-1])
            await pass_time(world, timedelta(seconds=1))
        assert len(inbox.posted) < 40
        assert len(kept(world, DeliveryState.WAITING)) <= HABITS.waiting_max + 6
        assert now_is(world).failing_since is not None
        inbox.answer = lambda _event: TAKEN
        for _ in range(20):
            await pass_time(world, minutes(1))
    events = [event.id for each in made for event in world.events_of(each)]
    assert [inbox.story(event) for event in events] == [["scheduled", "canceled"]] * 36
    assert len(inbox.taken) == 72
    assert now_is(world).failing_since is None


async def test_what_is_under_way_when_the_process_dies_is_told_once_more_under_the_same_id() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    async with notifying(world, inbox):
        stop = asyncio.Event()

        def answer(_event: dict[str, Any]) -> PostOutcome:
            stop.set()
            return TAKEN

        inbox.answer = answer
        maintenance = await world.schedule_one("host-maintenance", *NAMES)
        await stop.wait()  # one is told, and not yet written down
    before = list(inbox.posted)
    assert 1 <= len(before) <= 3
    async with notifying(world, inbox):
        await pass_time(world, minutes(40))
    bodies: dict[str, Any] = {}
    assert all(bodies.setdefault(event["id"], event) == event for event in inbox.posted)
    assert len(bodies) == 9
    assert {event.id for event in world.events_of(maintenance)} == {event["subject"] for event in inbox.posted}


async def test_what_is_too_old_is_given_up_and_tried_again_on_demand() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    inbox.answer = lambda _event: BUSY
    async with notifying(world, inbox):
        await world.schedule_one("host-maintenance", "db")
        for _ in range(16):
            await pass_time(world, minutes(10))
        dead = kept(world, DeliveryState.DEAD)
        assert [d.kind.value for d in dead] == LIFE
        assert kept(world, DeliveryState.WAITING) == []
        assert dead[0].last_error == "answered 503"
        inbox.answer = lambda _event: TAKEN
        assert await world.engine.subscriptions.redeliver("chat", [dead[0].key], actor="operator:ann") == 1
        await quiet()
        assert [event["id"] for event in inbox.taken] == [dead[0].id]
        assert await world.engine.subscriptions.redeliver("chat", None, actor="operator:ann") == 2
        await quiet()
    assert len(inbox.taken) == 3
    assert kept(world, DeliveryState.DEAD) == []


async def test_too_many_dead_ones_pause_a_subscription() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    world.engine.subscriptions._deliveries_dead_max = 2
    await subscribe(world)
    inbox.answer = lambda _event: BUSY
    async with notifying(world, inbox):
        await world.schedule_one("host-maintenance", "db")
        for _ in range(16):
            await pass_time(world, minutes(10))
    found = now_is(world)
    assert (found.state.value, found.is_given_up) == ("paused", True)
    assert found.reason is not None
    assert "notify_dead_max" in found.reason


async def test_a_replica_that_does_not_act_tells_nobody() -> None:
    class Elsewhere(Leadership):
        @property
        def is_held(self) -> bool:
            return False

    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    leadership = world.engine.leadership
    world.engine.committer.leadership = Elsewhere()
    async with notifying(world, inbox) as told:
        await world.schedule_one("host-maintenance", "db")
        await quiet()
        assert inbox.posted == []
        world.engine.committer.leadership = leadership
        told.wake()
        await quiet()
    assert len(inbox.taken) == 1


async def test_a_longer_pause_that_is_asked_for_is_kept() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    inbox.answer = lambda _event: replace(BUSY, retry_after=timedelta(seconds=100))
    async with notifying(world, inbox):
        await world.schedule_one("host-maintenance", "db")
        await quiet()
        await pass_time(world, timedelta(seconds=99))
        assert len(inbox.posted) == 1
        await pass_time(world, timedelta(seconds=2))
        assert len(inbox.posted) == 2


async def test_something_new_is_tried_although_what_waits_is_never_taken() -> None:
    """One poisoned event on a quiet cloud: its pauses grow, and the next announcement does not wait for them."""
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    async with notifying(
        world, inbox, replace(HABITS, backoff=DeliveryBackoff(pause_max=minutes(60), age_max=minutes(600)))
    ):
        first = await world.schedule_one("host-maintenance", "db")
        (bad,) = [event.id for event in world.events_of(first)]
        inbox.answer = lambda event: BUSY if event["subject"] == bad else TAKEN
        for _ in range(12):
            await pass_time(world, minutes(20))
        later = await world.schedule_one("host-maintenance", "web")
        await pass_time(world, timedelta(seconds=61))
        (good,) = [event.id for event in world.events_of(later)]
        assert inbox.story(good) == ["scheduled"]


async def test_a_receiver_that_asks_to_be_left_alone_is_told_nothing_new_either() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    inbox.answer = lambda _event: replace(BUSY, retry_after=timedelta(seconds=100))
    async with notifying(world, inbox):
        await world.schedule_one("host-maintenance", "db")
        await quiet()
        await world.schedule_one("host-maintenance", "web")
        await pass_time(world, timedelta(seconds=98))
        assert len(inbox.posted) == 1


async def test_who_is_paused_and_resumed_at_once_is_told_all_the_same() -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    async with notifying(world, inbox):
        for _ in range(5):
            await world.engine.subscriptions.pause("chat", actor="operator:ann")
            await asyncio.sleep(0)
            await world.engine.subscriptions.resume("chat", actor="operator:ann")
        await world.schedule_one("host-maintenance", "db")
        await quiet()
    assert len(inbox.taken) == 1


async def test_a_store_that_is_away_when_deliveries_are_written_down_has_nothing_sent_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    write_down = world.engine.subscriptions.record_deliveries
    failures = iter(range(2))

    async def hand_over(*given: Any) -> bool:  # noqa: ANN401 - as the engine takes them
        if next(failures, None) is not None:
            raise StoreUnavailable("the disk is full")
        return await write_down(*given)

    monkeypatch.setattr(world.engine.subscriptions, "record_deliveries", hand_over)
    async with notifying(world, inbox):
        await world.schedule_one("host-maintenance", *NAMES)
        for _ in range(4):
            await pass_time(world, timedelta(seconds=1))
    assert list(inbox.tries.values()) == [1, 1, 1]
    assert now_is(world).cursor > 0


async def test_more_skipped_than_fit_into_one_page_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.engine.subscriptions._REDELIVERED_MAX", 2)
    world, inbox = await simulated(WORLD), Inbox()
    await subscribe(world)
    inbox.answer = lambda _event: BUSY
    async with notifying(world, inbox):
        await world.schedule_one("host-maintenance", *NAMES)
        await quiet()
        assert len(kept(world, DeliveryState.WAITING)) == 3
        await world.engine.subscriptions.resume("chat", actor="operator:ann", is_skipping=True)
        assert kept(world, DeliveryState.WAITING) == []


async def test_a_subscription_gets_what_its_tenant_may_see_and_owns_nothing_of_a_scope_by_a_vm() -> None:
    both = inventory(
        vm("db", addresses=("10.0.0.1",)),
        vm("web-0", scope="web", addresses=("10.0.0.2",)),
        scopes=[availability_set("web")],
    )
    world, inbox = await simulated(both), Inbox()
    with pytest.raises(InvalidRequest, match="vm 'web-0' is in scope 'web' and sees all its events: name the scope"):
        await world.engine.subscriptions.create("chat", "http://receiver/", vms=["web-0"], actor="operator:ann")
    await world.engine.subscriptions.create("chat", "http://receiver/", scopes=["web"], actor="operator:ann")
    async with notifying(world, inbox):
        maintenance = await world.schedule_one("host-maintenance", "db", "web-0")
        await pass_time(world, minutes(40))
    (ours,) = [event.id for event in world.events_of(maintenance) if event.audience == "scope:web"]
    assert inbox.story(ours) == LIFE
    assert len(inbox.posted) == 3
    assert '"db"' not in json.dumps(inbox.posted)
