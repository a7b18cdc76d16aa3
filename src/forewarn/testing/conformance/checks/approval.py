"""Approvals that approve nothing: 1.7 of the specification, as far as it can be seen without starting anything."""

from __future__ import annotations

import json
from http import HTTPStatus

from forewarn.clock import RealClock
from forewarn.testing.conformance.check import Check
from forewarn.testing.conformance.outcome import Outcome, breaks, excerpt, holds, judge, unseen
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
"""Bodies that have to be refused (R54)."""

_UNKNOWN_HABITS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.OK)


def _refuses_malformed(probe: Probe) -> Outcome:
    asked = {name: probe.ask(post(body, probe.version)).status for name, body in MALFORMED.items()}
    wrong = [f"{name} is answered {status}, not 400" for name, status in asked.items() if status != 400]  # noqa: PLR2004 - the status of R54
    return judge(wrong, f"{len(MALFORMED)} kinds of malformed bodies are answered 400")


def _judges_unknown(probe: Probe) -> Outcome:
    reply = probe.ask(post(approval([UNKNOWN_ID]), probe.version))
    if reply.status in _UNKNOWN_HABITS:
        return holds(f"a well-formed id that is not known is answered {reply.status} (A11: {reply.status})")
    return breaks(f"a well-formed id that is not known is answered {reply.status}")


def _takes_empty_list(probe: Probe) -> Outcome:
    reply = probe.ask(post(approval([]), probe.version))
    said = f"an empty array StartRequests is answered {reply.status}"
    return holds(said) if reply.status == HTTPStatus.OK else breaks(said)


def _answers_success_well(probe: Probe) -> Outcome:
    reply = probe.ask(post(approval([]), probe.version))
    if reply.status != HTTPStatus.OK:
        return unseen(f"an approval of nothing is answered {reply.status}, so no success was seen")
    return judge_success_body(reply)


def judge_success_body(reply: Reply) -> Outcome:
    """Whether the body of a 200 to an approval is empty, or a document (R57, A13)."""
    if not reply.body:
        if reply.all("content-length") == ["0"]:
            return holds("the body of the 200 is empty, with Content-Length: 0 (A13: empty)")
        return breaks("the body of the 200 is empty, but there is no Content-Length: 0")
    content = reply.content
    if isinstance(content, dict) and isinstance(content.get("Events"), list):
        return holds("the body of the 200 is the document (A13: document)")
    return breaks(f"the body of the 200 is neither empty nor a document: {excerpt(reply.body)}")


def _ignores_members(probe: Probe) -> Outcome:
    harmless = probe.harmless
    bodies = [{**harmless.content, "Reason": "x"}, {"Reason": {"a": [1]}, **harmless.content}]
    replies = [probe.ask(post(json.dumps(body).encode(), probe.version)) for body in bodies]
    wrong = [f"with an unknown member it is answered {r.status}" for r in replies if not harmless.is_taken(r)]
    return judge(wrong, "an approval with unknown members is understood")


def _takes_incarnations(probe: Probe) -> Outcome:
    wrong = []
    content = probe.harmless.content
    for name in probe.supported:
        now = probe.shown(name).incarnation
        for value in (str(now), now, "999999"):
            for body in ({"DocumentIncarnation": value, **content}, {**content, "DocumentIncarnation": value}):
                reply = probe.ask(post(json.dumps(body).encode(), name))
                if not probe.harmless.is_taken(reply):
                    wrong.append(f"with DocumentIncarnation {value!r} {name} answers {reply.status}")
    return judge(wrong, "DocumentIncarnation may be a text, a number or an old one, before and after StartRequests")


def _approves_nothing(probe: Probe) -> Outcome:
    """Sends what approves nothing once more, so that it says something also when it is asked for alone."""
    first = probe.shown().by_id()
    waiting = {event_id for event_id, event in first.items() if event.get("EventStatus") == "Scheduled"}
    if not waiting:
        return unseen("no event was Scheduled when we began")
    for body in (*MALFORMED.values(), approval([UNKNOWN_ID]), approval([])):
        probe.ask(post(body, probe.version))
    after = probe.fetch()
    now = decode_moment(after.reply.header("date")) or RealClock().now()
    wrong = []
    for event_id in sorted(waiting & after.by_id().keys()):
        not_before = decode_moment(str(first[event_id].get("NotBefore")))
        is_due = not_before is None or not_before <= now
        if after.by_id()[event_id].get("EventStatus") != "Scheduled" and not is_due:
            wrong.append(f"{event_id} started before its NotBefore, and nobody here has approved it")
    return judge(wrong, f"{len(waiting)} Scheduled events did not start from requests that approve nothing")


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
