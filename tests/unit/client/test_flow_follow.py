"""Following an endpoint for ever: what is asked, what is told, and how long the pauses are. Scripted, no I/O."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.client.change import Change
from forewarn.client.exchange import FlowPause, HttpAnswer, HttpRequest
from forewarn.client.flow import PollAnswered, PollFailed
from forewarn.errors import BadAnswer, EndpointRefused, EndpointUnreachable
from tests.unit.client.builders import (
    AWAY,
    FIRST,
    HELD,
    SECOND,
    SILENT,
    Step,
    conversation,
    document,
    event,
    finish,
    ok,
    pauses,
    play,
    refused,
    requests,
    same,
)


def seen(told: list[Any]) -> list[PollAnswered]:
    return [step for step in told if isinstance(step, PollAnswered)]


def missed(told: list[Any]) -> list[PollFailed]:
    return [step for step in told if isinstance(step, PollFailed)]


def changes(told: list[Any]) -> list[str]:
    return [step.kind.value for step in told if isinstance(step, Change)]


def follow(*script: Step, **pace: float) -> list[Any]:
    return play(conversation(**pace).follow(), *script)


def conditional(told: list[Any]) -> list[bool]:
    return ["If-None-Match" in request.headers for request in requests(told)]


# Plain polling


def test_an_endpoint_is_asked_once_per_second() -> None:
    """R97: from one request to the next, however long the answer takes."""
    told = follow(ok(elapsed_s=0.25), ok(elapsed_s=3.0), ok(), wait_s=0)
    assert pauses(told) == [0.75, 1.0]
    assert conditional(told) == [False] * 4


def test_each_answer_is_told_and_whether_it_is_another() -> None:
    """R101: another incarnation or another event, `!=` and not `>`; it may go back."""
    told = follow(ok(5), ok(5), ok(6), ok(6, event()), ok(1), ok(1), ok(None), ok("1"), wait_s=0)
    assert [one.is_changed for one in seen(told)] == [True, False, True, True, True, False, True, True]
    assert [one.document.incarnation for one in seen(told)] == [5, 5, 6, 6, 1, 1, None, 1]


def test_the_endpoints_clock_is_told() -> None:
    now = "Mon, 19 Sep 2016 18:29:47 GMT"
    told = follow(ok(headers={"date": now}), ok(headers={"date": "now"}), ok(), wait_s=0)
    assert [one.served_at for one in seen(told)] == [datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC), None, None]


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (AWAY, EndpointUnreachable),
        (SILENT, EndpointUnreachable),
        (refused(400), EndpointRefused),
        (refused(404), EndpointRefused),
        (refused(410), EndpointRefused),
        (refused(503), EndpointRefused),
        (same(), EndpointRefused),
        (HttpAnswer(status=200), BadAnswer),
        (HttpAnswer(status=200, body=b'{"Events":null}'), BadAnswer),
    ],
)
def test_a_failure_is_told_and_asked_again(step: Step, kind: type[Exception]) -> None:
    """R66, R104, R105: what was known still stands. Also a 304 to who did not ask for one."""
    told = follow(ok(1, event()), step, step, ok(1, event()), step, wait_s=0)
    assert [(one.failures, one.retry_in_s) for one in missed(told)] == [(1, 0.5), (2, 1.0), (1, 0.5)]
    assert all(isinstance(one.error, kind) for one in missed(told))
    assert pauses(told) == [1.0, 0.5, 1.0, 1.0, 0.5]
    assert [one.is_changed for one in seen(told)] == [True, False]


def test_a_failure_is_asked_again_as_the_answer_says() -> None:
    """R104."""
    told = follow(HttpAnswer(status=429, headers={"retry-after": "4"}), ok(), wait_s=0)
    assert (missed(told)[0].retry_in_s, pauses(told)) == (4.0, [4.0, 1.0])


def test_whoever_begins_to_follow_is_told_what_there_is() -> None:
    """R100: whatever was fetched, or followed, before."""
    talk = conversation()
    finish(talk.fetch(), ok(1, event()))
    for _ in range(2):
        told = play(talk.follow(), ok(1, event()))
        assert [one.is_changed for one in seen(told)] == [True]
        assert conditional(told)[0] is False


def test_a_fetch_in_between_takes_no_change_away() -> None:
    """R100: a handler may well fetch while it watches."""
    talk = conversation(wait_s=0)
    flow = talk.watch()
    assert isinstance(next(flow), HttpRequest)
    assert isinstance(flow.send(ok(1)), FlowPause)
    finish(talk.fetch(), ok(2, event()))
    assert isinstance(next(flow), HttpRequest)
    change = flow.send(ok(2, event()))
    assert isinstance(change, Change)
    assert change.kind == "prepare"


# Held requests


def test_a_request_is_held_until_something_changes() -> None:
    """X1: after a change the next request is sent at once, with the new incarnation."""
    told = follow(ok(5), same(), ok(6, event(), headers=HELD, elapsed_s=9), same(), wait_s=20)
    assert [request.headers for request in requests(told)] == [
        {"Metadata": "true"},
        {"Metadata": "true", "If-None-Match": '"5"', "Prefer": "wait=20"},
        {"Metadata": "true", "If-None-Match": '"5"', "Prefer": "wait=20"},
        {"Metadata": "true", "If-None-Match": '"6"', "Prefer": "wait=20"},
        {"Metadata": "true", "If-None-Match": '"6"', "Prefer": "wait=20"},
    ]
    assert pauses(told) == []
    assert [one.is_changed for one in seen(told)] == [True, False, True, False]


def test_a_held_request_is_given_its_time_on_top() -> None:
    """X1, R104."""
    told = follow(ok(), same(), wait_s=1.5)
    assert [request.timeout_s for request in requests(told)] == [130, 12, 12]


def test_a_document_without_incarnation_is_polled() -> None:
    """R105, X1: there is nothing to name in If-None-Match."""
    assert conditional(follow(ok(None), ok(None))) == [False, False, False]


@pytest.mark.parametrize("headers", [{}, {"preference-applied": "respond-async"}, {"etag": '"1"'}])
@pytest.mark.parametrize("status", [200, 304])
def test_an_endpoint_that_does_not_hold_is_polled(status: int, headers: dict[str, str]) -> None:
    """X1, R97: and asked for the whole document, since nothing says what its 304 means."""
    quick = ok(headers=headers) if status == 200 else same(0.01, headers)
    told = follow(ok(), quick, ok(), ok())
    assert conditional(told) == [False, True, False, False, False]
    assert pauses(told) == [pytest.approx(1, abs=0.02), 1.0, 1.0]


def test_an_endpoint_that_holds_need_not_say_so() -> None:
    """X1: RFC 7240 lets it be silent about a preference that it follows."""
    told = follow(ok(), same(20.0, {}), same(20.0, {}))
    assert conditional(told) == [False, True, True, True]
    assert pauses(told) == []


def test_one_that_only_claims_to_hold_keeps_nobody_busy() -> None:
    """X1, R97: not more often than once per second."""
    told = follow(ok(), same(0.0), same(0.25), same(1.5), ok(elapsed_s=0.1, headers=HELD))
    assert pauses(told) == [1.0, 0.75, 0.9]


def test_a_held_request_follows_upon_the_other_however_seldom_one_wants_to_poll() -> None:
    """X1: nothing is lost between two of them."""
    told = follow(ok(), same(20.0), same(20.0), poll_interval_s=60)
    assert pauses(told) == []


def test_changes_without_end_keep_nobody_busy() -> None:
    """R97: ten in a row are each followed at once; then there is a pause, and the next ten may come."""
    told = follow(*[ok(n) for n in range(14)])
    assert pauses(told) == [1.0]
    told = follow(*[ok(n) for n in range(25)])
    assert pauses(told) == [1.0] * 2


def test_changes_that_come_now_and_then_are_all_heard_of_at_once() -> None:
    """X1: however many they are."""
    told = follow(ok(0), *[ok(n, elapsed_s=0.2, headers=HELD) for n in range(1, 60)])
    assert pauses(told) == []


def test_after_five_minutes_the_whole_document_is_asked_for() -> None:
    """R46, R101: an endpoint that began anew may have come to the same incarnation with other events."""
    told = follow(ok(2, event()), *[same()] * 15, ok(2, event(SECOND)), same(), wait_s=20, refresh_s=300)
    assert conditional(told) == [False] + [True] * 15 + [False] + [True] * 2
    assert [one.document.events[0].id for one in seen(told)[-3:]] == [FIRST, SECOND, SECOND]


def test_an_endpoint_that_did_not_hold_is_asked_again_after_five_minutes() -> None:
    """X1: it may be a newer one by now."""
    told = follow(ok(), ok(), *[ok()] * 3, ok(), same(1.0), same(1.0), refresh_s=4)
    assert conditional(told) == [False, True, False, False, False, False, True, True, True]


def test_after_a_failure_the_whole_document_is_asked_for() -> None:
    """R46, R101: who was away may have begun anew. Then requests are held again."""
    told = follow(ok(2), same(), AWAY, AWAY, ok(2), same())
    assert conditional(told) == [False, True, True, False, False, True, True]


def test_held_requests_that_break_off_again_and_again_are_given_up() -> None:
    """X1: something between does not bear them, or the endpoint does not bear the header."""
    told = follow(ok(), AWAY, ok(), AWAY, ok(), ok())
    assert conditional(told) == [False, True, False, True, False, False, False]
    told = follow(ok(), AWAY, ok(), same(), AWAY, ok(), same())
    assert conditional(told) == [False, True, False, True, True, False, True, True]


@pytest.mark.parametrize(
    "step", [SILENT, refused(400), refused(412), refused(429), refused(501), HttpAnswer(status=200)]
)
def test_a_held_request_that_is_not_borne_is_given_up_at_once(step: Step) -> None:
    """X1: a silence of half a minute was long enough, and what is refused once will be refused again."""
    told = follow(ok(), step, ok(), ok())
    assert conditional(told) == [False, True, False, False, False]


_STEPS = st.one_of(
    st.builds(
        ok,
        st.sampled_from([None, 1, 2]),
        elapsed_s=st.floats(0, 30),
        headers=st.sampled_from([{}, HELD, {"preference-applied": ""}]),
    ),
    st.builds(same, st.floats(0, 30), st.sampled_from([{}, HELD])),
    st.builds(refused, st.sampled_from([400, 404, 410, 429, 500])),
    st.sampled_from([AWAY, SILENT, HttpAnswer(status=200), HttpAnswer(status=200, body=b"[]")]),
)


@given(script=st.lists(_STEPS, max_size=40), wait_s=st.sampled_from([0.0, 20.0]))
def test_no_endpoint_is_asked_in_a_loop_without_a_pause(script: list[Step], wait_s: float) -> None:
    """R97, R104: whatever it answers; only a few changes in a row are followed at once."""
    told = follow(*script, wait_s=wait_s, poll_interval_s=1, retry_min_s=1)
    assert len(requests(told)) == len(script) + 1
    took = [getattr(step, "elapsed_s", 0.0) for step in script]
    starts = [0.0]
    at_s = 0.0
    for step in told:
        if isinstance(step, FlowPause):
            assert step.seconds > 0
            at_s += step.seconds
        elif isinstance(step, HttpRequest) and step is not told[0]:
            starts.append(at_s + took[len(starts) - 1])
            at_s = starts[-1]
    hasty = [later - sooner < 0.5 for sooner, later in pairwise(starts)]
    in_a_row = max((len(run) for run in "".join("x" if one else " " for one in hasty).split()), default=0)
    assert in_a_row <= 5


@given(script=st.lists(_STEPS, max_size=40))
def test_what_is_told_is_never_but_what_was_answered(script: list[Step]) -> None:
    """R105: no failure is taken for a document, and no document is left out."""
    told = follow(*script)
    answered = [step for step in script if isinstance(step, HttpAnswer)]
    assert len(seen(told)) + len(missed(told)) == len(script)
    assert all(one.document in {document(incarnation=n) for n in (None, 1, 2)} for one in seen(told))
    assert len(seen(told)) <= len([answer for answer in answered if answer.status in {200, 304}])


# Watching


def test_a_watch_tells_the_life_of_an_event() -> None:
    """R75, R100, R104: also after it was approved, until it is gone."""
    told = play(
        conversation().watch(),
        ok(1),
        ok(2, event()),
        AWAY,
        ok(2, event()),
        same(),
        ok(3, event(status="Started")),
        same(),
        ok(4),
    )
    assert changes(told) == ["prepare", "started", "recovered"]


def test_a_watch_takes_silence_for_nothing() -> None:
    """R105: an outage is not the end of an event, and an empty answer is none either."""
    told = play(
        conversation().watch(), ok(2, event()), AWAY, HttpAnswer(status=200), refused(404), refused(500), ok(2, event())
    )
    assert changes(told) == ["prepare"]


def test_a_watch_tells_what_it_missed() -> None:
    """R100: what began and ended while the endpoint was away."""
    told = play(conversation().watch(), ok(2, event()), AWAY, ok(9, event(SECOND, "Started")))
    assert changes(told) == ["prepare", "canceled", "started"]


def test_an_incarnation_that_goes_back_is_followed() -> None:
    """R46, R101, R105."""
    told = play(conversation().watch(), ok(9, event()), ok(1), ok(2, event(SECOND)))
    assert changes(told) == ["prepare", "canceled", "prepare"]


def test_the_log_tells_when_an_outage_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """R104: once, however many retries there are."""
    with caplog.at_level(logging.INFO, logger="forewarn.client"):
        play(conversation().watch(), ok(), AWAY, AWAY, refused(404), ok(), ok(), AWAY)
    said = "the metadata endpoint does not answer: connection refused; retrying until it answers"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", said),
        ("INFO", "the metadata endpoint answers again"),
        ("WARNING", said),
    ]
