"""One question each: fetch, approve, name. Scripted answers, no I/O."""

from __future__ import annotations

import json

import pytest

from forewarn.client.exchange import HttpAnswer
from forewarn.client.flow import API_VERSIONS, Conversation
from forewarn.client.pace import Pace
from forewarn.errors import BadAnswer, EndpointRefused, EndpointUnreachable
from forewarn.wire.imds import VERSIONS
from tests.unit.client.builders import (
    AWAY,
    FIRST,
    SECOND,
    SILENT,
    Step,
    body,
    conversation,
    document,
    event,
    finish,
    ok,
    pauses,
    refused,
    requests,
)

LATEST = "2020-07-01"


def refuse(version_text: str = "api-version is invalid or was not specified", **more: object) -> HttpAnswer:
    return refused(400, f"Bad request. {version_text} in the request.", 0.0, **more)


# Fetch


def test_a_document_is_asked_for_as_the_protocol_says() -> None:
    """R1, R10, R15."""
    found, asked = finish(conversation().fetch(), ok(7))
    assert found == document(incarnation=7)
    (request,) = requests(asked)
    assert (request.method, request.path) == ("GET", f"/metadata/scheduledevents?api-version={LATEST}")
    assert request.headers == {"Metadata": "true"}
    assert request.body == b""


def test_the_first_answer_may_take_more_than_two_minutes() -> None:
    """R67, R104: the later ones may not."""
    talk = conversation()
    _, asked = finish(talk.fetch(), ok())
    assert requests(asked)[0].timeout_s == 130
    _, asked = finish(talk.fetch(), ok())
    assert requests(asked)[0].timeout_s == 10


def test_an_error_is_no_first_answer() -> None:
    """R67, R104: the endpoint may still have to enable the service."""
    _, asked = finish(
        conversation().fetch(),
        refused(429),
        ok(),
    )
    assert [request.timeout_s for request in requests(asked)] == [130, 130]


def test_each_silence_allows_more_time_for_the_next_answer() -> None:
    """R67, R104: it may have been started anew."""
    talk = conversation(retry_for_s=1000)
    finish(talk.fetch(), ok())
    _, asked = finish(talk.fetch(), SILENT, SILENT, AWAY, SILENT, SILENT, ok())
    assert [request.timeout_s for request in requests(asked)] == [10, 20, 40, 80, 130, 130]
    _, asked = finish(talk.fetch(), ok())
    assert requests(asked)[0].timeout_s == 10


@pytest.mark.parametrize(
    "step",
    [
        *[refused(status) for status in (301, 304, 408, 410, 429, 500, 502, 503, 504)],
        HttpAnswer(status=200),
        HttpAnswer(status=200, body=b"{"),
        HttpAnswer(status=200, body=b'{"DocumentIncarnation":1}'),
        AWAY,
        SILENT,
    ],
    ids=lambda step: str(getattr(step, "status", "")) + repr(getattr(step, "body", b""))[:16],
)
def test_what_may_pass_is_asked_again(step: Step) -> None:
    """R66, R104, R105: 410, 429, 5xx, no answer, an empty one."""
    found, asked = finish(conversation().fetch(), step, step, ok(7))
    assert found.incarnation == 7
    assert pauses(asked) == [0.5, 1.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 451])
def test_what_will_not_pass_is_an_error_at_once(status: int) -> None:
    """R63, R65: asking again would change nothing."""
    with pytest.raises(EndpointRefused) as caught:
        finish(conversation().fetch(), refused(status, "Bad request:\n . Required  metadata header not specified"))
    said = "Bad request: . Required metadata header not specified"
    assert str(caught.value) == f"the metadata endpoint answered {status} for its document: {said}"
    assert (caught.value.details["status"], caught.value.details["said"]) == (status, said)


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"error":null}', b"[" * 100_000])
def test_an_error_needs_no_words(content: bytes) -> None:
    """R65: it is told by its status."""
    with pytest.raises(EndpointRefused, match=r"^the metadata endpoint answered 404 for its document"):
        finish(conversation().fetch(), HttpAnswer(status=404, body=content))


def test_a_talkative_error_is_cut_short() -> None:
    with pytest.raises(EndpointRefused) as caught:
        finish(conversation().fetch(), refused(404, "x" * 10_000))
    assert len(str(caught.value)) < 400


def test_a_200_that_says_nothing_is_an_error_in_the_end() -> None:
    """R105: never an empty document."""
    with pytest.raises(BadAnswer, match=r"^the metadata endpoint answered 200, but the body is empty$"):
        finish(conversation(retry_for_s=0).fetch(), HttpAnswer(status=200))


def test_retries_end_after_seventy_seconds() -> None:
    """R66, R104: 410 is to be retried for at most 70 s."""
    _, asked = finish(conversation().fetch(), *[refused(410)] * 11, ok())
    assert pauses(asked) == [0.5, 1, 2, 4, 8, 8, 8, 8, 8, 8, 8]
    with pytest.raises(EndpointRefused, match="answered 410"):
        finish(conversation().fetch(), *[refused(410)] * 12)
    assert sum(pauses(asked)) <= 70


def test_the_time_of_unanswered_requests_counts_too() -> None:
    """R104: else twenty time-outs of two minutes would come together."""
    silent = EndpointUnreachable("no answer", elapsed_s=40.0, timed_out=True)
    with pytest.raises(EndpointUnreachable):
        finish(conversation().fetch(), silent, silent, ok())
    with pytest.raises(EndpointRefused):
        finish(conversation().fetch(), refused(500, elapsed_s=40), refused(500, elapsed_s=40), ok())
    empty = HttpAnswer(status=200, elapsed_s=40)
    with pytest.raises(BadAnswer):
        finish(conversation().fetch(), empty, empty, ok())


def test_a_retry_after_is_kept_to() -> None:
    """R104."""
    later = HttpAnswer(status=429, headers={"retry-after": "3"})
    _, asked = finish(conversation().fetch(), later, ok())
    assert pauses(asked) == [3]


def test_retries_are_spread() -> None:
    """R104: thousands of VMs lose their endpoint at the same moment."""
    _, asked = finish(conversation(chance=0.0).fetch(), AWAY, AWAY, ok())
    assert pauses(asked) == [0.25, 0.5]


# Versions


def test_the_client_knows_every_version_of_the_protocol() -> None:
    """R16."""
    assert list(API_VERSIONS) == [row.name for row in reversed(VERSIONS)]


def test_at_least_one_version_is_needed() -> None:
    with pytest.raises(ValueError, match=r"^at least one api-version is needed$"):
        Conversation(Pace(), [], float)


def test_a_single_version_may_be_named_as_such() -> None:
    assert Conversation(Pace(), "2019-08-01", float).version == "2019-08-01"


def test_a_refused_version_is_replaced_by_the_newest_that_is_named() -> None:
    """R15, R64: and kept to afterwards."""
    talk = conversation()
    _, asked = finish(talk.fetch(), refuse(newest_versions=["2019-04-01", "2019-01-01", "2017-11-01"]), ok())
    assert [request.path[-10:] for request in requests(asked)] == [LATEST, "2019-04-01"]
    assert pauses(asked) == []
    _, asked = finish(talk.fetch(), ok())
    assert requests(asked)[0].path.endswith("2019-04-01")
    assert talk.version == "2019-04-01"


@pytest.mark.parametrize(
    "answer",
    [
        refuse("api-version was not specified"),
        refuse(newest_versions=["2031-01-01", LATEST]),
        refuse(newest_versions="2019-04-01"),
        refuse(newest_versions=[None, 5, {}]),
        refused(404, "Not found. Invalid version requested"),
    ],
)
def test_without_a_known_name_the_next_older_version_is_tried(answer: HttpAnswer) -> None:
    """R15, R64: old endpoints do not say which they take."""
    talk = conversation()
    _, asked = finish(talk.fetch(), answer, answer, ok())
    assert [request.path[-10:] for request in requests(asked)] == list(API_VERSIONS[:3])


def test_when_no_version_is_left_the_refusal_stands() -> None:
    """R15: each is tried once, and the oldest stays."""
    talk = conversation("2020-07-01", "2019-08-01")
    with pytest.raises(EndpointRefused, match="answered 400"):
        finish(talk.fetch(), refuse(), refuse())
    assert talk.version == "2019-08-01"


@pytest.mark.parametrize("answer", [refused(400, "Bad request: . Required metadata header"), refused(404, "Not found")])
def test_another_refusal_is_not_about_the_version(answer: HttpAnswer) -> None:
    """R63, R65."""
    talk = conversation()
    with pytest.raises(EndpointRefused):
        finish(talk.fetch(), answer)
    assert talk.version == LATEST


def test_after_an_outage_the_newest_version_is_tried_again() -> None:
    """R15: an endpoint that comes back may be a newer one."""
    talk = conversation()
    finish(talk.fetch(), refuse(newest_versions=["2017-08-01"]), ok())
    _, asked = finish(talk.fetch(), AWAY, ok())
    assert [request.path[-10:] for request in requests(asked)] == ["2017-08-01", LATEST]


def test_an_answer_is_read_in_the_version_that_was_asked_for() -> None:
    """R20: whatever other flows learn meanwhile, a name's underscore is taken off."""
    talk = conversation()
    finish(talk.fetch(), refuse(newest_versions=["2017-03-01"]), ok())
    held = talk.fetch()
    assert next(held).path.endswith("2017-03-01")  # type: ignore[union-attr] # the first step is a request
    finish(talk.fetch(), AWAY, ok())
    assert talk.version == LATEST
    with pytest.raises(StopIteration) as end:
        held.send(ok(1, event(resources=("_vm-1",))))
    assert end.value.value.events[0].resources == ("vm-1",)


def test_two_flows_that_are_refused_the_same_version_give_up_only_that_one() -> None:
    """R15."""
    talk = conversation()
    first, second = talk.fetch(), talk.fetch()
    next(first)
    next(second)
    again = (first.send(refuse()), second.send(refuse()))
    assert [request.path[-10:] for request in requests(list(again))] == ["2019-08-01", "2019-08-01"]


# Approve


def test_an_approval_is_sent_as_the_protocol_says() -> None:
    """R47, R52."""
    _, asked = finish(conversation().approve([FIRST, SECOND]), HttpAnswer(status=200))
    (request,) = requests(asked)
    assert (request.method, request.path) == ("POST", f"/metadata/scheduledevents?api-version={LATEST}")
    assert request.headers == {"Metadata": "true", "Content-Type": "application/json"}
    assert json.loads(request.body) == {"StartRequests": [{"EventId": FIRST}, {"EventId": SECOND}]}


def test_with_no_events_nothing_is_sent() -> None:
    """A12."""
    assert finish(conversation().approve([])) == (None, [])
    assert finish(conversation().approve_once(iter([]))) == (None, [])


@pytest.mark.parametrize("status", [200, 202, 204])
@pytest.mark.parametrize("content", [b"", b"{}", b"OK", b'{"error":"x"}'])
def test_any_success_is_an_approval(status: int, content: bytes) -> None:
    """R49, A13, W4: whatever the body says."""
    finish(conversation().approve([FIRST]), HttpAnswer(status=status, body=content))


def test_an_approval_is_repeated_until_it_is_answered() -> None:
    """R49, R104: it may be repeated; a lost answer is no harm."""
    _, asked = finish(conversation().approve([FIRST]), AWAY, refused(503), refused(410), HttpAnswer(status=200))
    assert len({request.body for request in requests(asked)}) == 1
    assert pauses(asked) == [0.5, 1.0, 2.0]


def test_a_refused_approval_is_an_error_at_once() -> None:
    """R55."""
    with pytest.raises(EndpointRefused, match=r"answered 400 for an approval: Bad request: \. EventId is not known$"):
        finish(conversation().approve([FIRST]), refused(400, "Bad request: . EventId is not known"))


def test_an_approval_finds_the_version_too() -> None:
    """R15, R23."""
    _, asked = finish(conversation().approve([FIRST]), refuse(newest_versions=["2019-08-01"]), HttpAnswer(status=200))
    assert [request.path[-10:] for request in requests(asked)] == [LATEST, "2019-08-01"]


def test_an_approval_is_not_given_longer_after_a_silence() -> None:
    """R104: it enables nothing, and its time for retries is short."""
    talk = conversation()
    finish(talk.approve([FIRST]), HttpAnswer(status=200))
    _, asked = finish(talk.approve([FIRST]), SILENT, SILENT, SILENT, HttpAnswer(status=200))
    assert {request.timeout_s for request in requests(asked)} == {10}


@pytest.mark.parametrize("step", [AWAY, SILENT, refused(503), refused(400)])
def test_approving_once_is_not_repeated(step: Step) -> None:
    """R49: who retries on its own is told at once."""
    with pytest.raises((EndpointRefused, EndpointUnreachable)):
        finish(conversation().approve_once([FIRST]), step)
    finish(conversation().approve_once([FIRST]), HttpAnswer(status=200))


# Name


@pytest.mark.parametrize("content", [b"web_10", b'"web_10"', b"\xef\xbb\xbfweb_10\r\n"])
def test_a_vm_learns_its_own_name(content: bytes) -> None:
    """R106, W7, X3."""
    name, asked = finish(conversation().fetch_name(), HttpAnswer(status=200, body=content))
    assert name == "web_10"
    (request,) = requests(asked)
    assert request.path.startswith("/metadata/instance/compute/name?")
    assert request.headers == {"Metadata": "true"}


@pytest.mark.parametrize("content", [b"", b" ", b'""', b"a\nb", b"\x00", b"<html></html>", b'{"name":"a"}', b"x" * 300])
def test_what_is_no_name_is_an_error(content: bytes) -> None:
    """R106: a VM without a name of its own would take every event for another's."""
    with pytest.raises(BadAnswer, match=r"^the metadata endpoint answered without a name$"):
        finish(conversation().fetch_name(), HttpAnswer(status=200, body=content))


def test_an_endpoint_may_know_no_names() -> None:
    """X3."""
    with pytest.raises(EndpointRefused, match="answered 404 for its name"):
        finish(conversation().fetch_name(), refused(404))
    with pytest.raises(EndpointUnreachable):
        finish(conversation().fetch_name(), AWAY)


def test_the_builders_bodies_are_what_an_endpoint_sends() -> None:
    assert json.loads(body(1, event()))["Events"][0]["EventId"] == FIRST
