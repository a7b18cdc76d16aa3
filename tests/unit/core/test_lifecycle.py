from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from forewarn.core.maintenance.lifecycle import (
    EVENT_STATUS,
    TRANSITIONS,
    Trigger,
    apply_trigger,
    check_invariants,
    get_event_status,
    is_allowed,
)
from forewarn.core.model import ACTIVE_STATES, EventStatus, Maintenance, MaintenanceState
from forewarn.errors import Conflict, IllegalTransition
from tests.support.world import NOW
from tests.unit.core.builders import an_event, maintenance, vm

S = MaintenanceState
LATER = NOW + timedelta(minutes=1)
ALL_PAIRS = [(state, trigger) for state in (None, *MaintenanceState) for trigger in Trigger]
ORDER = [S.QUEUED, S.SCHEDULED, S.STARTED]


def in_state(state: MaintenanceState) -> Maintenance:
    """A maintenance whose times fit its state."""
    return maintenance(
        vm("a"),
        state=state,
        not_before=None if state is S.QUEUED else NOW,
        started_at=NOW if state in {S.STARTED, S.COMPLETED, S.FAILED} else None,
        ended_at=None if state in ACTIVE_STATES else NOW,
    )


def test_the_arrows_are_those_of_the_specification() -> None:
    """R75 to R79."""
    assert TRANSITIONS == {
        (None, Trigger.ENQUEUE): S.QUEUED,
        (None, Trigger.ANNOUNCE): S.SCHEDULED,
        (None, Trigger.STRIKE): S.STARTED,
        (S.QUEUED, Trigger.ANNOUNCE): S.SCHEDULED,
        (S.QUEUED, Trigger.CANCEL): S.CANCELED,
        (S.SCHEDULED, Trigger.START): S.STARTED,
        (S.SCHEDULED, Trigger.CANCEL): S.CANCELED,
        (S.STARTED, Trigger.COMPLETE): S.COMPLETED,
        (S.STARTED, Trigger.FAIL): S.FAILED,
    }


def test_no_arrow_leads_back_or_out_of_an_end() -> None:
    """R75, R79."""
    for (state, _), target in TRANSITIONS.items():
        assert state is None or state in ACTIVE_STATES
        assert state is None or target not in ORDER or ORDER.index(target) == ORDER.index(state) + 1


@pytest.mark.parametrize(("state", "trigger"), [pair for pair in ALL_PAIRS if pair in TRANSITIONS])
def test_an_arrow_of_the_table_leads_to_its_state(state: MaintenanceState | None, trigger: Trigger) -> None:
    before = in_state(state or S.QUEUED)
    if trigger is Trigger.ANNOUNCE:
        before = maintenance(vm("a"), not_before=LATER)
    assert apply_trigger(before, state, trigger, LATER).state is TRANSITIONS[state, trigger]


@pytest.mark.parametrize(("state", "trigger"), [pair for pair in ALL_PAIRS if pair not in TRANSITIONS])
def test_an_arrow_that_is_not_in_the_table_is_refused(state: MaintenanceState | None, trigger: Trigger) -> None:
    """R75."""
    before = in_state(state or S.QUEUED)
    with pytest.raises((Conflict, IllegalTransition), match=f"maintenance-a is {state}"):
        apply_trigger(before, state, trigger, LATER)


@pytest.mark.parametrize(
    ("state", "trigger", "hint"),
    [
        (S.CANCELED, Trigger.START, "only a scheduled one can be started"),
        (S.QUEUED, Trigger.START, "only a scheduled one can be started"),
        (S.STARTED, Trigger.CANCEL, "only a queued or scheduled one can be canceled"),
        (S.SCHEDULED, Trigger.COMPLETE, "only a started one can be completed"),
    ],
)
def test_what_an_operator_may_ask_at_the_wrong_time_is_a_conflict(
    state: MaintenanceState, trigger: Trigger, hint: str
) -> None:
    """R77, R79."""
    with pytest.raises(Conflict, match=hint) as caught:
        apply_trigger(in_state(state), state, trigger, LATER)
    assert caught.value.details == {"id": "maintenance-a", "state": state.value}


@pytest.mark.parametrize(
    ("state", "trigger"), [(S.COMPLETED, Trigger.FAIL), (S.STARTED, Trigger.ANNOUNCE), (S.SCHEDULED, Trigger.STRIKE)]
)
def test_what_nobody_may_ask_is_a_bug(state: MaintenanceState, trigger: Trigger) -> None:
    with pytest.raises(IllegalTransition, match=f"{trigger} is not possible"):
        apply_trigger(in_state(state), state, trigger, LATER)


def test_the_table_says_what_is_allowed() -> None:
    """R75."""
    assert is_allowed(S.SCHEDULED, Trigger.START)
    assert not is_allowed(S.STARTED, Trigger.START)
    assert not is_allowed(S.COMPLETED, Trigger.START)


def test_a_start_keeps_not_before_and_notes_when() -> None:
    """R76."""
    started = apply_trigger(in_state(S.SCHEDULED), S.SCHEDULED, Trigger.START, LATER)
    assert (started.not_before, started.started_at, started.ended_at) == (NOW, LATER, None)


def test_a_strike_has_no_notice_at_all() -> None:
    """R73, R78."""
    struck = apply_trigger(in_state(S.QUEUED), None, Trigger.STRIKE, LATER)
    assert (struck.state, struck.not_before, struck.started_at) == (S.STARTED, LATER, LATER)


@pytest.mark.parametrize(
    ("state", "trigger"),
    [
        (S.QUEUED, Trigger.CANCEL),
        (S.SCHEDULED, Trigger.CANCEL),
        (S.STARTED, Trigger.COMPLETE),
        (S.STARTED, Trigger.FAIL),
    ],
)
def test_an_end_notes_when_and_is_never_due_again(state: MaintenanceState, trigger: Trigger) -> None:
    """R77, R79."""
    ended = apply_trigger(in_state(state), state, trigger, LATER)
    assert ended.ended_at == LATER
    assert ended.due_at is None


@pytest.mark.parametrize("state", MaintenanceState)
def test_times_that_fit_the_state_pass_the_check(state: MaintenanceState) -> None:
    fitting = in_state(state)
    check_invariants(fitting)
    assert fitting.state is state


@pytest.mark.parametrize(
    ("state", "not_before", "started_at", "ended_at"),
    [
        (S.QUEUED, NOW, None, None),
        (S.QUEUED, None, NOW, None),
        (S.QUEUED, None, None, NOW),
        (S.SCHEDULED, None, None, None),
        (S.SCHEDULED, NOW, NOW, None),
        (S.SCHEDULED, NOW, None, NOW),
        (S.STARTED, None, NOW, None),
        (S.STARTED, NOW, None, None),
        (S.STARTED, NOW, NOW, NOW),
        (S.COMPLETED, None, NOW, NOW),
        (S.COMPLETED, NOW, None, NOW),
        (S.COMPLETED, NOW, NOW, None),
        (S.CANCELED, NOW, NOW, NOW),
        (S.CANCELED, NOW, None, None),
        (S.FAILED, None, NOW, NOW),
        (S.FAILED, NOW, None, NOW),
        (S.FAILED, NOW, NOW, None),
    ],
)
def test_times_that_contradict_the_state_are_a_bug(
    state: MaintenanceState, not_before: datetime | None, started_at: datetime | None, ended_at: datetime | None
) -> None:
    wrong = maintenance(state=state, not_before=not_before, started_at=started_at, ended_at=ended_at)
    with pytest.raises(IllegalTransition, match=f"do not fit its state {state}"):
        check_invariants(wrong)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (S.SCHEDULED, EventStatus.SCHEDULED),
        (S.STARTED, EventStatus.STARTED),
        (S.COMPLETED, EventStatus.COMPLETED),
        (S.CANCELED, EventStatus.CANCELED),
        (S.FAILED, EventStatus.FAILED),
    ],
)
def test_an_event_shows_the_state_of_its_maintenance(state: MaintenanceState, status: EventStatus) -> None:
    """R75, R84, X4."""
    assert get_event_status(an_event(is_listed=state in ACTIVE_STATES), in_state(state)) is status


def test_only_a_scheduled_or_started_maintenance_has_events_to_show() -> None:
    """R35: what is on the wire belongs to a state from which something can still happen."""
    shown = {EVENT_STATUS[state] for state in ACTIVE_STATES if state in EVENT_STATUS}
    assert shown == {EventStatus.SCHEDULED, EventStatus.STARTED}


@pytest.mark.parametrize("state", [S.SCHEDULED, S.STARTED])
def test_an_event_that_left_the_document_early_is_withdrawn(state: MaintenanceState) -> None:
    """R70."""
    assert get_event_status(an_event(is_listed=False), in_state(state)) is EventStatus.WITHDRAWN
