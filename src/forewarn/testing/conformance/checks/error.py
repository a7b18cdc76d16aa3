"""Errors and their order: 1.9 of the specification."""

from __future__ import annotations

from http import HTTPStatus

from forewarn.testing.conformance.check import CheckList, CheckPhase
from forewarn.testing.conformance.outcome import CheckOutcome, excerpt_body, inconclusive, judge
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_reply import RawReply
from forewarn.testing.conformance.raw_request import EVENTS, RawRequest, build_get, build_post

__all__ = ["CHECKS"]

CHECKS = CheckList()

_POLLS = 5
_FORWARDED = ("X-Forwarded-For", "192.0.2.1")


@CHECKS.add("error-body", "R65", "Errors are JSON objects with a string 'error'")
def _check_error_bodies(probe: EndpointProbe) -> CheckOutcome:
    asked = {
        "404": build_get(probe.newest_version, path=EVENTS + "x"),
        "405": build_get(probe.newest_version, method="PUT"),
        "400 to X-Forwarded-For": build_get(probe.newest_version).with_headers(_FORWARDED),
        "400 to a malformed approval": build_post(b"{", probe.newest_version),
        "400 to a missing api-version": build_get(None),
    }
    answers = {name: probe.send_request(request) for name, request in asked.items()}
    replies = {name: reply for name, reply in answers.items() if reply.status >= HTTPStatus.BAD_REQUEST}
    if not replies:
        return inconclusive("no request returns an error")
    wrong = [
        f"the {name} has the body {excerpt_body(reply.body)}"
        for name, reply in replies.items()
        if not _is_json_error(reply)
    ]
    return judge(wrong, f"{len(replies)} kinds of errors are JSON with a string 'error': the {', the '.join(replies)}")


def _is_json_error(reply: RawReply) -> bool:
    content = reply.content
    return isinstance(content, dict) and isinstance(content.get("error"), str) and bool(content["error"])


@CHECKS.add("error-order", "R62", "Errors are detected in a fixed order")
def _check_error_order(probe: EndpointProbe) -> CheckOutcome:
    """Send requests with everything wrong from some point on; each answer must be about the first error."""
    bare = build_get(None, method="PUT").without_header("Metadata").with_headers(_FORWARDED)
    asked: list[tuple[str, RawRequest, int]] = [
        (
            "the path",
            build_get(None, path=EVENTS + "x", method="PUT").without_header("Metadata").with_headers(_FORWARDED),
            404,
        ),
        ("the method", bare, 405),
        ("X-Forwarded-For", build_get(None).without_header("Metadata").with_headers(_FORWARDED), 400),
        ("Metadata", build_get(None).without_header("Metadata"), 400),
        ("api-version", build_post(b"{", None), 400),
    ]
    alone = _request_single_errors(probe)
    wrong, blind = [], []
    for name, request, status in asked:
        reply = probe.send_request(request)
        about = [other for other, body in alone.items() if body == reply.body]
        if reply.status != status:
            wrong.append(f"{name} should be checked first, but the answer is {reply.status}")
        elif name in alone and about and name not in about:
            wrong.append(f"{name} should be checked first, but the answer is about {about[0]}")
        # Two errors with the same body cannot be distinguished, so their order does not show.
        elif name in alone and about != [name]:
            blind.append(f"the 400 does not show whether it is about {name}")
    return judge(
        wrong, "path, method, X-Forwarded-For, Metadata, api-version and body are checked in this order", blind
    )


def _request_single_errors(probe: EndpointProbe) -> dict[str, bytes]:
    """Return the body of the answer to each request with only one error."""
    right = build_get(probe.supported_versions[0])
    requests = {
        "X-Forwarded-For": right.with_headers(_FORWARDED),
        "Metadata": right.without_header("Metadata"),
        "api-version": build_get(None),
        "the body": build_post(b"{", probe.newest_version),
    }
    return {name: probe.send_request(request).body for name, request in requests.items()}


@CHECKS.add("outages", "R66", "No 5xx, no empty document, no time-out", CheckPhase.AFTERWARDS, needs_document=False)
def _check_outages(probe: EndpointProbe) -> CheckOutcome:
    for _ in range(_POLLS):
        probe.remember_document(probe.newest_version, probe.send_request(build_get(probe.newest_version)))
    refused = ", ".join(f"{status} ({count} times)" for status, count in probe.failures.retried_statuses.items())
    right = f"{probe.failures.answers} answers, none of them 5xx, unexpectedly empty or too late"
    return judge(probe.failures.unexcused, right + (f"; retried after {refused}" if refused else ""))
