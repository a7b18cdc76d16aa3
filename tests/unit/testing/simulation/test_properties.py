"""Each property of a simulated cluster, with an outcome that breaks it and one that does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from forewarn.core.model import AuditEntry, EntryKind, MaintenanceState
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


SHOWN = document(1, 1)
ANNOUNCED = document(10, 2, E=["Scheduled", ["web-0"]])
STARTED = document(51, 3, E=["Started", ["web-0"]])
APPROVED = fact(50, "web-0", "approved", event="E")
IMPACT = fact(60, "hypervisor", "impact", maintenance="m", vms=["web-0"])
GOOD = Outcome(
    facts=(
        SHOWN,
        ANNOUNCED,
        step(11, "prepare"),
        end(49, "prepare"),
        APPROVED,
        STARTED,
        IMPACT,
        document(80, 4),
        step(80, "recover"),
        end(81, "recover"),
    ),
    maintenances=(M,),
    events={"m": (E,)},
    entries=(AuditEntry(kind=EntryKind.APPROVED, at=APPROVED_AT, actor="vm:web-0", event_id="E"),),
    visible={"web-0": frozenset({"web-0", "web-1"})},
)

UNAPPROVED = {"m": (replace(E, approved_at=None),)}
WAITING = (replace(M, started_at=None),)


def without(*facts: Fact) -> tuple[Fact, ...]:
    return tuple(each for each in GOOD.facts if each not in facts)


BROKEN = {
    "everything_ends": replace(GOOD, left=["maintenance m is started"]),
    "accepted_approvals_are_kept": replace(GOOD, entries=(), maintenances=WAITING, facts=without(IMPACT)),
    "documents_never_go_back": replace(GOOD, facts=(STARTED, ANNOUNCED)),
    "documents_show_the_own_scope_only": replace(GOOD, facts=(document(10, 2, E=["Scheduled", ["db"]]),)),
    "starts_wait_for_approval": replace(GOOD, events=UNAPPROVED),
    "impacts_follow_starts": replace(GOOD, maintenances=WAITING),
    "impacts_wait_for_preparation": replace(GOOD, facts=(*without(end(49, "prepare")), end(70, "prepare"))),
    "preparations_are_undone": replace(GOOD, facts=without(end(81, "recover"))),
}


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
        ("starts_wait_for_approval", replace(GOOD, events=UNAPPROVED, maintenances=(replace(M, force_reason="now"),))),
        (
            "starts_wait_for_approval",
            replace(GOOD, events=UNAPPROVED, maintenances=(replace(M, started_at=START + timedelta(minutes=15)),)),
        ),
        ("accepted_approvals_are_kept", replace(GOOD, entries=())),  # it came after the start
        (
            "impacts_wait_for_preparation",  # NotBefore has passed
            replace(GOOD, facts=(step(11, "prepare"), fact(900, "hypervisor", "impact", **IMPACT.details))),
        ),
        (
            "impacts_wait_for_preparation",  # the VM was off
            replace(GOOD, facts=(step(11, "prepare"), fact(20, "web-0", "kill", power=True), IMPACT)),
        ),
        ("preparations_are_undone", replace(GOOD, facts=(step(11, "prepare"), end(49, "prepare", "failed")))),
        ("preparations_are_undone", replace(GOOD, facts=(end(49, "prepare"), end(60, "canceled")))),
    ],
)
def test_what_is_allowed_is_no_complaint(allowed: str, outcome: Outcome) -> None:
    assert allowed not in complaining(outcome)
