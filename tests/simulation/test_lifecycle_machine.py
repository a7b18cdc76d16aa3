"""The pure core under everything that can happen to it, in any order.

Each rule is one command of an operator, a VM, the scheduler or an actuator. `WatchedWorld` checks every commit; the
rules check what their own command may and may not do. At the end nobody asks for anything more, and all that is pending
must come to an end.

The cases are derived from the code of the machine, so that they are the same everywhere. A failure prints a
`@reproduce_failure` line that replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forewarn.core.maintenance.conflicts import is_routine
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Event, Maintenance, MaintenanceState, PowerState, Scope, ScopeKind, VirtualMachine
from forewarn.core.policy import ExtensionAllowance, Policy
from forewarn.errors import BelowMinimumNotice, Conflict, IllegalTransition, InvalidRequest, QuietHoursConflict
from tests.support.quiet import quiet_hours
from tests.support.watched import WatchedWorld
from tests.support.world import NOW, Line, minutes
from tests.unit.core.builders import availability_set, scale_set, vm

S = MaintenanceState
T = TypeVar("T")

WEB = Policy(
    # NOW is in them; they end at midnight in Berlin, and begin again on Monday.
    quiet_hours=(quiet_hours("sat", "10:30", "00:00"), quiet_hours("mon wed", "22:00", "05:30", "America/New_York")),
    extension=ExtensionAllowance(max=minutes(30), times=3),
)
DB = Policy(
    approves_freezes_up_to=timedelta(seconds=9),
    quiet_hours=(quiet_hours("sat sun", "12:00", "13:00", "UTC"),),
    extension=ExtensionAllowance(max=minutes(5), times=1),
)
SCOPES = (
    replace(availability_set("web"), policy=WEB),
    Scope(name="svc", kind=ScopeKind.CLOUD_SERVICE, policy=Policy(approves_user_operations=True)),
    scale_set("fleet", notifies_of_os_image=True, couples_deletes=True),
    replace(
        scale_set("gpu", fault_domain_count=1), policy=Policy(approvers=("operator", "vm:gpu-0"), unavailable_max=1)
    ),
)
VMS: tuple[VirtualMachine, ...] = (
    vm("web-0", scope="web", fault_domain=0, update_domain=0, host="host-1"),
    vm("web-1", scope="web", fault_domain=1, update_domain=1, host="host-1"),
    vm("web-2", scope="web", fault_domain=1, update_domain=0, host="host-2"),
    vm("svc-0", scope="svc", fault_domain=0, update_domain=0, host="host-1"),
    vm("svc-1", scope="svc", fault_domain=1, update_domain=1, host="host-2"),
    vm("fleet-0", scope="fleet", fault_domain=0, host="host-2", terminate_timeout=minutes(5)),
    vm("fleet-1", scope="fleet", fault_domain=1, host="host-3", terminate_timeout=minutes(9)),
    vm("gpu-0", scope="gpu", size="Standard_NC6", host="host-3"),
    vm("gpu-1", scope="gpu", size="Standard_NC6", host="host-2"),
    replace(vm("db", host="host-1"), policy=DB),
    vm("spot", host="host-3", priority="Spot"),
)
HOSTS = ("host-1", "host-2", "host-3", "host-0")
NAMES = tuple(each.name for each in VMS)
ROUTINE = ("live-migration", "host-maintenance", "platform-redeploy", "os-upgrade")

names = st.sampled_from(NAMES)
index = st.integers(0, 1_000_000)
some_hosts = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3).map(tuple)
some_names = st.lists(names, min_size=1, max_size=4, unique=True).map(tuple)


class Lifecycle(RuleBasedStateMachine):
    """Everything that can happen to four scopes, two lone VMs and four hosts."""

    world: WatchedWorld

    @initialize(
        announce_delay=st.sampled_from([0, 0, 3]),
        start_delay=st.sampled_from([0, 0, 1]),
        is_enabled=st.booleans(),
        fraction_us=st.sampled_from([0, 0, 1]),
    )
    def begin(self, announce_delay: int, start_delay: int, is_enabled: bool, fraction_us: int) -> None:
        rules = DecisionRules(
            announce_delay=minutes(announce_delay), start_delay=minutes(start_delay), assumes_spot=True
        )
        self.world = WatchedWorld(*VMS, scopes=SCOPES, hosts=HOSTS, rules=rules, is_enabled=is_enabled)
        self.world.now = NOW + minutes(announce_delay) + timedelta(microseconds=fraction_us)
        self.history: dict[tuple[str, int, int], tuple[Line, ...]] = {}

    # Operators

    @rule(cause=st.sampled_from(ROUTINE), hosts=some_hosts, days=st.sampled_from([None, 3]))
    def schedule_hosts(self, cause: str, hosts: tuple[str, ...], days: int | None) -> None:
        latest_start = None if days is None else self.world.now + timedelta(days=days)
        made = self.world.plan(MaintenanceRequest(cause=cause, hosts=hosts, latest_start=latest_start))
        assert {host for each in made for host in each.hosts} == set(hosts)

    @rule(
        cause=st.sampled_from(ROUTINE),
        some=some_names,
        notice=st.sampled_from([None, 1, 15, 40]),
        is_forced=st.booleans(),
    )
    def schedule_vms(self, cause: str, some: tuple[str, ...], notice: int | None, is_forced: bool) -> None:
        request = MaintenanceRequest(
            cause=cause,
            vms=some,
            notice=None if notice is None else minutes(notice),
            force_reason="drill" if is_forced else None,
        )
        if any(self._is_gone(name) for name in some):
            self._expect_conflict(request)
            return
        try:
            made = self.world.plan(request)
        except BelowMinimumNotice:
            assert notice == 1
            assert not is_forced
        else:
            assert sorted(name for each in made for name in each.vms) == sorted(some)

    @rule(
        cause=st.sampled_from(["user-restart", "user-redeploy", "spot-eviction", "scale-set-delete", "reimage"]),
        name=names,
    )
    def operate_on_a_vm(self, cause: str, name: str) -> None:
        self._plan_once(cause, name)

    @rule(name=names, days=st.sampled_from([None, 3]))
    def predict_failure(self, name: str, days: int | None) -> None:
        self._plan_once("predicted-failure", name, None if days is None else timedelta(days=days))

    @rule(name=names, hours=st.sampled_from([1, 30]), cause=st.sampled_from(["host-maintenance", "user-restart"]))
    def schedule_for_a_named_moment(self, name: str, hours: int, cause: str) -> None:
        """R70a: what it comes to is checked at the commit."""
        request = MaintenanceRequest(cause=cause, vms=(name,), not_before=self.world.now + timedelta(hours=hours))
        try:
            self.world.plan(request)
        except Conflict:
            return

    @rule(cause=st.sampled_from(ROUTINE), some=some_names, is_forced=st.booleans())
    def schedule_now(self, cause: str, some: tuple[str, ...], is_forced: bool) -> None:
        """R70a: refused where somebody would be warned, or is in quiet hours, unless it is forced."""
        request = MaintenanceRequest(cause=cause, vms=some, is_now=True, force_reason="drill" if is_forced else None)
        if any(self._is_gone(name) for name in some):
            self._expect_conflict(request)
            return
        try:
            made = self.world.plan(request)
        except (BelowMinimumNotice, QuietHoursConflict):
            assert not is_forced
        else:
            assert is_forced or all(each.state is not S.SCHEDULED or each.due_at is None for each in made)

    @rule(host=st.sampled_from(HOSTS))
    def host_failure(self, host: str) -> None:
        """R73: at once, whatever else is going on; refused only while the same failure is still being dealt with."""
        active = self._active(lambda m: m.cause == "hardware-failure")
        on_host = {each.name for each in self.world.vms.values() if each.host == host and not self._is_gone(each.name)}
        request = MaintenanceRequest(cause="hardware-failure", hosts=(host,))
        if any(on_host & set(each.vms) for each in active):
            self._expect_conflict(request)
        else:
            assert self.world.plan_one(request).state is S.STARTED

    @precondition(lambda self: self.world.maintenances)
    @rule(which=index)
    def cancel(self, which: int) -> None:
        chosen = self._pick(list(self.world.maintenances.values()), which)
        self._command(self.world.cancel, chosen, {S.QUEUED, S.SCHEDULED}, S.CANCELED)

    @precondition(lambda self: self.world.maintenances)
    @rule(which=index, by=st.sampled_from([0.3, 7, 45, 60 * 9, 60 * 30]))
    def defer(self, which: int, by: float) -> None:
        """R40, R42: what may move is checked at the commit."""
        self._put_off(lambda chosen: self.world.defer(chosen, by=minutes(by)), which)

    @precondition(lambda self: self.world.maintenances)
    @rule(which=index, by=st.sampled_from([0.3, 4, 11, 31]), tenant=st.sampled_from([None, "web", "db", "gpu"]))
    def extend(self, which: int, by: float, tenant: str | None) -> None:
        self._put_off(lambda chosen: self.world.extend(chosen, minutes(by), tenant), which)

    @precondition(lambda self: self.world.maintenances)
    @rule(which=index)
    def force_start(self, which: int) -> None:
        chosen = self._pick(list(self.world.maintenances.values()), which)
        busy = {name for each in self._active(lambda m: m.state is S.STARTED) for name in each.vms}
        allowed = set() if busy & set(chosen.vms) else {S.SCHEDULED}
        self._command(self.world.force_start, chosen, allowed, S.STARTED)

    @precondition(lambda self: self.world.maintenances)
    @rule(which=index)
    def complete(self, which: int) -> None:
        chosen = self._pick(list(self.world.maintenances.values()), which)
        self._command(self.world.complete, chosen, {S.STARTED}, S.COMPLETED)

    @precondition(lambda self: self._active(lambda m: m.state is S.STARTED))
    @rule(which=index)
    def complete_a_started_one(self, which: int) -> None:
        self.world.complete(self._pick(self._active(lambda m: m.state is S.STARTED), which))

    # Actuators

    @precondition(lambda self: self.world.maintenances)
    @rule(which=index)
    def fail(self, which: int) -> None:
        chosen = self._pick(list(self.world.maintenances.values()), which)
        self._command(self.world.fail, chosen, {S.STARTED}, S.FAILED)

    # VMs

    @precondition(lambda self: any(self.world.lines(key) for key in self.world.documents))
    @rule(who=index, which=index)
    def approve_what_is_shown(self, who: int, which: int) -> None:
        """R49, R51, R52."""
        name = self._pick([name for name in NAMES if self.world.lines(self.world.key_of(name))], who)
        chosen = self._pick(list(self.world.lines(self.world.key_of(name))), which).event_id
        approval = self.world.approve(name, chosen, chosen)
        assert approval.unknown == ()
        if approval.refused:
            assert name == "gpu-1"
        else:
            assert self.world.approve(name, chosen).unchanged == (chosen,)
        assert self.world.changes.is_empty

    @precondition(lambda self: self.world.events)
    @rule(name=names, which=index)
    def approve_anything(self, name: str, which: int) -> None:
        """Invariant 8, R51, R55, R85: only what was delivered to it, be it over or not."""
        event: Event = self._pick(list(self.world.events.values()), which)
        approval = self.world.approve(name, event.id)
        if event.audience == self.world.key_of(name):
            assert approval.unknown == ()
        else:
            assert approval.unknown == (event.id,)
            assert self.world.changes.is_empty

    @rule(name=names)
    def ask(self, name: str) -> None:
        """R67."""
        assert self.world.enable(self.world.key_of(name)).enabled_at is not None

    @rule(name=names)
    def fall_silent(self, name: str) -> None:
        """R69, R70."""
        key = self.world.key_of(name)
        if self.world.audiences[key].enabled_at is not None:
            self.world.disable(key)
            assert self.world.lines(key) == ()

    # Time

    @rule(by=st.sampled_from([0.2, 1, 5, 15, 60, 60 * 24 * 8]))
    def advance(self, by: float) -> None:
        """A scheduler that comes late."""
        self.world.advance(minutes(by))

    @rule()
    def advance_to_the_next_deadline(self) -> None:
        """A punctual scheduler: nothing happens before the deadline; then it starts, or waits for what goes on."""
        waiting = self._active(lambda m: m.state is S.SCHEDULED and m.due_at is not None)
        if waiting:
            due_at = min(each.due_at for each in waiting if each.due_at is not None)
            tick = timedelta(microseconds=1)
            if self.world.now < due_at - tick:
                self.world.advance(due_at - tick - self.world.now)
                assert self.world.changes.is_empty
            self.world.advance(due_at - self.world.now)
            for each in waiting:
                if each.due_at == due_at:
                    now = self.world.get(each)
                    assert now.state is S.STARTED or now.due_at is None

    # Always

    @invariant()
    def one_incarnation_never_means_two_things(self) -> None:
        """R42."""
        if hasattr(self, "world"):
            for key, document in self.world.documents.items():
                audience = document.audience
                place = (key, audience.epoch, audience.incarnation)
                if audience.enabled_at is not None:
                    assert self.history.setdefault(place, self.world.lines(key)) == self.world.lines(key)

    @invariant()
    def a_scope_keeps_enough_vms(self) -> None:
        """X7: routine maintenance of two VMs of the scope is never announced at the same time."""
        if hasattr(self, "world"):
            announced = [
                each
                for each in self.world.maintenances.values()
                if is_routine(each) and each.state in {S.SCHEDULED, S.STARTED}
            ]
            assert len({claim.vm for each in announced for claim in each.claims if claim.scope == "gpu"}) <= 1

    def teardown(self) -> None:
        """R74, R76, R79, R84: with time and finished work alone, everything comes to an end."""
        if not hasattr(self, "world"):
            return
        for _ in range(4 * len(self.world.maintenances) + 4):
            for each in self._active(lambda m: m.state is S.STARTED):
                self.world.complete(each)
            waiting = [
                m.due_at for m in self._active(lambda _: True) if m.due_at is not None and m.due_at > self.world.now
            ]
            if waiting:
                self.world.advance(min(waiting) - self.world.now)
        assert self._active(lambda _: True) == []
        assert {key for key in self.world.documents if self.world.lines(key)} == set()

    # Words

    def _active(self, is_meant: object) -> list[Maintenance]:
        assert callable(is_meant)
        return [each for each in self.world.maintenances.values() if each.is_active and is_meant(each)]

    def _is_gone(self, name: str) -> bool:
        return self.world.vms[name].power_state is not PowerState.RUNNING

    @staticmethod
    def _pick(items: list[T], which: int) -> T:
        return items[which % len(items)]

    def _plan_once(self, cause: str, name: str, notice: timedelta | None = None) -> None:
        """Refused for a VM that is gone, or when the same is pending for it already."""
        request = MaintenanceRequest(cause=cause, vms=(name,), notice=notice)
        if self._is_gone(name) or self._active(lambda m: m.cause == cause and m.vms == (name,)):
            self._expect_conflict(request)
        else:
            assert self.world.plan_one(request).state in {S.SCHEDULED, S.STARTED}

    def _put_off(self, command: Callable[[Maintenance], Maintenance], which: int) -> None:
        """Refused in any state but scheduled, and then nothing has changed."""
        chosen = self._pick(list(self.world.maintenances.values()), which)
        try:
            command(chosen)
        except (Conflict, InvalidRequest):
            assert self.world.get(chosen) == chosen
        else:
            assert chosen.state is S.SCHEDULED

    def _expect_conflict(self, request: MaintenanceRequest) -> None:
        try:
            self.world.plan(request)
        except Conflict:
            return
        raise AssertionError(f"{request} was not refused")

    def _command(
        self, command: object, chosen: Maintenance, allowed: set[MaintenanceState], target: MaintenanceState
    ) -> None:
        """Carried out in the states that allow it, refused in all others."""
        assert callable(command)
        try:
            command(chosen)
        except (Conflict, IllegalTransition):
            assert chosen.state not in allowed
            assert self.world.get(chosen) == chosen
        else:
            assert chosen.state in allowed
            assert self.world.state_of(chosen) is target


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
