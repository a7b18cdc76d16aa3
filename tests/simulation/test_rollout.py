"""Rollouts over random fleets, in a world that does what it likes.

The machine drives `observe_rollout` and `decide_next_steps` as the service would, with the real core beneath:
maintenances are planned, approved, started and ended by it. Between two decisions VMs are moved, maintenances fail or
are taken back by hand, others get maintenance of their own, the operator pauses and aborts. Before a host is begun,
other eyes look whether the rules allow it; each decision is asked for again, also of a copy that went through JSON.

At the end nothing more goes wrong, and every rollout must end.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck as Trouble
from hypothesis import Phase, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.conflicts import is_routine
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Host, Maintenance, MaintenanceState, PowerState, Scope, ScopeKind, VirtualMachine
from forewarn.core.policy import ExtensionAllowance, Policy
from forewarn.core.rollout import rollout_commands as commands
from forewarn.core.rollout.rollout import (
    HealthCheck,
    HealthResult,
    HostOrder,
    Rollout,
    RolloutHost,
    RolloutHostState,
    RolloutSpec,
    RolloutState,
)
from forewarn.core.rollout.rollout_decision import (
    apply_own_step,
    decide_next_steps,
    list_candidates,
    observe_rollout,
    record_refused,
    record_scheduled,
)
from forewarn.core.rollout.rollout_plan import RolloutPlan, pause_after, plan_rollout
from forewarn.core.rollout.rollout_step_types import (
    CancelMaintenance,
    CheckHealth,
    RolloutFacts,
    ScheduleHost,
    SkipHost,
    Step,
    WaitForChange,
)
from forewarn.errors import Conflict, ForewarnError, InvalidRequest
from forewarn.wire.rollout import decode_rollout, encode_rollout
from tests.support.world import World, minutes
from tests.unit.core.builders import vm

H = RolloutHostState
R = RolloutState
S = MaintenanceState

SCOPES = (
    Scope(
        name="web",
        kind=ScopeKind.AVAILABILITY_SET,
        policy=Policy(extension=ExtensionAllowance(max=minutes(20), times=2)),
    ),
    Scope(name="db", kind=ScopeKind.SCALE_SET),
    Scope(name="lone", kind=ScopeKind.STANDALONE),
)
HOSTS_MAX = 6
NOTICE = minutes(15)
DURATION_S = 60

index = st.integers(0, 1_000_000)
causes = st.sampled_from(["user-restart", "host-maintenance", "predicted-failure", "hardware-failure"])
spans = st.sampled_from([0, 1, 10, 16]).map(minutes)


@st.composite
def fleets(draw: st.DrawFn, *, is_tidy: bool = False) -> tuple[VirtualMachine, ...]:
    """VMs on up to six hosts. In a tidy fleet a host lies in one fault and update domain of each scope."""
    hosts = [f"host-{n}" for n in range(draw(st.integers(1, HOSTS_MAX) | st.just(HOSTS_MAX)))]
    domains = st.tuples(st.integers(0, 1), st.integers(0, 2))
    home = {(host, scope.name): draw(domains) for host in hosts for scope in SCOPES}
    made = []
    for number in range(draw(st.integers(0, 9) | st.just(9))):
        host = draw(st.sampled_from(hosts))
        scope = draw(st.sampled_from(["web", "web", "web", "db", "lone", None]))
        is_at_home = is_tidy or draw(st.integers(0, 9)) > 0
        fault, update = home[host, scope] if is_at_home and scope is not None else draw(domains)
        state = PowerState.RUNNING if is_tidy or draw(st.integers(0, 9)) else PowerState.DEALLOCATED
        name = f"vm-{number}"
        made.append(vm(name, host=host, scope=scope, fault_domain=fault, update_domain=update, power_state=state))
    return tuple(made)


@st.composite
def specs(draw: st.DrawFn, hosts: list[str]) -> RolloutSpec:
    some = st.lists(st.sampled_from(hosts), min_size=1, unique=True).map(tuple)
    chosen = draw(st.sampled_from([None, None, None]) | some)
    batch_size = draw(st.integers(1, HOSTS_MAX))
    few = st.lists(st.sampled_from(chosen or hosts), max_size=2, unique=True).map(tuple)
    is_predicted = draw(st.integers(0, 4)) == 0  # each VM on its own, in no queue, and refused where one is pending
    return RolloutSpec(
        name="kernel",
        cause="predicted-failure" if is_predicted else "host-maintenance",
        notice=minutes(10) if is_predicted else None,
        duration_s=DURATION_S,
        hosts=chosen,
        order=draw(st.sampled_from(HostOrder)),
        batch_size=batch_size,
        hosts_at_once=draw(st.integers(1, batch_size) | st.just(batch_size)),
        canary=draw(few | st.just(())),
        canary_pause=draw(spans),
        pause=draw(spans),
        one_fault_domain=draw(st.booleans() | st.just(True)),
        one_update_domain=draw(st.booleans()),
        failures_max=draw(st.integers(1, 3)),
        health=draw(st.sampled_from([None, HealthCheck(command=("check",))])),
        deadline=draw(st.sampled_from([None, minutes(17), minutes(40)])),
    )


def hosts_of(vms: tuple[VirtualMachine, ...], count: int) -> list[str]:
    return sorted({f"host-{n}" for n in range(count)} | {each.host for each in vms})


def domains_of(spec: RolloutSpec, each: VirtualMachine) -> set[tuple[str, str, int]]:
    if each.scope is None or each.scope == "lone":
        return set()
    kept = {("fault", each.scope, each.fault_domain)} if spec.one_fault_domain else set()
    return kept | ({("update", each.scope, each.update_domain)} if spec.one_update_domain else set())


def is_split(spec: RolloutSpec, hosts: list[str], vms: tuple[VirtualMachine, ...]) -> bool:
    """Whether a host of the rollout lies in two domains of a scope by itself."""
    names = spec.hosts or hosts
    there = [each for each in vms if each.power_state is PowerState.RUNNING and each.host in names]
    seen = {(each.host, *domain) for each in there for domain in domains_of(spec, each)}
    return len(seen) > len({(host, kind, scope) for host, kind, scope, _ in seen})


class Driver:
    """What the service does for one rollout, and a second opinion on every step."""

    def __init__(self, world: World, planned: RolloutPlan) -> None:
        self.world = world
        self.planned = planned
        self.spec = planned.spec
        self.rollout = commands.start_rollout(commands.create_rollout(planned, "r-1", world.now), world.now)
        self.order = [name for batch in planned.batches for name in batch.hosts]
        self.batch_of = {name: batch.number for batch in planned.batches for name in batch.hosts}
        self.own: dict[str, tuple[str, ...]] = {}
        self.forgotten: set[str] = set()
        self.health: HealthResult | None = None
        self.asked: CheckHealth | None = None
        self.passed: set[int] = set()
        self.begun_at: dict[str, datetime] = {}
        self.wait: WaitForChange | None = None

    # What the service reads

    def inventory(self) -> Inventory:
        return Inventory(
            hosts=tuple(Host(name=name) for name in sorted(self.world.hosts)),
            scopes=SCOPES,
            vms=tuple(self.world.vms.values()),
        )

    def facts(self) -> RolloutFacts:
        known = self.world.maintenances
        own = {i for ids in self.own.values() for i in ids}
        return RolloutFacts(
            maintenances={i: None if i in self.forgotten else known[i] for i in self.rollout.watched_maintenance_ids},
            others=tuple(m for m in known.values() if m.is_active and m.id not in own),
            health=self.health,
        )

    def active(self, host: str) -> list[Maintenance]:
        found = [self.world.maintenances[i] for i in self.own.get(host, ()) if i not in self.forgotten]
        return [each for each in found if each.is_active]

    def in_flight(self) -> list[str]:
        return [name for name in self.order if self.active(name)]

    def host(self, name: str) -> RolloutHost:
        return next(host for host in self.rollout.hosts if host.name == name)

    # What the service does

    def drive(self) -> None:
        """Carry steps out until there is nothing to do."""
        for _ in range(4 * len(self.order) + 8):
            self._observe()
            steps = decide_next_steps(self.rollout, self.inventory(), self.facts(), self.world.now)
            self._check_repeatable(steps)
            for each in steps:
                failures = self.rollout.failure_count
                self._carry_out(each)
                if self.rollout.failure_count > failures:  # the rest was decided without this failure
                    break
            is_at_rest = not steps or isinstance(steps[-1], WaitForChange)
            if is_at_rest and not any(isinstance(each, CancelMaintenance) for each in steps):
                self.wait = steps[-1] if steps and isinstance(steps[-1], WaitForChange) else None
                return
        pytest.fail("it never comes to rest")

    def _observe(self) -> None:
        facts, now = self.facts(), self.world.now
        seen = observe_rollout(self.rollout, facts, now)
        assert observe_rollout(seen, facts, now) == seen
        assert decide_next_steps(self.rollout, self.inventory(), facts, now) == decide_next_steps(
            seen, self.inventory(), facts, now
        )
        if seen.health is not None and seen.checks > self.rollout.checks and seen.health.is_healthy:
            self.passed.add(seen.health.batch)
        self.rollout = seen

    def _check_repeatable(self, steps: list[Step]) -> None:
        """Asked again it says the same, also after a restart."""
        copy = decode_rollout(encode_rollout(self.rollout))
        assert copy == self.rollout
        assert decide_next_steps(copy, self.inventory(), self.facts(), self.world.now) == steps
        candidates = list_candidates(copy, self.facts(), self.world.now)
        assert decide_next_steps(copy, *self._part(candidates), self.world.now) == steps
        some = candidates[:2]
        assert decide_next_steps(copy, *self._part(some), self.world.now, some) == decide_next_steps(
            copy, self.inventory(), self.facts(), self.world.now, some
        )

    def _part(self, candidates: list[str]) -> tuple[Inventory, RolloutFacts]:
        """What a decision about these hosts needs, and nothing else."""
        whole, facts = self.inventory(), self.facts()
        hosts = {*candidates, *(host.name for host in self.rollout.open_hosts)} if candidates else set()
        vms = {vm.name: vm for vm in whole.vms if vm.host in hosts}
        scopes = {vm.scope for vm in vms.values()} - {None}
        others = tuple(
            m for m in facts.others if hosts & set(m.hosts) or any(c.vm in vms or c.scope in scopes for c in m.claims)
        )
        own = [m for m in facts.maintenances.values() if m is not None]
        named = {vm for m in (*others, *own) for vm in m.vms}
        part = Inventory(
            hosts=tuple(host for host in whole.hosts if host.name in hosts),
            scopes=whole.scopes,
            vms=tuple(vm for vm in whole.vms if vm.name in vms or vm.name in named),
        )
        return part, replace(facts, others=others)

    def _carry_out(self, each: Step) -> None:
        now = self.world.now
        if isinstance(each, ScheduleHost):
            self._check_allowed(each.host)
            try:
                made = self.world.plan(each.request)
            except ForewarnError as error:
                self.rollout = record_refused(self.rollout, each.host, error.message, now)
                return
            self.own[each.host] = tuple(m.id for m in made)
            self.begun_at[each.host] = now
            self.rollout = record_scheduled(self.rollout, each.host, self.own[each.host], now)
        elif isinstance(each, CancelMaintenance):
            found = self.world.maintenances[each.maintenance_id]
            assert self.rollout.state is R.ABORTING or self.host(each.host).state is H.FAILED
            if found.state in {S.QUEUED, S.SCHEDULED}:  # another one of the host may just have begun
                self.world.cancel(found)
        elif isinstance(each, CheckHealth):
            assert self.rollout.state is R.RUNNING
            assert all(self.host(name).is_over for name in self.order if self.batch_of[name] <= each.batch)
            self.asked = each
        elif not isinstance(each, WaitForChange):
            if isinstance(each, SkipHost):
                assert self.rollout.state is R.RUNNING
            self.rollout = apply_own_step(self.rollout, each, now)

    # The rules, looked at with other eyes

    def _check_allowed(self, name: str) -> None:
        spec, batch = self.spec, self.batch_of[name]
        in_flight = self.in_flight()
        assert self.rollout.state is R.RUNNING
        assert name not in self.own, "begun once only"
        assert len(in_flight) < spec.hosts_at_once
        assert all(other not in spec.canary for other in in_flight), "a canary is alone"
        assert name not in spec.canary or not in_flight, "a canary is alone"
        before = [self.host(other) for other in self.order if self.batch_of[other] < batch]
        assert all(host.is_over for host in before), "batch after batch"
        assert self.rollout.failure_count - self.rollout.failures_accepted < spec.failures_max
        if batch:
            ended_at = max(host.ended_at for host in before if host.batch == batch - 1 and host.ended_at is not None)
            assert self.world.now >= ended_at + pause_after(spec, batch - 1)
            assert spec.health is None or batch - 1 in self.passed
        self._check_apart(name, in_flight)

    def _check_apart(self, name: str, in_flight: list[str]) -> None:
        """R61 and R34: no two domains of a scope in flight, wherever its VMs are now."""
        world = self.world
        running = [each for each in world.vms.values() if each.power_state is PowerState.RUNNING]
        mine = [each for each in running if each.host == name]
        own = [m for host in in_flight for m in self.active(host)]
        ids = {i for found in self.own.values() for i in found}
        others = [m for m in world.maintenances.values() if m.is_active and m.id not in ids]
        blocking = [m for m in others if m.state is S.STARTED or is_routine(m)]
        held = [world.vms[vm_name] for m in (*own, *blocking) for vm_name in m.vms]
        assert {each.name for each in mine}.isdisjoint(each.name for each in held), "a VM is held once"
        assert all(name not in m.hosts for m in blocking)
        touched = [*mine, *held, *(each for each in running if each.host in in_flight)]
        domains = {domain for each in touched for domain in domains_of(self.spec, each)}
        if self.spec.one_fault_domain:
            claims = [c for m in (*own, *blocking) for c in m.claims if c.scope is not None]
            domains |= {("fault", c.scope, c.fault_domain) for c in claims if c.scope is not None}
        for kind, scope in {(kind, scope) for each in mine for kind, scope, _ in domains_of(self.spec, each)}:
            assert len({d for k, s, d in domains if (k, s) == (kind, scope)}) == 1, f"one {kind} domain of {scope}"

    def check(self) -> None:
        """What holds whenever it is at rest."""
        rollout = self.rollout
        assert [host.name for host in rollout.hosts] == self.order
        for host in rollout.hosts:
            assert host.is_open == bool(self.active(host.name))
            assert (host.name in self.own) == (host.scheduled_at is not None)
            states = {self.world.maintenances[i].state for i in self.own.get(host.name, ())}
            if host.state is H.DONE:
                assert states == {S.COMPLETED}
            if host.state in {H.FAILED, H.SKIPPED}:
                assert host.reason
        if rollout.state is R.PAUSED:
            assert rollout.reason
        if rollout.is_ended:
            assert self.in_flight() == []
            assert (rollout.state is R.COMPLETED) <= (rollout.failure_count == 0)
            assert (rollout.state is R.FAILED) <= (rollout.failure_count > 0)
        else:
            assert rollout.state is R.PAUSED or self.wait is not None


class Rollouts(RuleBasedStateMachine):
    """One rollout, and everything that can happen around it."""

    world: World
    driver: Driver

    @initialize(data=st.data(), is_enabled=st.booleans())
    def begin(self, data: st.DataObject, is_enabled: bool) -> None:
        vms = data.draw(fleets())
        hosts = hosts_of(vms, data.draw(st.integers(1, HOSTS_MAX)))
        self.world = World(*vms, scopes=SCOPES, hosts=tuple(hosts), is_enabled=is_enabled)
        spec = data.draw(specs(hosts))
        inventory = Inventory(hosts=tuple(Host(name=name) for name in hosts), scopes=SCOPES, vms=vms)
        try:
            planned = plan_rollout(spec, inventory, self.world.now)
        except Conflict:
            assert is_split(spec, hosts, vms)
            spec = replace(spec, one_fault_domain=False, one_update_domain=False)
            planned = plan_rollout(spec, inventory, self.world.now)
        else:
            assert not is_split(spec, hosts, vms)
        for cause, which in data.draw(st.lists(st.tuples(causes, index), max_size=2)):
            self._plan(cause, which, is_host=which % 2 == 0)
        self.driver = Driver(self.world, planned)
        self.driver.drive()

    def _plan(self, cause: str, which: int, *, is_host: bool) -> None:
        names = sorted(self.world.hosts if is_host else self.world.vms)
        if not names:
            return
        name = (names[which % len(names)],)
        try:
            self.world.plan(
                MaintenanceRequest(cause=cause, hosts=name) if is_host else MaintenanceRequest(cause=cause, vms=name)
            )
        except Conflict:  # the VM is gone, or has the same before it
            return

    # Time and what comes with it

    @rule(minutes_=st.sampled_from([0, 1, 1, 5, 15, 16, 60]))
    def pass_time(self, minutes_: int) -> None:
        self.world.advance(minutes(minutes_))
        self.driver.drive()

    @rule()
    def wait(self) -> None:
        """As the service's timer does it."""
        driver = self.driver
        if driver.wait is not None and driver.wait.until is not None:
            assert driver.wait.until > self.world.now
            self.world.advance(driver.wait.until - self.world.now)
        driver.drive()

    @rule(which=index)
    def approve(self, which: int) -> None:
        waiting = [m for m in self.world.maintenances.values() if m.state is S.SCHEDULED]
        if waiting:
            chosen = waiting[which % len(waiting)]
            for event in self.world.events_of(chosen):
                if event.is_listed:
                    self.world.approve(event.resources[0], event.id)
        self.driver.drive()

    @rule(which=index, fails=st.integers(0, 3), looks=st.booleans())
    def end(self, which: int, fails: int, looks: bool) -> None:
        """The actuator says that it is over; the service does not hear of everything at once."""
        started = [m for m in self.world.maintenances.values() if m.state is S.STARTED]
        if started:
            chosen = started[which % len(started)]
            self.world.fail(chosen) if fails == 0 else self.world.complete(chosen)
        if looks:
            self.driver.drive()

    @rule(which=index)
    def cancel(self, which: int) -> None:
        """By hand."""
        waiting = [m for m in self.world.maintenances.values() if m.state in {S.QUEUED, S.SCHEDULED}]
        if waiting:
            self.world.cancel(waiting[which % len(waiting)])
        self.driver.drive()

    @rule(which=index, by=st.sampled_from([1, 16]))
    def put_off(self, which: int, by: int) -> None:
        """A tenant needs more time: what comes after waits."""
        waiting = [m for m in self.world.maintenances.values() if m.state is S.SCHEDULED]
        if waiting:
            with contextlib.suppress(Conflict, InvalidRequest):
                self.world.extend(waiting[which % len(waiting)], minutes(by), "web")
        self.driver.drive()

    @rule(which=index)
    def forget(self, which: int) -> None:
        """History is forgotten before anybody has looked."""
        ended = [m.id for m in self.world.maintenances.values() if not m.is_active]
        if ended:
            self.driver.forgotten.add(ended[which % len(ended)])
        self.driver.drive()

    @precondition(lambda self: self.driver.asked is not None)
    @rule(is_healthy=st.sampled_from([True, True, False]))
    def answer(self, is_healthy: bool) -> None:
        driver = self.driver
        assert driver.asked is not None
        driver.health = HealthResult(
            number=driver.asked.number, batch=driver.asked.batch, is_healthy=is_healthy, detail="so"
        )
        driver.drive()

    # The fleet

    @precondition(lambda self: bool(self.world.vms))
    @rule(which=index, where=index)
    def move(self, which: int, where: int) -> None:
        """A VM is moved to another host, whatever goes on at it."""
        names, hosts = sorted(self.world.vms), sorted(self.world.hosts)
        chosen = self.world.vms[names[which % len(names)]]
        self.world.vms[chosen.name] = replace(chosen, host=hosts[where % len(hosts)])
        self.driver.drive()

    @precondition(lambda self: bool(self.world.vms))
    @rule(which=index, fault=st.integers(0, 1), update=st.integers(0, 2))
    def relabel(self, which: int, fault: int, update: int) -> None:
        """The inventory has another opinion of where a VM lies."""
        names = sorted(self.world.vms)
        chosen = self.world.vms[names[which % len(names)]]
        self.world.vms[chosen.name] = replace(chosen, fault_domain=fault, update_domain=update)
        self.driver.drive()

    @precondition(lambda self: len(self.world.hosts) > 1)
    @rule(which=index)
    def remove(self, which: int) -> None:
        """A host is taken out of the inventory; its VMs go elsewhere."""
        hosts = sorted(self.world.hosts)
        gone = hosts.pop(which % len(hosts))
        self.world.hosts.discard(gone)
        for each in list(self.world.vms.values()):
            if each.host == gone:
                self.world.vms[each.name] = replace(each, host=hosts[0])
        self.driver.drive()

    @rule(which=index, cause=causes, is_host=st.booleans())
    def meddle(self, which: int, cause: str, is_host: bool) -> None:
        """Somebody else's maintenance."""
        self._plan(cause, which, is_host=is_host)
        self.driver.drive()

    # The operator

    @rule(what=st.sampled_from(["pause"] * 3 + ["resume"] * 5 + ["accept"] * 2 + ["abort"]))
    def command(self, what: str) -> None:
        driver = self.driver
        before, now = driver.rollout, self.world.now
        try:
            if what == "pause":
                driver.rollout = commands.pause_rollout(before, now, reason="lunch")
            elif what == "abort":
                driver.rollout = commands.abort_rollout(before, now, reason="enough")
            else:
                driver.rollout = commands.resume_rollout(before, now, accept_health=what == "accept")
        except Conflict:
            allowed = {"pause": {R.RUNNING}, "abort": {R.RUNNING, R.PAUSED}}.get(what, {R.PAUSED})
            assert before.state not in allowed
        else:
            self._note_health(before, driver.rollout)
        driver.drive()

    def _note_health(self, before: Rollout, after: Rollout) -> None:
        if after.health is None and before.health is not None:
            self.driver.passed.discard(before.health.batch)
        elif after.health is not None and after.health.is_healthy:
            self.driver.passed.add(after.health.batch)

    @invariant()
    def holds(self) -> None:
        self.driver.drive()
        self.driver.check()

    def teardown(self) -> None:
        """From now on nothing goes wrong: it ends, and so does every one that is resumed."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        for _ in range(6 * len(driver.order) + 12):
            if driver.rollout.is_ended:
                break
            if driver.rollout.state is R.PAUSED:
                driver.rollout = commands.resume_rollout(driver.rollout, self.world.now)
            for each in list(self.world.maintenances.values()):
                if self.world.get(each).state is S.STARTED:
                    self.world.complete(each)
            if driver.asked is not None:
                driver.health = HealthResult(number=driver.asked.number, batch=driver.asked.batch, is_healthy=True)
            driver.drive()
            self.world.advance(timedelta(days=8))
            driver.drive()
            driver.check()
        assert driver.rollout.is_ended, driver.rollout
        assert decide_next_steps(driver.rollout, driver.inventory(), driver.facts(), self.world.now) == []


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(
    max_examples=12,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    phases=(Phase.generate,),  # to make a failing case smaller takes longer than a test may
    suppress_health_check=[Trouble.too_slow, Trouble.filter_too_much],
)


class ManyRollouts(Rollouts):
    """The same, many times."""


TestManyRollouts = pytest.mark.slow(ManyRollouts.TestCase)
TestManyRollouts.settings = settings(TestRollouts.settings, max_examples=200)


@given(data=st.data())
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
def test_where_nothing_goes_wrong_it_goes_as_planned(data: st.DataObject) -> None:
    """The estimate of a dry run is what happens when nobody approves and all takes as long as announced."""
    vms = data.draw(fleets(is_tidy=True).filter(bool))
    hosts = sorted({each.host for each in vms})
    world = World(*vms, scopes=SCOPES)
    spec = replace(data.draw(specs(hosts)), one_fault_domain=True, deadline=None)
    driver = Driver(
        world,
        plan_rollout(spec, Inventory(hosts=tuple(Host(name=h) for h in hosts), scopes=SCOPES, vms=vms), world.now),
    )
    driver.drive()
    while not driver.rollout.is_ended:
        if driver.asked is not None and driver.asked.number == driver.rollout.checks + 1:
            driver.health = HealthResult(number=driver.asked.number, batch=driver.asked.batch, is_healthy=True)
        else:
            moments = [driver.wait.until] if driver.wait is not None else []
            moments += [
                m.due_at if m.state is S.SCHEDULED else end_of(m) for m in world.maintenances.values() if m.is_active
            ]
            world.advance(min(moment for moment in moments if moment is not None) - world.now)
            for each in list(world.maintenances.values()):
                if each.state is S.STARTED and end_of(each) <= world.now:
                    world.complete(each)
        driver.drive()
    assert driver.rollout.state is R.COMPLETED
    for batch in driver.planned.batches:
        assert min(driver.begun_at[name] for name in batch.hosts) == batch.begins_at
        assert max(driver.host(name).ended_at or world.now for name in batch.hosts) == batch.ends_at
    assert driver.rollout.ended_at == driver.planned.ends_at


def end_of(each: Maintenance) -> datetime:
    assert each.started_at is not None
    return each.started_at + timedelta(seconds=DURATION_S)
