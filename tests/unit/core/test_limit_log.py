"""Who met a limit of the metadata endpoint, and how many of them are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from forewarn.core.limit_log import CallerKind, CallerLimitHits, LimitLog

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def names(log: LimitLog, guest: CallerKind) -> list[str]:
    return [met.name for met in log if met.guest is guest]


def test_refusals_are_counted_by_limit_with_the_time_of_the_last() -> None:
    log = LimitLog()
    log.count_refusal(CallerKind.VM, "a", "x_max", NOW)
    log.count_refusal(CallerKind.VM, "a", "y_max", NOW)
    log.count_refusal(CallerKind.VM, "a", "x_max", NOW + timedelta(seconds=1))
    expected = CallerLimitHits(
        guest=CallerKind.VM, name="a", limited={"x_max": 2, "y_max": 1}, limited_at=NOW + timedelta(seconds=1)
    )
    assert list(log) == [expected]


def test_a_vm_and_an_address_of_the_same_name_are_two_callers() -> None:
    log = LimitLog()
    log.count_refusal(CallerKind.VM, "10.0.0.1", "x_max", NOW)
    log.count_refusal(CallerKind.ADDRESS, "10.0.0.1", "x_max", NOW)
    assert [met.guest for met in log] == [CallerKind.VM, CallerKind.ADDRESS]


def test_those_that_met_a_limit_longest_ago_are_dropped_first() -> None:
    log = LimitLog()
    for number in range(1000):
        log.count_refusal(CallerKind.VM, f"vm-{number}", "x_max", NOW)
    log.count_refusal(CallerKind.VM, "vm-0", "x_max", NOW)
    log.count_refusal(CallerKind.VM, "new", "x_max", NOW)
    kept = names(log, CallerKind.VM)
    assert len(kept) == 1000
    assert "vm-1" not in kept
    assert kept[-2:] == ["vm-0", "new"]


def test_any_number_of_addresses_pushes_out_no_vm() -> None:
    log = LimitLog()
    log.count_refusal(CallerKind.VM, "a", "x_max", NOW)
    for number in range(5000):
        log.count_refusal(CallerKind.ADDRESS, f"fd00::{number:x}", "x_max", NOW)
    assert names(log, CallerKind.VM) == ["a"]
    assert len(names(log, CallerKind.ADDRESS)) == 100


def test_what_is_taken_is_added_to_another_log_once() -> None:
    child, parent = LimitLog(), LimitLog()
    for _ in range(2):
        child.count_refusal(CallerKind.VM, "a", "x_max", NOW)
        parent.add_counts(child.take_counts())
        parent.add_counts(child.take_counts())
    assert list(child) == []
    assert [(met.name, met.limited) for met in parent] == [("a", {"x_max": 2})]
