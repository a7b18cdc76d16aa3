"""What a client is told that it should not rely on: one case for each row, and one that is told nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forewarn.wire import instance
from forewarn.wire.advice import ADVICE, find_advice, find_advice_for_all
from forewarn.wire.exchange import BODY_BYTES_MAX, Exchange

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name"
ONE, OTHER = (f"{letter * 8}-0000-0000-0000-000000000000" for letter in "AB")
SHOWN = f'{{"DocumentIncarnation":2,"Events":[{{"EventId":"{ONE}","EventStatus":"Scheduled"}}]}}'.encode()


def asked(**members: Any) -> Exchange:  # noqa: ANN401 - of an exchange
    given: dict[str, Any] = {
        "number": 1,
        "at": NOW,
        "vm": "vm-1",
        "source_address": "10.0.0.1",
        "method": "GET",
        "target": EVENTS,
        "headers": (("metadata", "true"),),
        "status": 200,
        "answer": SHOWN,
    }
    return Exchange(**(given | members))


def approved(*event_ids: str, **members: Any) -> Exchange:  # noqa: ANN401 - of an exchange
    body = ",".join(f'{{"EventId":"{event_id}"}}' for event_id in event_ids)
    given = {"method": "POST", "body": f'{{"StartRequests":[{body}]}}'.encode(), "answer": b""}
    return asked(**(given | members))


def codes(exchange: Exchange, *before: Exchange) -> set[str]:
    return {row.code for row in find_advice(exchange, before)}


CASES: dict[str, tuple[Exchange, tuple[Exchange, ...]]] = {
    "metadata-missing": (asked(headers=()), ()),
    "metadata-spelling": (asked(headers=(("metadata", " True"),)), ()),
    "version-missing": (asked(target="/metadata/scheduledevents", status=400), ()),
    "version-unknown": (asked(target=EVENTS[:-10] + "2021-02-01", status=400, answer=b"api-version is invalid"), ()),
    "instance-version": (asked(target=f"{NAME}?api-version=2017-07-01", answer=instance.VERSION_INVALID), ()),
    "instance-format": (asked(target=f"{NAME}?api-version=2021-02-01", answer=instance.LEAF_WITHOUT_TEXT), ()),
    "version-preview": (asked(target=EVENTS[:-10] + "2017-03-01"), ()),
    "version-old": (asked(target=EVENTS[:-10] + "2019-08-01"), ()),
    "path-latest": (asked(target="/metadata/latest/ScheduledEvents/?api-version=2020-07-01", status=404), ()),
    "proxy": (asked(headers=(("metadata", "true"), ("via", "1.1 squid"))), ()),
    "method": (asked(method="HEAD", status=405), ()),
    "parameter-repeated": (asked(target=EVENTS + "&api-version=2020-07-01", status=400), ()),
    "rate": (asked(), tuple(asked(at=NOW - timedelta(milliseconds=100 * n)) for n in range(5))),
    "unreadable": (asked(method="", target="", headers=(), status=400, answer=b""), ()),
    "body-malformed": (asked(method="POST", body=b"{}", status=400, answer=b"Bad request"), ()),
    "event-unknown": (approved(OTHER, status=400, answer=b"EventId is not known"), (asked(),)),
    "event-unseen": (approved(OTHER), (asked(),)),
    "event-started": (approved(ONE), (asked(answer=SHOWN.replace(b"Scheduled", b"Started")),)),
    "event-over": (approved(ONE), (asked(), asked(answer=b'{"DocumentIncarnation":3,"Events":[]}'))),
    "approval-repeated": (approved(ONE.lower()), (asked(), approved(ONE))),
    "incarnation-sent": (asked(method="POST", body=b'{"DocumentIncarnation":"5","StartRequests":[]}'), ()),
}


def test_there_is_a_case_for_each_row() -> None:
    assert list(CASES) == [row.code for row in ADVICE]


@pytest.mark.parametrize("code", CASES)
def test_a_client_is_told(code: str) -> None:
    exchange, before = CASES[code]
    assert code in codes(exchange, *before)


def test_a_good_client_is_told_nothing() -> None:
    """R47, R97."""
    polls = [asked(number=n, at=NOW + timedelta(seconds=n)) for n in range(1, 5)]
    told = find_advice_for_all([*polls, approved(ONE, number=5, at=NOW + timedelta(seconds=5))])
    assert [rows for _, rows in told] == [[]] * 5


def test_what_a_fault_has_done_is_not_the_fault_of_the_client() -> None:
    assert codes(asked(headers=(), fault="500")) == set()


def test_of_each_vm_only_its_own_requests_count() -> None:
    told = find_advice_for_all([asked(vm="vm-2"), approved(ONE, vm="vm-1")])
    assert [row.code for row in told[1][1]] == ["event-unseen"]


def test_an_answer_of_which_only_a_part_is_kept_may_have_shown_any_event() -> None:
    kept = SHOWN.replace(b"Scheduled", b"x" * BODY_BYTES_MAX)[:BODY_BYTES_MAX]
    assert codes(approved(ONE), asked(answer=kept)) == set()


def test_other_paths_are_their_own_affair() -> None:
    assert codes(asked(target="/metadata/versions", headers=())) == set()
    assert codes(asked(target="/metadata/instance?api-version=2021-02-01", headers=())) == {"metadata-missing"}


def test_what_is_refused_at_one_path_is_no_warning_about_the_other() -> None:
    """R111: a request that a shell cut at its & is one of the instance metadata."""
    assert codes(asked(target=NAME, answer=instance.VERSION_MISSING)) == {"instance-version"}
    assert codes(asked(target=f"{NAME}?api-version=2021-02-01&format=text", answer=b"vm-1")) == set()
    assert codes(asked(status=400, answer=instance.LEAF_WITHOUT_TEXT)) == set()


@pytest.mark.parametrize(
    "body", [b"", b"[", b"[]", b"\xff", b"[" * 100_000, b'{"StartRequests":{}}', b'{"StartRequests":[1]}']
)
def test_no_body_is_too_odd(body: bytes) -> None:
    assert codes(asked(method="POST", body=body, answer=body)) <= {"body-malformed"}


def test_only_the_newest_requests_are_looked_at_with_all_before_them_in_mind() -> None:
    history = [asked(), approved(ONE), approved(ONE.lower()), asked(answer=b"[]"), approved(ONE)]
    exchanges = [*history, asked(vm="vm-2"), approved(OTHER, vm="vm-2")]
    assert find_advice_for_all(exchanges, 3) == find_advice_for_all(exchanges)[-3:]
    assert find_advice_for_all(exchanges, 0) == []
