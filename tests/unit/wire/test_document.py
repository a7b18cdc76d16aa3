"""Reading what any endpoint answers: with tolerance, and never as "no events" by mistake."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forewarn.wire.document import Document, Event, NoDocument, decode_document, decode_moment, encode_approval
from forewarn.wire.imds import VERSIONS, decode_approval
from tests.unit.wire.builders import EVENT, MAINTENANCE, NOT_BEFORE, STARTED, VERSION_NAMES, encode

FIRST = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
SECOND = "F1A2E3B4-0000-4000-8000-AA5F13A16123"


def read(*events: object, version: str = "2020-07-01", **members: object) -> Document:
    content = {"DocumentIncarnation": 7, "Events": events} | members
    return decode_document(json.dumps(content).encode(), version)


def read_event(**members: object) -> Event:
    (event,) = read({"EventId": FIRST} | members).events
    return event


# What Forewarn itself writes


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_what_forewarn_writes_is_read_in_every_version(name: str) -> None:
    """R16, R20, R21, R25: with the name that the VM knows itself by, also where the wire has an underscore."""
    document = decode_document(encode((EVENT, MAINTENANCE), name=name), name)
    (event,) = document.events
    row = next(row for row in VERSIONS if row.name == name)
    assert document.incarnation == 2
    assert (event.id, event.type, event.status) == (FIRST, "Reboot", "Scheduled")
    assert (event.resources, event.not_before) == (("WestNO_0",), NOT_BEFORE)
    assert event.source == ("User" if "EventSource" in row.members else "")
    assert event.affects("WestNO_0")
    assert not event.affects("westno_0")
    assert not event.is_started
    assert document.get(FIRST.lower()) is event
    assert document.get(SECOND) is None


def test_the_events_that_hit_a_vm_are_told_from_those_of_others() -> None:
    """R58, R60: in the order of the document, names compared as they are written."""
    third = "0A2B3C4D-0000-4000-8000-AA5F13A16123"
    document = read(
        {"EventId": FIRST, "Resources": ["web_0", "web_1"]},
        {"EventId": SECOND, "Resources": ["web_1"]},
        {"EventId": third, "Resources": ["web_0"]},
    )
    assert [event.id for event in document.affecting("web_0")] == [FIRST, third]
    assert document.affecting("WEB_0") == document.affecting("web") == ()


def test_a_started_event_has_no_not_before() -> None:
    """R36."""
    (event,) = decode_document(encode((EVENT, STARTED))).events
    assert (event.is_started, event.not_before) == (True, None)


def test_an_underscore_is_part_of_the_name_in_later_versions() -> None:
    """R20: and in the first only one is taken off."""
    item = {"EventId": FIRST, "Resources": ["_a", "__b"]}
    assert read(item, version="2017-08-01").events[0].resources == ("_a", "__b")
    assert read(item, version="2017-03-01").events[0].resources == ("a", "_b")


def test_an_approval_is_read_by_the_server() -> None:
    """R47, R52."""
    body = encode_approval([FIRST, SECOND])
    assert decode_approval(body, 10) == (FIRST, SECOND)


# What others may write


def test_a_document_needs_nothing_but_events() -> None:
    """R105."""
    assert decode_document(b'{"Events":[]}') == Document(incarnation=None)
    assert read({"EventId": FIRST}).events == (Event(id=FIRST, type="", status=""),)


@pytest.mark.parametrize("body", [b'\xef\xbb\xbf{"Events":[]}', b'\r\n{\r\n  "Events" : [ ]\r\n}\r\n'])
def test_marks_and_white_space_do_no_harm(body: bytes) -> None:
    """R6, R105."""
    assert decode_document(body).events == ()


def test_unknown_members_and_types_are_taken() -> None:
    """R105: a later api-version, or another endpoint, may have more."""
    event = read_event(EventType="Defragment", EventStatus="Scheduled", Colour="red", ResourceType="Rack")
    assert (event.type, event.status, event.resource_type) == ("Defragment", "Scheduled", "Rack")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[(5, 5), ("5", 5), (" 5 ", 5), ("-5", -5), (5.0, 5), (0, 0)],
        *[(5.5, None), ("5.0", None), ("", None), ("-", None), (None, None), (True, None), ([5], None)],
        *[("9" * 5000, None), (float("nan"), None), (float("inf"), None)],
    ],
)
def test_an_incarnation_is_any_whole_number(value: object, expected: int | None) -> None:
    """R41, R105: also as digits; anything else says nothing, and does no harm."""
    assert read(DocumentIncarnation=value).incarnation == expected


@pytest.mark.parametrize(
    ("value", "seconds", "duration"),
    [
        (5, 5, timedelta(seconds=5)),
        ("5", 5, timedelta(seconds=5)),
        (0, 0, timedelta()),
        (-1, -1, None),
        (None, -1, None),
        (True, -1, None),
        (10**18, 10**18, timedelta.max - timedelta(microseconds=999_999)),
    ],
)
def test_a_duration_is_a_time_or_unknown(value: object, seconds: int, duration: timedelta | None) -> None:
    """R39, R105: 0 is a duration, and one of ages is still one."""
    event = read_event(DurationInSeconds=value)
    assert (event.duration_s, event.duration) == (seconds, duration)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a", "b"], ("a", "b")),
        (["b", "a", "b"], ("b", "a")),
        (["a", None, 5, {"name": "b"}], ("a",)),
        ("a", ()),
        (None, ()),
        ({}, ()),
    ],
)
def test_resources_are_the_names_in_the_array(value: object, expected: tuple[str, ...]) -> None:
    """R33, R105."""
    assert read_event(Resources=value).resources == expected


@pytest.mark.parametrize("value", [None, 5, [], {}, True])
@pytest.mark.parametrize("member", ["EventType", "EventStatus", "Description", "EventSource", "NotBefore"])
def test_a_member_of_another_kind_says_nothing(member: str, value: object) -> None:
    """R105."""
    event = read_event(**{member: value})
    assert event == Event(id=FIRST, type="", status="")


def test_ids_are_told_apart_without_regard_to_case() -> None:
    """R30, R53, A8: the first of two with the same id stands."""
    events = read({"EventId": FIRST.lower(), "EventType": "Freeze"}, {"EventId": f" {FIRST} "}).events
    assert [(event.id, event.type) for event in events] == [(FIRST.lower(), "Freeze")]


@pytest.mark.parametrize("event_id", [FIRST.lower(), f" {FIRST}\n", "Mixed-Case_7"])
def test_an_id_is_read_exactly_as_it_is_shown(event_id: str) -> None:
    """R105: an endpoint may compare what approves letter by letter."""
    (event,) = read({"EventId": event_id}).events
    assert event.id == event_id
    assert json.loads(encode_approval([event.id])) == {"StartRequests": [{"EventId": event_id}]}


def test_text_can_be_printed_and_handed_on() -> None:
    """R105: JSON can say what neither UTF-8 nor an environment variable can hold."""
    event = read_event(Description="a\ud800b\0c", Resources=["\udfff"])
    assert (event.description, event.resources) == ("a?b?c", ("?",))
    event.description.encode()


# NotBefore

MOMENT = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 19 Sep 2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 20:29:47 +0200",
        "Mon, 19 Sep 2016 18:29:47 -0000",
        "19 Sep 2016 18:29:47 GMT",
        " Mon, 19 Sep 2016 18:29:47 GMT\r\n",
        "2016-09-19T18:29:47Z",
        "2016-09-19T20:29:47+02:00",
        "2016-09-19T18:29:47.0000000Z",
        "2016-09-19T18:29:47",
        "2016-09-19 18:29:47",
    ],
)
def test_a_moment_is_read_in_either_form(text: str) -> None:
    """R21, R105, A1: RFC 1123 and ISO 8601; without a zone it is UTC."""
    assert decode_moment(text) == MOMENT
    assert read_event(NotBefore=text).not_before == MOMENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "soon",
        "1474309787",
        "Mon, 31 Feb 2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 25:29:47 GMT",
        "Mon, 19 Sep 99999 18:29:47 GMT",
        "Mon, 19 Sep 2016 18:29:47 +99999999999999",
        "9999-12-31T23:59:59-01:00",
        "0001-01-01T00:00:00+01:00",
        "9/19/2016 6:29:47 PM",
    ],
)
def test_what_is_no_moment_is_none(text: str) -> None:
    """R36, R105."""
    assert decode_moment(text) is None


@given(st.text())
def test_any_text_is_a_moment_in_utc_or_none(text: str) -> None:
    """R105."""
    moment = decode_moment(text)
    assert moment is None or moment.utcoffset() == timedelta()


# What says nothing


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (b" \r\n", "the body is empty"),
        (b"\xef\xbb\xbf", "the body is not JSON"),
        (b"<html>", "the body is not JSON"),
        (b'{"DocumentIncarnation":1,"Events":[', "the body is not JSON"),
        (b'{"DocumentIncarnation":1,"Events":[]}}', "the body is not JSON"),
        (b'{"Events":[]}\xff', "the body is not JSON"),
        (b'{"Events":[]}'.decode().encode("utf-16"), "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b'{"DocumentIncarnation":' + b"9" * 5000 + b',"Events":[]}', "the body is not JSON"),
        (b"null", "the body has no array Events"),
        (b"[]", "the body has no array Events"),
        (b'"Events"', "the body has no array Events"),
        (b"{}", "the body has no array Events"),
        (b'{"DocumentIncarnation":1}', "the body has no array Events"),
        (b'{"DocumentIncarnation":1,"Events":null}', "the body has no array Events"),
        (b'{"DocumentIncarnation":1,"Events":{}}', "the body has no array Events"),
        (b'{"DocumentIncarnation":1,"events":[]}', "the body has no array Events"),
        (b'{"error":"Too many requests"}', "the body has no array Events"),
        (b'{"Events":[{}]}', "none of its Events has an EventId"),
        (b'{"Events":[null,5,[],{"EventId":5},{"EventId":" "}]}', "none of its Events has an EventId"),
        (b'{"Events":[' + b"{}," * 10_000 + b"{}]}", "the body has 10001 events, at most 10000 are read"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value[:30]),
)
def test_what_says_nothing_is_no_document(body: bytes, reason: str) -> None:
    """R25, R105: whoever took it for an empty document would believe that every event is over."""
    with pytest.raises(NoDocument, match=f"^{reason}$"):
        decode_document(body)


def test_an_event_without_id_does_not_hide_the_others() -> None:
    """R105: nobody could approve it."""
    assert [event.id for event in read({}, {"EventId": FIRST}, None).events] == [FIRST]


@given(st.binary())
@example(b"{}")
def test_any_bytes_are_a_document_or_none(body: bytes) -> None:
    """R105."""
    _read_any(body)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([FIRST, "9" * 4400, "\ud800"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
_MEMBERS = st.sampled_from(
    ["EventId", "EventType", "EventStatus", "Resources", "NotBefore", "DurationInSeconds", "Description", "EventSource"]
)


@given(
    content=_JSON
    | st.fixed_dictionaries(
        {"Events": st.lists(st.dictionaries(_MEMBERS, _JSON)) | _JSON}, optional={"DocumentIncarnation": _JSON}
    ),
    version=st.sampled_from(VERSION_NAMES),
)
def test_any_json_is_a_document_or_none(content: Any, version: str) -> None:  # noqa: ANN401 - whatever JSON holds
    """R105: and what was read can be used without an error."""
    document = _read_any(json.dumps(content).encode(), version)
    if document is None:
        return
    assert len({event.id for event in document.events}) == len(document.events)
    for event in document.events:
        assert document.get(event.id.lower()) is not None or not event.id.isascii()
        assert event.duration is None or event.duration >= timedelta()
        encode_approval([event.id])
        " ".join((event.id, event.type, event.status, event.description, event.source, *event.resources)).encode()


def _read_any(body: bytes, version: str = "2020-07-01") -> Document | None:
    try:
        return decode_document(body, version)
    except NoDocument:
        return None
