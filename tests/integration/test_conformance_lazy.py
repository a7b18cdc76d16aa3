"""What `forewarn conformance` says of endpoints that do hardly anything: no check holds where nothing was seen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forewarn.testing.conformance import CHECKS, CheckVerdict, ConformanceReport, check_endpoint
from tests.support.wrong_endpoint import Asked, Endpoint, Fault, Told, wrong_endpoint

pytestmark = pytest.mark.slow

_DROPPED = "/dropped"

EVENT = {
    "EventId": "17061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventStatus": "Scheduled",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["Vm-1"],
    "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": 5,
}
EMPTY = {"DocumentIncarnation": 1, "Events": []}
ONE_EVENT = {"DocumentIncarnation": 2, "Events": [EVENT]}

OF_APPROVALS = {check.code for check in CHECKS if check.code.startswith(("approval", "approve"))} | {
    *("expect", "body-forms", "request-type", "metadata-post", "metadata-preview", "if-none-match-post"),
    *("versions-mixed", "error-order", "forwarded"),
}
"""Checks that send a POST, and hold only if the endpoint is seen to read it."""

OF_EVENTS = {
    *("members", "members-later", "member-order", "types", "names-preview", "not-before-form", "not-before-preview"),
    *("event-id", "event-id-case", "event-id-unique", "event-id-versions", "event-id-constant", "event-type"),
    *("resource-type", "resources", "event-status", "not-before", "description", "event-source", "duration", "life"),
    *("incarnation-growth", "names"),
}
"""Checks that hold only if an event is seen."""

OF_VERSIONS = {
    *("versions", "version-missing", "version-body", "versions-imds", "version-latest", "versions-mixed"),
    *("incarnation-shared", "event-id-versions", "types", "names-preview", "not-before-preview", "parameter-unknown"),
    *("parameter-repeated", "metadata-get", "path-case", "path-slash", "path-unknown", "methods", "error-body"),
}
"""Checks that hold only if what is asked makes a difference to the answer."""

OF_BYTES = {"content-type", "content-length", "date", "outages"}
"""Checks that can be judged by any answer."""


def _drop(asked: Asked) -> Asked:
    return replace(asked, path=_DROPPED) if asked.method == "POST" else asked


def _throws_away(_: Endpoint, asked: Asked, told: Told) -> Told:
    return Told(200) if asked.path == _DROPPED else told


def _refuses(_: Endpoint, asked: Asked, told: Told) -> Told:
    return Told(400, b'{ "error": "Bad request" }') if asked.path == _DROPPED else told


def _always(content: object) -> Fault:
    return Fault("", "always the same", tell=lambda _, __, ___: Told(200, json.dumps(content).encode()))


def looked_at(fault: Fault) -> ConformanceReport:
    with wrong_endpoint(fault) as url:
        return check_endpoint(url, allow_approve=True, timeout_s=2.0)


def held(report: ConformanceReport) -> set[str]:
    return {finding.check.code for finding in report.findings if finding.outcome.verdict is CheckVerdict.HOLDS}


def test_where_every_post_is_thrown_away_and_answered_200_no_approval_is_said_to_work() -> None:
    """R47, R49, R52, W6: 200 was answered, and it was answered to nonsense as well."""
    report = looked_at(Fault("", "throws POSTs away", ask=_drop, tell=_throws_away))
    assert held(report) & OF_APPROVALS == set()
    assert {"members", "etag", "metadata-get"} <= held(report)
    assert not report.is_conformant


def test_where_every_post_is_refused_no_refusal_is_said_to_have_a_reason() -> None:
    """R10, R54, R55: the one thing that is seen is that refused requests let nothing start."""
    report = looked_at(Fault("", "refuses POSTs", ask=_drop, tell=_refuses))
    assert held(report) & OF_APPROVALS == {"approval-none"}
    assert not report.is_conformant


def test_without_events_nothing_holds_that_is_about_events() -> None:
    report = looked_at(Fault("", "has no events", events=lambda events: events.clear()))
    assert held(report) & OF_EVENTS == set()
    assert held(report) & {code for code in OF_APPROVALS if code.startswith("approve-")} == set()
    assert report.is_conformant


def test_a_single_event_is_not_compared_with_itself() -> None:
    """R30, R52."""
    report = looked_at(Fault("", "has one event", events=lambda events: events.__delitem__(slice(1, None))))
    assert {"event-id-unique", "approve-several", "types"} & held(report) == set()
    assert {"members", "approve", "approve-effect"} <= held(report)
    assert report.is_conformant


def test_where_the_same_empty_document_answers_all_nothing_holds_that_compares() -> None:
    report = looked_at(_always(EMPTY))
    assert held(report) & (OF_EVENTS | OF_VERSIONS | OF_APPROVALS) == set()
    assert not report.is_conformant


def test_where_the_same_document_with_an_event_answers_all_only_its_members_are_judged() -> None:
    report = looked_at(_always(ONE_EVENT))
    assert held(report) & (OF_VERSIONS | OF_APPROVALS) == set()
    assert "event-type" in held(report)
    assert not report.is_conformant


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b""), (200, b"{}"), (401, b'{"error":"who?"}'), (500, b""), (400, b'{"error":"api-version"}')],
    ids=str,
)
def test_an_endpoint_that_shows_no_document_is_told_so_and_not_checked_further(status: int, body: bytes) -> None:
    report = looked_at(Fault("", "shows nothing", tell=lambda _, __, ___: Told(status, body)))
    broken = {finding.check.code for finding in report.broken}
    assert held(report) <= OF_BYTES
    assert {"endpoint", "versions"} <= broken <= {"endpoint", "versions", "outages"}
    assert not report.is_conformant


def test_an_approval_without_effect_is_inconclusive_beside_its_200() -> None:
    """R57a: the start may be later, so it breaks nothing."""
    report = looked_at(Fault("", "forgets", tell=_undone))
    assert {"approve", "approve-forms", "approve-versions", "approve-case"} <= held(report)
    assert {"approve-effect", "approve-several", "approve-started", "life"} & held(report) == set()
    assert report.is_conformant, [f"{f.check.code}: {f.outcome.seen}" for f in report.broken]


def _undone(endpoint: Endpoint, _: Asked, told: Told) -> Told:
    """Whatever has started is Scheduled again at once."""
    for event in endpoint.events:
        if event["EventType"] != "Reboot":
            event.update(EventStatus="Scheduled", NotBefore=EVENT["NotBefore"])
    endpoint.incarnation = 5
    return told


@pytest.mark.parametrize("fault", [_always(EMPTY), Fault("", "none")], ids=lambda fault: fault.name)
def test_every_line_says_what_was_seen(fault: Fault) -> None:
    report = looked_at(fault)
    assert [f.check.code for f in report.findings if not f.outcome.seen] == []
