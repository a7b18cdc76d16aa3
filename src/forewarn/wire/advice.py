"""Client behavior that real endpoints refuse or do not promise, found in requests.

Each row examines one request, together with earlier ones of the same VM. A warning is a sentence for the author of the
client, followed by its source in the specification.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from forewarn.wire import instance
from forewarn.wire.exchange import BODY_BYTES_MAX, Exchange

__all__ = ["ADVICE", "RATE_MAX", "Advice", "find_advice", "find_advice_for_all"]

_PREVIEW = "2017-03-01"
_NEWEST = "2020-07-01"
RATE_MAX = 5
"""Requests per second that every endpoint accepts (R9)."""

_SECOND = timedelta(seconds=1)
_RECENT = 50
_EVENTS = "/metadata/scheduledevents"
_LATEST = "/metadata/latest/scheduledevents"
_INSTANCE = "/metadata/instance"


@dataclass(frozen=True, slots=True)
class Advice:
    """Warning about a kind of behaviour that a client should avoid.

    Attributes:
        code: Stable code, for programs.
        text: Text for people.
        spec: Requirements of the specification behind it.
        matches: Predicate on a request and the earlier ones.
        is_wrong: True if it fails elsewhere, rather than being unwise.
        is_general: True if it applies to `/metadata/instance` too.
    """

    code: str
    text: str
    spec: str
    matches: Callable[[Exchange, Sequence[Exchange]], bool]
    is_wrong: bool = True
    is_general: bool = False


def _has_no_metadata(exchange: Exchange, _before: Sequence[Exchange]) -> bool:
    return bool(exchange.method) and (exchange.get_header("metadata") or "").strip().lower() != "true"


def _has_misspelled_metadata(exchange: Exchange, _before: Sequence[Exchange]) -> bool:
    value = exchange.get_header("metadata")
    return value is not None and value != "true" and value.strip().lower() == "true"


def _has_unknown_version(exchange: Exchange, _before: Sequence[Exchange]) -> bool:
    is_refused = exchange.status == HTTPStatus.BAD_REQUEST and b"api-version" in exchange.answer
    return bool(exchange.api_version) and is_refused


def _has_no_instance_version(exchange: Exchange, _before: Sequence[Exchange]) -> bool:
    """Return True for a request to `/metadata/instance` with no api-version or one that does not exist."""
    is_instance = exchange.path.startswith(_INSTANCE)
    return is_instance and exchange.answer in {instance.VERSION_INVALID, instance.VERSION_MISSING}


def _requests_value_as_json(exchange: Exchange, _before: Sequence[Exchange]) -> bool:
    return exchange.path.startswith(_INSTANCE) and exchange.answer == instance.LEAF_WITHOUT_TEXT


def _came_through_proxy(exchange: Exchange, _before: Sequence[Exchange]) -> bool:
    is_for_proxy = "://" in exchange.target.partition("?")[0]  # a client asks a proxy with a whole URL
    return is_for_proxy or any(
        exchange.get_header(name) is not None for name in ("x-forwarded-for", "via", "proxy-connection")
    )


def _is_too_frequent(exchange: Exchange, before: Sequence[Exchange]) -> bool:
    # The request itself is not among the earlier ones: with it, there is one more than the maximum.
    recent = [each for each in before if exchange.at - each.at < _SECOND]
    return len(recent) >= RATE_MAX


def _repeats_a_parameter(exchange: Exchange, _before: Sequence[Exchange]) -> bool:
    _, _, query = exchange.target.partition("?")
    names = [part.partition("=")[0] for part in query.split("&") if part]
    return len(set(names)) < len(names)


def _is_malformed(exchange: Exchange, _before: Sequence[Exchange]) -> bool:
    return exchange.method == "POST" and exchange.status == HTTPStatus.BAD_REQUEST and not _list_approved_ids(exchange)


def _approves_unseen_event(exchange: Exchange, before: Sequence[Exchange]) -> bool:
    """Return True if it approves an event that no answer to this VM has shown."""
    if exchange.status != HTTPStatus.OK or not _list_approved_ids(exchange):
        return False
    answers = [each for each in before if each.method == "GET"]
    is_cut = any(len(each.answer) >= BODY_BYTES_MAX for each in answers)  # the VM has read more than was kept
    seen = {event_id for each in answers for event_id in _read_events(each)}
    # If the window is full, the answer that showed the event may have left it.
    return not _list_approved_ids(exchange) <= seen and not is_cut and len(before) < _RECENT


def _approves_started_event(exchange: Exchange, before: Sequence[Exchange]) -> bool:
    ids = _list_approved_ids(exchange)
    if not ids:
        return False
    last = next((each for each in reversed(before) if each.method == "GET" and _is_document(each)), None)
    started = {i for i, event in _read_events(last).items() if event.get("EventStatus") == "Started"} if last else set()
    return bool(ids & started)


def _approves_ended_event(exchange: Exchange, before: Sequence[Exchange]) -> bool:
    """Return True if it approves an event that was shown once, and that the last document no longer has."""
    ids = _list_approved_ids(exchange)
    if not ids:
        return False
    # An injected fault may have hidden events that are not over.
    documents = [each for each in before if each.method == "GET" and _is_document(each) and not each.fault]
    seen = {event_id for each in documents for event_id in _read_events(each)}
    return bool(documents) and bool(ids & (seen - _read_events(documents[-1]).keys()))


def _repeats_approval(exchange: Exchange, before: Sequence[Exchange]) -> bool:
    ids = _list_approved_ids(exchange)
    if exchange.status != HTTPStatus.OK or not ids:
        return False
    return ids <= {i for each in before if each.status == HTTPStatus.OK for i in _list_approved_ids(each)}


def _list_approved_ids(exchange: Exchange) -> set[str]:
    """Return the EventIds that a POST approves, in upper case."""
    if exchange.method != "POST":
        return set()
    requests = _parse_body(exchange).get("StartRequests")
    found = [each.get("EventId") for each in requests if isinstance(each, dict)] if isinstance(requests, list) else []
    return {event_id.upper() for event_id in found if isinstance(event_id, str)}


def _parse_body(exchange: Exchange) -> dict[str, Any]:
    return _parse_json(exchange.body.removeprefix(b"\xef\xbb\xbf"))


def _is_document(exchange: Exchange) -> bool:
    return exchange.status == HTTPStatus.OK and isinstance(_parse_json(exchange.answer).get("Events"), list)


def _read_events(exchange: Exchange) -> dict[str, dict[str, Any]]:
    """Return the events of an answer, by their ids."""
    events = _parse_json(exchange.answer).get("Events") if exchange.status == HTTPStatus.OK else None
    if not isinstance(events, list):
        return {}
    return {event["EventId"]: event for event in events if isinstance(event, dict) and "EventId" in event}


@lru_cache(maxsize=256)  # each request is compared with up to fifty before it, and most of those got the same answer
def _parse_json(content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


ADVICE: tuple[Advice, ...] = (
    Advice(
        "metadata-missing",
        "sends no 'Metadata: true': refused with 400 by every version from 2017-08-01",
        "R10",
        matches=_has_no_metadata,
        is_general=True,
    ),
    Advice(
        "metadata-spelling",
        "sends the header Metadata with an unusual spelling of true: only 'true' is documented",
        "R11",
        is_wrong=False,
        matches=_has_misspelled_metadata,
        is_general=True,
    ),
    Advice(
        "version-missing",
        "sends no api-version: refused with 400",
        "R15",
        matches=lambda exchange, _: not exchange.api_version and exchange.path == _EVENTS,
    ),
    Advice(
        "version-unknown",
        "sends an api-version that Scheduled Events does not have: refused with 400",
        "R15, R24",
        matches=_has_unknown_version,
    ),
    Advice(
        "instance-version",
        "asks for the instance metadata without an api-version, or with one that the instance metadata does not have, "
        "such as 2017-07-01: refused with 400 and a list of the newest api-versions",
        "R111",
        matches=_has_no_instance_version,
        is_general=True,
    ),
    Advice(
        "instance-format",
        "asks for a single value of the instance metadata without format=text: refused with 400; in a shell, put the "
        "URL in quotes, because an & outside quotes cuts off the rest of the URL",
        "R111",
        matches=_requests_value_as_json,
        is_general=True,
    ),
    Advice(
        "version-preview",
        "asks for the preview version 2017-03-01: names begin with '_', NotBefore has another format, Preempt and "
        "Terminate are missing",
        "R19 to R21",
        is_wrong=False,
        matches=lambda exchange, _: exchange.api_version == _PREVIEW,
    ),
    Advice(
        "version-old",
        f"asks for a version before {_NEWEST}: Preempt, Terminate, Description, EventSource or DurationInSeconds may "
        "be missing",
        "R16, R19",
        is_wrong=False,
        matches=lambda exchange, _: _PREVIEW < exchange.api_version < _NEWEST and exchange.status == HTTPStatus.OK,
    ),
    Advice(
        "path-latest",
        "uses the path 'latest', which was removed",
        "R22",
        matches=lambda exchange, _: exchange.path == _LATEST,
    ),
    Advice(
        "proxy",
        "sends the request through a proxy, perhaps the one in the variable http_proxy: the endpoint answers only "
        "requests that come directly from the VM",
        "R13, R104",
        matches=_came_through_proxy,
        is_general=True,
    ),
    Advice(
        "method",
        "uses a method other than GET and POST: refused with 405",
        "R4",
        matches=lambda exchange, _: exchange.method not in {"GET", "POST", ""},
        is_general=True,
    ),
    Advice(
        "parameter-repeated",
        "repeats a query parameter: refused with 400",
        "R5",
        matches=_repeats_a_parameter,
    ),
    Advice(
        "rate",
        f"asks more than {RATE_MAX} times a second: other endpoints answer 429; once a second is recommended",
        "R9, R97",
        is_wrong=False,
        matches=_is_too_frequent,
        is_general=True,
    ),
    Advice(
        "unreadable",
        "sends an invalid HTTP/1.1 request",
        "R6",
        matches=lambda exchange, _: not exchange.method and exchange.status != 0,
    ),
    Advice(
        "body-malformed",
        'approves with a body that is not {"StartRequests": [{"EventId": "..."}]}',
        "R47, R54",
        matches=_is_malformed,
    ),
    Advice(
        "event-unknown",
        "approves an id that belongs to no current or earlier event of this VM: refused with 400, and no event of the "
        "request is approved",
        "R55",
        # By the words of our own endpoint: the status alone does not tell an unknown id from a malformed body.
        matches=lambda exchange, _: b"EventId is not known" in exchange.answer,
    ),
    Advice(
        "event-unseen",
        "approves an id that the endpoint accepts, but that this VM has not received in any answer: perhaps the client "
        "got the id from another VM",
        "R51",
        is_wrong=False,
        matches=_approves_unseen_event,
    ),
    Advice(
        "event-started",
        "approves an event that has started: answered with 200, without effect",
        "R49",
        is_wrong=False,
        matches=_approves_started_event,
    ),
    Advice(
        "event-over",
        "approves an event that is over and no longer in the document: answered with 200, without effect",
        "R49, R55",
        is_wrong=False,
        matches=_approves_ended_event,
    ),
    Advice(
        "approval-repeated",
        "approves an event that it has already approved: answered with 200, without effect",
        "R49",
        is_wrong=False,
        matches=_repeats_approval,
    ),
    Advice(
        "incarnation-sent",
        "sends a DocumentIncarnation with its approval: only the preview's examples did so, and no endpoint checks "
        "the value",
        "R48",
        is_wrong=False,
        matches=lambda exchange, _: exchange.method == "POST" and "DocumentIncarnation" in _parse_body(exchange),
    ),
)
"""Every row, in the order in which warnings are given."""


def find_advice(exchange: Exchange, before: Sequence[Exchange] = ()) -> list[Advice]:
    """Return the advice on a request, given the last few requests of the same VM before it, oldest first."""
    if exchange.fault:
        return []  # the client is not to blame for an injected fault
    is_about_events = exchange.is_about_events or not exchange.method
    if not is_about_events and not exchange.path.startswith(_INSTANCE):
        return []
    return [row for row in ADVICE if (is_about_events or row.is_general) and row.matches(exchange, before)]


def find_advice_for_all(
    exchanges: Sequence[Exchange], newest_max: int | None = None
) -> list[tuple[Exchange, list[Advice]]]:
    """Return the newest requests with their advice, oldest first; with None, all of them.

    The requests of one VM are in the order in which they came. Earlier ones are the context of those that are examined.
    """
    first = 0 if newest_max is None else max(len(exchanges) - newest_max, 0)
    before: dict[str, deque[Exchange]] = {}
    found = []
    for number, exchange in enumerate(exchanges):
        mine = before.setdefault(exchange.vm, deque(maxlen=_RECENT))
        if number >= first:
            found.append((exchange, find_advice(exchange, tuple(mine))))
        mine.append(exchange)
    return found
