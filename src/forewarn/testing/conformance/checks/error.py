"""Errors and their order: 1.9 of the specification."""

from __future__ import annotations

from http import HTTPStatus

from forewarn.testing.conformance.check import Check, Phase
from forewarn.testing.conformance.outcome import Outcome, excerpt, inconclusive, judge
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.reply import Reply
from forewarn.testing.conformance.request import EVENTS, Request, get, post

__all__ = ["CHECKS"]

_POLLS = 5
_FORWARDED = ("X-Forwarded-For", "192.0.2.1")


def _says_error(probe: Probe) -> Outcome:
    asked = {
        "404": get(probe.version, path=EVENTS + "x"),
        "405": get(probe.version, method="PUT"),
        "400 to X-Forwarded-For": get(probe.version).having(_FORWARDED),
        "400 to a malformed approval": post(b"{", probe.version),
        "400 to a missing api-version": get(None),
    }
    answers = {name: probe.ask(request) for name, request in asked.items()}
    replies = {name: reply for name, reply in answers.items() if reply.status >= HTTPStatus.BAD_REQUEST}
    if not replies:
        return inconclusive("no request is answered with an error")
    wrong = [
        f"the {name} has the body {excerpt(reply.body)}" for name, reply in replies.items() if not _is_error(reply)
    ]
    return judge(wrong, f"{len(replies)} kinds of errors are JSON with a text 'error': the {', the '.join(replies)}")


def _is_error(reply: Reply) -> bool:
    content = reply.content
    return isinstance(content, dict) and isinstance(content.get("error"), str) and bool(content["error"])


def _checks_in_order(probe: Probe) -> Outcome:
    """Send requests with everything wrong from some point on; each answer must be about the first error."""
    bare = get(None, method="PUT").without("Metadata").having(_FORWARDED)
    asked: list[tuple[str, Request, int]] = [
        ("the path", get(None, path=EVENTS + "x", method="PUT").without("Metadata").having(_FORWARDED), 404),
        ("the method", bare, 405),
        ("X-Forwarded-For", get(None).without("Metadata").having(_FORWARDED), 400),
        ("Metadata", get(None).without("Metadata"), 400),
        ("api-version", post(b"{", None), 400),
    ]
    alone = _told_alone(probe)
    wrong, blind = [], []
    for name, request, status in asked:
        reply = probe.ask(request)
        about = [other for other, body in alone.items() if body == reply.body]
        if reply.status != status:
            wrong.append(f"{name} comes first, but the answer is {reply.status}")
        elif name in alone and about and name not in about:
            wrong.append(f"{name} comes first, but the answer is about {about[0]}")
        elif name in alone and about != [name]:
            blind.append(f"the 400 does not tell whether it is about {name}")
    return judge(
        wrong, "path, method, X-Forwarded-For, Metadata, api-version and body are checked in this order", blind
    )


def _told_alone(probe: Probe) -> dict[str, bytes]:
    """Return the body of the answer to each request with only one error."""
    right = get(probe.supported[0])
    requests = {
        "X-Forwarded-For": right.having(_FORWARDED),
        "Metadata": right.without("Metadata"),
        "api-version": get(None),
        "the body": post(b"{", probe.version),
    }
    return {name: probe.ask(request).body for name, request in requests.items()}


def _has_no_outage(probe: Probe) -> Outcome:
    for _ in range(_POLLS):
        probe.keep(probe.version, probe.ask(get(probe.version)))
    refused = ", ".join(f"{status} ({count} times)" for status, count in probe.outages.refused.items())
    right = f"{probe.outages.answers} answers, none of them 5xx, none empty that should not be, none too late"
    return judge(probe.outages.failed, right + (f"; asked again after {refused}" if refused else ""))


CHECKS = (
    Check("error-body", ("R65",), "Errors are JSON objects with a text 'error'", _says_error),
    Check("error-order", ("R62",), "What is wrong is found in a fixed order", _checks_in_order),
    Check(
        "outages",
        ("R66",),
        "No 5xx, no empty document, no time-out",
        _has_no_outage,
        Phase.AFTERWARDS,
        needs_document=False,
    ),
)
