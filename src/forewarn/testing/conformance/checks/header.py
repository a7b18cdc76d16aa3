"""Headers of requests: 1.2 of the specification."""

from __future__ import annotations

import json
from http import HTTPStatus

from forewarn.testing.conformance.check import CheckList
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

CHECKS = CheckList()

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


@CHECKS.add("metadata-get", "R10", "GET without Metadata: true returns 400")
def _check_get_without_metadata(probe: EndpointProbe) -> CheckOutcome:
    return _judge_refusals(probe, {name: build_get(name) for name in _get_enforcing_versions(probe)})


@CHECKS.add("metadata-post", "R10", "POST without Metadata: true returns 400")
def _check_post_without_metadata(probe: EndpointProbe) -> CheckOutcome:
    asked = {name: build_post(probe.empty_approval, name) for name in _get_enforcing_versions(probe)}
    found = _judge_refusals(probe, asked)
    if found.verdict is CheckVerdict.HOLDS:
        _ = probe.harmless_approval  # inconclusive if every POST is refused, with the header or without
    return found


def _judge_refusals(probe: EndpointProbe, asked: dict[str, RawRequest]) -> CheckOutcome:
    """Judge whether these requests, by api-version and all with the same method, are refused without the header."""
    if not asked:
        return inconclusive(f"only {PREVIEW} is supported, which does not enforce the header")
    method = next(iter(asked.values())).method
    wrong = probe.list_wrong_statuses(
        {
            f"{method} in {name} without Metadata: true": request.without_header("Metadata")
            for name, request in asked.items()
        }
    )
    return judge(wrong, f"{method} without Metadata: true returns 400 in {len(asked)} api-versions")


@CHECKS.add("metadata-body", "R63", "The 400 without Metadata: true says that this header is missing")
def _check_missing_metadata_body(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.send_request(build_get(probe.newest_version).without_header("Metadata"))
    if reply.status == HTTPStatus.OK:
        return breaks("GET without Metadata: true returns 200")
    if reply.body == METADATA_MISSING:
        return holds("the body equals the captured one byte for byte")
    if reply.content == json.loads(METADATA_MISSING):
        return note_difference("the body is the captured one with different spacing")
    return breaks(f"expected {excerpt_body(METADATA_MISSING)}, got {excerpt_body(reply.body)}")


@CHECKS.add("metadata-value", "R11", "Metadata: true is case-insensitive")
def _check_metadata_values(probe: EndpointProbe) -> CheckOutcome:
    version = _get_enforcing_versions(probe)[0] if _get_enforcing_versions(probe) else probe.newest_version
    plain = build_get(version).without_header("Metadata")
    good = {f"'{name}: {value}'": plain.with_headers((name, value)) for name, value in _GOOD_VALUES}
    bad = {f"'Metadata: {value}'": plain.with_headers(("Metadata", value)) for value in _BAD_VALUES}
    wrong = probe.list_wrong_statuses(good, HTTPStatus.OK) + probe.list_wrong_statuses(bad)
    return judge(wrong, "name and value are case-insensitive, and no other value is accepted")


@CHECKS.add("metadata-preview", "R12 A3", "2017-03-01 does not require Metadata: true")
def _check_preview_metadata(probe: EndpointProbe) -> CheckOutcome:
    probe.get_first_document(PREVIEW)
    got = probe.send_request(build_get(PREVIEW).without_header("Metadata")).status == HTTPStatus.OK
    posted = probe.harmless_approval.is_understood(
        probe.send_request(build_post(probe.harmless_approval.body, PREVIEW).without_header("Metadata"))
    )
    habit = _PREVIEW_HABITS.get((got, posted))
    return breaks("2017-03-01 requires Metadata: true for POST, but not for GET") if habit is None else holds(habit)


@CHECKS.add("forwarded", "R13", "A request with X-Forwarded-For returns 400")
def _check_forwarded_header(probe: EndpointProbe) -> CheckOutcome:
    # The newest and the oldest: the preview has its own rules for headers, and the others are alike.
    versions = list(dict.fromkeys([probe.supported_versions[0], probe.supported_versions[-1]]))
    asked = {
        f"{request.method} in {version} with X-Forwarded-For": request.with_headers(("X-Forwarded-For", "192.0.2.1"))
        for version in versions
        for request in (build_get(version), build_post(probe.empty_approval, version))
    }
    wrong = probe.list_wrong_statuses(asked)
    if not wrong:
        _ = probe.harmless_approval  # inconclusive if every POST is refused, with the header or without
    return judge(wrong, f"GET and POST with X-Forwarded-For return 400 in {' and '.join(versions)}")


# ETag


@CHECKS.add("etag", "R14", "The ETag of the document is its DocumentIncarnation")
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


@CHECKS.add("if-none-match", "R14", "A matching If-None-Match returns 304")
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


@CHECKS.add("if-none-match-post", "R14", "POST ignores If-None-Match")
def _check_if_none_match_of_post(probe: EndpointProbe) -> CheckOutcome:
    _, reply = _request_conditionally(probe, '"{}"', build_post(probe.harmless_approval.body, probe.newest_version))
    if probe.harmless_approval.is_understood(reply):
        return holds(f"POST with If-None-Match returns {reply.status}, as without")
    return breaks(f"POST with If-None-Match returns {reply.status}, instead of {probe.harmless_approval.status}")
