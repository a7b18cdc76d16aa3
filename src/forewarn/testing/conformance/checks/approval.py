"""Approvals that approve nothing: 1.7 of the specification, as far as it can be checked without starting anything."""

from __future__ import annotations

import json
from http import HTTPStatus

from forewarn.clock import RealClock
from forewarn.testing.conformance.check import Check
from forewarn.testing.conformance.forms import Form, judge_harmless, send
from forewarn.testing.conformance.outcome import Outcome, breaks, excerpt, holds, inconclusive, judge
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.reply import Reply
from forewarn.testing.conformance.request import UNKNOWN_ID, approval, post
from forewarn.wire.document import decode_moment

__all__ = ["CHECKS", "MALFORMED", "judge_success_body"]

MALFORMED = {
    "an empty body": b"",
    "no JSON": b"{",
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
    "EventId no GUID": b'{"StartRequests":[{"EventId":"5"}]}',
}
"""Bodies that must be refused (R54)."""

_UNKNOWN_HABITS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.OK)


def _refuses_malformed(probe: Probe) -> Outcome:
    asked = {name: probe.ask(post(body, probe.version)).status for name, body in MALFORMED.items()}
    wrong = [f"{name} is answered {status}, not 400" for name, status in asked.items() if status != 400]  # noqa: PLR2004 - the status of R54
    if not wrong:
        _ = probe.harmless  # inconclusive if every POST is answered 400
    return judge(wrong, f"{len(MALFORMED)} kinds of malformed bodies are answered 400")


def _judges_unknown(probe: Probe) -> Outcome:
    reply = probe.ask(post(approval([UNKNOWN_ID]), probe.version))
    if reply.status in _UNKNOWN_HABITS:
        _ = probe.harmless  # inconclusive if every POST is answered alike, whatever the id
        return holds(f"a well-formed id that is not known is answered {reply.status} (A11: {reply.status})")
    return breaks(f"a well-formed id that is not known is answered {reply.status}")


def _takes_empty_list(probe: Probe) -> Outcome:
    reply = probe.ask(post(approval([]), probe.version))
    said = f"an empty array StartRequests is answered {reply.status}"
    if reply.status != HTTPStatus.OK:
        return breaks(said)
    _ = probe.harmless  # inconclusive if nonsense is answered 200 as well: then the array was not read
    return holds(f"{said}, nonsense is not")


def _answers_success_well(probe: Probe) -> Outcome:
    reply = probe.ask(post(approval([]), probe.version))
    if reply.status != HTTPStatus.OK:
        return inconclusive(f"an approval of nothing is answered {reply.status}, so no success was seen")
    _ = probe.harmless  # inconclusive if nonsense is answered 200 as well: then a 200 is no success
    return judge_success_body(reply)


def judge_success_body(reply: Reply) -> Outcome:
    """Judge whether the body of a 200 to an approval is empty, or a document (R57, A13)."""
    if not reply.body:
        if reply.all("content-length") == ["0"]:
            return holds("the body of the 200 is empty, with Content-Length: 0 (A13: empty)")
        return breaks("the body of the 200 is empty, but there is no Content-Length: 0")
    content = reply.content
    if isinstance(content, dict) and isinstance(content.get("Events"), list):
        return holds("the body of the 200 is the document (A13: document)")
    return breaks(f"the body of the 200 is neither empty nor a document: {excerpt(reply.body)}")


def _ignores_members(probe: Probe) -> Outcome:
    forms: dict[str, Form] = {
        "with an unknown member at its end": lambda content: post(
            json.dumps({**content, "Reason": "x"}).encode(), probe.version
        ),
        "with an unknown object at its beginning": send(probe.version, Reason={"a": [1]}),
    }
    return judge_harmless(probe, forms, "an approval with unknown members is told from nonsense with them")


def _takes_incarnations(probe: Probe) -> Outcome:
    forms: dict[str, Form] = {}
    for name in probe.supported:
        now = probe.shown(name).incarnation
        for value in (str(now), now, "999999"):
            forms[f"in {name} after DocumentIncarnation {value!r}"] = send(name, DocumentIncarnation=value)
            forms[f"in {name} before DocumentIncarnation {value!r}"] = _before(name, value)
    return judge_harmless(
        probe, forms, "DocumentIncarnation may be a text, a number or an old one, before and after StartRequests"
    )


def _before(version: str, incarnation: object) -> Form:
    return lambda content: post(json.dumps({**content, "DocumentIncarnation": incarnation}).encode(), version)


def _approves_nothing(probe: Probe) -> Outcome:
    """Judge whether bodies that approve nothing start an event; send them again, so that the check also works alone."""
    first = probe.shown().by_id()
    waiting = {event_id for event_id, event in first.items() if event.get("EventStatus") == "Scheduled"}
    if not waiting:
        return inconclusive("no event was Scheduled when we began")
    bodies = (*MALFORMED.values(), approval([UNKNOWN_ID]), approval([]))
    refused = sum(probe.ask(post(body, probe.version)).status >= HTTPStatus.BAD_REQUEST for body in bodies)
    after = probe.fetch()
    now = decode_moment(after.reply.header("date")) or RealClock().now()
    wrong = []
    for event_id in sorted(waiting & after.by_id().keys()):
        not_before = decode_moment(str(first[event_id].get("NotBefore")))
        is_due = not_before is None or not_before <= now
        if after.by_id()[event_id].get("EventStatus") != "Scheduled" and not is_due:
            wrong.append(f"{event_id} started before its NotBefore, and nobody here has approved it")
    if not wrong and not refused:
        return inconclusive(f"none of {len(bodies)} requests that approve nothing was refused")
    kept = "1 Scheduled event" if len(waiting) == 1 else f"{len(waiting)} Scheduled events"
    return judge(
        wrong, f"{kept} did not start from {len(bodies)} requests that approve nothing, {refused} of them refused"
    )


CHECKS = (
    Check("approval-malformed", ("R54",), "A malformed approval is answered 400", _refuses_malformed),
    Check("approval-unknown", ("R55", "A11"), "An unknown EventId is refused", _judges_unknown),
    Check("approval-empty", ("R56",), "An empty array of StartRequests is answered 200", _takes_empty_list),
    Check(
        "approval-body", ("R57", "A13", "W4"), "A 200 to an approval is empty or the document", _answers_success_well
    ),
    Check("approval-members", ("R57",), "Unknown members of an approval are ignored", _ignores_members),
    Check("approval-incarnation", ("R48", "W6"), "DocumentIncarnation is taken, and not checked", _takes_incarnations),
    Check("approval-none", ("R10", "R54"), "What is refused approves nothing", _approves_nothing),
)
