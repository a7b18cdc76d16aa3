"""Approvals of an event that is there. They let its maintenance start, and are made only if that is allowed.

Those that must be refused come first: as long as they are, the event waits for the others.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from http import HTTPStatus

from forewarn.testing.conformance.check import Check, Phase
from forewarn.testing.conformance.checks.approval import judge_success_body
from forewarn.testing.conformance.outcome import Outcome, breaks, holds, judge, unseen
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.request import UNKNOWN_ID, Request, approval, post

__all__ = ["CHECKS"]

_EFFECT_S = 0.2
_START_S = 5.0
_LOOK_S = 0.25
_REPEATS = 3


def _plain(probe: Probe) -> Request:
    return post(approval([probe.target]), probe.version)


def _refused(probe: Probe, requests: dict[str, Request], right: str) -> Outcome:
    """Each has to be answered 400 and must not let the event start."""
    if probe.target in probe.approved_ids or probe.target not in probe.scheduled():
        return unseen("the event is approved or has started already")
    wrong = []
    for name, request in requests.items():
        reply = probe.ask(request)
        if reply.status != HTTPStatus.BAD_REQUEST:
            wrong.append(f"{name} is answered {reply.status}, not 400")
        if not _still_waits(probe):
            wrong.append(f"{name} lets the event start")
            break
    return judge(wrong, right)


def _still_waits(probe: Probe) -> bool:
    time.sleep(_EFFECT_S)
    return probe.target in probe.scheduled()


def _refuses_without_header(probe: Probe) -> Outcome:
    plain = _plain(probe)
    requests = {
        "an approval without Metadata: true": plain.without("Metadata"),
        "an approval with X-Forwarded-For": plain.having(("X-Forwarded-For", "192.0.2.1")),
        "an approval without api-version": post(approval([probe.target]), None),
    }
    return _refused(probe, requests, "approvals with wrong headers or no api-version are answered 400, and are none")


def _refuses_half_malformed(probe: Probe) -> Outcome:
    good = {"EventId": probe.target}
    bodies = {
        "an approval beside an element without EventId": [good, {}],
        "an approval beside a number": [good, 5],
        "an approval before an id that is no GUID": [good, {"EventId": "5"}],
    }
    requests = {
        name: post(json.dumps({"StartRequests": requests}).encode(), probe.version) for name, requests in bodies.items()
    }
    return _refused(probe, requests, "a list that is malformed in part is answered 400, and approves nothing")


def _refuses_with_unknown(probe: Probe) -> Outcome:
    if probe.target in probe.approved_ids or probe.target not in probe.scheduled():
        return unseen("the event is approved or has started already")
    habit = probe.ask(post(approval([UNKNOWN_ID]), probe.version)).status
    if habit == HTTPStatus.OK:
        return holds("not tried: unknown ids are answered 200, and then the others of a list count (A11: 200)")
    reply = probe.ask(post(approval([probe.target, UNKNOWN_ID]), probe.version))
    if reply.status != habit:
        return breaks(f"a list with an unknown id is answered {reply.status}, the unknown id alone {habit}")
    if not _still_waits(probe):
        return breaks("a list with an unknown id is refused, and lets the event start")
    return holds(f"a list with an unknown id is answered {reply.status}, and approves nothing (A11: {habit})")


def _approves(probe: Probe) -> Outcome:
    reply = probe.approve(_plain(probe))
    said = f"the approval of {probe.target} is answered {reply.status}"
    return holds(said) if reply.status == HTTPStatus.OK else breaks(said)


def _answers_well(probe: Probe) -> Outcome:
    reply = probe.approve(_plain(probe))
    if reply.status != HTTPStatus.OK:
        return breaks(f"an approval is answered {reply.status}, not 200")
    return judge_success_body(reply)


def _approves_again(probe: Probe) -> Outcome:
    statuses = [probe.approve(_plain(probe)).status for _ in range(_REPEATS)]
    wrong = [f"approving again is answered {status}" for status in statuses if status != HTTPStatus.OK]
    return judge(wrong, f"approving again is answered 200, {_REPEATS} times")


def _approves_any_case(probe: Probe) -> Outcome:
    if probe.ask(post(approval([UNKNOWN_ID]), probe.version)).status == HTTPStatus.OK:
        return unseen("unknown ids are answered 200, so it cannot be told whether one is known (A11: 200)")
    wrong = []
    for event_id in (probe.target.lower(), probe.target.upper()):
        reply = probe.approve(post(approval([event_id]), probe.version))
        if reply.status != HTTPStatus.OK:
            wrong.append(f"{event_id} is answered {reply.status}")
    return judge(wrong, "EventId is known in lower and in upper case")


def _approves_several(probe: Probe) -> Outcome:
    others = [event_id for event_id in probe.scheduled() if event_id != probe.target]
    ids = [probe.target, probe.target, *others[:1]]
    reply = probe.approve(post(approval(ids), probe.version))
    count = len(set(ids))
    if reply.status != HTTPStatus.OK:
        return breaks(f"a list of {len(ids)} with a repeated EventId is answered {reply.status}")
    if count > 1 and probe.target not in probe.scheduled():
        # The first has started, so approvals count at once: the second must not wait either.
        time.sleep(_EFFECT_S)
        if others[0] in probe.scheduled():
            return breaks(f"of two events in one POST only {probe.target} started")
    return holds(f"{count} {'event' if count == 1 else 'events'} with a repeat in one POST are answered one 200")


def _approves_in_any_version(probe: Probe) -> Outcome:
    wrong = []
    for name in probe.supported:
        for more in ({}, {"DocumentIncarnation": "5"}, {"DocumentIncarnation": 5}):
            reply = probe.approve(post(approval([probe.target], **more), name))
            if reply.status != HTTPStatus.OK:
                with_ = f" with DocumentIncarnation {more['DocumentIncarnation']!r}" if more else ""
                wrong.append(f"{name}{with_} is answered {reply.status}")
    return judge(wrong, "the event is approved in every api-version, with and without DocumentIncarnation")


def _approves_in_any_form(probe: Probe) -> Outcome:
    plain = _plain(probe)
    body = plain.body or b""
    forms = {
        "in chunks": replace(plain, is_chunked=True),
        "with a byte order mark": replace(plain, body=b"\xef\xbb\xbf" + body),
        "over several lines": replace(
            plain, body=json.dumps(json.loads(body), indent=2).replace("\n", "\r\n").encode()
        ),
        "as curl sends it": plain.having(("Content-Type", "application/x-www-form-urlencoded")),
        "without Content-Type": plain.without("Content-Type"),
        "with Expect: 100-continue": plain.having(("Expect", "100-continue")),
    }
    replies = {name: probe.approve(request) for name, request in forms.items()}
    wrong = [f"{name} it is answered {reply.status}" for name, reply in replies.items() if reply.status != 200]  # noqa: PLR2004 - the status of R49
    return judge(wrong, f"the event is approved {', '.join(forms)}")


def _approves_after_start(probe: Probe) -> Outcome:
    probe.approve(_plain(probe))
    for _ in range(int(_START_S / _LOOK_S)):
        if probe.target not in probe.scheduled():
            break
        time.sleep(_LOOK_S)
    else:
        return unseen(f"the event did not start within {_START_S:.0f} s of its approval, and need not (R57a)")
    state = "is Started" if probe.target.upper() in probe.fetch().by_id() else "is gone"
    reply = probe.approve(_plain(probe))
    said = f"approving an event that {state} is answered {reply.status}"
    return holds(said) if reply.status == HTTPStatus.OK else breaks(said)


CHECKS = (
    Check(
        "approve-headers",
        ("R10", "R13"),
        "An approval without the header is none",
        _refuses_without_header,
        Phase.APPROVE,
    ),
    Check(
        "approve-malformed",
        ("R54",),
        "A list malformed in part approves nothing",
        _refuses_half_malformed,
        Phase.APPROVE,
    ),
    Check(
        "approve-unknown",
        ("R55", "A11"),
        "A list with an unknown id approves nothing",
        _refuses_with_unknown,
        Phase.APPROVE,
    ),
    Check("approve", ("R47", "R49", "W4"), "An approval is answered 200", _approves, Phase.APPROVE),
    Check(
        "approve-body",
        ("R57", "A13", "W4"),
        "A 200 to an approval is empty or the document",
        _answers_well,
        Phase.APPROVE,
    ),
    Check("approve-again", ("R49", "W5"), "Approving again is answered 200", _approves_again, Phase.APPROVE),
    Check("approve-case", ("R53",), "EventId is compared without regard to case", _approves_any_case, Phase.APPROVE),
    Check("approve-several", ("R52",), "Several events may be approved in one POST", _approves_several, Phase.APPROVE),
    Check(
        "approve-versions", ("R23", "R48", "W6"), "Any api-version may approve", _approves_in_any_version, Phase.APPROVE
    ),
    Check("approve-forms", ("R6", "R7"), "An approval may come in any form", _approves_in_any_form, Phase.APPROVE),
    Check(
        "approve-started", ("R49", "R55"), "A started event is approved with 200", _approves_after_start, Phase.APPROVE
    ),
)
