"""What the hooks of an agent write down is read as steps."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.faultrun.agents import list_undone, read_steps

RECORD = """\
prepare begin E-1 1000.5
prepare begin E-1 1002.5
prepare end E-1 1003.0
recover begin E-1 1009.0
"""


def test_a_step_that_was_killed_has_no_end() -> None:
    first, again, recover = read_steps("vm-1", RECORD)
    assert (first.vm, first.name, first.event_id) == ("vm-1", "prepare", "E-1")
    assert first.begun_at == datetime.fromtimestamp(1000.5, UTC)
    assert first.ended_at == datetime.fromtimestamp(1003.0, UTC)
    assert again.ended_at is None
    assert recover.ended_at is None


def test_a_preparation_is_undone_when_its_recovery_has_ended() -> None:
    assert [step.event_id for step in list_undone(read_steps("vm-1", RECORD))] == ["E-1"]
    assert list_undone(read_steps("vm-1", RECORD + "recover end E-1 1009.5\n")) == []
