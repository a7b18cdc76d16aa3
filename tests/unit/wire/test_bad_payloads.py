"""Reading the body of an approval: what must be refused, and always with `BadPayload`."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forewarn.wire.imds import BadPayload, decode_approval

FIRST = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
GOOD = f'{{"StartRequests":[{{"EventId":"{FIRST}"}}]}}'.encode()

EMPTY = "^body is empty$"
NOT_JSON = "^body is not JSON in UTF-8$"
NOT_AN_OBJECT = "^body is not a JSON object$"
NO_LIST = "^StartRequests is missing or not an array$"
NO_GUID = "^an element of StartRequests has no EventId that is a GUID$"
TWICE = "^an object has a duplicate member$"
ANY_REASON = f"{EMPTY}|{NOT_JSON}|{NOT_AN_OBJECT}|{NO_LIST}|{NO_GUID}|{TWICE}| is not JSON$| are allowed$"


def refuse(body: bytes | str, reason: str) -> None:
    with pytest.raises(BadPayload, match=reason):
        decode_approval(body.encode() if isinstance(body, str) else body, 100)


@pytest.mark.parametrize("body", [b"", b" ", b"\r\n", b"\t\n "])
def test_an_empty_body_is_refused(body: bytes) -> None:
    """R54."""
    refuse(body, EMPTY)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"StartRequests",
        GOOD[:-1],
        GOOD + b"}",
        GOOD + GOOD,
        GOOD.replace(b'"', b"'"),
        GOOD.replace(b"]", b",]"),
        b"/* why */" + GOOD,
        b"StartRequests=" + GOOD,
        b'{"StartRequests":[],"x":"a\nb"}',
        b'{"StartRequests":[],"x":01}',
        b'{"StartRequests":[],"x":"\\u12"}',
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD,
    ],
)
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    """R54: a second byte order mark is no white space either."""
    refuse(body, NOT_JSON)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b'{"StartRequests":[],"x":"\xe4"}',
        GOOD.decode().encode("utf-16"),
        GOOD.decode().encode("utf-16-le"),
        GOOD.decode().encode("utf-32"),
        b"\x1f\x8b\x08\x00",
    ],
)
def test_a_body_that_is_not_utf_8_is_refused(body: bytes) -> None:
    """R6, R54: JSON between systems is UTF-8."""
    refuse(body, NOT_JSON)


@pytest.mark.parametrize(
    "body",
    ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, '{"StartRequests":' + "[" * 100_000],
    ids=["open", "closed", "objects", "requests"],
)
def test_a_body_nested_too_deep_is_refused(body: str) -> None:
    """R54: the parser gives up, the server does not."""
    refuse(body, NOT_JSON)


def test_a_number_too_long_to_read_is_refused() -> None:
    """R54: Python reads no integer of more than 4,300 digits from text."""
    refuse('{"StartRequests":[],"DocumentIncarnation":' + "9" * 5000 + "}", NOT_JSON)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("body", ["{}", '{{"StartRequests":[],"x":{}}}', '{{"StartRequests":[{}]}}'])
def test_numbers_that_json_does_not_have_are_refused(name: str, body: str) -> None:
    """R54."""
    refuse(body.format(name), f"^{name} is not JSON$")


@pytest.mark.parametrize("body", ["null", "true", "5", '"StartRequests"', "[]", f'[{{"EventId":"{FIRST}"}}]'])
def test_a_body_that_is_not_an_object_is_refused(body: str) -> None:
    """R54."""
    refuse(body, NOT_AN_OBJECT)


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"DocumentIncarnation":"5"}',
        '{"startrequests":[]}',
        '{"StartRequests":null}',
        '{"StartRequests":true}',
        '{"StartRequests":0}',
        '{"StartRequests":"[]"}',
        '{"StartRequests":{}}',
        f'{{"StartRequests":{{"EventId":"{FIRST}"}}}}',
    ],
)
def test_start_requests_that_are_missing_or_no_array_are_refused(body: str) -> None:
    """R54, A12."""
    refuse(body, NO_LIST)


@pytest.mark.parametrize(
    "element", ["null", "true", "1", f'"{FIRST}"', "[]", f'["EventId","{FIRST}"]', f'[{{"EventId":"{FIRST}"}}]']
)
def test_an_element_that_is_not_an_object_is_refused(element: str) -> None:
    """R54."""
    refuse(f'{{"StartRequests":[{element}]}}', NO_GUID)


@pytest.mark.parametrize(
    "element", [{}, {"eventId": FIRST}, {"EventID": FIRST}, {"Id": FIRST}, {"EventId ": FIRST}], ids=str
)
def test_an_element_without_event_id_is_refused(element: dict[str, str]) -> None:
    """R54: names of members are compared with their case."""
    refuse(json.dumps({"StartRequests": [element]}), NO_GUID)


@pytest.mark.parametrize("event_id", ["null", "true", "5", "1e5", "[]", f'["{FIRST}"]', f'{{"EventId":"{FIRST}"}}'])
def test_an_event_id_that_is_not_a_string_is_refused(event_id: str) -> None:
    """R54."""
    refuse(f'{{"StartRequests":[{{"EventId":{event_id}}}]}}', NO_GUID)


@pytest.mark.parametrize(
    "event_id",
    [
        "",
        "5",
        FIRST[:-1],
        FIRST + "0",
        FIRST + "\n",
        " " + FIRST,
        "{" + FIRST + "}",
        "urn:uuid:" + FIRST,
        FIRST.replace("-", ""),
        FIRST.replace("-", "_"),
        FIRST.replace("A", "G"),
        FIRST.replace("1", "\uff11"),
        FIRST.replace("1", "\u0661"),
        FIRST.replace("A", "\ud800"),
        "\ud800",
        "\x00" * 36,
        FIRST * 10_000,
    ],
    ids=ascii,
)
def test_an_event_id_that_is_not_a_guid_is_refused(event_id: str) -> None:
    """R54: digits are those of ASCII, and nothing stands around them."""
    refuse(json.dumps({"StartRequests": [{"EventId": event_id}]}), NO_GUID)


@pytest.mark.parametrize("place", range(len(FIRST)))
@pytest.mark.parametrize("char", ["G", "_", "\u0661", "\u00e9"], ids=ascii)
def test_a_guid_has_none_but_hexadecimal_digits_and_hyphens_at_every_place(place: int, char: str) -> None:
    """R54."""
    refuse(json.dumps({"StartRequests": [{"EventId": FIRST[:place] + char + FIRST[place + 1 :]}]}), NO_GUID)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_element_spoils_the_whole_list(place: int) -> None:
    """R54, R55: nothing of it is approved."""
    elements: list[object] = [{"EventId": FIRST}, {"EventId": FIRST}]
    elements.insert(place, {"EventId": "5"})
    refuse(json.dumps({"StartRequests": elements}), NO_GUID)


@pytest.mark.parametrize(
    "body",
    [
        f'{{"StartRequests":[],"StartRequests":[{{"EventId":"{FIRST}"}}]}}',
        f'{{"StartRequests":[{{"EventId":"{FIRST}","EventId":"{FIRST}"}}]}}',
        f'{{"StartRequests":[{{"EventId":"{FIRST}","Event\\u0049d":"{FIRST}"}}]}}',
        f'{{"x":1,"StartRequests":[{{"EventId":"{FIRST}"}}],"x":1}}',
        f'{{"x":{{"y":1,"y":2}},"StartRequests":[{{"EventId":"{FIRST}"}}]}}',
    ],
)
def test_a_member_that_stands_twice_is_refused(body: str) -> None:
    """R54 (default): two readers could see two approvals in it."""
    refuse(body, TWICE)


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000], ids=["json", "utf-8", "depth"])
def test_the_cause_of_a_refusal_is_kept(body: bytes) -> None:
    """R54: for the log; the client sees the reason only."""
    with pytest.raises(BadPayload) as caught:
        decode_approval(body, 100)
    assert isinstance(caught.value.__cause__, ValueError | RecursionError)


def read(body: bytes) -> tuple[str, ...] | str:
    """The approval in a body, or the reason why there is none; any other exception is a failure of the test."""
    try:
        return decode_approval(body, 3)
    except BadPayload as error:
        return str(error)


def is_read_or_refused(body: bytes) -> bool:
    """Whether the one promise about all bodies is kept: at most 3 GUIDs in upper case, or a reason known here."""
    outcome = read(body)
    if isinstance(outcome, str):
        return re.search(ANY_REASON, outcome) is not None
    return len(outcome) <= 3 and all(len(i) == 36 and set(i) <= set("0123456789ABCDEF-") for i in outcome)


@given(st.binary())
@example(b"")
@example(GOOD)
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """R54."""
    assert is_read_or_refused(body)


NAMES = st.sampled_from(["StartRequests", "EventId", "DocumentIncarnation", "x"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.just(FIRST) | st.just(FIRST.lower()) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=20)


@given(st.dictionaries(NAMES, VALUES) | VALUES)
def test_any_json_value_is_read_or_refused(content: object) -> None:
    """R54: values built of the right words in the wrong places."""
    assert is_read_or_refused(json.dumps(content).encode())


@given(start=st.integers(0, len(GOOD)), length=st.integers(0, 8), put=st.binary(max_size=8))
def test_a_good_body_with_a_few_bytes_replaced_is_read_or_refused(start: int, length: int, put: bytes) -> None:
    """R54."""
    assert is_read_or_refused(GOOD[:start] + put + GOOD[start + length :])
