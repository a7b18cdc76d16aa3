"""Each property of a simulated cluster, with an outcome that breaks it and one that does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from forewarn.core.model import AuditEntry, EntryKind, MaintenanceState
from forewarn.core.rollout.rollout import Rollout, RolloutHost, RolloutSpec, RolloutState
from forewarn.testing.simulation.machine_clock import START
from forewarn.testing.simulation.outcome import Outcome
from forewarn.testing.simulation.properties import PROPERTIES, find_complaints
from forewarn.testing.simulation.trace import Fact
from tests.unit.core.builders import an_event, maintenance, vm

APPROVED_AT = START + timedelta(seconds=50)
M = maintenance(
    vm("web-0"),
    id="m",
    state=MaintenanceState.COMPLETED,
    not_before=START + timedelta(minutes=15),
    started_at=APPROVED_AT,
)
E = an_event("web-0", id="E", maintenance_id="m", approved_at=APPROVED_AT)


def fact(at_s: float, subject: str, kind: str, **details: Any) -> Fact:  # noqa: ANN401 - JSON
    return Fact(at_s, subject, kind, details)


def document(at_s: float, incarnation: int, **events: list[Any]) -> Fact:
    return fact(at_s, "web-0", "document", incarnation=incarnation, events=events)


def step(at_s: float, name: str) -> Fact:
    return fact(at_s, "web-0", "step", step=name, event="E")


def end(at_s: float, name: str, how: str = "done") -> Fact:
    return fact(at_s, "web-0", "step-end", step=name, event="E", how=how)


def webhook(at_s: float, name: str, number: int = 1) -> Fact:
    return fact(at_s, "receiver", "webhook", id=f"{name}-{number}", about="E", type=name)


def published(at_s: float, incarnation: int, subject: str = "host-0", epoch: int = 1, **events: list[Any]) -> Fact:
    return fact(at_s, subject, "published", audience="scope:web", version=[epoch, incarnation], events=events)


def refused(method: str) -> Fact:
    return fact(5, "web-0", "refused", method=method, status=503)


def late(*chaos: Fact) -> Outcome:
    """The last approval was at 50 s, and the start at 53 s, beside these faults."""
    return replace(GOOD, facts=chaos, maintenances=(replace(M, started_at=START + timedelta(seconds=53)),))


def rolled_out(started_s: float, *, at_once: int = 1) -> Outcome:
    """Two hosts, the first one from 50 to 80 s, the second one from `started_s` to 100 s."""
    spans = {"m": (50, 80), "n": (started_s, 100)}
    parts = [
        replace(M, id=name, started_at=START + timedelta(seconds=a), ended_at=START + timedelta(seconds=b))
        for name, (a, b) in spans.items()
    ]
    spec = RolloutSpec(name="r", cause="host-maintenance", hosts_at_once=at_once)
    hosts = tuple(RolloutHost(name=name, batch=0, maintenance_ids=(name,)) for name in spans)
    rollout = Rollout(id="r", spec=spec, state=RolloutState.COMPLETED, created_at=START, hosts=hosts)
    return replace(GOOD, maintenances=parts, rollouts=[rollout])


SHOWN = document(1, 1)
ANNOUNCED = document(10, 2, E=["Scheduled", ["web-0"]])
STARTED = document(51, 3, E=["Started", ["web-0"]])
APPROVED = fact(50, "web-0", "approved", event="E")
KILLED = fact(50, "web-0", "kill", power=True)
EXECUTE = fact(55, "hypervisor", "execute", maintenance="m", vms=["web-0"])
IMPACT = fact(60, "hypervisor", "impact", maintenance="m", vms=["web-0"])
COMPLETE = fact(79, "hypervisor", "complete", maintenance="m", vms=["web-0"])
ENTRIES = (
    AuditEntry(kind=EntryKind.APPROVED, at=APPROVED_AT, actor="vm:web-0", event_id="E"),
    AuditEntry(kind=EntryKind.STARTED, at=APPROVED_AT, actor="forewarn", maintenance_id="m"),
    AuditEntry(kind=EntryKind.COMPLETED, at=APPROVED_AT + timedelta(seconds=30), actor="forewarn", maintenance_id="m"),
)
GOOD = Outcome(
    facts=(
        SHOWN,
        ANNOUNCED,
        step(11, "prepare"),
        end(49, "prepare"),
        APPROVED,
        STARTED,
        webhook(52, "started"),
        EXECUTE,
        IMPACT,
        COMPLETE,
        document(80, 4),
        step(80, "recover"),
        end(81, "recover"),
        webhook(82, "completed"),
        fact(83, "web-0", "view", events={"E": ["web-0"]}),
    ),
    maintenances=(M,),
    events={"m": (E,)},
    entries=ENTRIES,
    visible={"web-0": frozenset({"web-0", "web-1"})},
)

UNAPPROVED = {"m": (replace(E, approved_at=None),)}
QUIET = replace(
    GOOD,
    quiet_vms=frozenset({"web-0"}),
    quiet_from=START + timedelta(seconds=40),
    quiet_until=START + timedelta(minutes=10),
)
WAITING = (replace(M, started_at=None),)


def without(*facts: Fact) -> tuple[Fact, ...]:
    return tuple(each for each in GOOD.facts if each not in facts)


BROKEN = {
    "everything_ends": replace(GOOD, left=["maintenance m is started"]),
    "agents_and_endpoints_never_fail": replace(GOOD, facts=(fact(5, "web-0", "failed", error="ValueError: no"),)),
    "accepted_approvals_are_kept": replace(GOOD, entries=(), maintenances=WAITING, facts=without(IMPACT)),
    "documents_never_go_back": replace(GOOD, facts=(STARTED, ANNOUNCED)),
    "documents_show_what_is_committed": replace(GOOD, facts=(ANNOUNCED, document(20, 2, E=["Started", ["web-0"]]))),
    "endpoints_keep_answering": replace(GOOD, facts=(SHOWN, refused("GET"))),
    "documents_show_the_own_scope_only": replace(GOOD, facts=(document(10, 2, E=["Scheduled", ["db"]]),)),
    "starts_wait_for_approval": replace(
        GOOD, events=UNAPPROVED, maintenances=(replace(M, force_reason="a shorter notice"),)
    ),
    "quiet_hours_hold": replace(QUIET, events=UNAPPROVED),
    "rollouts_keep_their_budget": rolled_out(79),
    "maintenances_are_carried_out_once": replace(GOOD, facts=(*GOOD.facts, EXECUTE)),
    "notifications_arrive": replace(GOOD, facts=without(webhook(82, "completed"))),
    "notifications_arrive_in_order": replace(GOOD, facts=(webhook(82, "completed"), webhook(83, "started"))),
    "vms_have_one_maintenance_at_a_time": rolled_out(79),
    "starts_are_prompt": replace(GOOD, maintenances=(replace(M, started_at=START + timedelta(seconds=53)),)),
    "ends_are_prompt": replace(GOOD, maintenances=(replace(M, ended_at=START + timedelta(seconds=82)),)),
    "recoveries_wait_for_the_end": replace(GOOD, maintenances=(replace(M, ended_at=START + timedelta(seconds=81)),)),
    "replicas_spare_the_database": replace(GOOD, requests_per_s_max=120),
    "impacts_follow_starts": replace(GOOD, maintenances=WAITING),
    "impacts_wait_for_preparation": replace(GOOD, facts=(*without(end(49, "prepare")), end(70, "prepare"))),
    "preparations_are_undone": replace(GOOD, facts=without(end(81, "recover"))),
}


def shared(mode: str, *, approved_s: float = 50, kinds: tuple[str, ...] = ()) -> Outcome:
    """A VM that is interrupted while it prepares, for an event that names another one, too."""
    approved_at = START + timedelta(seconds=approved_s)
    event = replace(E, resources=("web-0", "web-1"), approved_at=approved_at)
    drawn = fact(0, "chaos", "kinds", kinds=list(kinds))
    impact = fact(approved_s + 10, "hypervisor", "impact", **IMPACT.details)
    return replace(
        GOOD,
        facts=(drawn, step(11, "prepare"), impact),
        maintenances=(replace(M, announced_at=START),),
        events={"m": (event,)},
        group_mode=mode,
    )


def test_a_large_cluster_may_ask_its_database_more_often() -> None:
    visible = {f"vm-{number}": frozenset({f"vm-{number}"}) for number in range(12)} | dict(GOOD.visible)
    assert "replicas_spare_the_database" not in complaining(replace(GOOD, visible=visible, requests_per_s_max=130))
    assert "replicas_spare_the_database" in complaining(replace(GOOD, visible=visible, requests_per_s_max=400))


@pytest.mark.parametrize("mode", ["", "all-prepared"])
def test_one_vm_must_not_approve_for_another_that_prepares(mode: str) -> None:
    assert "impacts_wait_for_preparation" in complaining(shared(mode))


@pytest.mark.parametrize(
    "outcome",
    [
        shared("leader"),
        shared("all-prepared", approved_s=310),  # the agents' deadline has passed
        shared("all-prepared", kinds=("vm-clock",)),  # it may have passed by the clock of the VM
    ],
)
def test_one_vm_may_approve_for_another_if_its_mode_says_so(outcome: Outcome) -> None:
    assert "impacts_wait_for_preparation" not in complaining(outcome)


def fault(begin_s: float, end_s: float, kind: str) -> tuple[Fact, Fact]:
    return fact(begin_s, "chaos", kind), fact(end_s, "chaos", "over", fault=kind)


HEALED = fact(60, "chaos", "heal")


@pytest.mark.parametrize(
    "faults",
    [
        fault(45, 55, "isolate"),  # of the VMs' network
        fault(5, 15, "halt"),  # over for long
        (*fault(2, 3, "halt"), *fault(55, 58, "halt")),  # before it and after it
        (*fault(2, 6, "halt"), *fault(3, 5, "halt")),  # one during the other
    ],
)
def test_a_start_that_no_fault_delayed_is_prompt(faults: tuple[Fact, ...]) -> None:
    assert "starts_are_prompt" in complaining(late(*sorted(faults, key=lambda each: each.at_s), HEALED))


@pytest.mark.parametrize(
    "faults",
    [
        fault(49, 52, "halt"),
        fault(35, 44, "kill-replica"),  # its successor may still be starting
        (fact(20, "chaos", "cut-database"), fact(45, "chaos", "heal")),  # until the end of all faults
        (*fault(2, 3, "halt"), *fault(45, 47, "halt")),
        (fact(40, "chaos", "halt"), *fault(42, 43, "halt"), fact(51, "chaos", "over", fault="halt")),
    ],
)
def test_a_fault_excuses_a_late_start_until_shortly_after_its_end(faults: tuple[Fact, ...]) -> None:
    assert "starts_are_prompt" not in complaining(late(*faults))


@pytest.mark.parametrize(("kind", "is_excused"), [("isolate", False), ("fail-hypervisor", False), ("halt", True)])
def test_a_late_end_is_excused_by_the_faults_that_excuse_a_late_start(kind: str, is_excused: bool) -> None:
    ended = replace(M, ended_at=START + timedelta(seconds=90))
    facts = sorted((*GOOD.facts, *fault(70, 80, kind)), key=lambda each: each.at_s)
    assert ("ends_are_prompt" not in complaining(replace(GOOD, facts=facts, maintenances=(ended,)))) is is_excused


@pytest.mark.parametrize(("ended_s", "is_excused"), [(109, True), (113, False)])
def test_a_late_end_is_excused_by_the_pause_after_failed_calls(ended_s: float, is_excused: bool) -> None:
    ended = replace(M, ended_at=START + timedelta(seconds=ended_s))
    failed = tuple(
        AuditEntry(kind=EntryKind.ATTEMPT_FAILED, at=START + timedelta(seconds=at_s), actor="a", maintenance_id=name)
        for at_s, name in [(74, "m"), (79, "m"), (89, "m"), (150, "other")]
    )
    outcome = replace(GOOD, entries=(*ENTRIES, *failed), maintenances=(ended,))
    assert ("ends_are_prompt" not in complaining(outcome)) is is_excused
    for impacted_s, has_ended_the_pauses in [(90, True), (ended_s, False)]:
        impacted = replace(failed[0], kind=EntryKind.IMPACTED, at=START + timedelta(seconds=impacted_s))
        complaints = complaining(replace(outcome, entries=(*ENTRIES, *failed, impacted)))
        assert ("ends_are_prompt" not in complaints) is (is_excused and not has_ended_the_pauses)


def test_an_actuator_of_a_user_decides_when_it_is_asked() -> None:
    assert "ends_are_prompt" not in complaining(replace(BROKEN["ends_are_prompt"], has_own_actuator=False))


@pytest.mark.parametrize("state", [MaintenanceState.FAILED, MaintenanceState.CANCELED])
def test_only_what_the_actuator_completed_has_to_end_then(state: MaintenanceState) -> None:
    ended = replace(M, state=state, ended_at=START + timedelta(seconds=90))
    assert "ends_are_prompt" not in complaining(replace(GOOD, maintenances=(ended,)))


@pytest.mark.parametrize(
    "facts",
    [
        (document(10, 2, X=["Scheduled", ["web-0"]]),),  # no such event is in the database
        (ANNOUNCED, document(20, 2)),  # another document of the same incarnation
        (published(10, 2, X=["Scheduled", ["web-0"]]),),  # no VM has asked for it yet
        (published(10, 2, "replica-0"), published(11, 2, E=["Scheduled", ["web-0"]])),  # two processes disagree
    ],
)
def test_a_document_that_was_never_committed_is_a_complaint(facts: tuple[Fact, ...]) -> None:
    assert "documents_show_what_is_committed" in complaining(replace(GOOD, facts=facts))


def test_a_process_that_would_show_an_older_document_is_a_complaint() -> None:
    facts = (published(10, 3), published(11, 2))
    assert "documents_never_go_back" in complaining(replace(GOOD, facts=facts))
    # Another audience, another process, or a new epoch, which counts from the beginning again.
    other = fact(11, "host-0", "published", audience="vm:db", version=[1, 2], events={})
    for later in (other, published(11, 2, "host-1"), published(11, 1, epoch=2)):
        assert "documents_never_go_back" not in complaining(replace(GOOD, facts=(published(10, 3), later)))


def test_an_event_that_is_shown_as_started_has_started() -> None:
    outcome = replace(GOOD, facts=(STARTED,), maintenances=WAITING)
    assert "documents_show_what_is_committed" in complaining(outcome)


def test_a_cancel_after_the_approval_excuses_nothing() -> None:
    ended_at = APPROVED_AT + timedelta(seconds=1)
    late = replace(GOOD, entries=(), maintenances=(replace(M, started_at=None, ended_at=ended_at),))
    assert "accepted_approvals_are_kept" in complaining(late)


@pytest.mark.parametrize(
    "facts",
    [
        (end(49, "prepare"), KILLED),  # its disk has it
        (fact(11, "web-0", "not-saved"), end(49, "prepare"), fact(49.5, "web-0", "saved"), KILLED),
        (fact(11, "web-0", "not-saved"), end(49, "prepare")),  # it lives, so it knows
    ],
)
def test_a_full_disk_excuses_only_what_it_made_the_agent_forget(facts: tuple[Fact, ...]) -> None:
    assert "preparations_are_undone" in complaining(replace(GOOD, facts=facts))


def complaining(outcome: Outcome) -> set[str]:
    return {line.partition(":")[0] for line in find_complaints(outcome)}


def test_a_good_outcome_breaks_none() -> None:
    assert find_complaints(GOOD) == []


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_an_outcome_made_wrong_breaks_its_property(name: str) -> None:
    assert name in complaining(BROKEN[name])


def test_every_property_has_an_outcome_that_breaks_it() -> None:
    assert {each.__name__ for each in PROPERTIES} == set(BROKEN)


@pytest.mark.parametrize(
    ("allowed", "outcome"),
    [
        (
            "starts_wait_for_approval",
            replace(GOOD, events=UNAPPROVED, maintenances=(replace(M, started_at=START + timedelta(minutes=15)),)),
        ),
        (
            "agents_and_endpoints_never_fail",
            replace(GOOD, facts=(fact(5, "replica-0", "failed", error="StoreUnavailable: no connection"),)),
        ),
        ("accepted_approvals_are_kept", replace(GOOD, entries=())),  # it came after the start
        (
            "accepted_approvals_are_kept",  # it was canceled just before
            replace(GOOD, entries=(), maintenances=(replace(M, started_at=None, ended_at=APPROVED_AT),)),
        ),
        (
            "impacts_wait_for_preparation",  # NotBefore has passed
            replace(GOOD, facts=(step(11, "prepare"), fact(900, "hypervisor", "impact", **IMPACT.details))),
        ),
        (
            "impacts_wait_for_preparation",  # the VM was off
            replace(GOOD, facts=(step(11, "prepare"), fact(20, "web-0", "kill", power=True), IMPACT)),
        ),
        ("preparations_are_undone", replace(GOOD, facts=(step(11, "prepare"), end(49, "prepare", "failed")))),
        (
            "preparations_are_undone",  # the VM died while its disk was full
            replace(GOOD, facts=(fact(11, "web-0", "not-saved"), end(49, "prepare"), KILLED)),
        ),
        ("quiet_hours_hold", QUIET),  # its event is approved
        ("quiet_hours_hold", replace(QUIET, events=UNAPPROVED, quiet_vms=frozenset({"db"}))),
        ("rollouts_keep_their_budget", rolled_out(80)),
        ("vms_have_one_maintenance_at_a_time", rolled_out(80)),
        ("endpoints_keep_answering", replace(GOOD, facts=(refused("GET"), SHOWN))),  # it knew nothing yet
        ("endpoints_keep_answering", replace(GOOD, facts=(SHOWN, refused("POST")))),  # an approval needs the replicas
        (
            "starts_are_prompt",  # another one of the VM ended only then
            replace(
                GOOD,
                maintenances=(
                    replace(M, started_at=START + timedelta(seconds=53)),
                    replace(M, id="n", started_at=None, ended_at=START + timedelta(seconds=52)),
                ),
            ),
        ),
        (
            "starts_are_prompt",  # the database was slow
            replace(GOOD, delay_s_max=0.2, maintenances=(replace(M, started_at=START + timedelta(seconds=55)),)),
        ),
        ("rollouts_keep_their_budget", rolled_out(60, at_once=2)),
        (
            "notifications_arrive_in_order",  # the first one came again, since its answer was lost
            replace(GOOD, facts=(webhook(82, "started"), webhook(83, "completed"), webhook(84, "started"))),
        ),
        ("preparations_are_undone", replace(GOOD, facts=(end(49, "prepare"), end(60, "canceled")))),
    ],
)
def test_what_is_allowed_is_no_complaint(allowed: str, outcome: Outcome) -> None:
    assert allowed not in complaining(outcome)
