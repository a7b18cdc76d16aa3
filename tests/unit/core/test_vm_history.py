"""What a maintenance was to one VM, and what a selection takes of its events."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from forewarn.core.model import AuditEntry, EntryKind, MaintenanceState
from forewarn.core.selection import Selection, matches_event, to_ascii_lower
from forewarn.core.vm_history import RecordedApproval, build_history_item
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, maintenance, vm

K = EntryKind
DONE = replace(
    maintenance(vm("db"), vm("web-0", scope="web"), not_before=NOW + minutes(20), state=MaintenanceState.COMPLETED),
    started_at=NOW + minutes(6),
    ended_at=NOW + minutes(9),
)
MINE = replace(an_event("db", id="E-1"), approved_at=NOW + minutes(6), approved_by="vm:db")
THEIRS = an_event("web-0", id="E-2", sequence=2)


def note(kind: EntryKind, minute: int, actor: str = "forewarn", **about: str) -> AuditEntry:
    return AuditEntry(kind=kind, at=NOW + minutes(minute), actor=actor, maintenance_id=DONE.id, **about)  # type: ignore[arg-type] # names of fields that are text


def test_everything_that_was_written_down_is_told() -> None:
    entries = [
        note(K.QUEUED, 0, "operator:ann"),
        note(K.SCHEDULED, 5),
        note(K.APPROVED, 6, "vm:db", event_id="E-1", source_address="10.0.0.1", api_version="2020-07-01"),
        note(K.STARTED, 6, reason="the owner agreed"),
        note(K.IMPACTED, 7),
        note(K.IMPACTED, 8),
        note(K.IMPACT_MEASURED, 8, reason="the impact lasted 4.2 s; announced duration: 9 s"),
        note(K.COMPLETED, 9, reason="at last"),
    ]
    told = build_history_item("db", DONE, [MINE, THEIRS], entries)
    assert told.requested_by == "operator:ann"
    assert told.announced_at == NOW + minutes(5)
    assert told.notice == timedelta(minutes=15)
    assert told.event == MINE
    assert told.approved == RecordedApproval(
        at=NOW + minutes(6), by="vm:db", source_address="10.0.0.1", api_version="2020-07-01"
    )
    assert (told.others_pending, told.start_reason) == (1, "the owner agreed")
    assert (told.impact_s, told.further_impacts, told.outcome_reason) == (4.2, 1, "at last")


def test_what_nobody_wrote_down_is_not_made_up() -> None:
    told = build_history_item("db", DONE, [], [])
    assert (told.event, told.announced_at, told.notice, told.approved) == (None, None, None, None)
    assert (told.requested_by, told.impact_s, told.outcome_reason) == (None, None, None)


def test_what_strikes_at_once_is_announced_by_its_start_and_has_no_notice() -> None:
    """R73."""
    told = build_history_item("db", DONE, [MINE], [note(K.STARTED, 3, "operator:ann", reason="the fan broke")])
    assert (told.announced_at, told.notice, told.start_reason) == (NOW + minutes(3), None, None)


def test_of_a_maintenance_of_many_only_the_events_of_the_place_are_taken() -> None:
    assert matches_event(Selection(vm="db"), MINE, DONE)
    assert not matches_event(Selection(vm="db"), THEIRS, DONE)
    assert matches_event(Selection(scope="web"), THEIRS, DONE)
    assert matches_event(Selection(host="host-1"), THEIRS, DONE)
    assert matches_event(Selection(), THEIRS, DONE)


def test_only_ascii_has_small_letters_that_count() -> None:
    assert to_ascii_lower("ÄB%_") == "Äb%_"
