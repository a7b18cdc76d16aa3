"""Enabling, silence, restarts, repeated commands and lost answers, in the real engine on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from forewarn.clock import VirtualClock
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.model import EntryKind, MaintenanceState
from forewarn.core.rollout.rollout import RolloutSpec
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.errors import Conflict, IdempotencyMismatch, NotFound, StoreUnavailable
from forewarn.scheduling.scheduler import SchedulerSettings
from forewarn.store import SqlStore
from forewarn.store.contract import Reader, Store, Transaction
from forewarn.util.tasks import cancel_tasks
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS, seconds
from tests.support.world import NOW, minutes

pytestmark = pytest.mark.anyio

K = EntryKind
S = MaintenanceState
DAY = timedelta(days=1)
LOST = "the answer was lost"
DECLARED = inventory(*VMS, scopes=SCOPES)


def kinds(made: Simulated, audience: str) -> list[tuple[EntryKind, timedelta]]:
    return [(e.kind, e.at - NOW) for e in made.entries() if e.audience == audience]


# Enabling and silence


async def test_the_first_get_enables_the_whole_scope_and_shows_an_empty_document() -> None:
    """R45, R67, A6."""
    made = await simulated(DECLARED, enabled=[])
    assert not made.channel("web-1").is_enabled
    assert await made.get("web-0") == {"DocumentIncarnation": 1, "Events": []}
    assert made.channel("web-1").is_enabled
    assert not made.channel("db").is_enabled
    await made.get("web-1")
    assert kinds(made, "scope:web") == [(K.ENABLED, seconds(0))]


async def test_what_began_before_enabling_is_not_announced() -> None:
    """R68: events begin to arrive a while after enabling, and not those of before."""
    made = await simulated(DECLARED, rules=DecisionRules(announce_delay=minutes(3)), enabled=["db"])
    await made.advance(minutes(3) - seconds(1))
    early = await made.schedule_one("user-redeploy", "db")
    assert made.state(early) == S.STARTED
    assert made.shown("db")["Events"] == []
    await made.advance(seconds(1))
    late = await made.schedule_one("user-restart", "db")
    assert made.state(late) == S.SCHEDULED


async def test_silence_disables_after_exactly_a_day_and_asking_again_begins_anew() -> None:
    """R46, R69, R70, R70b, A7, A14."""
    made = await simulated(DECLARED, enabled=["db"])
    maintenance = await made.schedule_one("predicted-failure", "db", notice=timedelta(hours=30))
    assert made.shown("db")["DocumentIncarnation"] == 2
    ids = [each["EventId"] for each in made.shown("db")["Events"]]
    await made.advance(DAY - timedelta(microseconds=1))
    assert made.channel("db").is_enabled
    await made.advance(timedelta(microseconds=1))
    assert not made.channel("db").is_enabled
    assert made.channel("db").replies == ()
    assert kinds(made, "vm:db")[1:] == [(K.WITHDRAWN, DAY), (K.DISABLED, DAY)]
    shown = await made.get("db")
    assert (shown["DocumentIncarnation"], [each["EventId"] for each in shown["Events"]]) == (1, ids)
    await made.advance(timedelta(hours=6))
    assert dict(made.story(maintenance))[K.STARTED] == timedelta(hours=30), "it still runs at its NotBefore"
    assert [each["EventStatus"] for each in made.shown("db")["Events"]] == ["Started"]


async def test_any_get_or_approval_of_any_vm_of_the_scope_begins_the_day_anew() -> None:
    """R69."""
    made = await simulated(DECLARED, enabled=["web-0"])
    await made.schedule_one("predicted-failure", "web-0")
    await made.advance(timedelta(hours=20))
    (id_,) = await made.event_ids("web-1")
    await made.advance(timedelta(hours=20))
    await made.approve("web-0", id_)
    await made.advance(DAY - seconds(1))
    assert made.channel("web-0").is_enabled
    await made.advance(seconds(1))
    assert not made.channel("web-0").is_enabled


async def test_a_silent_tenant_loses_its_vote_and_holds_up_nobody() -> None:
    """R70, R86."""
    made = await simulated(DECLARED, enabled=["db", "lone"])
    shared = await made.schedule_one("live-migration", "db", "lone", notice=timedelta(days=3))
    await made.approve_all("lone")
    await made.advance(timedelta(hours=23))
    await made.get("lone")
    await made.advance(timedelta(hours=1))
    assert dict(made.story(shared))[K.STARTED] == DAY
    assert [event["EventStatus"] for event in made.shown("lone")["Events"]] == ["Started"]


async def test_an_approval_by_a_vm_whose_scope_was_disabled_has_no_effect() -> None:
    """R55: it finished for them."""
    made = await simulated(DECLARED, enabled=["db"])
    maintenance = await made.schedule_one("predicted-failure", "db")
    (id_,) = await made.event_ids("db")
    await made.advance(DAY)
    assert (await made.approve("db", id_)).unchanged == (id_,)
    assert made.state(maintenance) == S.SCHEDULED
    assert not made.channel("db").is_enabled


# Restarts


async def test_a_restart_shows_the_same_bytes(tmp_path: Path) -> None:
    """R28, R42."""
    url = f"sqlite:///{tmp_path / 'forewarn.db'}"
    made = await simulated(DECLARED, store=SqlStore(url))
    await made.schedule("host-maintenance", "web-0", "db")
    await made.schedule_one("user-restart", "lone")
    await made.approve_all("lone")
    before = {vm.name: [reply.body for reply in made.channel(vm.name).replies] for vm in VMS}
    made.store.close()
    made.store = SqlStore(url)
    await made.crash()
    after = {vm.name: [reply.body for reply in made.channel(vm.name).replies] for vm in VMS}
    assert after == before
    made.store.close()


async def test_what_fell_due_while_the_service_was_down_starts_once_in_order_and_late() -> None:
    made = await simulated(DECLARED)
    names = ["lone", "db", "spot"]
    made_ones = [
        await made.schedule_one("host-maintenance", name, notice=minutes(n), force_reason="drill")
        for n, name in ((3, "lone"), (1, "db"), (2, "spot"))
    ]
    assert isinstance(made.clock, VirtualClock)
    made.clock.advance(minutes(5))
    await made.crash()
    await made.advance(seconds(0))
    await made.crash()
    await made.advance(minutes(20))
    starts = [(e.maintenance_id, e.at - NOW) for e in made.entries() if e.kind is K.STARTED]
    assert starts == [(made_ones[n].id, minutes(5)) for n in (1, 2, 0)]
    assert [made.state(m) for m in made_ones] == [S.COMPLETED] * len(names)
    assert made.lateness == [240.0, 180.0, 120.0]


async def test_the_time_that_the_service_was_down_is_no_silence() -> None:
    """R69: nobody can ask a service that is down."""
    made = await simulated(DECLARED, rules=DecisionRules(restart_grace=minutes(10)))
    await made.advance(timedelta(hours=23))
    assert isinstance(made.clock, VirtualClock)
    made.clock.advance(timedelta(days=5))
    await made.crash()
    await made.advance(minutes(10) - seconds(1))
    await made.get("db")
    await made.advance(seconds(1))
    assert made.channel("db").is_enabled
    assert not made.channel("lone").is_enabled


async def test_who_asked_is_written_down_so_that_a_crash_does_not_make_them_silent() -> None:
    """R69."""
    made = await simulated(DECLARED, enabled=["db"], rules=DecisionRules(restart_grace=timedelta(0)))
    await made.advance(timedelta(hours=20))
    await made.get("db")
    await made.advance(minutes(2))
    await made.crash()
    await made.advance(timedelta(hours=10))
    assert made.channel("db").is_enabled
    await made.advance(timedelta(hours=14))
    assert not made.channel("db").is_enabled


async def test_old_history_is_forgotten_and_the_rest_stays() -> None:
    made = await simulated(DECLARED, pace=SchedulerSettings(history=timedelta(hours=2), outcomes=timedelta(hours=1)))
    old = await made.schedule_one("user-redeploy", "db", key=IdempotencyKey(key="k", fingerprint="f"))
    await made.advance(timedelta(hours=1, minutes=40))
    young = await made.schedule_one("user-redeploy", "db")
    await made.advance(timedelta(hours=1))
    assert made.get_maintenance(old) is None
    assert made.state(young) == S.COMPLETED
    assert {entry.actor for entry in made.entries(old)} == {"operator:ann"}, "kept for longer"
    again = await made.schedule_one("user-redeploy", "db", key=IdempotencyKey(key="k", fingerprint="f"))
    assert again.id not in {old.id, young.id}


async def test_the_oldest_history_is_forgotten_where_the_audit_log_is_too_long_and_each_sweep_tells_it_once() -> None:
    made = await simulated(DECLARED, pace=SchedulerSettings(entries_max=3))
    old = await made.schedule_one("user-redeploy", "db")
    await made.advance(timedelta(minutes=40))
    young = await made.schedule_one("user-redeploy", "db")
    await made.advance(timedelta(hours=1))
    assert made.get_maintenance(old) is None
    assert made.state(young) == S.COMPLETED
    (told,) = [entry for entry in made.entries() if entry.kind is K.PRUNED]
    assert "1 maintenances and" in str(told.reason)
    assert "beyond 3 entries (history_entries_max)" in str(told.reason)
    await made.advance(timedelta(hours=1))
    assert [entry.kind for entry in made.entries()].count(K.PRUNED) == 1, "nothing more was forgotten"


# Commands that are repeated


async def test_a_command_under_the_same_key_happens_once() -> None:
    made = await simulated(DECLARED)
    key = IdempotencyKey(key="operator/1", fingerprint="f")
    first = await made.schedule("host-maintenance", "web-0", "web-1", key=key)
    count = len(made.entries())
    again = await made.schedule("host-maintenance", "web-0", "web-1", key=key)
    await made.crash()
    once_more = await made.schedule("host-maintenance", "web-0", "web-1", key=key)
    assert [m.id for m in first] == [m.id for m in again] == [m.id for m in once_more]
    assert len(made.entries()) == count
    with pytest.raises(IdempotencyMismatch, match="use a new key"):
        await made.schedule("host-maintenance", "db", key=replace(key, fingerprint="another"))


async def test_a_replay_shows_what_has_become_of_it_and_an_end_is_no_conflict() -> None:
    made = await simulated(DECLARED)
    maintenance = await made.schedule_one("host-maintenance", "db")
    key = IdempotencyKey(key="c", fingerprint="f")
    for _ in range(2):
        canceled = await made.engine.maintenances.cancel(maintenance.id, actor="operator:ann", key=key)
        assert canceled.state is S.CANCELED
    with pytest.raises(Conflict):
        await made.engine.maintenances.cancel(
            maintenance.id, actor="operator:ann", key=IdempotencyKey(key="d", fingerprint="f")
        )


async def test_a_command_that_was_refused_leaves_its_key_free() -> None:
    made = await simulated(DECLARED)
    key = IdempotencyKey(key="k", fingerprint="f")
    with pytest.raises(NotFound):
        await made.engine.maintenances.cancel("unknown", actor="operator:ann", key=key)
    await made.schedule_one("host-maintenance", "db", key=key)


async def test_a_replay_of_what_was_forgotten_says_so() -> None:
    made = await simulated(DECLARED, pace=SchedulerSettings(history=timedelta(hours=1), outcomes=timedelta(days=30)))
    maintenance = await made.schedule_one("host-maintenance", "db")
    key = IdempotencyKey(key="c", fingerprint="f")
    await made.engine.maintenances.cancel(maintenance.id, actor="operator:ann", key=key)
    await made.advance(timedelta(hours=3))
    with pytest.raises(NotFound, match="no longer exists"):
        await made.engine.maintenances.cancel(maintenance.id, actor="operator:ann", key=key)


# Lost answers


class LosesAnswers:
    """A store whose commits succeed, but say that they did not while `is_losing`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_losing = False

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with self.store.write() as tx:
            yield tx
        if self.is_losing:
            raise StoreUnavailable(LOST)

    @contextmanager
    def read(self) -> Iterator[Reader]:
        with self.store.read() as reader:
            yield reader

    @property
    def shared(self) -> None:
        return None

    @property
    def damage(self) -> str | None:
        return self.store.damage

    def check_pages(self, span_s: float) -> None:
        self.store.check_pages(span_s)

    def stop_check(self) -> None:
        self.store.stop_check()

    def close(self) -> None:
        self.store.close()


async def test_after_a_commit_whose_answer_was_lost_the_next_command_shows_the_truth() -> None:
    """R84: a started maintenance must not go on looking Scheduled."""
    store = LosesAnswers(SqlStore("sqlite://"))
    made = await simulated(DECLARED, store=store)
    maintenance = await made.schedule_one("host-maintenance", "db")
    store.is_losing = True
    with pytest.raises(StoreUnavailable):
        await made.approve_all("db")
    with pytest.raises(StoreUnavailable):
        await made.engine.inventory.apply(replace(DECLARED, vms=DECLARED.vms[:-1]), "f", actor="operator:ann")
    assert made.state(maintenance) == S.STARTED
    assert [event["EventStatus"] for event in made.shown("db")["Events"]] == ["Scheduled"]
    store.is_losing = False
    await made.advance(seconds(0))
    assert [event["EventStatus"] for event in made.shown("db")["Events"]] == ["Started"]
    assert made.identity.vm_count == len(VMS) - 1


async def test_a_disabling_whose_answer_was_lost_hides_the_document_too() -> None:
    store = LosesAnswers(SqlStore("sqlite://"))
    made = await simulated(DECLARED, store=store, enabled=["db"])
    assert isinstance(made.clock, VirtualClock)
    made.clock.advance(DAY)
    store.is_losing = True
    with pytest.raises(StoreUnavailable):
        await made.advance(seconds(0))
    assert made.channel("db").is_enabled
    store.is_losing = False
    await made.advance(seconds(0))
    assert not made.channel("db").is_enabled
    assert made.channel("db").replies == ()


async def test_a_rollout_whose_answer_was_lost_is_carried_out() -> None:
    store = LosesAnswers(SqlStore("sqlite://"))
    made = await simulated(DECLARED, store=store)
    await made.advance(seconds(0))
    assert not made.engine.rollouts.may_be_active
    store.is_losing = True
    spec = RolloutSpec(name="kernel", cause="host-maintenance", hosts=("host-2",))
    with pytest.raises(StoreUnavailable):
        await made.engine.rollouts.create(spec, actor="operator:ann")
    store.is_losing = False
    await made.advance(seconds(0))
    assert made.read(lambda reader: reader.list_maintenances(limit=10)).items


async def test_what_was_deleted_before_the_service_stopped_is_in_the_audit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion goes step by step, and the stop comes between two of them."""
    made = await simulated(DECLARED)
    await made.schedule_one("user-redeploy", "db")
    await made.advance(timedelta(minutes=40))
    write, steps, is_second = made.engine.committer.write, 0, asyncio.Event()

    async def write_once(work: Any) -> Any:  # noqa: ANN401 - as the committer's
        nonlocal steps
        steps += 1
        if steps > 1:
            is_second.set()
            await asyncio.Event().wait()
        return await write(work)

    monkeypatch.setattr(made.engine.committer, "write", write_once)
    pruning = asyncio.create_task(made.engine.retention.prune_history(timedelta(minutes=5), timedelta(minutes=5), 1000))
    await is_second.wait()
    await cancel_tasks(pruning)
    (entry,) = [entry for entry in made.entries() if entry.kind is K.PRUNED]
    assert "1 maintenances and" in str(entry.reason)
