"""Reading the body of an approval: what real clients send."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.wire.imds import BadPayload, decode_approval

FIRST = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
SECOND = "8A506C35-679A-4F78-9D76-C16DBE65EE6F"


def decode(body: bytes | str, requests_max: int = 100) -> tuple[str, ...]:
    return decode_approval(body.encode() if isinstance(body, str) else body, requests_max)


def requests(*event_ids: str) -> str:
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]})


def test_one_start_request_is_one_event_id() -> None:
    """R47."""
    assert decode(f'{{"StartRequests":[{{"EventId":"{FIRST}"}}]}}') == (FIRST,)


def test_several_start_requests_keep_their_order() -> None:
    """R52."""
    assert decode(requests(SECOND, FIRST)) == (SECOND, FIRST)


def test_repeats_are_read_as_sent() -> None:
    """R52: counting them once is not the wire's business."""
    assert decode(requests(FIRST, FIRST.lower())) == (FIRST, FIRST)


def test_no_start_requests_are_no_event_ids() -> None:
    """R56, A12."""
    assert decode('{"StartRequests":[]}') == ()


@pytest.mark.parametrize("event_id", [FIRST, FIRST.lower(), FIRST.title()])
def test_an_event_id_is_read_in_upper_case_however_it_is_written(event_id: str) -> None:
    """R53, A8."""
    assert decode(requests(event_id)) == (FIRST,)


@pytest.mark.parametrize("incarnation", ['"5"', "5", '"five"', "-1", "0", "1.5", "1e999", "null", "{}", "[5]"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_the_incarnation_of_the_preview_is_never_looked_at(incarnation: str, is_first: bool) -> None:
    """R48, W6, A10: a string, a number or anything else, before or after the list."""
    members = [f'"StartRequests":[{{"EventId":"{FIRST}"}}]']
    members.insert(0 if is_first else 1, f'"DocumentIncarnation":{incarnation}')
    assert decode("{" + ",".join(members) + "}") == (FIRST,)


def test_unknown_members_are_ignored_wherever_they_stand() -> None:
    """R57."""
    text = f'{{"a":null,"StartRequests":[{{"b":{{"EventId":1}},"EventId":"{FIRST}","c":[]}}],"startRequests":7}}'
    assert decode(text) == (FIRST,)


def test_a_byte_order_mark_is_skipped() -> None:
    """R6."""
    assert decode(b"\xef\xbb\xbf" + requests(FIRST).encode()) == (FIRST,)


def test_pretty_printed_json_with_crlf_is_read() -> None:
    """R6, R48: as a PowerShell client writes it."""
    content = {"StartRequests": [{"EventId": FIRST}], "DocumentIncarnation": 5}
    assert decode(json.dumps(content, indent=4).replace("\n", "\r\n") + "\r\n") == (FIRST,)


def test_escapes_in_names_and_ids_are_undone() -> None:
    """R6, R47."""
    assert decode('{"Start\\u0052equests":[{"EventId":"\\u0043' + FIRST[1:] + '"}]}') == (FIRST,)


def test_lone_surrogates_in_what_is_ignored_do_no_harm() -> None:
    """R57: such a text cannot be written out again, so nobody may try."""
    assert decode(f'{{"\\ud800":"\\udfff","StartRequests":[{{"EventId":"{FIRST}","x":"\\ud83d"}}]}}') == (FIRST,)


def test_nesting_that_a_person_might_write_is_read() -> None:
    """R57: an unknown member may have a depth."""
    assert decode('{"x":' + "[" * 100 + "]" * 100 + f',"StartRequests":[{{"EventId":"{FIRST}"}}]}}') == (FIRST,)


def test_a_number_of_a_thousand_digits_is_ignored_like_any_other() -> None:
    """R48, R57."""
    assert decode(f'{{"DocumentIncarnation":{"9" * 1000},"StartRequests":[]}}') == ()


def test_as_many_start_requests_as_the_limit_are_taken() -> None:
    """R52: every one of them."""
    assert decode(requests(*[FIRST] * 10_000), requests_max=10_000) == (FIRST,) * 10_000


@pytest.mark.parametrize("count", [101, 10_000])
def test_more_start_requests_than_the_limit_are_refused_with_both_numbers(count: int) -> None:
    """R54: everything that can grow has a limit and a clear error."""
    with pytest.raises(BadPayload, match=rf"^StartRequests has {count} elements: at most 100 are allowed$"):
        decode(requests(*[FIRST] * count), requests_max=100)


def test_a_limit_of_none_at_all_still_takes_the_empty_list() -> None:
    """R56."""
    assert decode('{"StartRequests":[]}', requests_max=0) == ()


@given(
    event_ids=st.lists(st.uuids()),
    writes_upper=st.booleans(),
    extra=st.dictionaries(
        st.text().filter(lambda name: name not in {"StartRequests", "EventId"}),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        max_size=4,
    ),
    indent=st.none() | st.integers(min_value=0, max_value=4),
    sorts_keys=st.booleans(),
    has_mark=st.booleans(),
)
def test_every_way_to_write_an_approval_is_read_the_same(
    event_ids: list[UUID],
    writes_upper: bool,
    extra: dict[str, object],
    indent: int | None,
    sorts_keys: bool,
    has_mark: bool,
) -> None:
    """R6, R47, R52, R53, R57."""
    written = [str(event_id).upper() if writes_upper else str(event_id) for event_id in event_ids]
    content = {"StartRequests": [{"EventId": event_id} | extra for event_id in written]} | extra
    body = json.dumps(content, indent=indent, sort_keys=sorts_keys).encode("utf-8-sig" if has_mark else "utf-8")
    assert decode(body) == tuple(str(event_id).upper() for event_id in event_ids)
