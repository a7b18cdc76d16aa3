from __future__ import annotations

import pytest

from forewarn.demo.act_record import ActRecord, WatchedEntry
from forewarn.demo.sentences import describe_approval, describe_sighting, format_not_before, join_names
from tests.unit.demo.builders import DB, NOT_BEFORE, T0, WEST_0, WEST_1, sighting


def test_the_first_answer_has_no_events() -> None:
    assert describe_sighting(sighting(DB, 0, 1), None) == "asks for the first time: incarnation 1, no events"


def test_a_vm_of_a_set_tells_of_every_event_of_the_set() -> None:
    told = describe_sighting(sighting(WEST_1, 1, 2, "Scheduled"), sighting(WEST_1, 0, 1))
    assert told.splitlines() == [
        "sees incarnation 2: the events of all of web",
        "  Freeze of WestNO_0 Scheduled, NotBefore 12:15:01",
        "  Freeze of WestNO_1 Scheduled, NotBefore 12:15:01",
        "drains for 2 s before it approves",
    ]


def test_who_approves_at_once_prepares_nothing() -> None:
    told = describe_sighting(sighting(WEST_0, 1, 2, "Scheduled"), sighting(WEST_0, 0, 1))
    assert "before it approves" not in told


def test_a_standalone_vm_tells_of_its_own_event() -> None:
    told = describe_sighting(sighting(DB, 1, 2, "Scheduled"), sighting(DB, 0, 1))
    assert told.splitlines()[:2] == [
        "sees incarnation 2 at once: its own event",
        "  Freeze of db Scheduled, NotBefore 12:15:01",
    ]


def test_a_start_is_told_in_one_row() -> None:
    told = describe_sighting(sighting(WEST_0, 2, 3, "Started"), sighting(WEST_0, 1, 2, "Scheduled"))
    assert told == 'sees incarnation 3: Started, NotBefore ""'


def test_an_event_that_has_started_when_first_seen_leaves_nothing_to_approve() -> None:
    told = describe_sighting(sighting(DB, 2, 5, "Started", "Reboot"), sighting(DB, 1, 4))
    assert told.splitlines()[1:] == ['  Reboot of db Started, NotBefore ""', "there is nothing to approve"]


def test_a_vm_recovers_when_its_event_is_gone() -> None:
    told = describe_sighting(sighting(DB, 2, 4), sighting(DB, 1, 3, "Started"))
    assert told == "sees incarnation 4 at once: event gone, resumes"


def test_the_platform_names_whom_it_waits_for() -> None:
    record = ActRecord()
    told = []
    for sequence, name in enumerate(("WestNO_0", "db", "WestNO_1")):
        record.add_observation(WatchedEntry(at=T0, sequence=sequence, kind="approved", vm=name))
        told.append(describe_approval(name, record))
    assert told == [
        "WestNO_0 has approved; waits for WestNO_1 and db",
        "db has approved; waits for WestNO_1",
        "WestNO_1 has approved; all VMs have approved",
    ]


@pytest.mark.parametrize(("names", "said"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_names_are_enumerated_as_people_do(names: list[str], said: str) -> None:
    assert join_names(names) == said


def test_notbefore_is_shown_as_time_of_day() -> None:
    assert format_not_before(NOT_BEFORE) == "12:15:01"
    assert format_not_before(None) == '""'
