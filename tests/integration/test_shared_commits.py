"""Commands that wait for the database at the same time are committed together, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa

from forewarn.clock import RealClock
from forewarn.config.loading import make_settings
from forewarn.control.context import Context, read_maintenances_out
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance import planning
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Host, Maintenance, MaintenanceState
from forewarn.engine.transaction import make_thread_runner
from forewarn.errors import NotFound, StoreUnavailable
from forewarn.server.backend import Backend
from forewarn.store import SqlStore
from forewarn.store.contract import Transaction
from tests.unit.core.builders import vm

pytestmark = pytest.mark.anyio


class CountingStore:
    """A store whose transactions are counted, and may be held up, or fail at the commit."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.commits = 0
        self.may_begin = threading.Event()
        self.may_begin.set()
        self.fails = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self.store, name)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        assert self.may_begin.wait(60)
        with self.store.write() as tx:
            yield tx
        self.commits += 1
        if self.fails:
            raise StoreUnavailable("the disk is gone")


class Place:
    """A backend whose next transactions wait until a block of commands was issued."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.store = CountingStore(SqlStore(f"sqlite:///{folder}/forewarn.db"))
        write, read = (make_thread_runner(stack.enter_context(ThreadPoolExecutor(1))) for _ in range(2))
        stack.callback(self.store.close)
        self.backend = Backend(make_settings(), store=self.store, clock=RealClock(), write=write, read=read)

    async def begin(self) -> None:
        names = [f"vm-{number}" for number in range(20)]
        inventory = Inventory(hosts=(Host(name="host-1"),), vms=tuple(vm(name) for name in names))
        await self.backend.engine.inventory.apply(inventory, "mark", actor="test")
        for name in names:
            await self.backend.engine.authority.enable(f"vm:{name}", None)
        self.store.commits = 0

    async def schedule(self, name: str, cause: str = "user-restart") -> list[Maintenance]:
        request = MaintenanceRequest(cause=cause, vms=(name,))
        return await self.backend.engine.maintenances.schedule(request, actor=f"operator:{name}")

    async def issue(self, *names: str) -> list[list[Maintenance] | BaseException]:
        """Schedule for each VM, all of them before the first one is carried out."""
        self.store.may_begin.clear()
        tasks = [asyncio.create_task(self.schedule(name)) for name in names]
        for _ in range(10):
            await asyncio.sleep(0)  # until each waits
        self.store.may_begin.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def place(tmp_path: Path) -> Any:  # noqa: ANN401 - an iterator of places
    with ExitStack() as stack:
        made = Place(stack, tmp_path)
        await made.begin()
        yield made


async def test_commands_that_wait_share_a_commit(place: Place) -> None:
    found = await place.issue(*(f"vm-{number}" for number in range(9)))
    assert place.store.commits == 2  # eight are the most that share one
    for number, answer in enumerate(found):
        assert isinstance(answer, list)
        assert answer[0].vms == (f"vm-{number}",)
        assert place.backend.feed.channel(f"vm:vm-{number}").incarnation == 2


async def test_they_are_carried_out_in_the_order_in_which_they_were_issued(place: Place) -> None:
    found = await place.issue(*(f"vm-{number}" for number in range(17)))
    assert place.store.commits == 3
    numbers = [answer[0].sequence for answer in found if isinstance(answer, list)]
    assert len(numbers) == 17
    assert numbers == sorted(numbers)


async def test_a_refused_command_is_undone_alone(place: Place) -> None:
    first, refused, last = await place.issue("vm-0", "unknown", "vm-1")
    assert isinstance(refused, NotFound)
    assert isinstance(first, list)
    assert isinstance(last, list)
    with place.store.read() as reader:
        actors = {entry.actor for entry in reader.list_entries(limit=1000).items if entry.maintenance_id is not None}
        assert len(reader.list_active_maintenances()) == 2
    assert actors >= {"operator:vm-0", "operator:vm-1"}
    assert "operator:unknown" not in actors


async def test_if_all_are_refused_nothing_is_committed(place: Place) -> None:
    found = await place.issue("unknown", "nothing")
    assert [type(answer) for answer in found] == [NotFound, NotFound]
    assert "'unknown'" in str(found[0])
    assert "'nothing'" in str(found[1])
    assert place.store.commits == 0


async def test_a_command_that_fails_does_not_fail_the_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a bug that one tenant meets, or an error of the database for one row."""
    plan = planning.plan_maintenance

    def fail(draft: Draft, request: MaintenanceRequest) -> list[Maintenance]:
        if request.vms == ("vm-1",):
            raise sa.exc.DataError("INSERT", {}, ValueError("a NUL character"))
        return plan(draft, request)

    monkeypatch.setattr(planning, "plan_maintenance", fail)
    first, failed, last = await place.issue("vm-0", "vm-1", "vm-2")
    assert isinstance(failed, StoreUnavailable)
    assert isinstance(first, list)
    assert isinstance(last, list)
    assert place.store.commits == 2
    assert [place.backend.feed.channel(f"vm:vm-{number}").incarnation for number in range(3)] == [2, 1, 2]


async def test_if_the_commit_fails_each_gets_the_error_and_the_next_command_shows_all(place: Place) -> None:
    place.store.fails = True
    found = await place.issue("vm-0", "vm-1", "vm-2")
    assert [type(answer) for answer in found] == [StoreUnavailable] * 3
    assert place.backend.feed.channel("vm:vm-1").incarnation == 1
    place.store.fails = False
    await place.schedule("vm-3")
    # It may have been committed all the same, and here it was.
    assert [place.backend.feed.channel(f"vm:vm-{number}").incarnation for number in range(4)] == [2, 2, 2, 2]


async def test_a_caller_that_is_gone_holds_up_nobody(place: Place) -> None:
    place.store.may_begin.clear()
    tasks = [asyncio.create_task(place.schedule(f"vm-{number}")) for number in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    place.store.may_begin.set()
    assert (await tasks[2])[0].vms == ("vm-2",)
    assert [place.backend.feed.channel(f"vm:vm-{number}").incarnation for number in range(3)] == [2, 2, 2]


async def test_an_answer_shows_a_queued_maintenance_that_was_announced_since(place: Place) -> None:
    """Between the commit of a command and its answer, another command may free what the maintenance waits for."""
    [first] = await place.schedule("vm-0", "host-maintenance")
    [queued] = await place.schedule("vm-0", "host-maintenance")
    assert queued.state is MaintenanceState.QUEUED
    await place.backend.engine.maintenances.cancel(first.id, actor="test")
    context = cast("Context", SimpleNamespace(engine=place.backend.engine))
    [answer] = (await read_maintenances_out(context, [queued])).items
    assert answer.state is MaintenanceState.SCHEDULED
    assert [event.status for event in answer.events] == ["Scheduled"]
