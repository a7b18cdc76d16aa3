"""Calls that were refused are counted by address, told up to a limit, and summed up beyond it."""

from __future__ import annotations

import pytest

from forewarn.auth.refusal_counter import RefusalCounter
from forewarn.core.model import AuditEntry, EntryKind
from tests.support.world import NOW


def make(**limits: int) -> RefusalCounter:
    return RefusalCounter(
        **({"failures_max": 3, "entries_max": 2, "entries_total_max": 100, "addresses_max": 4} | limits)
    )


def call(address: str | None = "192.0.2.1") -> AuditEntry:
    return AuditEntry(kind=EntryKind.REFUSED, at=NOW, actor="unknown", source_address=address, reason="GET /v1/vms: no")


def test_after_so_many_failures_an_address_has_to_wait_for_the_end_of_its_minute() -> None:
    refusals = make()
    assert [refusals.count_failure("192.0.2.1", 10.0) for _ in range(3)] == [None] * 3
    assert refusals.count_failure("192.0.2.1", 30.0) == 40.0
    assert refusals.count_failure("192.0.2.2", 30.0) is None
    assert refusals.count_failure("192.0.2.1", 70.0) is None


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::1%eth1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "", True),
    ],
)
def test_what_one_customer_has_is_one_address(one: str, other: str, *, is_same: bool) -> None:
    refusals = make(failures_max=1)
    assert refusals.count_failure(one, 0.0) is None
    assert (refusals.count_failure(other, 0.0) is not None) is is_same


def test_what_is_not_told_is_summed_up_when_the_minute_is_over() -> None:
    refusals = make()
    assert [refusals.filter_entry(call(), 0.0) is not None for _ in range(5)] == [True, True, False, False, False]
    assert refusals.next_summary_s() == 60.0
    assert refusals.collect_summaries(NOW, 59.9) == []
    (entry,) = refusals.collect_summaries(NOW, 60.0)
    assert (entry.reason, entry.source_address, entry.kind) == ("3 more within a minute", "192.0.2.1", "refused")
    assert refusals.next_summary_s() is None
    assert len(refusals) == 0


def test_a_new_minute_tells_what_the_one_before_left_out() -> None:
    refusals = make()
    for _ in range(3):
        refusals.filter_entry(call(), 0.0)
    assert refusals.filter_entry(call(), 61.0) is not None
    assert [entry.reason for entry in refusals.collect_summaries(NOW, 61.0)] == ["1 more within a minute"]


def test_all_addresses_together_have_a_limit_too() -> None:
    refusals = make(entries_total_max=3, addresses_max=100)
    told = [refusals.filter_entry(call(f"192.0.2.{n}"), 0.0) is not None for n in range(10)]
    assert told == [True] * 3 + [False] * 7
    assert len(refusals.collect_summaries(NOW, 0.0, is_end=True)) == 7


def test_the_table_of_addresses_is_bounded_and_what_made_room_is_told_without_a_name() -> None:
    refusals = make(addresses_max=4, entries_max=1)
    for n in range(1000):
        refusals.filter_entry(call(f"10.0.{n // 250}.{n % 250}"), 0.0)
        refusals.filter_entry(call(f"10.0.{n // 250}.{n % 250}"), 0.0)
        assert len(refusals) <= 4
    found = refusals.collect_summaries(NOW, 1.0, is_end=True)
    assert len(found) <= 5
    assert sum(int(str(entry.reason).split()[0]) for entry in found) >= 1000
    assert "from several addresses" in str(found[0].reason)
    assert found[0].source_address is None
