"""The board that follows from the one before is the one that would be taken anew, whatever has happened between."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from forewarn.actuators import Simulate
from forewarn.control import board as boards
from forewarn.control.board import Board, read_board, update_board
from forewarn.core.maintenance.actuator_result import Progress
from forewarn.core.maintenance.alert_schedule import AlertThresholds
from forewarn.core.maintenance.forecast import MaintenanceProblem
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Maintenance
from forewarn.errors import ActuatorError, Conflict, InvalidRequest
from forewarn.store.contract import Reader
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import CAUSE_VM, SCOPES, VMS, seconds
from tests.support.world import minutes

pytestmark = pytest.mark.anyio

THRESHOLDS = AlertThresholds(unseen_before=minutes(60), late_start_after=minutes(1), late_end_after=minutes(15))


class Flaky(Simulate):
    """One that cannot be reached now and then.

    Attributes:
        is_away: Whether it cannot now.
    """

    is_away = False

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        self._reach()
        return await super().execute(maintenance, now)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        self._reach()
        return await super().observe(maintenance, now)

    def _reach(self) -> None:
        if self.is_away:
            raise ActuatorError("nobody answers")


class Follower:
    """Two views of the same: one that follows, and one that is taken anew."""

    def __init__(self, made: Simulated) -> None:
        self._made = made
        self.board: Board = made.read(lambda reader: read_board(reader, made.feed.last_polled_at, made.now, THRESHOLDS))
        self.followed = 0

    def check(self) -> Board:
        """Follow, and compare."""

        def both(reader: Reader) -> tuple[Board, Board]:
            asked_at, number = self._made.feed.last_polled_at, self.board.number + 1
            followed = update_board(reader, self.board, asked_at, self._made.now, number)
            return followed, read_board(reader, asked_at, self._made.now, THRESHOLDS, number)

        self.board, anew = self._made.read(both)
        assert shown(self.board) == shown(anew)
        self.followed += 1
        return self.board


def shown(board: Board) -> Board:
    """Without when the scheduler looks next, which nobody is shown."""

    def bare(item: boards.BoardItem) -> boards.BoardItem:
        return replace(item, maintenance=hidden(item.maintenance), blocked_by=tuple(hidden(m) for m in item.blocked_by))

    def hidden(maintenance: Maintenance) -> Maintenance:
        return replace(maintenance, due_at=None, begun_at=None)

    items, ended = tuple(bare(item) for item in board.items), tuple(bare(item) for item in board.ended)
    return replace(board, items=items, ended=ended)


@pytest.mark.parametrize("seed", range(4))
async def test_a_board_follows_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "_ENDED_MAX", 3)
    chance, flaky = random.Random(seed), Flaky()
    made = await simulated(inventory(*VMS, scopes=SCOPES), actuator=flaky, seed=seed)
    follower = Follower(made)
    troubles: set[MaintenanceProblem] = set()
    for _ in range(150):
        try:
            await happen(made, flaky, chance)
        except (Conflict, InvalidRequest):
            continue
        if chance.random() < 0.7:
            board = follower.check()
            troubles |= {trouble for item in board.items_needing_attention for trouble in item.forecast.problems}
    assert follower.followed > 60
    assert troubles & {MaintenanceProblem.UNSEEN, MaintenanceProblem.OVERRUN}  # what time alone brings


async def happen(made: Simulated, flaky: Flaky, chance: random.Random) -> None:
    """Something, on any maintenance or VM."""
    cause = chance.choice(sorted(CAUSE_VM))
    host = chance.choice(["host-1", "host-2", "host-3"])
    some: list[Maintenance] = made.read(lambda reader: reader.list_maintenances(limit=30)).items
    chosen = chance.choice(some) if some else await made.schedule_one(cause, CAUSE_VM[cause])
    match chance.randrange(9):
        case 0:
            await made.schedule_one(cause, CAUSE_VM[cause])
        case 1:
            wanted = MaintenanceRequest(
                cause="host-maintenance", hosts=(host,), latest_start=made.now + timedelta(days=2)
            )
            await made.engine.maintenances.schedule(wanted, actor="operator:ann")
        case 2:
            await made.approve_all(chance.choice(VMS).name)
        case 3:
            await made.cancel(chosen)
        case 4:
            await made.engine.maintenances.start(chosen.id, actor="operator:ann", reason="now")
        case 5:
            await made.engine.maintenances.defer(chosen.id, actor="operator:ann", by=minutes(30))
        case 6:
            flaky.is_away = not flaky.is_away
        case _:
            await made.advance(seconds(chance.choice([0.3, 5, 20, 200, 2000, 40_000])))


async def test_an_actuator_that_gets_through_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry of the audit log says it."""
    flaky = Flaky(impact_after=minutes(5))
    made = await simulated(inventory(*VMS, scopes=SCOPES), actuator=flaky)
    monkeypatch.setattr(boards, "read_board", _never)
    follower = Follower(made)
    it = await made.schedule_one("host-maintenance", "lone")
    flaky.is_away = True
    await made.engine.maintenances.start(it.id, actor="operator:ann", reason="now")
    await made.advance(seconds(6))
    assert [item.worst_problem for item in follower.check().items] == [MaintenanceProblem.FAILING]
    flaky.is_away = False
    await made.advance(seconds(20))
    assert [item.worst_problem for item in follower.check().items] == [None]


async def test_what_is_forgotten_leaves_the_board() -> None:
    made = await simulated(inventory(*VMS, scopes=SCOPES))
    follower = Follower(made)
    await made.cancel(await made.schedule_one("host-maintenance", "lone"))
    assert len(follower.check().ended) == 1
    await made.advance(minutes(10))
    await made.engine.retention.prune_history(minutes(5), minutes(5), 1_000_000)
    assert follower.check().ended == ()


async def test_a_database_that_was_put_back_is_taken_anew() -> None:
    made = await simulated(inventory(*VMS, scopes=SCOPES))
    follower = Follower(made)
    await made.schedule_one("host-maintenance", "lone")
    follower.board = replace(follower.check(), position=1_000_000, items=())
    assert len(follower.check().items) == 1


async def test_much_at_once_is_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "_NEWS_MAX", 3)
    made = await simulated(inventory(*VMS, scopes=SCOPES))
    follower = Follower(made)
    for vm in ("lone", "db", "web-0"):
        await made.schedule_one("host-maintenance", vm)
    assert len(follower.check().items) == 3


async def test_a_board_that_cannot_hold_all_is_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "_ACTIVE_MAX", 2)
    made = await simulated(inventory(*VMS, scopes=SCOPES))
    follower = Follower(made)
    counts = []
    for vm in ("lone", "db", "web-0", "fleet-0"):
        await made.schedule_one("host-maintenance", vm)
        board = follower.check()
        counts.append((len(board.items), board.is_complete))
    assert counts == [(1, True), (2, True), (2, False), (2, False)]
    for item in follower.board.items:
        await made.cancel(item.maintenance)
    assert (len(follower.check().items), follower.board.is_complete) == (2, True)


def _never(*_: object) -> Board:
    pytest.fail("the board was taken anew")
