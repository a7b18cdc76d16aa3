"""Headers of requests: 1.2 of the specification."""

from __future__ import annotations

import json
from http import HTTPStatus

from forewarn.testing.conformance.check import ConformanceCheck
from forewarn.testing.conformance.outcome import (
    CheckOutcome,
    CheckVerdict,
    Inconclusive,
    breaks,
    excerpt_body,
    holds,
    inconclusive,
    judge,
    note_difference,
)
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_document import RawDocument
from forewarn.testing.conformance.raw_reply import RawReply
from forewarn.testing.conformance.raw_request import RawRequest, build_get, build_post
from forewarn.testing.conformance.version_table import METADATA_MISSING, PREVIEW

__all__ = ["CHECKS"]

_GOOD_VALUES = (("metadata", "true"), ("METADATA", "True"), ("Metadata", "TRUE"), ("Metadata", "  true  "))
_BAD_VALUES = ("", "false", "1", "yes", "truetrue")
_TRIES = 3

_PREVIEW_HABITS = {
    (True, True): "2017-03-01 does not require Metadata: true (A3: none)",
    (False, True): "2017-03-01 requires Metadata: true for GET only (A3: get)",
    (False, False): "2017-03-01 requires Metadata: true for GET and POST (A3: all)",
}
"""Names of the habits of 2017-03-01, by whether GET and POST are answered without the header."""


def _get_enforcing_versions(probe: EndpointProbe) -> list[str]:
    """Return the versions that require the header."""
    return [name for name in probe.supported_versions if name != PREVIEW]


def _check_get_without_metadata(probe: EndpointProbe) -> CheckOutcome:
    asked = {
        name: probe.send_request(build_get(name).without_header("Metadata")) for name in _get_enforcing_versions(probe)
    }
    return _judge_refusals(asked, "GET")


def _check_post_without_metadata(probe: EndpointProbe) -> CheckOutcome:
    asked = {
        name: probe.send_request(build_post(probe.empty_approval, name).without_header("Metadata"))
        for name in _get_enforcing_versions(probe)
    }
    found = _judge_refusals(asked, "POST")
    if found.verdict is CheckVerdict.HOLDS:
        _ = probe.harmless_approval  # inconclusive if every POST is refused, with the header or without
    return found


def _judge_refusals(asked: dict[str, RawReply], method: str) -> CheckOutcome:
    if not asked:
        return inconclusive(f"only {PREVIEW} is supported, which does not enforce the header")
    wrong = [
        f"{method} in {name} without Metadata: true returns {reply.status}, not 400"
        for name, reply in asked.items()
        if reply.status != HTTPStatus.BAD_REQUEST
    ]
    return judge(wrong, f"{method} without Metadata: true returns 400 in {len(asked)} api-versions")


def _check_missing_metadata_body(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.send_request(build_get(probe.newest_version).without_header("Metadata"))
    if reply.status == HTTPStatus.OK:
        return breaks("GET without Metadata: true returns 200")
    if reply.body == METADATA_MISSING:
        return holds("the body equals the captured one byte for byte")
    if reply.content == json.loads(METADATA_MISSING):
        return note_difference("the body is the captured one with different spacing")
    return breaks(f"expected {excerpt_body(METADATA_MISSING)}, got {excerpt_body(reply.body)}")


def _check_metadata_values(probe: EndpointProbe) -> CheckOutcome:
    version = _get_enforcing_versions(probe)[0] if _get_enforcing_versions(probe) else probe.newest_version
    plain = build_get(version).without_header("Metadata")
    wrong = []
    for name, value in _GOOD_VALUES:
        reply = probe.send_request(plain.with_headers((name, value)))
        if reply.status != HTTPStatus.OK:
            wrong.append(f"'{name}: {value}' returns {reply.status}, not 200")
    for value in _BAD_VALUES:
        reply = probe.send_request(plain.with_headers(("Metadata", value)))
        if reply.status != HTTPStatus.BAD_REQUEST:
            wrong.append(f"'Metadata: {value}' returns {reply.status}, not 400")
    return judge(wrong, "name and value are case-insensitive, and no other value is accepted")


def _check_preview_metadata(probe: EndpointProbe) -> CheckOutcome:
    probe.get_first_document(PREVIEW)
    got = probe.send_request(build_get(PREVIEW).without_header("Metadata")).status == HTTPStatus.OK
    posted = probe.harmless_approval.is_understood(
        probe.send_request(build_post(probe.harmless_approval.body, PREVIEW).without_header("Metadata"))
    )
    habit = _PREVIEW_HABITS.get((got, posted))
    return breaks("2017-03-01 requires Metadata: true for POST, but not for GET") if habit is None else holds(habit)


def _check_forwarded_header(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    # The newest and the oldest: the preview has its own rules for headers, and the others are alike.
    versions = list(dict.fromkeys([probe.supported_versions[0], probe.supported_versions[-1]]))
    for version in versions:
        requests = [build_get(version), build_post(probe.empty_approval, version)]
        for request in requests:
            reply = probe.send_request(request.with_headers(("X-Forwarded-For", "192.0.2.1")))
            if reply.status != HTTPStatus.BAD_REQUEST:
                wrong.append(f"{request.method} in {version} with X-Forwarded-For returns {reply.status}, not 400")
    if not wrong:
        _ = probe.harmless_approval  # inconclusive if every POST is refused, with the header or without
    return judge(wrong, f"GET and POST with X-Forwarded-For return 400 in {' and '.join(versions)}")


# ETag


def _check_etag(probe: EndpointProbe) -> CheckOutcome:
    shown = probe.fetch_document()
    etag = shown.reply.get_header("etag").strip()
    if not etag:
        return breaks("the document has no ETag")
    if etag.removeprefix("W/").strip('"') != str(shown.incarnation):
        return breaks(f"the ETag is {etag}, but DocumentIncarnation is {shown.incarnation}")
    return holds(f"the ETag is {etag}, DocumentIncarnation is {shown.incarnation}")


def _request_conditionally(
    probe: EndpointProbe, template: str, request: RawRequest | None = None
) -> tuple[RawDocument, RawReply]:
    """Return the document and the answer to a request conditional on it, both of the same moment."""
    for _ in range(_TRIES):
        before = probe.fetch_document()
        asked = request or build_get(probe.newest_version)
        reply = probe.send_request(asked.with_headers(("If-None-Match", template.format(before.incarnation))))
        # A change in between would turn a right 200 into a wrong one, and the other way round.
        if probe.fetch_document().incarnation == before.incarnation:
            return before, reply
    raise Inconclusive("the document changed during each attempt")


def _check_if_none_match(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    for template in ("{}", '"{}"', 'W/"{}"', '"x", "{}"'):
        before, reply = _request_conditionally(probe, template)
        said = template.format(before.incarnation)
        if reply.status != HTTPStatus.NOT_MODIFIED:
            wrong.append(f"If-None-Match: {said} returns {reply.status}, not 304")
        elif reply.body or reply.surplus:
            wrong.append("a 304 has a body")
    # An endpoint that ignores the value and always returns 304 is found only by one that does not match.
    _, other = _request_conditionally(probe, '"{}9"')
    if other.status != HTTPStatus.OK:
        wrong.append(f"If-None-Match with another value returns {other.status}, not 200")
    return judge(wrong, "a matching If-None-Match returns 304 in each form, a different one 200")


def _check_if_none_match_of_post(probe: EndpointProbe) -> CheckOutcome:
    _, reply = _request_conditionally(probe, '"{}"', build_post(probe.harmless_approval.body, probe.newest_version))
    if probe.harmless_approval.is_understood(reply):
        return holds(f"POST with If-None-Match returns {reply.status}, as without")
    return breaks(f"POST with If-None-Match returns {reply.status}, instead of {probe.harmless_approval.status}")


CHECKS = (
    ConformanceCheck("metadata-get", ("R10",), "GET without Metadata: true returns 400", _check_get_without_metadata),
    ConformanceCheck(
        "metadata-post", ("R10",), "POST without Metadata: true returns 400", _check_post_without_metadata
    ),
    ConformanceCheck(
        "metadata-body",
        ("R63",),
        "The 400 without Metadata: true says that this header is missing",
        _check_missing_metadata_body,
    ),
    ConformanceCheck("metadata-value", ("R11",), "Metadata: true is case-insensitive", _check_metadata_values),
    ConformanceCheck(
        "metadata-preview", ("R12", "A3"), "2017-03-01 does not require Metadata: true", _check_preview_metadata
    ),
    ConformanceCheck("forwarded", ("R13",), "A request with X-Forwarded-For returns 400", _check_forwarded_header),
    ConformanceCheck("etag", ("R14",), "The ETag of the document is its DocumentIncarnation", _check_etag),
    ConformanceCheck("if-none-match", ("R14",), "A matching If-None-Match returns 304", _check_if_none_match),
    ConformanceCheck("if-none-match-post", ("R14",), "POST ignores If-None-Match", _check_if_none_match_of_post),
)
