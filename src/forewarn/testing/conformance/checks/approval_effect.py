"""Approvals of an existing event. They let its maintenance start, and are sent only if that is allowed.

Those that must be refused come first: as long as they are refused, the event remains for the other checks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from http import HTTPStatus

from forewarn.clock import RealClock
from forewarn.testing.conformance.approval_forms import Form, body_forms, header_form, judge_approvals, plain_form
from forewarn.testing.conformance.check import CheckList, CheckPhase
from forewarn.testing.conformance.checks.approval_format import judge_success_body
from forewarn.testing.conformance.outcome import CheckOutcome, CheckVerdict, breaks, holds, inconclusive, judge
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_request import UNKNOWN_ID, RawRequest, build_post, encode_approval
from forewarn.wire.document import decode_moment

__all__ = ["CHECKS"]

CHECKS = CheckList()

_EFFECT_S = 0.2
_START_S = 5.0
_LOOK_S = 0.25
_REPEATS = 3


def _build_plain_approval(probe: EndpointProbe) -> RawRequest:
    return build_post(encode_approval([probe.target_event_id]), probe.newest_version)


def _judge_refused_approvals(probe: EndpointProbe, requests: dict[str, RawRequest], right: str) -> CheckOutcome:
    """Judge whether each request returns 400 and does not let the event start."""
    if probe.target_event_id in probe.approved_ids or probe.target_event_id not in probe.fetch_scheduled_ids():
        return inconclusive("the event is approved or has started already")
    wrong = []
    for name, request in requests.items():
        reply = probe.send_request(request)
        if reply.status != HTTPStatus.BAD_REQUEST:
            wrong.append(f"{name} returns {reply.status}, not 400")
        if not _is_target_scheduled(probe):
            wrong.append(f"{name} lets the event start")
            break
    if not wrong:
        _ = probe.harmless_approval  # inconclusive if every POST returns 400
    return judge(wrong, right)


def _is_target_scheduled(probe: EndpointProbe) -> bool:
    time.sleep(_EFFECT_S)
    return probe.target_event_id in probe.fetch_scheduled_ids()


@CHECKS.add(
    "approve-headers",
    "R10 R13",
    "An approval with wrong headers or no api-version approves nothing",
    CheckPhase.APPROVE,
)
def _check_wrong_headers(probe: EndpointProbe) -> CheckOutcome:
    plain = _build_plain_approval(probe)
    requests = {
        "an approval without Metadata: true": plain.without_header("Metadata"),
        "an approval with X-Forwarded-For": plain.with_headers(("X-Forwarded-For", "192.0.2.1")),
        "an approval without api-version": build_post(encode_approval([probe.target_event_id]), None),
    }
    right = "approvals with wrong headers or no api-version return 400, and the event stays Scheduled"
    return _judge_refused_approvals(probe, requests, right)


@CHECKS.add("approve-malformed", "R54", "A list that is malformed in part approves nothing", CheckPhase.APPROVE)
def _check_partly_malformed_list(probe: EndpointProbe) -> CheckOutcome:
    good = {"EventId": probe.target_event_id}
    bodies = {
        "an approval beside an element without EventId": [good, {}],
        "an approval beside a number": [good, 5],
        "an approval before an id that is not a GUID": [good, {"EventId": "5"}],
    }
    requests = {
        name: build_post(json.dumps({"StartRequests": requests}).encode(), probe.newest_version)
        for name, requests in bodies.items()
    }
    right = f"{len(bodies)} lists that are malformed in part return 400, and the event stays Scheduled"
    return _judge_refused_approvals(probe, requests, right)


@CHECKS.add("approve-unknown", "R55 A11", "A list with an unknown id approves nothing", CheckPhase.APPROVE)
def _check_list_with_unknown_id(probe: EndpointProbe) -> CheckOutcome:
    if probe.target_event_id in probe.approved_ids or probe.target_event_id not in probe.fetch_scheduled_ids():
        return inconclusive("the event is approved or has started already")
    # The unknown id alone first: it shows what this endpoint answers to one, and starts nothing.
    habit = probe.send_request(build_post(encode_approval([UNKNOWN_ID]), probe.newest_version)).status
    if habit == HTTPStatus.OK:
        return inconclusive("not tried: unknown ids return 200, so the other ids of a list would count (A11: 200)")
    reply = probe.send_request(build_post(encode_approval([probe.target_event_id, UNKNOWN_ID]), probe.newest_version))
    if reply.status != habit:
        return breaks(f"a list with an unknown id returns {reply.status}, the unknown id alone {habit}")
    if not _is_target_scheduled(probe):
        return breaks("a list with an unknown id is refused, but the event starts")
    _ = probe.harmless_approval  # inconclusive if every POST is refused, whatever the id
    return holds(f"a list with an unknown id returns {reply.status}, the event stays Scheduled (A11: {habit})")


@CHECKS.add("approve", "R49 W4", "An approval returns 200", CheckPhase.APPROVE)
def _check_approval(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.approve_target(_build_plain_approval(probe))
    said = f"the approval of {probe.target_event_id} returns {reply.status}"
    return _judge_statuses([reply.status], said, probe)


def _judge_statuses(statuses: Sequence[int], said: str, probe: EndpointProbe) -> CheckOutcome:
    """Judge the answers to approvals that must be 200, if a 200 proves anything here."""
    if any(status != HTTPStatus.OK for status in statuses):
        return breaks(said)
    if probe.refused_approval is not None:
        return holds(f"{said}; {json.dumps(probe.refused_approval)} is refused")
    if _wait_for_start(probe):
        return holds(f"{said}, and the event has started")
    return inconclusive(f"{said}, like every approval whatever its content; the event stays Scheduled")


@CHECKS.add("approve-effect", "R47 R76", "An approved event starts", CheckPhase.APPROVE)
def _check_approval_effect(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.approve_target(_build_plain_approval(probe))
    not_before = decode_moment(probe.target_not_before)
    if reply.status != HTTPStatus.OK:
        return inconclusive(f"the approval returns {reply.status}")
    if not _wait_for_start(probe):
        return inconclusive(f"the event did not start within {_START_S:.0f} s of its approval, nor had to (R57a)")
    now = decode_moment(probe.fetch_document().reply.get_header("date")) or RealClock().now()
    if not_before is not None and not_before <= now:
        return inconclusive("the event has started, but its NotBefore has passed as well")
    return holds("the approved event has started, before its NotBefore")


def _wait_for_start(probe: EndpointProbe) -> bool:
    """Return True if the target leaves Scheduled within `_START_S`; only the first call waits."""
    if probe.target_event_id not in probe.fetch_scheduled_ids():
        return True
    # An event that did not start in the first wait is not waited for in each further check.
    for _ in range(0 if probe.has_waited_for_start else int(_START_S / _LOOK_S)):
        time.sleep(_LOOK_S)
        if probe.target_event_id not in probe.fetch_scheduled_ids():
            return True
    probe.has_waited_for_start = True
    return False


@CHECKS.add("approve-body", "R57 A13 W4", "A 200 to an approval is empty or the document", CheckPhase.APPROVE)
def _check_approval_body(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.approve_target(_build_plain_approval(probe))
    if reply.status != HTTPStatus.OK:
        return breaks(f"an approval returns {reply.status}, not 200")
    found = judge_success_body(reply)
    if found.verdict is CheckVerdict.HOLDS and probe.refused_approval is None and not _wait_for_start(probe):
        return inconclusive("every approval returns 200 whatever its content, so no success was seen")
    return found


@CHECKS.add("approve-again", "R49 W5", "Approving again returns 200", CheckPhase.APPROVE)
def _check_repeated_approval(probe: EndpointProbe) -> CheckOutcome:
    probe.approve_target(_build_plain_approval(probe))
    statuses = [probe.approve_target(_build_plain_approval(probe)).status for _ in range(_REPEATS)]
    said = f"approving again returns {', '.join(map(str, statuses))}"
    return _judge_statuses(statuses, said, probe)


@CHECKS.add("approve-case", "R53", "EventId is compared without regard to case", CheckPhase.APPROVE)
def _check_id_case(probe: EndpointProbe) -> CheckOutcome:
    if probe.send_request(build_post(encode_approval([UNKNOWN_ID]), probe.newest_version)).status == HTTPStatus.OK:
        return inconclusive("unknown ids return 200, so known ids cannot be distinguished (A11: 200)")
    wrong = []
    for event_id in (probe.target_event_id.lower(), probe.target_event_id.upper()):
        reply = probe.approve_target(build_post(encode_approval([event_id]), probe.newest_version))
        if reply.status != HTTPStatus.OK:
            wrong.append(f"{event_id} returns {reply.status}")
    return judge(wrong, "EventId is accepted in lower and upper case, another id is refused")


@CHECKS.add("approve-several", "R52", "Several events may be approved in one POST", CheckPhase.APPROVE)
def _check_several_events(probe: EndpointProbe) -> CheckOutcome:
    others = [event_id for event_id in probe.fetch_scheduled_ids() if event_id != probe.target_event_id]
    ids = [probe.target_event_id, probe.target_event_id, *others[:1]]
    reply = probe.approve_target(build_post(encode_approval(ids), probe.newest_version))
    if reply.status != HTTPStatus.OK:
        return breaks(f"a list of {len(ids)} with a repeated EventId returns {reply.status}")
    if not others:
        return inconclusive("no second event is Scheduled now; a list that repeats the first returns 200")
    time.sleep(_EFFECT_S)
    waiting = probe.fetch_scheduled_ids()
    if others[0] not in waiting:
        return holds("2 events with a repeat in one POST return 200, and the second starts")
    if probe.target_event_id not in waiting:
        # The first has started, so approvals take effect at once: the second must not wait either.
        return breaks(f"of two events in one POST only {probe.target_event_id} started")
    return inconclusive("2 events in one POST return 200, but neither has started yet, nor has to (R57a)")


@CHECKS.add("approve-versions", "R23 R48 W6", "Any api-version may approve", CheckPhase.APPROVE)
def _check_approval_in_any_version(probe: EndpointProbe) -> CheckOutcome:
    forms: dict[str, Form] = {}
    for name in probe.supported_versions:
        forms[f"in {name}"] = plain_form(name)
        for incarnation in ("5", 5):
            forms[f"in {name} with DocumentIncarnation {incarnation!r}"] = plain_form(
                name, DocumentIncarnation=incarnation
            )
    right = f"its approval returns 200 in {len(probe.supported_versions)} api-versions, an invalid one in none of them"
    return judge_approvals(probe, forms, right)


@CHECKS.add("approve-forms", "R6 R7", "An approval is accepted in every form that clients send", CheckPhase.APPROVE)
def _check_approval_in_any_form(probe: EndpointProbe) -> CheckOutcome:
    version = probe.newest_version
    forms = {
        **body_forms(version),
        "as curl sends it": header_form(version, "Content-Type", "application/x-www-form-urlencoded"),
        "without Content-Type": header_form(version, "Content-Type", None),
        "with Expect: 100-continue": header_form(version, "Expect", "100-continue"),
    }
    right = f"its approval returns 200 {', '.join(forms)}; an invalid one in no form"
    return judge_approvals(probe, forms, right)


@CHECKS.add("approve-started", "R49 R55", "Approving a started event returns 200", CheckPhase.APPROVE)
def _check_approval_after_start(probe: EndpointProbe) -> CheckOutcome:
    probe.approve_target(_build_plain_approval(probe))
    if not _wait_for_start(probe):
        return inconclusive(f"the event did not start within {_START_S:.0f} s of its approval, nor had to (R57a)")
    state = "is Started" if probe.target_event_id.upper() in probe.fetch_document().events_by_id() else "is gone"
    reply = probe.approve_target(_build_plain_approval(probe))
    said = f"approving an event that {state} returns {reply.status}"
    return holds(said) if reply.status == HTTPStatus.OK else breaks(said)
