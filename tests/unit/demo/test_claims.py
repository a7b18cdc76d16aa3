from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.demo.act_record import ActRecord, DemoFailed, SentApproval, WatchedEntry
from forewarn.demo.claims import ANNOUNCED, UNANNOUNCED, find_broken_claim
from tests.unit.demo.builders import DB, WEST_0, WEST_1, after, event, id_of, migration, sighting


def test_an_act_that_went_well_breaks_no_claim() -> None:
    assert find_broken_claim(ANNOUNCED, migration()) is None


def test_a_start_before_the_last_approval_in_the_audit_log_is_a_fault() -> None:
    record = ActRecord()
    record.add_observation(WatchedEntry(at=after(0), sequence=1, kind="scheduled"))
    record.add_observation(WatchedEntry(at=after(1), sequence=2, kind="approved", vm="WestNO_0"))
    record.add_observation(WatchedEntry(at=after(1), sequence=3, kind="started"))
    assert find_broken_claim(ANNOUNCED, record) == "the maintenance started when 1 of 3 had approved"


def test_a_started_event_before_the_last_approval_was_sent_is_a_fault() -> None:
    record = ActRecord()
    record.add_observation(SentApproval(at=after(1), vm=WEST_0))
    record.add_observation(sighting(DB, 1.1, 3, "Started"))
    assert find_broken_claim(ANNOUNCED, record) == "db saw its event Started when 1 of 3 had approved"


def test_a_start_only_at_notbefore_is_a_fault() -> None:
    record = migration()
    record.entries = [replace(e, at=after(901)) if e.kind == "started" else e for e in record.entries]
    assert find_broken_claim(ANNOUNCED, record) == "the maintenance waited for NotBefore, although all had approved"


def test_a_scheduled_event_needs_a_notbefore() -> None:
    seen = sighting(DB, 0, 2, "Scheduled")
    record = ActRecord()
    record.add_observation(replace(seen, events=(replace(seen.events[0], not_before=None),)))
    assert find_broken_claim(ANNOUNCED, record) == "db saw a Scheduled event whose NotBefore is ''"


@pytest.mark.parametrize("foreign", ["WestNO_0", id_of(WEST_1)])
def test_a_trace_of_the_other_tenant_is_a_fault(foreign: str) -> None:
    record = ActRecord()
    record.add_observation(sighting(WEST_0, 0, 2, "Scheduled"))
    seen = sighting(DB, 0, 2, "Scheduled")
    record.add_observation(replace(seen, body=seen.body + foreign))
    assert find_broken_claim(ANNOUNCED, record) == f"db was shown {foreign} of the other tenant"


def test_a_vm_that_does_not_see_all_of_its_scope_is_a_fault() -> None:
    record = ActRecord()
    record.add_observation(replace(sighting(WEST_0, 0, 2, "Scheduled"), events=(event(WEST_0),)))
    assert find_broken_claim(ANNOUNCED, record) == "WestNO_0 was not shown the event of WestNO_1 in its own scope"


def test_a_started_event_with_a_notbefore_is_a_fault() -> None:
    seen = sighting(DB, 0, 5, "Started", "Reboot")
    record = ActRecord()
    record.add_observation(replace(seen, events=(replace(seen.events[0], not_before=after(1)),)))
    assert find_broken_claim(UNANNOUNCED, record) == "db saw a Started event that still had a NotBefore"


def test_a_skipped_incarnation_is_a_fault() -> None:
    record = ActRecord()
    record.add_observation(sighting(WEST_1, 0, 5, "Started", "Reboot"))
    record.add_observation(sighting(WEST_1, 3, 7))
    assert find_broken_claim(UNANNOUNCED, record) == "WestNO_1 saw incarnation 7 after 5"


def test_a_failure_that_is_announced_is_a_fault() -> None:
    record = ActRecord()
    record.add_observation(sighting(DB, 0, 5, "Scheduled", "Reboot"))
    assert find_broken_claim(UNANNOUNCED, record) == "db saw an event of the failed host that had not started"


def test_a_record_raises_as_soon_as_a_claim_is_broken() -> None:
    record = ActRecord(check=lambda r: find_broken_claim(UNANNOUNCED, r))
    with pytest.raises(DemoFailed, match="had not started"):
        record.add_observation(sighting(DB, 0, 5, "Scheduled", "Reboot"))
