"""A small cloud under a random load, with every check that can be made from outside after each step.

What is checked here is said once more in other words than in the code: from what VMs were shown, from what approvals
returned, and from the audit log.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

from forewarn.clock import VirtualClock
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import (
    POLICY,
    AuditEntry,
    EntryKind,
    Event,
    Maintenance,
    NotificationProfile,
    Scope,
    ScopeKind,
    VirtualMachine,
    audience_key,
)
from forewarn.core.selection import ACTIVE
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.errors import CallerError, StoreUnavailable
from forewarn.scheduling.scheduler import SchedulerSettings
from forewarn.store import SqlStore
from forewarn.util.ids import SeededIds
from forewarn.wire.imds import Dialect
from tests.support.databases import read_documents
from tests.support.faults import FaultyActuator, FaultyStore, ProcessDied
from tests.support.lives import FINAL, check_audit_log, check_starts
from tests.support.simulated import OPEN, Simulated, inventory
from tests.support.world import NOW, minutes
from tests.unit.core.builders import availability_set, scale_set, vm

__all__ = ["Fleet"]

K = EntryKind
ROUTINE = ["live-migration", "host-maintenance", "platform-redeploy", "os-upgrade"]
SINGLE = ["user-restart", "user-redeploy", "spot-eviction", "scale-set-delete", "reimage", "predicted-failure"]
VERSIONS = ["2017-03-01", "2017-08-01", "2019-01-01", "2020-07-01"]


def _declared(rng: random.Random) -> tuple[list[Scope], list[VirtualMachine]]:
    profile = NotificationProfile(enable=True, not_before_timeout=minutes(6))
    scopes = [
        availability_set("web"),
        availability_set("auto", approves_user_operations=True),
        replace(scale_set("fleet", notifies_of_os_image=True, couples_deletes=True), terminate_notification=profile),
        scale_set("gpu", fault_domain_count=1),
        Scope(name="svc", kind=ScopeKind.CLOUD_SERVICE),
    ]
    machines: list[VirtualMachine] = []
    for number in range(18):
        scope = rng.choice([*scopes, None])
        machines.append(
            replace(
                vm(
                    f"vm-{number}",
                    host=f"host-{rng.randrange(4)}",
                    scope=scope.name if scope else None,
                    fault_domain=0 if scope is None or scope.name == "gpu" else rng.randrange(3),
                    update_domain=rng.randrange(2),
                    size="Standard_NC6" if scope is not None and scope.name == "gpu" else "Standard_D2s_v3",
                    priority="Spot" if rng.random() < 0.2 else "",
                ),
                addresses=(f"10.0.0.{number + 1}",),
            )
        )
    return scopes, machines


class Fleet:
    """The service, its VMs and operators, all from one seed.

    Attributes:
        steps: What was done, for whoever reads a failure.
        shown: What each audience was shown, by epoch and incarnation.
        acknowledged: Ids of the events whose approval returned.
        scheduled: Ids of the maintenances that each Idempotency-Key led to.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scopes, self.vms = _declared(self.rng)
        self.clock = VirtualClock(NOW + timedelta(microseconds=self.rng.choice([0, 1, 500_000])))
        self.store = FaultyStore(SqlStore("sqlite://"), random.Random(seed + 1))
        self.actuator = FaultyActuator(random.Random(seed + 2))
        rules = DecisionRules(
            announce_delay=timedelta(seconds=self.rng.choice([0, 0, 120])),
            start_delay=timedelta(seconds=self.rng.choice([0, 0, 45])),
        )
        self.made = Simulated(
            store=self.store,
            clock=self.clock,
            actuator=self.actuator,
            rules=rules,
            pace=SchedulerSettings(),
            dialect=Dialect(),
            ids=SeededIds(seed),
        )
        OPEN.append(self.store)
        self.steps: list[str] = []
        self.shown: dict[tuple[str, int, int], str] = {}
        self.latest: dict[str, tuple[int, int]] = {}
        self.acknowledged: set[str] = set()
        self.scheduled: dict[str, list[str]] = {}
        self.ids_seen: dict[str, list[str]] = defaultdict(list)
        self.habits = {
            each.name: self.rng.choice(["silent", "watches", "approves", "repeats", "mixes", "pries"])
            for each in self.vms
        }
        self.audit_log: list[AuditEntry] = []

    async def begin(self) -> None:
        await self.made.engine.inventory.apply(inventory(*self.vms, scopes=self.scopes), "f", actor="operator:ann")
        for each in self.vms:
            if self.rng.random() < 0.8:
                await self.made.get(each.name)

    # Steps

    async def step(self, *, with_faults: bool) -> None:
        """One random thing, and then every check."""
        self.store.likelihood = self.rng.choice([0, 0, 0.1, 0.3]) if with_faults else 0.0
        self.actuator.likelihood = self.rng.choice([0, 0.2, 0.6]) if with_faults else 0.0
        self.store.is_dying = with_faults and self.rng.random() < 0.05
        choices: list[Callable[[], Awaitable[None]]] = [
            self._operate,
            self._ask,
            self._ask,
            self._ask,
            self._wait,
            self._wait,
        ]
        action = self.rng.choice(choices)
        self.steps.append(f"{self.made.now.isoformat()} {action.__name__}")
        try:
            await action()
            has_crashed = False
        except StoreUnavailable as error:
            self.steps.append(f"  {error.message}")
            has_crashed = False
        except ProcessDied:
            has_crashed = True
        if has_crashed or (with_faults and self.rng.random() < 0.05):
            self.store.likelihood = 0.0
            self.store.is_dying = False
            self.steps.append("  crash")
            await self.made.crash()
            self.check_feed_is_truth()
        if self.rng.random() < 0.5:
            # The next command that gets through puts right whatever a lost answer left behind.
            self.store.likelihood = 0.0
            self.store.is_dying = False
            await self.made.engine.committer.probe_store()
            self.check_feed_is_truth()
        self._check()

    async def _wait(self) -> None:
        """Time passes: evenly, or in a jump that the timer slept through or the clock made."""
        by = timedelta(seconds=self.rng.choice([0.5, 1, 7, 30, 61, 300, 600, 900, 1800, 7200, 40_000]))
        if self.rng.random() < 0.3:
            self.clock.advance(by)
            by = timedelta(0)
        await self.made.advance(by)

    async def _ask(self) -> None:
        """Some VMs poll, and do with what they see what is their habit."""
        for each in self.rng.sample(self.vms, 6):
            habit = self.habits[each.name]
            if habit == "silent" and self.rng.random() < 0.9:
                continue
            version = self.rng.choice(VERSIONS) if habit == "mixes" else "2020-07-01"
            document = await self.made.get(each.name, version)
            self._look(each.name)
            ids = [event["EventId"] for event in document["Events"]]
            if habit == "approves":
                ids = [event["EventId"] for event in document["Events"] if event["EventStatus"] == "Scheduled"][:1]
            if habit == "repeats":
                ids += self.ids_seen[each.name][-3:]
            self.ids_seen[each.name] += ids
            if habit == "pries":
                await self._pry(each.name, ids)
            elif habit != "watches" and ids:
                await self._approve(each.name, ids)

    async def _approve(self, name: str, ids: list[str]) -> None:
        approval = await self.made.approve(name, *ids)
        assert approval.unknown == (), "an id that was delivered is known for ever (R55)"
        self.acknowledged.update(approval.approved)

    async def _pry(self, name: str, ids: list[str]) -> None:
        """R85: approving another audience's event does nothing, to one's own neither."""
        key = self.made.channel(name).key
        foreign = [i for other, seen in self.ids_seen.items() for i in seen if self.made.channel(other).key != key]
        if foreign:
            wanted = [*ids, self.rng.choice(foreign)]
            approval = await self.made.approve(name, *wanted)
            assert approval.unknown == (wanted[-1],)
            assert approval.approved == ()

    async def _operate(self) -> None:
        try:
            await self.rng.choice(
                [self._schedule, self._schedule, self._schedule_vm, self._schedule_vm, self._change]
            )()
        except CallerError as error:
            self.steps.append(f"  refused: {error.message}")

    async def _schedule(self) -> None:
        hosts = tuple(dict.fromkeys(f"host-{self.rng.randrange(4)}" for _ in range(self.rng.choice([1, 1, 2]))))
        hosts = tuple(host for host in hosts if any(each.host == host for each in self.vms))
        is_failure = self.rng.random() < 0.1
        request = MaintenanceRequest(cause="hardware-failure" if is_failure else self.rng.choice(ROUTINE), hosts=hosts)
        await self._keyed(request)

    async def _schedule_vm(self) -> None:
        each = self.rng.choice(self.vms)
        is_forced = self.rng.random() < 0.3
        notice = timedelta(seconds=self.rng.choice([0, 20, 700])) if is_forced else None
        cause = self.rng.choice([cause for cause in SINGLE + ROUTINE if cause != "spot-eviction" or each.is_spot])
        force_reason = "drill" if is_forced else None
        await self._keyed(MaintenanceRequest(cause=cause, vms=(each.name,), notice=notice, force_reason=force_reason))

    async def _keyed(self, request: MaintenanceRequest) -> None:
        """Under a key, and again when the answer was lost: it must happen once."""
        key = IdempotencyKey(key=f"key-{len(self.scheduled)}", fingerprint="f")
        self.scheduled[key.key] = []
        for attempt in range(3):
            try:
                made = await self.made.engine.maintenances.schedule(request, actor="operator:ann", key=key)
            except StoreUnavailable:
                if attempt == 2:
                    raise
            else:
                if not self.scheduled[key.key]:
                    self.scheduled[key.key] = [m.id for m in made]
                assert self.scheduled[key.key] == [m.id for m in made]

    async def _change(self) -> None:
        active = self._active()
        if not active:
            return
        maintenance = self.rng.choice(active)
        act = self.rng.choice(["cancel", "start", "complete", "impact"])
        if act == "cancel":
            await self.made.engine.maintenances.cancel(maintenance.id, actor="operator:ann")
        elif act == "start":
            await self.made.engine.maintenances.start(maintenance.id, actor="operator:ann", reason="now")
        elif act == "complete":
            await self.made.engine.maintenances.complete(maintenance.id, actor="operator:ann")
        else:
            await self.made.engine.maintenances.impact(maintenance.id, 0, actor="operator:ann")

    # Looking, beside the faults

    def _active(self) -> list[Maintenance]:
        with self.store.store.read() as reader:
            found: list[Maintenance] = reader.list_maintenances(selection=ACTIVE, limit=10_000).items
        return found

    def key_of(self, name: str) -> str:
        each = next(v for v in self.vms if v.name == name)
        return audience_key(each, next((s for s in self.scopes if s.name == each.scope), None))

    def _look(self, name: str) -> None:
        """R42, R46, invariant 6: one incarnation, one content; and never back within an epoch."""
        channel = self.made.channel(name)
        document = json.loads(channel.replies[-1].body)
        state = (channel.epoch, channel.incarnation)
        assert document["DocumentIncarnation"] == channel.incarnation
        content = json.dumps(document["Events"])
        assert self.shown.setdefault((channel.key, *state), content) == content, f"{channel.key} {state}"
        assert state >= self.latest.get(channel.key, state), f"{channel.key} went back"
        self.latest[channel.key] = state

    def _check(self) -> None:
        for each in self.vms:
            if self.made.channel(each.name).is_enabled:
                self._look(each.name)
        with self.store.store.read() as reader:
            entries: list[AuditEntry] = reader.list_entries(limit=1_000_000).items
            maintenances: list[Maintenance] = reader.list_maintenances(limit=1_000_000).items
            events = reader.find_events_of(m.id for m in maintenances)
        assert entries[: len(self.audit_log)] == self.audit_log, "the audit log was rewritten"
        self.audit_log = entries
        check_audit_log(entries)
        check_starts(maintenances, events, entries, self.made.rules)
        self._check_approvals(entries)
        self._check_audiences(events)

    def _check_approvals(self, entries: list[AuditEntry]) -> None:
        """R49, R50, invariant 5: an approval that returned is in the store, once.

        A policy may have approved before, for a maintenance that waits: that is an entry as well (ADR 19).
        """
        counts: dict[tuple[str, bool], int] = defaultdict(int)
        for entry in entries:
            if entry.kind is K.APPROVED and entry.event_id is not None:
                counts[entry.event_id, entry.actor == POLICY] += 1
        known = {event_id for event_id, _ in counts}
        assert known >= self.acknowledged, "an approval was lost"
        assert all(count == 1 for count in counts.values()), "an approval was counted twice"

    def _check_audiences(self, events: dict[str, list[Event]]) -> None:
        """R85, invariant 8: nobody saw an id or a name of another audience."""
        audience_of = {event.id: event.audience for each in events.values() for event in each}
        for (key, _, _), content in self.shown.items():
            for event in json.loads(content):
                assert audience_of[event["EventId"]] == key
                assert {self.key_of(name) for name in event["Resources"]} == {key}

    def check_feed_is_truth(self) -> None:
        """What VMs are shown is what the store says."""
        with self.store.store.read() as reader:
            documents = read_documents(reader)
        for each in self.vms:
            channel = self.made.channel(each.name)
            document = documents.get(channel.key)
            assert channel.is_enabled == (document is not None)
            if document is not None:
                shown = json.loads(channel.replies[-1].body)
                assert shown["DocumentIncarnation"] == document.audience.incarnation
                assert [event["EventId"] for event in shown["Events"]] == [event.id for event, _ in document.items]

    async def settle(self) -> None:
        """The liveness phase: nothing fails any more, nobody does anything, and everything comes to its end."""
        self.store.likelihood = self.actuator.likelihood = 0.0
        self.store.is_dying = False
        await self.made.crash()
        self.check_feed_is_truth()
        for _ in range(100):
            if not self._active():
                break
            await self.made.advance(timedelta(days=1))
            self._check()
            self.check_feed_is_truth()
        assert self._active() == [], "something never came to an end"
        for ids in self.scheduled.values():
            for id_ in ids:
                (final,) = [e.kind for e in self.audit_log if e.maintenance_id == id_ and e.kind in FINAL]
                assert final in FINAL
