"""Both clients against the real service: one suite, and what only one of them can do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from forewarn.client import (
    AsyncClient,
    Change,
    ChangeKind,
    Client,
    EndpointRefused,
    EndpointUnreachable,
    Pace,
    PollAnswered,
    PollFailed,
)
from forewarn.core.model import EventType
from tests.support.drivers import DRIVERS, Driver, Drives
from tests.support.ports import reserve_address
from tests.support.processes import served, wait_for
from tests.support.service import Running, Vm, eventually
from tests.support.spans import GUARD_S, lasts

HELD = Pace(wait_s=20, retry_min_s=0.05)
POLLED = Pace(wait_s=0, poll_interval_s=0.02, retry_min_s=0.05)
UNKNOWN = "F1A2E3B4-0000-4000-8000-AA5F13A16123"


@pytest.fixture(params=list(DRIVERS.values()), ids=list(DRIVERS))
def drives(request: pytest.FixtureRequest) -> Drives:
    made: Drives = request.param
    return made


@pytest.fixture
def client(drives: Drives, service: Running, vm: Vm) -> Iterator[Driver]:
    with drives(service.url, HELD, vm.address) as made:
        yield made


def test_a_document_is_fetched(client: Driver, service: Running, vm: Vm) -> None:
    """R1, R25, R41."""
    assert (client.fetch().incarnation, client.fetch().events) == (1, ())
    event_id = service.event(vm)
    document = client.fetch()
    (event,) = document.events
    assert (document.incarnation, event.id, event.status, event.type) == (2, event_id, "Scheduled", "Freeze")
    assert event.affects(vm.name)
    assert event.not_before is not None


@pytest.mark.parametrize("pace", [HELD, POLLED], ids=["held", "polled"])
def test_the_life_of_an_event_is_told(drives: Drives, service: Running, vm: Vm, pace: Pace) -> None:
    """R75, R97, R100, R104, X1: soon after each change, held or polled."""
    with drives(service.url, pace, vm.address) as client:
        told = client.watch()
        timer = threading.Timer(0.2, service.schedule, [vm])
        timer.start()
        prepare = next(told)
        timer.join()
        client.approve(prepare.event)
        started = next(told)
        service.complete(vm)
        recovered = next(told)
    assert [one.kind for one in (prepare, started, recovered)] == [
        ChangeKind.PREPARE,
        ChangeKind.STARTED,
        ChangeKind.RECOVERED,
    ]
    assert len({one.event.id for one in (prepare, started, recovered)}) == 1
    assert (started.event.not_before, started.previous) == (None, prepare.event)
    assert recovered.document.events == ()


def test_an_event_that_is_canceled_is_told(client: Driver, service: Running, vm: Vm) -> None:
    """R77, R100."""
    maintenance = service.schedule(vm)
    told = client.watch()
    assert next(told).kind is ChangeKind.PREPARE
    service.run(service.service.engine.maintenances.cancel(maintenance.id, actor="operator:test"))
    assert next(told).kind is ChangeKind.CANCELED


def test_while_nothing_changes_one_request_is_held(client: Driver, service: Running, vm: Vm) -> None:
    """X1: no polling, and so no load."""
    told = client.follow()
    assert isinstance(next(told), PollAnswered)
    thread = threading.Thread(target=next, args=[told])
    thread.start()
    assert eventually(lambda: service.held(vm) == 1)
    service.schedule(vm)
    thread.join(GUARD_S)
    assert not thread.is_alive()


def test_a_held_request_ends_without_news(drives: Drives, service: Running, vm: Vm) -> None:
    """X1: it is told, and the next is held."""
    with drives(service.url, Pace(wait_s=1, poll_interval_s=0.05), vm.address) as client, lasts(2):
        told = list(islice(client.follow(), 3))
    assert [one.is_changed for one in told if isinstance(one, PollAnswered)] == [True, False, False]


def test_the_services_clock_is_told(client: Driver) -> None:
    seen = next(client.follow())
    assert isinstance(seen, PollAnswered)
    assert seen.served_at is not None
    assert seen.served_at.utcoffset() is not None


def test_a_vm_learns_its_own_name(client: Driver, vm: Vm) -> None:
    """R106, W7, W10, X3."""
    assert client.fetch_name() == vm.name


def test_an_unknown_event_is_refused(client: Driver, service: Running, vm: Vm) -> None:
    """R55: and nothing of the list is approved."""
    event_id = service.event(vm)
    with pytest.raises(EndpointRefused, match=r"answered 400 for an approval: Bad request: \. EventId is not known"):
        client.approve([event_id, UNKNOWN])
    assert not service.is_approved(event_id)
    client.approve(event_id.lower())
    assert service.is_approved(event_id)


def test_an_approval_may_be_repeated(client: Driver, service: Running, vm: Vm) -> None:
    """R49, W5: also after it has started, and after it is over."""
    event_id = service.event(vm)
    for _ in range(2):
        client.approve(event_id)
    assert client.fetch().events[0].is_started
    client.approve(event_id)
    service.complete(vm)
    client.approve(event_id)


def test_a_vm_that_nobody_knows_is_refused(drives: Drives, service: Running) -> None:
    """R2."""
    with drives(service.url, HELD, service.stranger) as client:
        with pytest.raises(EndpointRefused, match="answered 404 for its document"):
            client.fetch()
        assert isinstance(next(client.follow()), PollFailed)


@pytest.mark.parametrize("version", ["2017-03-01", "2017-08-01", "2019-08-01"])
def test_an_older_version_can_be_asked_for(drives: Drives, service: Running, vm: Vm, version: str) -> None:
    """R16, R20, R21: the VM's own name is the same in each."""
    event_id = service.event(vm)
    with drives(service.url, HELD, vm.address, versions=[version]) as client:
        (event,) = client.fetch().events
        client.approve(event)
    assert (event.id, event.resources) == (event_id, (vm.name,))
    assert event.not_before is not None
    assert event.source == ("Platform" if version == "2019-08-01" else "")


def test_a_version_that_the_service_does_not_have_is_replaced(drives: Drives, service: Running, vm: Vm) -> None:
    """R15, R64."""
    with drives(service.url, HELD, vm.address, versions=["2031-01-01", "2020-07-01", "2019-08-01"]) as client:
        client.fetch()
        assert client.version == "2020-07-01"


def test_all_events_of_the_scope_are_told(drives: Drives, service: Running) -> None:
    """R58, R60: whom they hit stands in Resources."""
    first, second, _ = service.web
    with drives(service.url, HELD, first.address) as client:
        client.fetch()
        service.schedule(second, EventType.REBOOT)
        change = next(client.watch())
        assert change.event.affects(second.name)
        assert not change.event.affects(first.name)
        client.approve(change.event)
        service.complete(second)


# A service that is started anew


class Watching(threading.Thread):
    """Notes what one client tells, until the event has started."""

    def __init__(self, drives: Drives, url: str, wait_s: float) -> None:
        super().__init__(daemon=True)
        self._drives = drives
        self._url = url
        self._pace = Pace(wait_s=wait_s, poll_interval_s=0.05, retry_min_s=0.05, retry_max_s=0.2)
        self.told: list[Change] = []

    def run(self) -> None:
        with self._drives(self._url, self._pace) as client:
            for change in client.watch():
                self.told.append(change)
                if change.kind is not ChangeKind.PREPARE:
                    return


@pytest.mark.slow
def test_a_watch_outlives_a_restart_of_the_service(tmp_path: Path) -> None:
    """R66, R100, R104: held or polled, no event is told twice, none is taken for ended, none is missed."""
    lasting = ("--set", "simulate_complete_after=60s")
    address = reserve_address()
    with served(tmp_path, metadata_listen=address) as service:
        watches = [Watching(drives, service.metadata_url, wait_s) for drives in DRIVERS.values() for wait_s in (0, 20)]
        for watching in watches:
            watching.start()
        wait_for(lambda: service.forewarn("vm", "show", "vm-1")["enabled"])
        service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
        wait_for(lambda: all(watching.told for watching in watches))
    time.sleep(0.3)
    with served(tmp_path, *lasting, metadata_listen=address) as service:
        (event,) = {watching.told[0].event.id for watching in watches}
        service.forewarn("event", "approve", event)
        for watching in watches:
            watching.join(GUARD_S)
            assert not watching.is_alive()
    for watching in watches:
        assert [change.kind for change in watching.told] == [ChangeKind.PREPARE, ChangeKind.STARTED]
        assert {change.event.id for change in watching.told} == {event}


# What only one of them can do


@pytest.mark.anyio
async def test_a_task_approves_while_another_follows(service: Running, vm: Vm) -> None:
    """R104, X1: the held request is in nobody's way."""
    service.schedule(vm)
    async with AsyncClient(service.url, source_address=vm.address) as client:
        changes: asyncio.Queue[Change] = asyncio.Queue()

        async def watch() -> None:
            async for change in client.watch():
                await changes.put(change)

        watching = asyncio.create_task(watch())
        prepare = await changes.get()
        await asyncio.gather(client.approve(prepare.event), client.approve_once(prepare.event), client.fetch())
        started = await changes.get()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    assert (prepare.kind, started.kind) == (ChangeKind.PREPARE, ChangeKind.STARTED)
    assert await asyncio.to_thread(eventually, lambda: service.held(vm) == 0)


@pytest.mark.anyio
async def test_a_canceled_request_leaves_the_client_whole(service: Running, vm: Vm) -> None:
    async with AsyncClient(service.url, source_address=vm.address) as client:
        told = client.follow()
        assert isinstance(await anext(told), PollAnswered)
        for _ in range(20):  # more than there are connections
            waiting = asyncio.ensure_future(anext(client.follow()))
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(told), 0.2)
        assert (await client.fetch()).incarnation == 1
        await told.aclose()


@pytest.mark.anyio
async def test_approving_once_is_not_repeated() -> None:
    async with AsyncClient("http://127.0.0.1:9") as client:
        with pytest.raises(EndpointUnreachable, match="Connection refused"):
            await client.approve_once(UNKNOWN)


def test_threads_may_share_a_client(service: Running, vm: Vm) -> None:
    """R49: each approval is answered, and the watch goes on."""
    event_id = service.event(vm)
    with Client(service.url, source_address=vm.address, pace=HELD) as client:
        told: list[Change] = []
        watch = client.watch()
        watching = threading.Thread(target=lambda: told.extend(islice(watch, 2)), daemon=True)
        watching.start()
        assert eventually(lambda: service.held(vm) == 1)
        threads = [threading.Thread(target=client.approve, args=[[event_id]]) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in [*threads, watching]:
            thread.join(GUARD_S)
            assert not thread.is_alive()
    assert [change.kind for change in told] == [ChangeKind.PREPARE, ChangeKind.STARTED]
