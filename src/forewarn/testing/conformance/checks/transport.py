"""Paths, methods, query, connections and bodies: 1.1 of the specification."""

from __future__ import annotations

import re
from email.utils import format_datetime, parsedate_to_datetime
from http import HTTPStatus

from forewarn.errors import EndpointUnreachable
from forewarn.testing.conformance.approval_forms import body_forms, header_form, judge_harmless_approvals
from forewarn.testing.conformance.check import CheckList
from forewarn.testing.conformance.outcome import CheckOutcome, CheckVerdict, breaks, holds, inconclusive, judge
from forewarn.testing.conformance.probe import NO_PATH, EndpointProbe
from forewarn.testing.conformance.raw_reply import RawReply
from forewarn.testing.conformance.raw_request import (
    EVENTS,
    UNKNOWN_ID,
    RawRequest,
    build_get,
    build_post,
    encode_approval,
)

__all__ = ["CHECKS", "is_json_type", "is_rfc1123"]

CHECKS = CheckList()

_METHODS = ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")
_SPELLINGS = ("/metadata/scheduledEvents", "/METADATA/SCHEDULEDEVENTS", "/Metadata/ScheduledEvents")
_OTHER_PATHS = (NO_PATH, EVENTS + "/x", "/metadata", "/")
_JSON_TYPE = re.compile(r'application/json\s*;\s*charset="?utf-8"?', re.IGNORECASE)
_CONTENT_TYPES = ("application/x-www-form-urlencoded", None, "application/json", "text/plain")
_POLLS = 3
_CLOSE_S = 1.0
_BURST = 8


@CHECKS.add("endpoint", "R1", "GET and POST work over plain HTTP, without authentication", needs_document=False)
def _check_get_and_post(probe: EndpointProbe) -> CheckOutcome:
    first = next(iter(probe.versioned_documents.replies.values()))
    if not probe.versioned_documents.documents:
        said = ", ".join(sorted({str(reply.status) for reply in probe.versioned_documents.replies.values()}))
        return breaks(f"GET returns {said} in every api-version, and never a document")
    posted = probe.send_request(build_post(encode_approval([UNKNOWN_ID]), probe.newest_version))
    if posted.status not in {HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}:
        return breaks(f"POST returns {posted.status}")
    # 404 may mean that the id is unknown (A11); if malformed JSON gets it too, there is no POST at all.
    if posted.status == HTTPStatus.NOT_FOUND == probe.send_request(build_post(b"{", probe.newest_version)).status:
        return breaks("POST returns 404, whatever its body")
    where = "on port 80" if probe.address.port == 80 else f"on port {probe.address.port}, on 80 in a VM"  # noqa: PLR2004 - the port of HTTP
    return holds(f"GET returns {first.status} and POST {posted.status}, without authentication, {where}")


@CHECKS.add("path-case", "R3", "The path is case-insensitive")
def _check_path_case(probe: EndpointProbe) -> CheckOutcome:
    return _judge_same_document(
        probe, [build_get(probe.newest_version, path=path) for path in _SPELLINGS], "the path in any letter case"
    )


@CHECKS.add("path-slash", "R3", "A trailing slash of the path is accepted")
def _check_path_slash(probe: EndpointProbe) -> CheckOutcome:
    return _judge_same_document(
        probe, [build_get(probe.newest_version, path=EVENTS + "/")], "the path with a trailing slash"
    )


def _judge_same_document(probe: EndpointProbe, requests: list[RawRequest], what: str) -> CheckOutcome:
    probe.get_first_document()
    wrong = [
        f"GET {request.target} returns {reply.status}"
        for request in requests
        if probe.remember_document(probe.newest_version, reply := probe.send_request(request)) is None
    ]
    if not wrong:
        probe.require_path_dependence()
    return judge(wrong, f"{what} returns the document")


@CHECKS.add("path-unknown", "R3 R65", "Any other path returns 404")
def _check_unknown_paths(probe: EndpointProbe) -> CheckOutcome:
    asked = {f"GET {path}": build_get(probe.newest_version, path=path) for path in _OTHER_PATHS}
    return judge(probe.list_wrong_statuses(asked, HTTPStatus.NOT_FOUND), f"{', '.join(_OTHER_PATHS)} return 404")


@CHECKS.add("methods", "R4", "Methods other than GET and POST return 405 with Allow")
def _check_other_methods(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    for method in _METHODS:
        reply = probe.send_request(build_get(probe.newest_version, method=method))
        allowed = {token.strip().upper() for token in reply.get_header("allow").split(",")}
        if reply.status != HTTPStatus.METHOD_NOT_ALLOWED:
            wrong.append(f"{method} returns {reply.status}, not 405")
        elif allowed != {"GET", "POST"}:
            wrong.append(f"{method} returns 405 with {_format_header(reply, 'Allow')}")
    return judge(wrong, f"{', '.join(_METHODS)} return 405 with Allow: GET, POST")


@CHECKS.add("parameter-repeated", "R5", "A query parameter given twice returns 400")
def _check_repeated_parameter(probe: EndpointProbe) -> CheckOutcome:
    version = probe.newest_version
    # An endpoint might take the first value, the last, or only equal ones; the two queries find all three.
    other = next((name for name in probe.versioned_documents.documents if name != version), version)
    queries = [f"&api-version={version}", f"&api-version={other}"]
    asked = [(query, probe.send_request(build_get(version, query=query)).status) for query in queries]
    wrong = [f"?api-version={version}{q} returns {s}, not 400" for q, s in asked if s != HTTPStatus.BAD_REQUEST]
    return judge(wrong, "api-version given twice returns 400")


@CHECKS.add("parameter-unknown", "R5", "Unknown query parameters are ignored")
def _check_unknown_parameter(probe: EndpointProbe) -> CheckOutcome:
    first = build_get(None, path=f"{EVENTS}?verbose=1&api-version={probe.newest_version}")
    found = _judge_same_document(
        probe, [build_get(probe.newest_version, query="&verbose=1"), first], "an unknown parameter"
    )
    if found.verdict is CheckVerdict.HOLDS:
        probe.require_version_dependence()  # without this, an endpoint that reads no parameter would pass
    return found


# Connections


@CHECKS.add("keep-alive", "R6 W8", "HTTP/1.1 connections are kept open, and new ones are accepted")
def _check_keep_alive(probe: EndpointProbe) -> CheckOutcome:
    with probe.open_connection() as line:
        for number in range(_POLLS):
            reply = line.send_request(build_get(probe.newest_version))
            probe.remember_document(probe.newest_version, reply)
            if reply.http_version != "1.1":
                return breaks(f"answers are in HTTP/{reply.http_version}")
            # The last answer may announce the end, since no request follows it on this connection.
            if reply.announces_close and number < _POLLS - 1:
                return breaks(f"the connection is closed after answer {number + 1} without a request to do so")
    return holds(f"{_POLLS} HTTP/1.1 GETs get answers on one connection, others on one each")


@CHECKS.add("close", "R6 W3", "A connection is closed on request, and the answer has the header Connection: close")
def _check_requested_close(probe: EndpointProbe) -> CheckOutcome:
    with probe.open_connection() as line:
        reply = line.send_request(build_get(probe.newest_version).with_headers(("Connection", "close")))
        if not reply.announces_close:
            return breaks("the answer to Connection: close does not repeat the header")
        if not line.is_ended(_CLOSE_S):
            return breaks(f"after Connection: close the connection stays open for {_CLOSE_S:.0f} s")
    return holds("the answer to Connection: close repeats the header, and the connection ends")


@CHECKS.add("close-said", "W3", "A connection stays open unless the answer has the header Connection: close")
def _check_announced_close(probe: EndpointProbe) -> CheckOutcome:
    cases = {
        "a document": build_get(probe.newest_version),
        "an unknown path": build_get(probe.newest_version, path=EVENTS + "x"),
        "a missing api-version": build_get(None),
        "a wrong method": build_get(probe.newest_version, method="PUT"),
        "a malformed approval": build_post(b"{", probe.newest_version),
    }
    wrong, used = [], []
    for name, request in cases.items():
        with probe.open_connection() as line:
            reply = line.send_request(request)
            if reply.announces_close:
                continue
            used.append(str(reply.status))
            try:
                line.send_request(build_get(probe.newest_version))
            except EndpointUnreachable:
                wrong.append(f"after {name} the connection is unusable, without Connection: close")
    if not used:
        return holds(f"each of {len(cases)} answers has Connection: close")
    return judge(wrong, f"without Connection: close, connections can be reused: after {', '.join(used)}")


# Bodies


@CHECKS.add("expect", "R6", "Expect: 100-continue is supported")
def _check_expect_continue(probe: EndpointProbe) -> CheckOutcome:
    expecting = header_form(probe.newest_version, "Expect", "100-continue")
    reply = probe.send_request(expecting(probe.harmless_approval.content))
    if reply.is_late:
        return breaks("Expect: 100-continue gets neither 100 nor an answer within a second")
    how = "100 and then " if reply.interim else ""
    right = f"an approval with Expect: 100-continue returns {how}{reply.status}, and its body is read"
    return judge_harmless_approvals(probe, {"with Expect: 100-continue": expecting}, right)


@CHECKS.add("body-forms", "R6", "Bodies may be chunked, have a byte order mark and span lines")
def _check_body_forms(probe: EndpointProbe) -> CheckOutcome:
    forms = body_forms(probe.newest_version)
    return judge_harmless_approvals(probe, forms, f"an approval is distinguished from nonsense {', '.join(forms)}")


@CHECKS.add("request-type", "R7", "The Content-Type of a request is not checked")
def _check_request_content_type(probe: EndpointProbe) -> CheckOutcome:
    version = probe.newest_version
    forms = {
        f"with {value or 'no Content-Type'}": header_form(version, "Content-Type", value) for value in _CONTENT_TYPES
    }
    return judge_harmless_approvals(probe, forms, f"an approval is distinguished from nonsense {', '.join(forms)}")


# Headers of answers


def is_json_type(reply: RawReply) -> bool:
    """Return True if its Content-Type is that of R8."""
    return _JSON_TYPE.fullmatch(reply.get_header("content-type").strip()) is not None


def is_rfc1123(text: str) -> bool:
    """Return True if it is a time like ``Mon, 19 Sep 2016 18:29:47 GMT``, with the right day of the week."""
    try:
        # The parser ignores a wrong day of the week; formatting the time again does not.
        return format_datetime(parsedate_to_datetime(text), usegmt=True) == text
    except (ValueError, TypeError, IndexError, OverflowError):
        return False


def _request_samples(probe: EndpointProbe) -> dict[str, RawReply]:
    """Return one answer of each kind."""
    version = probe.newest_version
    requests = {
        "the document": build_get(version),
        "an unknown path": build_get(version, path=EVENTS + "x"),
        "a missing header": build_get(version).without_header("Metadata"),
        "a wrong method": build_get(version, method="PUT"),
        "a missing api-version": build_get(None),
        "a malformed approval": build_post(b"{", version),
        "an approval of nothing": build_post(encode_approval([]), version),
    }
    return {name: probe.send_request(request) for name, request in requests.items()}


@CHECKS.add("content-type", "R8", "JSON answers have a Content-Type with a charset", needs_document=False)
def _check_content_type(probe: EndpointProbe) -> CheckOutcome:
    replies = {name: reply for name, reply in _request_samples(probe).items() if reply.body}
    wrong = [
        f"the answer to {name} has {_format_header(reply, 'Content-Type')}"
        for name, reply in replies.items()
        if not is_json_type(reply)
    ]
    if not replies:
        return inconclusive("no answer has a body")
    return judge(wrong, f"{_describe_kinds(replies)} have Content-Type: application/json; charset=utf-8")


def _describe_kinds(replies: dict[str, RawReply]) -> str:
    """Return the statuses of several kinds of answers, for the report."""
    statuses = sorted({reply.status for reply in replies.values()})
    return f"{len(replies)} kinds of answers ({', '.join(map(str, statuses))})"


@CHECKS.add("content-type-document", "W2", "The Content-Type of the document is application/json")
def _check_document_content_type(probe: EndpointProbe) -> CheckOutcome:
    said = probe.get_first_document().reply.get_header("content-type")
    what = f"the document has {_format_header(probe.get_first_document().reply, 'Content-Type')}"
    return holds(what) if said.lower().startswith("application/json") else breaks(what)


def _format_header(reply: RawReply, name: str) -> str:
    said = reply.get_header(name.lower())
    return f"{name}: {said}" if said else f"no {name}"


@CHECKS.add("content-length", "R8", "Answers have a correct Content-Length", needs_document=False)
def _check_content_length(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    replies = _request_samples(probe)
    for name, reply in replies.items():
        if reply.surplus:
            wrong.append(f"the answer to {name} has {len(reply.surplus)} bytes beyond its Content-Length")
        elif reply.get_all("transfer-encoding") or not reply.get_all("content-length"):
            wrong.append(f"the answer to {name} has no Content-Length")
    return judge(wrong, f"{_describe_kinds(replies)} have the right Content-Length")


@CHECKS.add("date", "R8", "Answers have a Date", needs_document=False)
def _check_date(probe: EndpointProbe) -> CheckOutcome:
    replies = _request_samples(probe)
    wrong = [
        f"the answer to {name} has {_format_header(reply, 'Date')}"
        for name, reply in replies.items()
        if not is_rfc1123(reply.get_header("date"))
    ]
    return judge(wrong, f"{_describe_kinds(replies)} have a Date")


# Rate


@CHECKS.add("rate", "R9 A17", "Requests succeed at any rate, or return 429 above a limit")
def _check_rate_limit(probe: EndpointProbe) -> CheckOutcome:
    # Without retries, which would hide a 429.
    statuses = [probe.send_once(build_get(probe.newest_version)).status for _ in range(_BURST)]
    odd = set(statuses) - {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS}
    if odd:
        return breaks(f"one of {_BURST} identical GETs in a row returns {odd.pop()}")
    if HTTPStatus.TOO_MANY_REQUESTS in statuses or HTTPStatus.TOO_MANY_REQUESTS in probe.failures.retried_statuses:
        return holds("too many requests in one second return 429 (A17: limited)")
    return holds(f"{_BURST} GETs in a row all return 200 (A17: no limit seen)")
