"""Approvals of an existing event. They let its maintenance start, and are sent only if that is allowed.

Those that must be refused come first: as long as they are refused, the event remains for the other checks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from http import HTTPStatus

from forewarn.clock import RealClock
from forewarn.testing.conformance.check import Check, Phase
from forewarn.testing.conformance.checks.approval import judge_success_body
from forewarn.testing.conformance.forms import Form, body_forms, judge_approvals, send
from forewarn.testing.conformance.outcome import Outcome, Verdict, breaks, holds, inconclusive, judge
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.request import UNKNOWN_ID, Request, approval, post
from forewarn.wire.document import decode_moment

__all__ = ["CHECKS"]

_EFFECT_S = 0.2
_START_S = 5.0
_LOOK_S = 0.25
_REPEATS = 3


def _plain(probe: Probe) -> Request:
    return post(approval([probe.target]), probe.version)


def _refused(probe: Probe, requests: dict[str, Request], right: str) -> Outcome:
    """Judge whether each request is answered 400 and does not let the event start."""
    if probe.target in probe.approved_ids or probe.target not in probe.scheduled():
        return inconclusive("the event is approved or has started already")
    wrong = []
    for name, request in requests.items():
        reply = probe.ask(request)
        if reply.status != HTTPStatus.BAD_REQUEST:
            wrong.append(f"{name} is answered {reply.status}, not 400")
        if not _still_waits(probe):
            wrong.append(f"{name} lets the event start")
            break
    if not wrong:
        _ = probe.harmless  # inconclusive if every POST is answered 400
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
    right = "approvals with wrong headers or no api-version are answered 400, and the event stays Scheduled"
    return _refused(probe, requests, right)


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
    right = f"{len(bodies)} lists that are malformed in part are answered 400, and the event stays Scheduled"
    return _refused(probe, requests, right)


def _refuses_with_unknown(probe: Probe) -> Outcome:
    if probe.target in probe.approved_ids or probe.target not in probe.scheduled():
        return inconclusive("the event is approved or has started already")
    habit = probe.ask(post(approval([UNKNOWN_ID]), probe.version)).status
    if habit == HTTPStatus.OK:
        return inconclusive("not tried: unknown ids are answered 200, and then the others of a list count (A11: 200)")
    reply = probe.ask(post(approval([probe.target, UNKNOWN_ID]), probe.version))
    if reply.status != habit:
        return breaks(f"a list with an unknown id is answered {reply.status}, the unknown id alone {habit}")
    if not _still_waits(probe):
        return breaks("a list with an unknown id is refused, and lets the event start")
    _ = probe.harmless  # inconclusive if every POST is refused, whatever the id
    return holds(f"a list with an unknown id is answered {reply.status}, the event stays Scheduled (A11: {habit})")


def _approves(probe: Probe) -> Outcome:
    reply = probe.approve(_plain(probe))
    said = f"the approval of {probe.target} is answered {reply.status}"
    return _judge_status([reply.status], said, probe)


def _judge_status(statuses: Sequence[int], said: str, probe: Probe) -> Outcome:
    """Judge the answers to approvals that must be 200, if a 200 proves anything here."""
    if any(status != HTTPStatus.OK for status in statuses):
        return breaks(said)
    if probe.refused is not None:
        return holds(f"{said}; {json.dumps(probe.refused)} is refused")
    if _has_started(probe):
        return holds(f"{said}, and the event has started")
    return inconclusive(f"{said}, as every approval is, whatever it says; the event stays Scheduled")


def _lets_start(probe: Probe) -> Outcome:
    reply = probe.approve(_plain(probe))
    not_before = decode_moment(probe.target_not_before)
    if reply.status != HTTPStatus.OK:
        return inconclusive(f"the approval is answered {reply.status}")
    if not _has_started(probe):
        return inconclusive(f"the event did not start within {_START_S:.0f} s of its approval, and need not (R57a)")
    now = decode_moment(probe.fetch().reply.header("date")) or RealClock().now()
    if not_before is not None and not_before <= now:
        return inconclusive("the event has started, but its NotBefore has passed as well")
    return holds("the approved event has started, before its NotBefore")


def _has_started(probe: Probe) -> bool:
    """Return True if the target leaves Scheduled within `_START_S`; only the first call waits."""
    if probe.target not in probe.scheduled():
        return True
    for _ in range(0 if probe.has_waited else int(_START_S / _LOOK_S)):
        time.sleep(_LOOK_S)
        if probe.target not in probe.scheduled():
            return True
    probe.has_waited = True
    return False


def _answers_well(probe: Probe) -> Outcome:
    reply = probe.approve(_plain(probe))
    if reply.status != HTTPStatus.OK:
        return breaks(f"an approval is answered {reply.status}, not 200")
    found = judge_success_body(reply)
    if found.verdict is Verdict.HOLDS and probe.refused is None and not _has_started(probe):
        return inconclusive("every approval is answered 200, whatever it says, so no success was seen")
    return found


def _approves_again(probe: Probe) -> Outcome:
    probe.approve(_plain(probe))
    statuses = [probe.approve(_plain(probe)).status for _ in range(_REPEATS)]
    said = f"approving again is answered {', '.join(map(str, statuses))}"
    return _judge_status(statuses, said, probe)


def _approves_any_case(probe: Probe) -> Outcome:
    if probe.ask(post(approval([UNKNOWN_ID]), probe.version)).status == HTTPStatus.OK:
        return inconclusive("unknown ids are answered 200, so it cannot be told whether one is known (A11: 200)")
    wrong = []
    for event_id in (probe.target.lower(), probe.target.upper()):
        reply = probe.approve(post(approval([event_id]), probe.version))
        if reply.status != HTTPStatus.OK:
            wrong.append(f"{event_id} is answered {reply.status}")
    return judge(wrong, "EventId is known in lower and in upper case, another id is refused")


def _approves_several(probe: Probe) -> Outcome:
    others = [event_id for event_id in probe.scheduled() if event_id != probe.target]
    ids = [probe.target, probe.target, *others[:1]]
    reply = probe.approve(post(approval(ids), probe.version))
    if reply.status != HTTPStatus.OK:
        return breaks(f"a list of {len(ids)} with a repeated EventId is answered {reply.status}")
    if not others:
        return inconclusive("no second event is Scheduled now; a list that repeats the first is answered 200")
    time.sleep(_EFFECT_S)
    waiting = probe.scheduled()
    if others[0] not in waiting:
        return holds("2 events with a repeat in one POST are answered one 200, and the second starts")
    if probe.target not in waiting:
        # The first has started, so approvals take effect at once: the second must not wait either.
        return breaks(f"of two events in one POST only {probe.target} started")
    return inconclusive("2 events in one POST are answered 200, but neither has started yet, and need not (R57a)")


def _approves_in_any_version(probe: Probe) -> Outcome:
    forms: dict[str, Form] = {}
    for name in probe.supported:
        forms[f"in {name}"] = send(name)
        for incarnation in ("5", 5):
            forms[f"in {name} with DocumentIncarnation {incarnation!r}"] = send(name, DocumentIncarnation=incarnation)
    right = (
        f"its approval is answered 200 in {len(probe.supported)} api-versions, what has to be refused in none of them"
    )
    return judge_approvals(probe, forms, right)


def _approves_in_any_form(probe: Probe) -> Outcome:
    plain = send(probe.version)
    forms: dict[str, Form] = {
        **body_forms(probe.version),
        "as curl sends it": lambda content: plain(content).having(
            ("Content-Type", "application/x-www-form-urlencoded")
        ),
        "without Content-Type": lambda content: plain(content).without("Content-Type"),
        "with Expect: 100-continue": lambda content: plain(content).having(("Expect", "100-continue")),
    }
    right = f"its approval is answered 200 {', '.join(forms)}; what has to be refused is so in no form"
    return judge_approvals(probe, forms, right)


def _approves_after_start(probe: Probe) -> Outcome:
    probe.approve(_plain(probe))
    if not _has_started(probe):
        return inconclusive(f"the event did not start within {_START_S:.0f} s of its approval, and need not (R57a)")
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
    Check("approve", ("R49", "W4"), "An approval is answered 200", _approves, Phase.APPROVE),
    Check("approve-effect", ("R47", "R76"), "An approved event starts", _lets_start, Phase.APPROVE),
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
