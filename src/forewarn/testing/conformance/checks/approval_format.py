"""Approvals that approve nothing: 1.7 of the specification, as far as it can be checked without starting anything."""

from __future__ import annotations

import json
from http import HTTPStatus

from forewarn.clock import RealClock
from forewarn.testing.conformance.approval_forms import Form, judge_harmless_approvals, plain_form
from forewarn.testing.conformance.check import CheckList
from forewarn.testing.conformance.outcome import CheckOutcome, breaks, excerpt_body, holds, inconclusive, judge
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_reply import RawReply
from forewarn.testing.conformance.raw_request import UNKNOWN_ID, build_post, encode_approval
from forewarn.wire.document import decode_moment

__all__ = ["CHECKS", "MALFORMED", "judge_success_body"]

CHECKS = CheckList()

MALFORMED = {
    "an empty body": b"",
    "invalid JSON": b"{",
    "an array": b"[]",
    "a text": b'"StartRequests"',
    "no StartRequests": b"{}",
    "StartRequests null": b'{"StartRequests":null}',
    "StartRequests an object": b'{"StartRequests":{"EventId":"0F0E0D0C-0B0A-4908-8706-050403020100"}}',
    "StartRequests a text": b'{"StartRequests":"0F0E0D0C-0B0A-4908-8706-050403020100"}',
    "an element that is a text": b'{"StartRequests":["0F0E0D0C-0B0A-4908-8706-050403020100"]}',
    "an element that is null": b'{"StartRequests":[null]}',
    "no EventId": b'{"StartRequests":[{}]}',
    "EventId a number": b'{"StartRequests":[{"EventId":5}]}',
    "EventId not a GUID": b'{"StartRequests":[{"EventId":"5"}]}',
}
"""Bodies that must be refused (R54)."""

_UNKNOWN_HABITS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.OK)


@CHECKS.add("approval-malformed", "R54", "A malformed approval returns 400")
def _check_malformed_approvals(probe: EndpointProbe) -> CheckOutcome:
    wrong = probe.list_wrong_statuses(
        {name: build_post(body, probe.newest_version) for name, body in MALFORMED.items()}
    )
    if not wrong:
        _ = probe.harmless_approval  # inconclusive if every POST returns 400
    return judge(wrong, f"{len(MALFORMED)} kinds of malformed bodies return 400")


@CHECKS.add("approval-unknown", "R55 A11", "An unknown EventId is refused")
def _check_unknown_id(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.send_request(build_post(encode_approval([UNKNOWN_ID]), probe.newest_version))
    if reply.status in _UNKNOWN_HABITS:
        _ = probe.harmless_approval  # inconclusive if every POST gets the same answer, whatever the id
        return holds(f"a well-formed unknown id returns {reply.status} (A11: {reply.status})")
    return breaks(f"a well-formed unknown id returns {reply.status}")


@CHECKS.add("approval-empty", "R56", "An empty array of StartRequests returns 200")
def _check_empty_list(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.send_request(build_post(encode_approval([]), probe.newest_version))
    said = f"an empty array StartRequests returns {reply.status}"
    if reply.status != HTTPStatus.OK:
        return breaks(said)
    _ = probe.harmless_approval  # inconclusive if nonsense returns 200 as well: then the array was not read
    return holds(f"{said}, nonsense does not")


@CHECKS.add("approval-body", "R57 A13 W4", "A 200 to an approval is empty or the document")
def _check_success_body(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.send_request(build_post(encode_approval([]), probe.newest_version))
    if reply.status != HTTPStatus.OK:
        return inconclusive(f"an approval of nothing returns {reply.status}, so no success was seen")
    _ = probe.harmless_approval  # inconclusive if nonsense returns 200 as well: then a 200 is no success
    return judge_success_body(reply)


def judge_success_body(reply: RawReply) -> CheckOutcome:
    """Judge whether the body of a 200 to an approval is empty, or a document (R57, A13)."""
    if not reply.body:
        if reply.get_all("content-length") == ["0"]:
            return holds("the body of the 200 is empty, with Content-Length: 0 (A13: empty)")
        return breaks("the body of the 200 is empty, but there is no Content-Length: 0")
    content = reply.content
    if isinstance(content, dict) and isinstance(content.get("Events"), list):
        return holds("the body of the 200 is the document (A13: document)")
    return breaks(f"the body of the 200 is neither empty nor a document: {excerpt_body(reply.body)}")


@CHECKS.add("approval-members", "R57", "Unknown members of an approval are ignored")
def _check_unknown_members(probe: EndpointProbe) -> CheckOutcome:
    forms: dict[str, Form] = {
        "with an unknown member at its end": _append_members(probe.newest_version, Reason="x"),
        "with an unknown object at its beginning": plain_form(probe.newest_version, Reason={"a": [1]}),
    }
    return judge_harmless_approvals(
        probe, forms, "an approval with unknown members is distinguished from nonsense with them"
    )


@CHECKS.add("approval-incarnation", "R48 W6", "DocumentIncarnation is accepted and not checked")
def _check_incarnation_values(probe: EndpointProbe) -> CheckOutcome:
    forms: dict[str, Form] = {}
    for name in probe.supported_versions:
        now = probe.get_first_document(name).incarnation
        for value in (str(now), now, "999999"):
            forms[f"in {name} after DocumentIncarnation {value!r}"] = plain_form(name, DocumentIncarnation=value)
            forms[f"in {name} before DocumentIncarnation {value!r}"] = _append_members(name, DocumentIncarnation=value)
    return judge_harmless_approvals(
        probe, forms, "DocumentIncarnation may be text, a number or outdated, before or after StartRequests"
    )


def _append_members(version: str, **members: object) -> Form:
    """Return the plain form with these members after those of the body."""
    return lambda content: build_post(json.dumps({**content, **members}).encode(), version)


@CHECKS.add("approval-none", "R10 R54", "A refused request approves nothing")
def _check_nothing_started(probe: EndpointProbe) -> CheckOutcome:
    """Judge whether bodies that approve nothing start an event; send them again, so that the check also works alone."""
    first = probe.get_first_document().events_by_id()
    waiting = {event_id for event_id, event in first.items() if event.get("EventStatus") == "Scheduled"}
    if not waiting:
        return inconclusive("no event was Scheduled at the start")
    bodies = (*MALFORMED.values(), encode_approval([UNKNOWN_ID]), encode_approval([]))
    refused = sum(
        probe.send_request(build_post(body, probe.newest_version)).status >= HTTPStatus.BAD_REQUEST for body in bodies
    )
    after = probe.fetch_document()
    # The endpoint's clock decides about NotBefore, and may differ from ours.
    now = decode_moment(after.reply.get_header("date")) or RealClock().now()
    wrong = []
    for event_id in sorted(waiting & after.events_by_id().keys()):
        not_before = decode_moment(str(first[event_id].get("NotBefore")))
        # After its NotBefore an event may start without any approval (R76).
        is_due = not_before is None or not_before <= now
        if after.events_by_id()[event_id].get("EventStatus") != "Scheduled" and not is_due:
            wrong.append(f"{event_id} started before its NotBefore, though this run did not approve it")
    if not wrong and not refused:
        return inconclusive(f"none of {len(bodies)} requests that approve nothing was refused")
    kept = "1 Scheduled event" if len(waiting) == 1 else f"{len(waiting)} Scheduled events"
    return judge(
        wrong, f"{kept} did not start after {len(bodies)} requests that approve nothing, {refused} of them refused"
    )
