"""Requests of several processes in one journal."""

from __future__ import annotations

from datetime import timedelta

from forewarn.endpoint.journal_merge import JournalMerge
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.wire.exchange import Exchange
from tests.support.world import NOW


def request(number: int, at_s: float) -> Exchange:
    return Exchange(
        number=number,
        at=NOW + timedelta(seconds=at_s),
        vm=f"vm-{number}",
        source_address="",
        method="GET",
        target="/",
        headers=(),
        status=200,
        answer=b"",
    )


def make(requests_max: int = 100, processes: int = 2) -> tuple[RequestJournal, JournalMerge]:
    journal = RequestJournal(lambda: NOW, requests_max)
    merge = JournalMerge(journal, requests_max)
    for process in range(processes):
        merge.begin(process, 0)
    return journal, merge


def seconds(journal: RequestJournal) -> list[tuple[int, float]]:
    return [(each.number, (each.at - NOW).total_seconds()) for each in journal.list_exchanges()]


def test_requests_are_numbered_in_the_order_of_time() -> None:
    journal, merge = make()
    merge.add(0, [request(1, 1), request(2, 4)])
    merge.add(1, [request(1, 2), request(2, 3)])
    merge.merge(NOW + timedelta(seconds=5))
    assert seconds(journal) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]


def test_a_request_after_the_question_waits_for_the_next_one() -> None:
    journal, merge = make()
    merge.add(0, [request(1, 1), request(2, 6)])
    merge.merge(NOW + timedelta(seconds=5))
    assert seconds(journal) == [(1, 1.0)]
    merge.add(1, [request(1, 5.5)])
    merge.merge(NOW + timedelta(seconds=8))
    assert seconds(journal) == [(1, 1.0), (2, 5.5), (3, 6.0)]


def test_a_request_waits_once_at_most_even_if_the_clock_is_set_back() -> None:
    journal, merge = make()
    merge.add(0, [request(1, 3600)])
    merge.merge(NOW)
    assert seconds(journal) == []
    merge.merge(NOW + timedelta(seconds=1))
    assert seconds(journal) == [(1, 3600.0)]


def test_a_request_that_arrives_twice_is_recorded_once() -> None:
    journal, merge = make()
    merge.add(0, [request(1, 1)])
    merge.add(0, [request(1, 1), request(2, 2)])
    merge.merge(NOW + timedelta(seconds=5))
    assert seconds(journal) == [(1, 1.0), (2, 2.0)]
    assert merge.get_newest(0) == 2


def test_requests_that_a_process_has_dropped_leave_a_gap() -> None:
    journal, merge = make(processes=1)
    merge.add(0, [request(1, 1)])
    merge.merge(NOW + timedelta(seconds=5))
    merge.add(0, [request(4, 6)])
    merge.merge(NOW + timedelta(seconds=9))
    assert seconds(journal) == [(1, 1.0), (4, 6.0)]


def test_no_more_requests_wait_than_the_journal_may_keep() -> None:
    journal, merge = make(requests_max=3)
    merge.add(0, [request(number, number) for number in range(1, 101)])
    merge.merge(NOW + timedelta(hours=1))
    assert seconds(journal) == [(98, 98.0), (99, 99.0), (100, 100.0)]


def test_a_new_process_numbers_from_where_it_is_said_to() -> None:
    journal, merge = make()
    merge.add(0, [request(1, 1)])
    merge.merge(NOW + timedelta(seconds=2))
    merge.begin(0, journal.newest_number)
    merge.add(0, [request(2, 3)])
    merge.merge(NOW + timedelta(seconds=4))
    assert seconds(journal) == [(1, 1.0), (2, 3.0)]
