"""A clock that jumps starts nothing, disables nothing and deletes nothing until an operator has confirmed it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from forewarn.actuators import Simulate
from forewarn.config.loading import load_settings
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.approval import Approver
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, Host, MaintenanceState, VirtualMachine
from forewarn.errors import Conflict
from forewarn.server.backend import Backend
from forewarn.store import MemoryStore
from tests.support.world import NOW

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
INVENTORY = Inventory(
    hosts=(Host(name="h"),), vms=(VirtualMachine(name="a", host="h"), VirtualMachine(name="b", host="h"))
)


class Set:
    """A real clock that goes on when it is told to, and is set when somebody sets it."""

    is_virtual = False

    def __init__(self) -> None:
        self.passed = timedelta(0)
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return NOW + self.passed + self.ahead

    def uptime_s(self) -> float:
        return self.passed.total_seconds()

    async def wait_until(self, moment: datetime) -> None:
        raise AssertionError(moment)


class World:
    """A service whose scheduler does one round when it is told to."""

    def __init__(self, store: MemoryStore | None = None, clock: Set | None = None) -> None:
        self.clock = clock or Set()
        self.store = store or MemoryStore()
        settings = load_settings(None, history_retention="1d")
        self.backend = Backend(settings, store=self.store, clock=self.clock, actuator=Simulate())
        self.engine = self.backend.engine

    async def begin(self) -> World:
        await self.engine.restore_state()
        if not self.engine.identity.vms:
            await self.engine.inventory.apply(INVENTORY, "f", actor="operator:ann")
            for vm in ("a", "b"):
                channel = self.engine.feed.channel(self.engine.identity.get_audience_key(vm))
                await self.engine.authority.enable(channel.key, None)
                channel.last_polled_at = self.clock.now()
        return self

    async def round(self, passed: timedelta = timedelta(seconds=1)) -> None:
        self.clock.passed += passed
        scheduler = self.backend.scheduler
        await scheduler._sync_clock_jump()
        await scheduler._carry_out_due()
        await scheduler._sync_clock_jump()

    async def schedule(self, vm: str = "a") -> str:
        request = MaintenanceRequest(cause="host-maintenance", vms=(vm,), notice=15 * MINUTE)
        return (await self.engine.maintenances.schedule(request, actor="operator:ann"))[0].id

    def state(self, maintenance_id: str) -> MaintenanceState:
        with self.store.read() as reader:
            found = reader.get_maintenance(maintenance_id)
        assert found is not None
        return found.state

    def kinds(self) -> list[EntryKind]:
        with self.store.read() as reader:
            return [entry.kind for entry in reader.list_entries(limit=1000).items]


async def test_twenty_minutes_ahead_start_nothing_until_they_are_confirmed() -> None:
    world = await World().begin()
    made = await world.schedule()
    world.clock.ahead = 20 * MINUTE
    for _ in range(3):
        await world.round()
    assert world.state(made) is MaintenanceState.SCHEDULED
    assert world.kinds().count(EntryKind.CLOCK_JUMPED) == 1
    assert world.engine.clock.guard.jumps == 1
    await world.engine.clock.confirm(actor="operator:ann", reason="it was slow")
    await world.round()
    assert world.state(made) is not MaintenanceState.SCHEDULED
    assert world.kinds().count(EntryKind.CLOCK_CONFIRMED) == 1
    with pytest.raises(Conflict, match="nothing to confirm"):
        await world.engine.clock.confirm(actor="operator:ann")


async def test_the_deadline_itself_finds_the_jump_before_it_decides() -> None:
    """Nothing has looked at the clock since it was set."""
    world = await World().begin()
    made = await world.schedule()
    world.clock.ahead = 20 * MINUTE
    due = await world.engine.deadlines.handle_due(10)
    assert (due.due_at, due.jobs, due.has_more) == ((), (), False)
    assert world.state(made) is MaintenanceState.SCHEDULED


async def test_time_that_passes_starts_it_and_so_does_sleep() -> None:
    world = await World().begin()
    made = await world.schedule()
    await world.round(16 * MINUTE)
    assert world.state(made) is not MaintenanceState.SCHEDULED
    assert world.engine.clock.guard.jump is None


async def test_no_vm_is_disabled_and_no_history_forgotten_by_a_clock_that_jumped() -> None:
    world = await World().begin()
    world.clock.ahead = timedelta(days=400)
    await world.round()
    await world.engine.retention.prune_history(timedelta(days=1), timedelta(days=1), 10)
    kinds = world.kinds()
    assert EntryKind.DISABLED not in kinds
    assert EntryKind.PRUNED not in kinds
    assert EntryKind.INVENTORY_APPLIED in kinds


async def test_what_goes_on_goes_on_and_the_scheduler_does_not_spin_on_what_waits() -> None:
    world = await World().begin()
    running, waiting = await world.schedule("a"), await world.schedule("b")
    await world.engine.maintenances.start(running, actor="operator:ann", reason="now")
    world.clock.ahead = 20 * MINUTE
    for _ in range(3):
        await world.round(MINUTE)
    assert world.state(running) is MaintenanceState.COMPLETED
    assert world.state(waiting) is MaintenanceState.SCHEDULED
    for _ in range(5):  # looks at what is announced are made, and are over
        await world.engine.deadlines.next_deadline()
        await world.round()
    deadline = await world.engine.deadlines.next_deadline()
    assert deadline is None or deadline > world.clock.now()


async def test_an_operator_may_start_by_hand_and_a_host_may_fail_meanwhile() -> None:
    world = await World().begin()
    made = await world.schedule()
    world.clock.ahead = 20 * MINUTE
    await world.round()
    await world.engine.maintenances.start(made, actor="operator:ann", reason="now")
    assert world.state(made) is MaintenanceState.STARTED
    failed = await world.engine.maintenances.schedule(
        MaintenanceRequest(cause="hardware-failure", vms=("b",)), actor="operator:ann"
    )
    assert failed[0].state is MaintenanceState.STARTED


async def test_a_restart_does_not_forget_it_and_another_replica_s_confirmation_counts() -> None:
    world = await World().begin()
    made = await world.schedule()
    world.clock.ahead = 20 * MINUTE
    await world.round()
    after = await World(world.store, world.clock).begin()
    await after.round()
    assert after.state(made) is MaintenanceState.SCHEDULED
    await world.engine.clock.confirm(actor="operator:ann")
    await after.round()
    assert after.state(made) is not MaintenanceState.SCHEDULED


async def test_a_replica_that_takes_the_lead_learns_at_once_of_a_jump_that_another_one_has_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await World().begin()
    second = await World(first.store).begin()
    first.clock.ahead = 20 * MINUTE
    await first.round()
    monkeypatch.setattr(second.backend.scheduler, "_housekeeping_at", NOW + 20 * MINUTE)
    for has_lead in (False, True):
        monkeypatch.setattr(type(second.engine.leadership), "is_held", has_lead)
        await second.round()
        assert (second.engine.clock.guard.jump is not None) is has_lead


async def test_a_clock_that_was_set_back_while_the_service_was_down_is_found_by_the_audit_log() -> None:
    world = await World().begin()
    world.clock.ahead = -20 * MINUTE
    after = await World(world.store, world.clock).begin()
    await after.round()
    assert after.kinds().count(EntryKind.CLOCK_JUMPED) == 1
    jump = after.engine.clock.guard.jump
    assert jump is not None
    assert jump.by == -20 * MINUTE


async def test_approvals_are_taken_meanwhile_and_start_it_when_the_clock_is_confirmed() -> None:
    world = await World().begin()
    made = await world.schedule()
    world.clock.ahead = 5 * MINUTE
    await world.round()
    with world.store.read() as reader:
        [event] = reader.find_events_of([made])[made]
    await world.engine.authority.approve([event.id], Approver(actor="operator:ann"))
    await world.round()
    assert world.state(made) is MaintenanceState.SCHEDULED
    await world.engine.clock.confirm(actor="operator:ann")
    await world.round()
    assert world.state(made) is not MaintenanceState.SCHEDULED
