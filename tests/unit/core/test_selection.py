"""What a selection takes, and whether a store must scan for it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.core.model import EntryKind, EventSource, EventType, MaintenanceState
from forewarn.core.selection import EVERYTHING, Selection, to_ascii_lower
from tests.support.world import NOW
from tests.unit.core.builders import maintenance, vm

S, K = MaintenanceState, EntryKind
SECOND = timedelta(seconds=1)


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


def test_only_ascii_letters_lose_their_case() -> None:
    assert to_ascii_lower("Kernel ÄÖ") == "kernel ÄÖ"
