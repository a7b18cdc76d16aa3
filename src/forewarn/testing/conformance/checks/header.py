"""Headers of requests: 1.2 of the specification."""

from __future__ import annotations

import json
from http import HTTPStatus

from forewarn.testing.conformance.check import Check
from forewarn.testing.conformance.outcome import (
    Inconclusive,
    Outcome,
    Verdict,
    breaks,
    excerpt,
    holds,
    inconclusive,
    judge,
    note,
)
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.reply import Reply
from forewarn.testing.conformance.request import Request, get, post
from forewarn.testing.conformance.shown import Shown
from forewarn.testing.conformance.table import METADATA_MISSING, PREVIEW

__all__ = ["CHECKS"]

_GOOD_VALUES = (("metadata", "true"), ("METADATA", "True"), ("Metadata", "TRUE"), ("Metadata", "  true  "))
_BAD_VALUES = ("", "false", "1", "yes", "truetrue")
_TRIES = 3

_PREVIEW_HABITS = {
    (True, True): "2017-03-01 is answered without Metadata: true (A3: none)",
    (False, True): "2017-03-01 wants Metadata: true for GET only (A3: get)",
    (False, False): "2017-03-01 wants Metadata: true for GET and POST (A3: all)",
}
"""Names of the habits of 2017-03-01, by whether GET and POST are answered without the header."""


def _enforced(probe: Probe) -> list[str]:
    """Return the versions that require the header."""
    return [name for name in probe.supported if name != PREVIEW]


def _wants_metadata_to_get(probe: Probe) -> Outcome:
    asked = {name: probe.ask(get(name).without("Metadata")) for name in _enforced(probe)}
    return _all_refused(asked, "GET")


def _wants_metadata_to_post(probe: Probe) -> Outcome:
    asked = {name: probe.ask(post(probe.nothing, name).without("Metadata")) for name in _enforced(probe)}
    found = _all_refused(asked, "POST")
    if found.verdict is Verdict.HOLDS:
        _ = probe.harmless  # inconclusive if every POST is refused, with the header or without
    return found


def _all_refused(asked: dict[str, Reply], method: str) -> Outcome:
    if not asked:
        return inconclusive(f"{PREVIEW} alone is supported, and does not enforce the header")
    wrong = [
        f"{method} of {name} without Metadata: true is answered {reply.status}, not 400"
        for name, reply in asked.items()
        if reply.status != HTTPStatus.BAD_REQUEST
    ]
    return judge(wrong, f"{method} without Metadata: true is answered 400 by {len(asked)} api-versions")


def _says_what_is_missing(probe: Probe) -> Outcome:
    reply = probe.ask(get(probe.version).without("Metadata"))
    if reply.status == HTTPStatus.OK:
        return breaks("GET without Metadata: true is answered 200")
    if reply.body == METADATA_MISSING:
        return holds("the body is byte for byte the captured one")
    if reply.content == json.loads(METADATA_MISSING):
        return note("the body is the captured one in other spacing")
    return breaks(f"expected {excerpt(METADATA_MISSING)}, got {excerpt(reply.body)}")


def _reads_metadata_with_tolerance(probe: Probe) -> Outcome:
    version = _enforced(probe)[0] if _enforced(probe) else probe.version
    plain = get(version).without("Metadata")
    wrong = []
    for name, value in _GOOD_VALUES:
        reply = probe.ask(plain.having((name, value)))
        if reply.status != HTTPStatus.OK:
            wrong.append(f"'{name}: {value}' is answered {reply.status}, not 200")
    for value in _BAD_VALUES:
        reply = probe.ask(plain.having(("Metadata", value)))
        if reply.status != HTTPStatus.BAD_REQUEST:
            wrong.append(f"'Metadata: {value}' is answered {reply.status}, not 400")
    return judge(wrong, "name and value are read without regard to case, and no other value is taken")


def _preview_wants_none(probe: Probe) -> Outcome:
    probe.shown(PREVIEW)
    got = probe.ask(get(PREVIEW).without("Metadata")).status == HTTPStatus.OK
    posted = probe.harmless.is_taken(probe.ask(post(probe.harmless.body, PREVIEW).without("Metadata")))
    habit = _PREVIEW_HABITS.get((got, posted))
    return breaks("2017-03-01 wants Metadata: true for POST, but not for GET") if habit is None else holds(habit)


def _refuses_forwarded(probe: Probe) -> Outcome:
    wrong = []
    versions = list(dict.fromkeys([probe.supported[0], probe.supported[-1]]))
    for version in versions:
        requests = [get(version), post(probe.nothing, version)]
        for request in requests:
            reply = probe.ask(request.having(("X-Forwarded-For", "192.0.2.1")))
            if reply.status != HTTPStatus.BAD_REQUEST:
                wrong.append(f"{request.method} of {version} with X-Forwarded-For is answered {reply.status}, not 400")
    if not wrong:
        _ = probe.harmless  # inconclusive if every POST is refused, with the header or without
    return judge(wrong, f"GET and POST with X-Forwarded-For are answered 400, in {' and '.join(versions)}")


# ETag


def _has_etag(probe: Probe) -> Outcome:
    shown = probe.fetch()
    etag = shown.reply.header("etag").strip()
    if not etag:
        return breaks("the document comes without an ETag")
    if etag.removeprefix("W/").strip('"') != str(shown.incarnation):
        return breaks(f"the ETag is {etag}, but DocumentIncarnation {shown.incarnation}")
    return holds(f"the ETag is {etag} and DocumentIncarnation {shown.incarnation}")


def _conditional(probe: Probe, template: str, request: Request | None = None) -> tuple[Shown, Reply]:
    """Return the document and the answer to a request conditional on it, both of the same moment."""
    for _ in range(_TRIES):
        before = probe.fetch()
        asked = request or get(probe.version)
        reply = probe.ask(asked.having(("If-None-Match", template.format(before.incarnation))))
        if probe.fetch().incarnation == before.incarnation:
            return before, reply
    msg = "the document changed each time while it was asked for"
    raise Inconclusive(msg)


def _matches_etag(probe: Probe) -> Outcome:
    wrong = []
    for template in ("{}", '"{}"', 'W/"{}"', '"x", "{}"'):
        before, reply = _conditional(probe, template)
        said = template.format(before.incarnation)
        if reply.status != HTTPStatus.NOT_MODIFIED:
            wrong.append(f"If-None-Match: {said} is answered {reply.status}, not 304")
        elif reply.body or reply.surplus:
            wrong.append("a 304 has a body")
    _, other = _conditional(probe, '"{}9"')
    if other.status != HTTPStatus.OK:
        wrong.append(f"If-None-Match with another value is answered {other.status}, not 200")
    return judge(wrong, "a matching If-None-Match is answered 304 in each of its forms, another one 200")


def _ignores_etag_of_post(probe: Probe) -> Outcome:
    _, reply = _conditional(probe, '"{}"', post(probe.harmless.body, probe.version))
    if probe.harmless.is_taken(reply):
        return holds(f"POST with If-None-Match is answered {reply.status}, as without")
    return breaks(f"POST with If-None-Match is answered {reply.status}, without it {probe.harmless.status}")


CHECKS = (
    Check("metadata-get", ("R10",), "GET without Metadata: true is answered 400", _wants_metadata_to_get),
    Check("metadata-post", ("R10",), "POST without Metadata: true is answered 400", _wants_metadata_to_post),
    Check("metadata-body", ("R63",), "The answer says that the header is missing", _says_what_is_missing),
    Check("metadata-value", ("R11",), "Metadata: true is read without regard to case", _reads_metadata_with_tolerance),
    Check("metadata-preview", ("R12", "A3"), "2017-03-01 does not enforce the header", _preview_wants_none),
    Check("forwarded", ("R13",), "X-Forwarded-For is answered 400", _refuses_forwarded),
    Check("etag", ("R14",), "The ETag of the document is its DocumentIncarnation", _has_etag),
    Check("if-none-match", ("R14",), "A matching If-None-Match is answered 304", _matches_etag),
    Check("if-none-match-post", ("R14",), "If-None-Match does not matter to POST", _ignores_etag_of_post),
)
