"""The state as text. The file in which it is kept: tests/integration/test_agent_state."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.record import EventRecord, FinishedEvent, StepRunState
from forewarn.agent.rule import EventStep, Rule
from forewarn.agent.state import AgentState
from forewarn.wire.document import Event
from tests.support.records import DRAIN, NOW, InMemory, a_record, a_run, after

FINISHED = FinishedEvent(
    event=a_record().event,
    rule="db",
    outcome="recovered",
    seen_at=NOW,
    approved_at=None,
    started_at=after(minutes=15),
    gone_at=after(minutes=25),
    was_prepared=True,
)


def test_a_state_is_json_that_a_person_can_read() -> None:
    state = AgentState(vm="db", records=(a_record(runs={EventStep.PREPARE: StepRunState.DONE}),), finished=(FINISHED,))
    told = json.loads(encode_json(state))
    assert told["version"] == 1
    assert told["vm"] == "db"
    assert told["records"][0]["runs"]["prepare"]["state"] == "done"
    assert told["records"][0]["event"]["not_before"] == "2030-01-01T00:15:00Z"
    assert told["finished"][0]["outcome"] == "recovered"


moments = st.datetimes(timezones=st.just(NOW.tzinfo))
records = st.builds(
    lambda texts, duration_s, moment, memory, state: a_record(
        Rule(name=texts[0], prepare=(DRAIN,)),
        Event(id=texts[1], type=texts[2], status="Scheduled", not_before=moment, duration_s=duration_s),
        {EventStep.PREPARE: a_run(state, reason=texts[3], output=texts[0], ended_at=moment)},
        memory={"0": memory},
        started_at=moment,
    ),
    st.tuples(*[st.text(max_size=5)] * 4),
    st.integers(-1, 10**30),
    st.none() | moments,
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())),
    st.sampled_from(StepRunState),
)


@given(st.lists(records, max_size=3))
def test_whatever_is_remembered_reads_back(some: list[EventRecord]) -> None:
    state = AgentState(vm="db", records=tuple(some), finished=(FINISHED,))
    memory = InMemory()
    memory.save(state)
    assert memory.load() == state


@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 200))
def test_no_damage_is_taken_for_a_state(noise: bytes, place: int, length: int) -> None:
    """It is a state, or the error that `StateFile` waits for."""
    content = encode_json(AgentState(vm="db", records=(a_record(),), finished=(FINISHED,)))
    try:
        state = decode_json(content[:place] + noise + content[place + length :], AgentState)
    except ValueError:
        return
    assert isinstance(state, AgentState)


def test_a_state_of_another_form_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_json(b'{"version": "one"}', AgentState)
