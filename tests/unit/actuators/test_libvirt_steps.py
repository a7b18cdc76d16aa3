"""What is done next to a VM: every way, every step, as a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.actuators.libvirt_record import (
    Entry,
    Step,
    Way,
    decode_entry,
    encode_entry,
    ended_namespaces,
    namespace_of,
)
from forewarn.actuators.libvirt_steps import Act, Decision, Power, Sight, Terms, decide, decide_abort, way_of
from forewarn.core.model import EventType
from forewarn.errors import ActuatorError

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
TERMS = Terms(
    freeze=timedelta(seconds=5), shutdown_timeout=timedelta(minutes=2), migration_timeout=timedelta(minutes=30)
)

RUNNING = Sight(power=Power.RUNNING, instance=7)
PAUSED = Sight(power=Power.PAUSED, instance=7)
OFF = Sight(power=Power.OFF)
ANEW = Sight(power=Power.RUNNING, instance=8)
BUSY = replace(RUNNING, has_job=True)


def away(sight: Sight) -> Sight:
    return replace(sight, is_moved=True)


def entry(way: Way, step: Step, ago_s: float = 1, instance: int = 7) -> Entry:
    return Entry(id="k3", way=way, step=step, since=NOW - timedelta(seconds=ago_s), instance=instance)


def told(decision: Decision) -> tuple[Act, Step | None]:
    return decision.act, None if decision.before is None else decision.before.step


BEGINNINGS = [
    (Way.SUSPEND, RUNNING, Act.SUSPEND, Step.SUSPENDING),
    (Way.SUSPEND, PAUSED, Act.NOTHING, Step.DONE),
    (Way.SUSPEND, OFF, Act.NOTHING, Step.DONE),
    (Way.MIGRATE, RUNNING, Act.MIGRATE, Step.MIGRATING),
    (Way.MIGRATE, PAUSED, Act.MIGRATE, Step.MIGRATING),
    (Way.MIGRATE, OFF, Act.NOTHING, Step.DONE),
    (Way.MIGRATE, away(RUNNING), Act.NOTHING, Step.DONE),
    (Way.CYCLE, RUNNING, Act.SHUT_DOWN, Step.ASKING),
    (Way.CYCLE, PAUSED, Act.SHUT_DOWN, Step.ASKING),
    (Way.CYCLE, OFF, Act.NOTHING, Step.DONE),
    (Way.MOVE, RUNNING, Act.SHUT_DOWN, Step.ASKING),
    (Way.MOVE, OFF, Act.MOVE, Step.MOVING),
    (Way.MOVE, away(RUNNING), Act.SHUT_DOWN, Step.ASKING),
    (Way.MOVE, away(OFF), Act.NOTHING, Step.DONE),
    (Way.STOP, RUNNING, Act.SHUT_DOWN, Step.ASKING),
    (Way.STOP, OFF, Act.NOTHING, Step.DONE),
]


@pytest.mark.parametrize(("way", "sight", "act", "step"), BEGINNINGS)
def test_it_begins_with_a_note_of_that(way: Way, sight: Sight, act: Act, step: Step) -> None:
    decision = decide("k3", way, None, sight, NOW, TERMS)
    assert told(decision) == (act, step)
    assert decision.before is not None
    assert (decision.before.id, decision.before.instance) == ("k3", sight.instance)


NEXT = [
    # suspended, and resumed when its time is over
    (entry(Way.SUSPEND, Step.SUSPENDING), RUNNING, Act.SUSPEND, None),
    (entry(Way.SUSPEND, Step.SUSPENDING), PAUSED, Act.WAIT, Step.SUSPENDED),
    (entry(Way.SUSPEND, Step.SUSPENDED), PAUSED, Act.WAIT, None),
    (entry(Way.SUSPEND, Step.SUSPENDED, 5), PAUSED, Act.RESUME, Step.RESUMING),
    (entry(Way.SUSPEND, Step.RESUMING, 5), PAUSED, Act.RESUME, Step.RESUMING),
    (entry(Way.SUSPEND, Step.RESUMING, 5), RUNNING, Act.NOTHING, Step.DONE),
    (entry(Way.SUSPEND, Step.SUSPENDED), RUNNING, Act.NOTHING, Step.DONE),
    (entry(Way.SUSPEND, Step.SUSPENDED), ANEW, Act.NOTHING, Step.DONE),
    (entry(Way.SUSPEND, Step.SUSPENDED), replace(PAUSED, instance=8), Act.NOTHING, Step.DONE),
    (entry(Way.SUSPEND, Step.SUSPENDING), OFF, Act.NOTHING, Step.DONE),
    # shut down for good
    (entry(Way.STOP, Step.ASKING), RUNNING, Act.SHUT_DOWN, Step.ASKING),
    (entry(Way.STOP, Step.STOPPING), RUNNING, Act.WAIT, None),
    (entry(Way.STOP, Step.STOPPING, 120), RUNNING, Act.DESTROY, None),
    (entry(Way.STOP, Step.ASKING, 120), RUNNING, Act.DESTROY, None),
    (entry(Way.STOP, Step.STOPPING), ANEW, Act.DESTROY, None),
    (entry(Way.STOP, Step.STOPPING), OFF, Act.NOTHING, Step.DONE),
    # shut down and started
    (entry(Way.CYCLE, Step.STOPPING), RUNNING, Act.WAIT, None),
    (entry(Way.CYCLE, Step.STOPPING, 120), PAUSED, Act.DESTROY, None),
    (entry(Way.CYCLE, Step.STOPPING), OFF, Act.CREATE, Step.STARTING),
    (entry(Way.CYCLE, Step.STARTING), OFF, Act.CREATE, Step.STARTING),
    (entry(Way.CYCLE, Step.STARTING), ANEW, Act.NOTHING, Step.DONE),
    (entry(Way.CYCLE, Step.STARTING), RUNNING, Act.NOTHING, Step.DONE),  # a daemon that counts from 1 again
    (entry(Way.CYCLE, Step.STOPPING), ANEW, Act.NOTHING, Step.DONE),  # the guest, or somebody, was quicker
    # shut down, moved and started
    (entry(Way.MOVE, Step.STOPPING), OFF, Act.MOVE, Step.MOVING),
    (entry(Way.MOVE, Step.MOVING), OFF, Act.MOVE, Step.MOVING),
    (entry(Way.MOVE, Step.MOVING), ANEW, Act.SHUT_DOWN, Step.ASKING),
    (entry(Way.MOVE, Step.MOVING), away(OFF), Act.CREATE, Step.STARTING),
    (entry(Way.MOVE, Step.STARTING), away(RUNNING), Act.NOTHING, Step.DONE),
    (entry(Way.MOVE, Step.MOVING, instance=-1), away(OFF), Act.NOTHING, Step.DONE),  # it was off before
    # migrated
    (entry(Way.MIGRATE, Step.MIGRATING), BUSY, Act.WAIT, None),
    (entry(Way.MIGRATE, Step.MIGRATING, 1800), BUSY, Act.GIVE_UP, None),
    (entry(Way.MIGRATE, Step.MIGRATING), RUNNING, Act.FAIL, Step.INTERRUPTED),
    (entry(Way.MIGRATE, Step.INTERRUPTED), RUNNING, Act.MIGRATE, Step.MIGRATING),
    (entry(Way.MIGRATE, Step.MIGRATING), away(ANEW), Act.NOTHING, Step.DONE),
    (entry(Way.MIGRATE, Step.INTERRUPTED), away(ANEW), Act.NOTHING, Step.DONE),
    (entry(Way.MIGRATE, Step.MIGRATING), OFF, Act.NOTHING, Step.DONE),
]


@pytest.mark.parametrize(("begun", "sight", "act", "step"), NEXT)
def test_it_goes_on_from_every_step(begun: Entry, sight: Sight, act: Act, step: Step | None) -> None:
    assert told(decide("k3", Way.STOP, begun, sight, NOW, TERMS)) == (act, step)


def test_a_migration_is_not_begun_for_ever() -> None:
    begun: Entry | None = None
    tries = []
    while (decision := decide("k3", Way.MIGRATE, begun, RUNNING, NOW, TERMS)).before is not None:
        begun = decision.before
        tries.append((begun.step, begun.tries))
    assert decision == Decision(act=Act.FAIL)
    numbers = range(1, TERMS.migrations_max + 1)
    assert tries == [(step, number) for number in numbers for step in (Step.MIGRATING, Step.INTERRUPTED)]


@pytest.mark.parametrize(("way", "step"), list(product(Way, (Step.DONE, Step.ABORTED))))
def test_what_is_over_stays_so(way: Way, step: Step) -> None:
    for sight in (RUNNING, PAUSED, OFF, ANEW, BUSY, away(OFF)):
        assert decide("k3", way, entry(way, step), sight, NOW, TERMS) == Decision(act=Act.NOTHING)
        assert decide_abort(entry(way, step), sight) == Decision(act=Act.NOTHING)


def test_the_way_that_was_begun_is_gone_to_its_end_whatever_the_settings_say_now() -> None:
    begun = entry(Way.SUSPEND, Step.SUSPENDED, 9)
    assert decide("k3", Way.MIGRATE, begun, PAUSED, NOW, TERMS).act is Act.RESUME


def test_nothing_is_waited_for_longer_than_it_may_take() -> None:
    late = decide("k3", Way.CYCLE, entry(Way.CYCLE, Step.STOPPING, 119.5), RUNNING, NOW, TERMS)
    assert late.until == NOW + timedelta(seconds=0.5)
    early = decide("k3", Way.CYCLE, entry(Way.CYCLE, Step.STOPPING, 1), RUNNING, NOW, TERMS)
    assert early.until == NOW + TERMS.look_every
    paused = decide("k3", Way.SUSPEND, entry(Way.SUSPEND, Step.SUSPENDED, 1), PAUSED, NOW, TERMS)
    assert paused.until == NOW + timedelta(seconds=4)


@pytest.mark.parametrize(
    ("begun", "sight", "paused_s"),
    [
        (entry(Way.SUSPEND, Step.RESUMING, 5.25), RUNNING, 5.25),
        (entry(Way.SUSPEND, Step.SUSPENDED, 3600), RUNNING, 5.0),  # somebody resumed it while nobody looked
        (entry(Way.SUSPEND, Step.SUSPENDED, 2), RUNNING, 2.0),
        (entry(Way.CYCLE, Step.STARTING, 42), ANEW, 42.0),
        (entry(Way.MOVE, Step.STARTING, 42), away(ANEW), 42.0),
        (entry(Way.STOP, Step.STOPPING, 42), OFF, None),
        (entry(Way.MIGRATE, Step.MIGRATING, 42), away(ANEW), None),  # libvirt has measured that
    ],
)
def test_how_long_it_was_away_is_noted_at_the_end(begun: Entry, sight: Sight, paused_s: float | None) -> None:
    decision = decide("k3", Way.STOP, begun, sight, NOW, TERMS)
    assert decision.before is not None
    assert decision.before.paused_s == paused_s


def test_no_interruption_is_none() -> None:
    """R39: a duration of 0."""
    decision = decide("k3", Way.SUSPEND, None, RUNNING, NOW, replace(TERMS, freeze=timedelta(0)))
    assert told(decision) == (Act.NOTHING, Step.DONE)


ABORTS = [
    (entry(Way.SUSPEND, Step.SUSPENDED), PAUSED, Act.RESUME),
    (entry(Way.SUSPEND, Step.SUSPENDING), RUNNING, Act.NOTHING),
    (entry(Way.SUSPEND, Step.SUSPENDED), replace(PAUSED, instance=8), Act.NOTHING),  # somebody else's pause
    (entry(Way.MIGRATE, Step.MIGRATING), BUSY, Act.GIVE_UP),
    (entry(Way.MIGRATE, Step.MIGRATING), RUNNING, Act.NOTHING),
    (entry(Way.CYCLE, Step.STOPPING), OFF, Act.CREATE),
    (entry(Way.CYCLE, Step.STOPPING), RUNNING, Act.NOTHING),
    (entry(Way.MOVE, Step.MOVING), away(OFF), Act.CREATE),
    (entry(Way.MOVE, Step.MOVING, instance=-1), OFF, Act.NOTHING),  # it was off before
    (entry(Way.STOP, Step.STOPPING), OFF, Act.NOTHING),
]


@pytest.mark.parametrize(("begun", "sight", "act"), ABORTS)
def test_an_abort_brings_back_what_would_stay_away(begun: Entry, sight: Sight, act: Act) -> None:
    decision = decide_abort(begun, sight)
    assert decision.act is act
    noted = decision.after or decision.before
    assert noted is not None
    assert noted.step is Step.ABORTED


def test_where_nothing_was_begun_there_is_nothing_to_abort() -> None:
    for sight in (RUNNING, PAUSED, OFF, away(OFF)):
        assert decide_abort(None, sight) == Decision(act=Act.NOTHING)


@pytest.mark.parametrize(
    ("impact", "at_home", "with_destination"),
    [
        (EventType.FREEZE, Way.SUSPEND, Way.MIGRATE),
        (EventType.REBOOT, Way.CYCLE, Way.CYCLE),
        (EventType.REDEPLOY, Way.CYCLE, Way.MOVE),
        (EventType.PREEMPT, Way.STOP, Way.STOP),
        (EventType.TERMINATE, Way.STOP, Way.STOP),
    ],
)
def test_what_is_done_follows_from_the_impact(impact: EventType, at_home: Way, with_destination: Way) -> None:
    assert way_of(impact, has_destination=False) is at_home
    assert way_of(impact, has_destination=True) is with_destination


# The record


@given(
    st.builds(
        Entry,
        id=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40).map(
            lambda text: "".join(text.split()) or "x"
        ),
        way=st.sampled_from(Way),
        step=st.sampled_from(Step),
        since=st.datetimes(timezones=st.just(UTC)),
        instance=st.integers(-1, 2**31),
        paused_s=st.none() | st.integers(0, 10**9).map(lambda ms: ms / 1000),
    )
)
def test_a_record_is_read_as_it_was_written(written: Entry) -> None:
    assert decode_entry(encode_entry(written)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<maintenance/>",
        "<maintenance",
        encode_entry(entry(Way.STOP, Step.DONE)).replace("stop", "fly"),
        encode_entry(entry(Way.STOP, Step.DONE)).replace('instance="7"', 'instance="x"'),
        encode_entry(entry(Way.STOP, Step.DONE)).replace("2026-", "x"),
        encode_entry(replace(entry(Way.STOP, Step.DONE), paused_s=1.0)).replace("1.000", "nan"),
    ],
)
def test_a_record_that_somebody_has_changed_is_an_error_in_a_line(text: str) -> None:
    with pytest.raises(ActuatorError, match="record in the metadata") as caught:
        decode_entry(text)
    assert caught.value.message.isprintable()


def test_records_that_are_over_are_found_the_oldest_first() -> None:
    def element(id_: str, step: Step, ago_s: float) -> str:
        text = encode_entry(replace(entry(Way.STOP, step, ago_s), id=id_))
        return text.replace("<maintenance", f'<f:maintenance xmlns:f="{namespace_of(id_)}"')

    metadata = element("new", Step.DONE, 1) + element("under-way", Step.STOPPING, 9) + element("old", Step.ABORTED, 5)
    other = '<o:maintenance xmlns:o="urn:other" step="done"/>'
    xml = f"<domain><metadata>{metadata}{other}</metadata></domain>"
    assert ended_namespaces(xml) == [namespace_of("old"), namespace_of("new")]
    assert ended_namespaces("<domain/>") == []
