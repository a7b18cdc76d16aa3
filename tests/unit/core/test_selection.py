"""What a selection takes, and whether a store must scan for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.model import AuditEntry, EntryKind, EventSource, EventType, MaintenanceState
from forewarn.core.selection import (
    EVERYTHING,
    Selection,
    matches_entry,
    matches_event,
    matches_maintenance,
    to_ascii_lower,
)
from tests.support.world import NOW
from tests.unit.core.builders import an_event, maintenance, vm

S, K = MaintenanceState, EntryKind
SECOND = timedelta(seconds=1)

# A freeze by the platform of VM a of scope web on host h, which Ann has cancelled.
M = replace(
    maintenance(vm("a", scope="web", host="h"), id="m", state=S.CANCELED),
    description="New kernel",
    force_reason="A leak",
)
ENTRY = AuditEntry(
    kind=K.CANCELED, at=NOW, actor="operator:ann", maintenance_id="m", audience="scope:db", vm="c", reason="Too late"
)
TAKEN_WITH_ITS_MAINTENANCE = [
    EVERYTHING,
    Selection(since=NOW),
    Selection(until=NOW + SECOND),
    Selection(maintenance_id="m"),
    Selection(kinds=(K.STARTED, K.CANCELED)),
    Selection(actor="operator:ann"),
    Selection(kinds=(K.CANCELED,), actor="operator:ann"),
    Selection(states=(S.STARTED, S.CANCELED)),
    Selection(type=EventType.FREEZE),
    Selection(source=EventSource.PLATFORM),
    Selection(vm="a"),
    Selection(scope="web"),
    Selection(host="h"),
    Selection(vm="a", scope="web", host="h"),
]
LEFT_WITH_ITS_MAINTENANCE = [
    Selection(since=NOW + SECOND),
    Selection(until=NOW),
    Selection(maintenance_id="n"),
    Selection(kinds=(K.STARTED, K.FAILED)),
    Selection(actor="operator:bob"),
    Selection(kinds=(K.CANCELED,), actor="operator:bob"),
    Selection(kinds=(K.STARTED,), actor="operator:ann"),
    Selection(states=(S.STARTED, S.COMPLETED)),
    Selection(type=EventType.REBOOT),
    Selection(source=EventSource.USER),
    Selection(vm="b"),
    Selection(scope="fleet"),
    Selection(host="i"),
    Selection(vm="a", scope="web", host="i"),
    Selection(text="rack"),
]


@pytest.mark.parametrize(
    ("selection", "has_place", "is_narrow"),
    [
        (EVERYTHING, False, False),
        (Selection(vm="a"), True, True),
        (Selection(scope="web"), True, True),
        (Selection(host="h"), True, True),
        (Selection(maintenance_id="m"), False, True),
        (Selection(actor="operator:ann"), False, False),
    ],
)
def test_a_place_or_a_maintenance_makes_it_narrow(selection: Selection, has_place: bool, is_narrow: bool) -> None:
    assert (selection.has_place, selection.is_narrow) == (has_place, is_narrow)


@pytest.mark.parametrize(
    ("selection", "must_scan"),
    [
        (EVERYTHING, False),
        (Selection(kinds=(K.STARTED,)), False),
        (Selection(actor="operator:ann"), False),
        (Selection(kinds=(K.STARTED,), actor="operator:ann"), True),
        (Selection(kinds=(K.STARTED, K.FAILED)), True),
        (Selection(kinds=(K.STARTED, K.FAILED), vm="a"), False),
        (Selection(text="kernel"), True),
        (Selection(type=EventType.REBOOT), True),
        (Selection(source=EventSource.USER), True),
        (Selection(states=(S.STARTED,)), True),
        (Selection(text="kernel", maintenance_id="m"), False),
    ],
)
def test_entries_are_scanned_unless_one_index_finds_them(selection: Selection, must_scan: bool) -> None:
    assert selection.must_scan_entries is must_scan


@pytest.mark.parametrize(
    ("selection", "must_scan"),
    [
        (EVERYTHING, False),
        (Selection(states=(S.COMPLETED,)), False),
        (Selection(states=(S.SCHEDULED, S.STARTED)), False),
        (Selection(states=(S.SCHEDULED, S.COMPLETED)), True),
        (Selection(states=(S.SCHEDULED, S.COMPLETED), host="h"), False),
        (Selection(text="kernel"), True),
        (Selection(type=EventType.REBOOT), True),
        (Selection(source=EventSource.USER), True),
        (Selection(actor="operator:ann"), True),
        (Selection(kinds=(K.STARTED,)), True),
        (Selection(kinds=(K.STARTED,), maintenance_id="m"), False),
    ],
)
def test_maintenances_are_scanned_unless_one_index_finds_them(selection: Selection, must_scan: bool) -> None:
    assert selection.must_scan_maintenances is must_scan


def test_a_period_includes_its_start_and_excludes_its_end() -> None:
    period = Selection(since=NOW, until=NOW + SECOND)
    moments = (NOW - SECOND, NOW, NOW + SECOND / 2, NOW + SECOND)
    assert [period.matches_time(moment) for moment in moments] == [False, True, True, False]
    assert Selection(since=NOW).matches_time(NOW)
    assert not Selection(until=NOW).matches_time(NOW)


@pytest.mark.parametrize(
    ("selection", "matches"),
    [
        (EVERYTHING, True),
        (Selection(vm="a", scope="web", host="h"), True),
        (Selection(vm="b", scope="web", host="h"), False),
        (Selection(vm="a", scope="db", host="h"), False),
        (Selection(vm="a", scope="web", host="i"), False),
    ],
)
def test_every_named_place_must_be_that_of_the_claim(selection: Selection, matches: bool) -> None:
    (claim,) = maintenance(vm("a", scope="web", host="h")).claims
    assert selection.matches_claim(claim) is matches


@pytest.mark.parametrize("selection", [*TAKEN_WITH_ITS_MAINTENANCE, Selection(text="TOO LATE")])
def test_an_entry_is_taken_if_every_field_matches(selection: Selection) -> None:
    assert matches_entry(selection, ENTRY, M)


@pytest.mark.parametrize("selection", [*LEFT_WITH_ITS_MAINTENANCE, Selection(text="kernel")])
def test_an_entry_is_left_if_a_field_does_not_match(selection: Selection) -> None:
    assert not matches_entry(selection, ENTRY, M)


@pytest.mark.parametrize(
    "selection", [*TAKEN_WITH_ITS_MAINTENANCE, Selection(text="KERNEL"), Selection(text="a leak", vm="a")]
)
def test_a_maintenance_is_taken_if_every_field_matches(selection: Selection) -> None:
    assert matches_maintenance(selection, M, [ENTRY])


@pytest.mark.parametrize("selection", [*LEFT_WITH_ITS_MAINTENANCE, Selection(text="too late")])
def test_a_maintenance_is_left_if_a_field_does_not_match(selection: Selection) -> None:
    assert not matches_maintenance(selection, M, [ENTRY])


def test_a_maintenance_is_taken_for_one_entry_of_the_kind_and_the_actor() -> None:
    selection = Selection(kinds=(K.SCHEDULED,), actor="operator:ann")
    by_bob = replace(ENTRY, kind=K.SCHEDULED, actor="operator:bob")
    assert not matches_maintenance(selection, M, [ENTRY, by_bob])
    assert matches_maintenance(selection, M, [by_bob, replace(ENTRY, kind=K.SCHEDULED)])


@pytest.mark.parametrize(
    ("selection", "matches"),
    [
        (Selection(vm="a"), True),
        (Selection(vm="c"), True),
        (Selection(vm="b"), False),
        (Selection(scope="web"), True),
        (Selection(scope="db"), True),
        (Selection(scope="fleet"), False),
        (Selection(vm="c", scope="db"), True),
        (Selection(vm="c", scope="web"), False),
        (Selection(vm="b", scope="db"), False),
        (Selection(vm="c", host="h"), False),
    ],
)
def test_an_entry_is_at_the_place_of_its_claims_or_at_its_own(selection: Selection, matches: bool) -> None:
    assert matches_entry(selection, ENTRY, M) is matches


def test_an_entry_is_at_its_audience() -> None:
    entry = replace(ENTRY, vm=None, audience="vm:c")
    assert matches_entry(Selection(vm="c"), entry, M)
    assert not matches_entry(Selection(vm="d"), entry, M)


@pytest.mark.parametrize(
    ("selection", "matches"),
    [
        (EVERYTHING, True),
        (Selection(vm="c"), True),
        (Selection(vm="a"), False),
        (Selection(states=(S.CANCELED,)), False),
        (Selection(type=EventType.FREEZE), False),
        (Selection(source=EventSource.PLATFORM), False),
    ],
)
def test_an_entry_without_a_maintenance_has_no_state_type_or_source(selection: Selection, matches: bool) -> None:
    assert matches_entry(selection, ENTRY, None) is matches


@pytest.mark.parametrize("selection", [Selection(text="too late"), Selection(text="")])
def test_an_entry_without_a_reason_contains_no_text(selection: Selection) -> None:
    assert not matches_entry(selection, replace(ENTRY, reason=None), M)


@pytest.mark.parametrize(
    ("selection", "matches"),
    [
        (EVERYTHING, True),
        (Selection(type=EventType.REBOOT), True),  # whether its maintenance is taken is another question
        (Selection(vm="a"), True),
        (Selection(vm="b"), False),
        (Selection(host="h"), True),
        (Selection(host="i"), False),
    ],
)
def test_an_event_is_taken_if_one_of_its_vms_is_at_the_place(selection: Selection, matches: bool) -> None:
    made = replace(M, claims=maintenance(vm("a", host="h"), vm("b", host="i")).claims)
    assert matches_event(selection, an_event("a", "z"), made) is matches


def test_only_ascii_letters_lose_their_case() -> None:
    assert to_ascii_lower("Kernel ÄÖ") == "kernel ÄÖ"
