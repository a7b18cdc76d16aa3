"""What is done next to a VM: every way, every step, as a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.actuators.libvirt_record import (
    DomainEntry,
    DomainStep,
    Procedure,
    decode_entry,
    encode_entry,
    find_ended_namespaces,
    namespace_of,
)
from forewarn.actuators.libvirt_steps import (
    DomainAction,
    DomainDecision,
    DomainPower,
    DomainState,
    LibvirtTimings,
    choose_procedure,
    decide_abort,
    decide_step,
)
from forewarn.core.model import EventType
from forewarn.errors import ActuatorError

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
TERMS = LibvirtTimings(
    freeze=timedelta(seconds=5), shutdown_timeout=timedelta(minutes=2), migration_timeout=timedelta(minutes=30)
)

RUNNING = DomainState(power=DomainPower.RUNNING, instance=7)
PAUSED = DomainState(power=DomainPower.PAUSED, instance=7)
OFF = DomainState(power=DomainPower.OFF)
ANEW = DomainState(power=DomainPower.RUNNING, instance=8)
BUSY = replace(RUNNING, has_job=True)


def away(sight: DomainState) -> DomainState:
    return replace(sight, is_moved=True)


def entry(way: Procedure, step: DomainStep, ago_s: float = 1, instance: int = 7) -> DomainEntry:
    return DomainEntry(id="k3", procedure=way, step=step, since=NOW - timedelta(seconds=ago_s), instance=instance)


def told(decision: DomainDecision) -> tuple[DomainAction, DomainStep | None]:
    return decision.action, None if decision.before is None else decision.before.step


BEGINNINGS = [
    (Procedure.SUSPEND, RUNNING, DomainAction.SUSPEND, DomainStep.SUSPENDING),
    (Procedure.SUSPEND, PAUSED, DomainAction.NOTHING, DomainStep.DONE),
    (Procedure.SUSPEND, OFF, DomainAction.NOTHING, DomainStep.DONE),
    (Procedure.MIGRATE, RUNNING, DomainAction.MIGRATE, DomainStep.MIGRATING),
    (Procedure.MIGRATE, PAUSED, DomainAction.MIGRATE, DomainStep.MIGRATING),
    (Procedure.MIGRATE, OFF, DomainAction.NOTHING, DomainStep.DONE),
    (Procedure.MIGRATE, away(RUNNING), DomainAction.NOTHING, DomainStep.DONE),
    (Procedure.CYCLE, RUNNING, DomainAction.SHUT_DOWN, DomainStep.ASKING),
    (Procedure.CYCLE, PAUSED, DomainAction.SHUT_DOWN, DomainStep.ASKING),
    (Procedure.CYCLE, OFF, DomainAction.NOTHING, DomainStep.DONE),
    (Procedure.MOVE, RUNNING, DomainAction.SHUT_DOWN, DomainStep.ASKING),
    (Procedure.MOVE, OFF, DomainAction.MOVE, DomainStep.MOVING),
    (Procedure.MOVE, away(RUNNING), DomainAction.SHUT_DOWN, DomainStep.ASKING),
    (Procedure.MOVE, away(OFF), DomainAction.NOTHING, DomainStep.DONE),
    (Procedure.STOP, RUNNING, DomainAction.SHUT_DOWN, DomainStep.ASKING),
    (Procedure.STOP, OFF, DomainAction.NOTHING, DomainStep.DONE),
]


@pytest.mark.parametrize(("way", "sight", "act", "step"), BEGINNINGS)
def test_it_begins_with_a_note_of_that(way: Procedure, sight: DomainState, act: DomainAction, step: DomainStep) -> None:
    decision = decide_step("k3", way, None, sight, NOW, TERMS)
    assert told(decision) == (act, step)
    assert decision.before is not None
    assert (decision.before.id, decision.before.instance) == ("k3", sight.instance)


NEXT = [
    # suspended, and resumed when its time is over
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDING), RUNNING, DomainAction.SUSPEND, None),
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDING), PAUSED, DomainAction.WAIT, DomainStep.SUSPENDED),
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDED), PAUSED, DomainAction.WAIT, None),
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDED, 5), PAUSED, DomainAction.RESUME, DomainStep.RESUMING),
    (entry(Procedure.SUSPEND, DomainStep.RESUMING, 5), PAUSED, DomainAction.RESUME, DomainStep.RESUMING),
    (entry(Procedure.SUSPEND, DomainStep.RESUMING, 5), RUNNING, DomainAction.NOTHING, DomainStep.DONE),
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDED), RUNNING, DomainAction.NOTHING, DomainStep.DONE),
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDED), ANEW, DomainAction.NOTHING, DomainStep.DONE),
    (
        entry(Procedure.SUSPEND, DomainStep.SUSPENDED),
        replace(PAUSED, instance=8),
        DomainAction.NOTHING,
        DomainStep.DONE,
    ),
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDING), OFF, DomainAction.NOTHING, DomainStep.DONE),
    # shut down for good
    (entry(Procedure.STOP, DomainStep.ASKING), RUNNING, DomainAction.SHUT_DOWN, DomainStep.ASKING),
    (entry(Procedure.STOP, DomainStep.STOPPING), RUNNING, DomainAction.WAIT, None),
    (entry(Procedure.STOP, DomainStep.STOPPING, 120), RUNNING, DomainAction.DESTROY, None),
    (entry(Procedure.STOP, DomainStep.ASKING, 120), RUNNING, DomainAction.DESTROY, None),
    (entry(Procedure.STOP, DomainStep.STOPPING), ANEW, DomainAction.DESTROY, None),
    (entry(Procedure.STOP, DomainStep.STOPPING), OFF, DomainAction.NOTHING, DomainStep.DONE),
    # shut down and started
    (entry(Procedure.CYCLE, DomainStep.STOPPING), RUNNING, DomainAction.WAIT, None),
    (entry(Procedure.CYCLE, DomainStep.STOPPING, 120), PAUSED, DomainAction.DESTROY, None),
    (entry(Procedure.CYCLE, DomainStep.STOPPING), OFF, DomainAction.CREATE, DomainStep.STARTING),
    (entry(Procedure.CYCLE, DomainStep.STARTING), OFF, DomainAction.CREATE, DomainStep.STARTING),
    (entry(Procedure.CYCLE, DomainStep.STARTING), ANEW, DomainAction.NOTHING, DomainStep.DONE),
    (
        entry(Procedure.CYCLE, DomainStep.STARTING),
        RUNNING,
        DomainAction.NOTHING,
        DomainStep.DONE,
    ),  # a daemon that counts from 1 again
    (
        entry(Procedure.CYCLE, DomainStep.STOPPING),
        ANEW,
        DomainAction.NOTHING,
        DomainStep.DONE,
    ),  # the guest, or somebody, was quicker
    # shut down, moved and started
    (entry(Procedure.MOVE, DomainStep.STOPPING), OFF, DomainAction.MOVE, DomainStep.MOVING),
    (entry(Procedure.MOVE, DomainStep.MOVING), OFF, DomainAction.MOVE, DomainStep.MOVING),
    (entry(Procedure.MOVE, DomainStep.MOVING), ANEW, DomainAction.SHUT_DOWN, DomainStep.ASKING),
    (entry(Procedure.MOVE, DomainStep.MOVING), away(OFF), DomainAction.CREATE, DomainStep.STARTING),
    (entry(Procedure.MOVE, DomainStep.STARTING), away(RUNNING), DomainAction.NOTHING, DomainStep.DONE),
    (
        entry(Procedure.MOVE, DomainStep.MOVING, instance=-1),
        away(OFF),
        DomainAction.NOTHING,
        DomainStep.DONE,
    ),  # it was off before
    # migrated
    (entry(Procedure.MIGRATE, DomainStep.MIGRATING), BUSY, DomainAction.WAIT, None),
    (entry(Procedure.MIGRATE, DomainStep.MIGRATING, 1800), BUSY, DomainAction.GIVE_UP, None),
    (entry(Procedure.MIGRATE, DomainStep.MIGRATING), RUNNING, DomainAction.WAIT, DomainStep.LANDING),
    (entry(Procedure.MIGRATE, DomainStep.LANDING), RUNNING, DomainAction.FAIL, DomainStep.INTERRUPTED),
    (entry(Procedure.MIGRATE, DomainStep.LANDING), BUSY, DomainAction.WAIT, None),
    (entry(Procedure.MIGRATE, DomainStep.LANDING), away(ANEW), DomainAction.NOTHING, DomainStep.DONE),
    (entry(Procedure.MIGRATE, DomainStep.INTERRUPTED), RUNNING, DomainAction.MIGRATE, DomainStep.MIGRATING),
    (entry(Procedure.MIGRATE, DomainStep.MIGRATING), away(ANEW), DomainAction.NOTHING, DomainStep.DONE),
    (entry(Procedure.MIGRATE, DomainStep.INTERRUPTED), away(ANEW), DomainAction.NOTHING, DomainStep.DONE),
    (entry(Procedure.MIGRATE, DomainStep.MIGRATING), OFF, DomainAction.NOTHING, DomainStep.DONE),
]


@pytest.mark.parametrize(("begun", "sight", "act", "step"), NEXT)
def test_it_goes_on_from_every_step(
    begun: DomainEntry, sight: DomainState, act: DomainAction, step: DomainStep | None
) -> None:
    assert told(decide_step("k3", Procedure.STOP, begun, sight, NOW, TERMS)) == (act, step)


def test_a_migration_is_not_begun_for_ever() -> None:
    begun: DomainEntry | None = None
    tries = []
    while (decision := decide_step("k3", Procedure.MIGRATE, begun, RUNNING, NOW, TERMS)).before is not None:
        begun = decision.before
        tries.append((begun.step, begun.tries))
    assert decision == DomainDecision(action=DomainAction.FAIL)
    steps = (DomainStep.MIGRATING, DomainStep.LANDING, DomainStep.INTERRUPTED)
    numbers = range(1, TERMS.migrations_max + 1)
    assert tries == [(step, number) for number in numbers for step in steps]


@pytest.mark.parametrize(("way", "step"), list(product(Procedure, (DomainStep.DONE, DomainStep.ABORTED))))
def test_what_is_over_stays_so(way: Procedure, step: DomainStep) -> None:
    for sight in (RUNNING, PAUSED, OFF, ANEW, BUSY, away(OFF)):
        assert decide_step("k3", way, entry(way, step), sight, NOW, TERMS) == DomainDecision(
            action=DomainAction.NOTHING
        )
        assert decide_abort(entry(way, step), sight) == DomainDecision(action=DomainAction.NOTHING)


def test_the_way_that_was_begun_is_gone_to_its_end_whatever_the_settings_say_now() -> None:
    begun = entry(Procedure.SUSPEND, DomainStep.SUSPENDED, 9)
    assert decide_step("k3", Procedure.MIGRATE, begun, PAUSED, NOW, TERMS).action is DomainAction.RESUME


def test_nothing_is_waited_for_longer_than_it_may_take() -> None:
    late = decide_step("k3", Procedure.CYCLE, entry(Procedure.CYCLE, DomainStep.STOPPING, 119.5), RUNNING, NOW, TERMS)
    assert late.until == NOW + timedelta(seconds=0.5)
    early = decide_step("k3", Procedure.CYCLE, entry(Procedure.CYCLE, DomainStep.STOPPING, 1), RUNNING, NOW, TERMS)
    assert early.until == NOW + TERMS.check_every
    paused = decide_step("k3", Procedure.SUSPEND, entry(Procedure.SUSPEND, DomainStep.SUSPENDED, 1), PAUSED, NOW, TERMS)
    assert paused.until == NOW + timedelta(seconds=4)


@pytest.mark.parametrize(
    ("begun", "sight", "paused_s"),
    [
        (entry(Procedure.SUSPEND, DomainStep.RESUMING, 5.25), RUNNING, 5.25),
        (entry(Procedure.SUSPEND, DomainStep.SUSPENDED, 3600), RUNNING, 5.0),  # somebody resumed it while nobody looked
        (entry(Procedure.SUSPEND, DomainStep.SUSPENDED, 2), RUNNING, 2.0),
        (entry(Procedure.CYCLE, DomainStep.STARTING, 42), ANEW, 42.0),
        (entry(Procedure.MOVE, DomainStep.STARTING, 42), away(ANEW), 42.0),
        (entry(Procedure.STOP, DomainStep.STOPPING, 42), OFF, None),
        (entry(Procedure.MIGRATE, DomainStep.MIGRATING, 42), away(ANEW), None),  # libvirt has measured that
    ],
)
def test_how_long_it_was_away_is_noted_at_the_end(
    begun: DomainEntry, sight: DomainState, paused_s: float | None
) -> None:
    decision = decide_step("k3", Procedure.STOP, begun, sight, NOW, TERMS)
    assert decision.before is not None
    assert decision.before.paused_s == paused_s


def test_no_interruption_is_none() -> None:
    """R39: a duration of 0."""
    decision = decide_step("k3", Procedure.SUSPEND, None, RUNNING, NOW, replace(TERMS, freeze=timedelta(0)))
    assert told(decision) == (DomainAction.NOTHING, DomainStep.DONE)


ABORTS = [
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDED), PAUSED, DomainAction.RESUME),
    (entry(Procedure.SUSPEND, DomainStep.SUSPENDING), RUNNING, DomainAction.NOTHING),
    (
        entry(Procedure.SUSPEND, DomainStep.SUSPENDED),
        replace(PAUSED, instance=8),
        DomainAction.NOTHING,
    ),  # somebody else's pause
    (entry(Procedure.MIGRATE, DomainStep.MIGRATING), BUSY, DomainAction.GIVE_UP),
    (entry(Procedure.MIGRATE, DomainStep.MIGRATING), RUNNING, DomainAction.NOTHING),
    (entry(Procedure.CYCLE, DomainStep.STOPPING), OFF, DomainAction.CREATE),
    (entry(Procedure.CYCLE, DomainStep.STOPPING), RUNNING, DomainAction.NOTHING),
    (entry(Procedure.MOVE, DomainStep.MOVING), away(OFF), DomainAction.CREATE),
    (entry(Procedure.MOVE, DomainStep.MOVING, instance=-1), OFF, DomainAction.NOTHING),  # it was off before
    (entry(Procedure.STOP, DomainStep.STOPPING), OFF, DomainAction.NOTHING),
]


@pytest.mark.parametrize(("begun", "sight", "act"), ABORTS)
def test_an_abort_brings_back_what_would_stay_away(begun: DomainEntry, sight: DomainState, act: DomainAction) -> None:
    decision = decide_abort(begun, sight)
    assert decision.action is act
    noted = decision.after or decision.before
    assert noted is not None
    assert noted.step is DomainStep.ABORTED


def test_where_nothing_was_begun_there_is_nothing_to_abort() -> None:
    for sight in (RUNNING, PAUSED, OFF, away(OFF)):
        assert decide_abort(None, sight) == DomainDecision(action=DomainAction.NOTHING)


@pytest.mark.parametrize(
    ("impact", "at_home", "with_destination"),
    [
        (EventType.FREEZE, Procedure.SUSPEND, Procedure.MIGRATE),
        (EventType.REBOOT, Procedure.CYCLE, Procedure.CYCLE),
        (EventType.REDEPLOY, Procedure.CYCLE, Procedure.MOVE),
        (EventType.PREEMPT, Procedure.STOP, Procedure.STOP),
        (EventType.TERMINATE, Procedure.STOP, Procedure.STOP),
    ],
)
def test_what_is_done_follows_from_the_impact(
    impact: EventType, at_home: Procedure, with_destination: Procedure
) -> None:
    assert choose_procedure(impact, has_destination=False) is at_home
    assert choose_procedure(impact, has_destination=True) is with_destination


# The record


@given(
    st.builds(
        DomainEntry,
        id=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40).map(
            lambda text: "".join(text.split()) or "x"
        ),
        procedure=st.sampled_from(Procedure),
        step=st.sampled_from(DomainStep),
        since=st.datetimes(timezones=st.just(UTC)),
        instance=st.integers(-1, 2**31),
        paused_s=st.none() | st.integers(0, 10**9).map(lambda ms: ms / 1000),
    )
)
def test_a_record_is_read_as_it_was_written(written: DomainEntry) -> None:
    assert decode_entry(encode_entry(written)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<maintenance/>",
        "<maintenance",
        encode_entry(entry(Procedure.STOP, DomainStep.DONE)).replace("stop", "fly"),
        encode_entry(entry(Procedure.STOP, DomainStep.DONE)).replace('instance="7"', 'instance="x"'),
        encode_entry(entry(Procedure.STOP, DomainStep.DONE)).replace("2026-", "x"),
        encode_entry(replace(entry(Procedure.STOP, DomainStep.DONE), paused_s=1.0)).replace("1.000", "nan"),
    ],
)
def test_a_record_that_somebody_has_changed_is_an_error_in_a_line(text: str) -> None:
    with pytest.raises(ActuatorError, match="record in the metadata") as caught:
        decode_entry(text)
    assert caught.value.message.isprintable()


def test_records_that_are_over_are_found_the_oldest_first() -> None:
    def element(id_: str, step: DomainStep, ago_s: float) -> str:
        text = encode_entry(replace(entry(Procedure.STOP, step, ago_s), id=id_))
        return text.replace("<maintenance", f'<f:maintenance xmlns:f="{namespace_of(id_)}"')

    metadata = (
        element("new", DomainStep.DONE, 1)
        + element("under-way", DomainStep.STOPPING, 9)
        + element("old", DomainStep.ABORTED, 5)
    )
    other = '<o:maintenance xmlns:o="urn:other" step="done"/>'
    xml = f"<domain><metadata>{metadata}{other}</metadata></domain>"
    assert find_ended_namespaces(xml) == [namespace_of("old"), namespace_of("new")]
    assert find_ended_namespaces("<domain/>") == []
