"""Paths, methods, query, connections and bodies: 1.1 of the specification."""

from __future__ import annotations

import re
from email.utils import format_datetime, parsedate_to_datetime
from http import HTTPStatus

from forewarn.errors import EndpointUnreachable
from forewarn.testing.conformance.check import Check
from forewarn.testing.conformance.forms import Form, body_forms, judge_harmless, send
from forewarn.testing.conformance.outcome import Outcome, Verdict, breaks, holds, inconclusive, judge
from forewarn.testing.conformance.probe import NO_PATH, Probe
from forewarn.testing.conformance.reply import Reply
from forewarn.testing.conformance.request import EVENTS, UNKNOWN_ID, Request, approval, get, post

__all__ = ["CHECKS", "is_json_type", "is_rfc1123"]

_METHODS = ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")
_SPELLINGS = ("/metadata/scheduledEvents", "/METADATA/SCHEDULEDEVENTS", "/Metadata/ScheduledEvents")
_OTHER_PATHS = (NO_PATH, EVENTS + "/x", "/metadata", "/")
_JSON_TYPE = re.compile(r'application/json\s*;\s*charset="?utf-8"?', re.IGNORECASE)
_CONTENT_TYPES = ("application/x-www-form-urlencoded", None, "application/json", "text/plain")
_POLLS = 3
_CLOSE_S = 1.0
_BURST = 8


def _answers(probe: Probe) -> Outcome:
    first = next(iter(probe.views.replies.values()))
    if not probe.views.shown:
        said = ", ".join(sorted({str(reply.status) for reply in probe.views.replies.values()}))
        return breaks(f"GET is answered {said} in every api-version, and never with a document")
    posted = probe.ask(post(approval([UNKNOWN_ID]), probe.version))
    if posted.status not in {HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}:
        return breaks(f"POST is answered {posted.status}")
    if posted.status == HTTPStatus.NOT_FOUND == probe.ask(post(b"{", probe.version)).status:
        return breaks("POST is answered 404, whatever its body")
    where = "on port 80" if probe.address.port == 80 else f"on port {probe.address.port}, and on 80 in a VM"  # noqa: PLR2004 - the port of HTTP
    return holds(f"GET is answered {first.status} and POST {posted.status}, without authentication, {where}")


def _ignores_case(probe: Probe) -> Outcome:
    return _same_as_plain(probe, [get(probe.version, path=path) for path in _SPELLINGS], "the path in any case")


def _takes_slash(probe: Probe) -> Outcome:
    return _same_as_plain(probe, [get(probe.version, path=EVENTS + "/")], "the path with a slash at its end")


def _same_as_plain(probe: Probe, requests: list[Request], what: str) -> Outcome:
    probe.shown()
    wrong = [
        f"GET {request.target} is answered {reply.status}"
        for request in requests
        if probe.keep(probe.version, reply := probe.ask(request)) is None
    ]
    if not wrong:
        probe.require_paths_to_count()
    return judge(wrong, f"{what} is answered with the document")


def _knows_no_other_path(probe: Probe) -> Outcome:
    asked = [(path, probe.ask(get(probe.version, path=path)).status) for path in _OTHER_PATHS]
    wrong = [f"GET {path} is answered {status}, not 404" for path, status in asked if status != HTTPStatus.NOT_FOUND]
    return judge(wrong, f"{', '.join(_OTHER_PATHS)} are answered 404")


def _refuses_methods(probe: Probe) -> Outcome:
    wrong = []
    for method in _METHODS:
        reply = probe.ask(get(probe.version, method=method))
        allowed = {token.strip().upper() for token in reply.header("allow").split(",")}
        if reply.status != HTTPStatus.METHOD_NOT_ALLOWED:
            wrong.append(f"{method} is answered {reply.status}, not 405")
        elif allowed != {"GET", "POST"}:
            wrong.append(f"{method} is answered 405 with {_header(reply, 'Allow')}")
    return judge(wrong, f"{', '.join(_METHODS)} are answered 405 with Allow: GET, POST")


def _refuses_repeats(probe: Probe) -> Outcome:
    version = probe.version
    other = next((name for name in probe.views.shown if name != version), version)
    queries = [f"&api-version={version}", f"&api-version={other}"]
    asked = [(query, probe.ask(get(version, query=query)).status) for query in queries]
    wrong = [f"?api-version={version}{q} is answered {s}, not 400" for q, s in asked if s != HTTPStatus.BAD_REQUEST]
    return judge(wrong, "api-version given twice is answered 400")


def _ignores_parameters(probe: Probe) -> Outcome:
    first = get(None, path=f"{EVENTS}?verbose=1&api-version={probe.version}")
    found = _same_as_plain(probe, [get(probe.version, query="&verbose=1"), first], "an unknown parameter")
    if found.verdict is Verdict.HOLDS:
        probe.require_versions_to_count()  # without this, an endpoint that reads no parameter would pass
    return found


# Connections


def _keeps_alive(probe: Probe) -> Outcome:
    with probe.line() as line:
        for number in range(_POLLS):
            reply = line.ask(get(probe.version))
            probe.keep(probe.version, reply)
            if reply.http_version != "1.1":
                return breaks(f"answers are in HTTP/{reply.http_version}")
            if reply.says_close and number < _POLLS - 1:
                return breaks(f"the connection is closed after answer {number + 1}, though nobody asked for that")
    return holds(f"{_POLLS} GETs in HTTP/1.1 are answered on one connection, and others on one each")


def _closes_when_asked(probe: Probe) -> Outcome:
    with probe.line() as line:
        reply = line.ask(get(probe.version).having(("Connection", "close")))
        if not reply.says_close:
            return breaks("a request with Connection: close is answered without it")
        if not line.is_ended(_CLOSE_S):
            return breaks(f"after Connection: close the connection stays open for {_CLOSE_S:.0f} s")
    return holds("a request with Connection: close is answered with it, and the connection ends")


def _says_that_it_closes(probe: Probe) -> Outcome:
    cases = {
        "a document": get(probe.version),
        "an unknown path": get(probe.version, path=EVENTS + "x"),
        "a missing api-version": get(None),
        "a wrong method": get(probe.version, method="PUT"),
        "a malformed approval": post(b"{", probe.version),
    }
    wrong, used = [], []
    for name, request in cases.items():
        with probe.line() as line:
            reply = line.ask(request)
            if reply.says_close:
                continue
            used.append(str(reply.status))
            try:
                line.ask(get(probe.version))
            except EndpointUnreachable:
                wrong.append(f"after {name} the connection is of no more use, without Connection: close")
    if not used:
        return holds(f"each of {len(cases)} answers says Connection: close")
    return judge(wrong, f"without Connection: close, connections can be used again: after {', '.join(used)}")


def _is_unlimited(probe: Probe) -> Outcome:
    statuses = [probe.ask_once(get(probe.version)).status for _ in range(_BURST)]
    odd = set(statuses) - {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS}
    if odd:
        return breaks(f"one of {_BURST} equal GETs in a row is answered {odd.pop()}")
    if HTTPStatus.TOO_MANY_REQUESTS in statuses or HTTPStatus.TOO_MANY_REQUESTS in probe.outages.refused:
        return holds("too many requests in a second are answered 429 (A17: limited)")
    return holds(f"{_BURST} GETs in a row are all answered 200 (A17: no limit seen)")


# Bodies


def _continues(probe: Probe) -> Outcome:
    plain = send(probe.version)
    expecting: Form = lambda content: plain(content).having(("Expect", "100-continue"))  # noqa: E731 - typed as a form
    reply = probe.ask(expecting(probe.harmless.content))
    if reply.is_late:
        return breaks("Expect: 100-continue is followed by neither 100 nor an answer within a second")
    how = "100 and then " if reply.interim else ""
    right = f"an approval with Expect: 100-continue is answered {how}{reply.status}, and read"
    return judge_harmless(probe, {"with Expect: 100-continue": expecting}, right)


def _takes_forms(probe: Probe) -> Outcome:
    forms = body_forms(probe.version)
    return judge_harmless(probe, forms, f"an approval is told from nonsense {', '.join(forms)}")


def _takes_any_type(probe: Probe) -> Outcome:
    forms = {f"with {name or 'no Content-Type'}": _typed(probe.version, name) for name in _CONTENT_TYPES}
    return judge_harmless(probe, forms, f"an approval is told from nonsense {', '.join(forms)}")


def _typed(version: str, content_type: str | None) -> Form:
    plain = send(version)
    if content_type is None:
        return lambda content: plain(content).without("Content-Type")
    return lambda content: plain(content).having(("Content-Type", content_type))


# Headers of answers


def is_json_type(reply: Reply) -> bool:
    """Return True if its Content-Type is that of R8."""
    return _JSON_TYPE.fullmatch(reply.header("content-type").strip()) is not None


def is_rfc1123(text: str) -> bool:
    """Return True if it is a time like ``Mon, 19 Sep 2016 18:29:47 GMT``, with the right day of the week."""
    try:
        return format_datetime(parsedate_to_datetime(text), usegmt=True) == text
    except (ValueError, TypeError, IndexError, OverflowError):
        return False


def _samples(probe: Probe) -> dict[str, Reply]:
    """Return one answer of each kind."""
    version = probe.version
    requests = {
        "the document": get(version),
        "an unknown path": get(version, path=EVENTS + "x"),
        "a missing header": get(version).without("Metadata"),
        "a wrong method": get(version, method="PUT"),
        "a missing api-version": get(None),
        "a malformed approval": post(b"{", version),
        "an approval of nothing": post(approval([]), version),
    }
    return {name: probe.ask(request) for name, request in requests.items()}


def _says_json(probe: Probe) -> Outcome:
    replies = {name: reply for name, reply in _samples(probe).items() if reply.body}
    wrong = [
        f"the answer to {name} has {_header(reply, 'Content-Type')}"
        for name, reply in replies.items()
        if not is_json_type(reply)
    ]
    if not replies:
        return inconclusive("no answer has a body")
    return judge(wrong, f"{_kinds(replies)} have Content-Type: application/json; charset=utf-8")


def _kinds(replies: dict[str, Reply]) -> str:
    """Return the statuses of several kinds of answers, for the report."""
    statuses = sorted({reply.status for reply in replies.values()})
    return f"{len(replies)} kinds of answers ({', '.join(map(str, statuses))})"


def _begins_with_json(probe: Probe) -> Outcome:
    said = probe.shown().reply.header("content-type")
    what = f"the document comes as {said or 'nothing'}"
    return holds(what) if said.lower().startswith("application/json") else breaks(what)


def _header(reply: Reply, name: str) -> str:
    said = reply.header(name.lower())
    return f"{name}: {said}" if said else f"no {name}"


def _says_length(probe: Probe) -> Outcome:
    wrong = []
    replies = _samples(probe)
    for name, reply in replies.items():
        if reply.surplus:
            wrong.append(f"the answer to {name} goes on for {len(reply.surplus)} bytes after its Content-Length")
        elif reply.all("transfer-encoding") or not reply.all("content-length"):
            wrong.append(f"the answer to {name} has no Content-Length")
    return judge(wrong, f"{_kinds(replies)} have the right Content-Length")


def _says_date(probe: Probe) -> Outcome:
    replies = _samples(probe)
    wrong = [
        f"the answer to {name} has {_header(reply, 'Date')}"
        for name, reply in replies.items()
        if not is_rfc1123(reply.header("date"))
    ]
    return judge(wrong, f"{_kinds(replies)} have a Date")


CHECKS = (
    Check(
        "endpoint",
        ("R1",),
        "GET and POST are answered over plain HTTP, without authentication",
        _answers,
        needs_document=False,
    ),
    Check("path-case", ("R3",), "The path is matched without regard to case", _ignores_case),
    Check("path-slash", ("R3",), "A slash at the end of the path is accepted", _takes_slash),
    Check("path-unknown", ("R3", "R65"), "Any other path is answered 404", _knows_no_other_path),
    Check("methods", ("R4",), "Methods other than GET and POST are answered 405 with Allow", _refuses_methods),
    Check("parameter-repeated", ("R5",), "A query parameter given twice is answered 400", _refuses_repeats),
    Check("parameter-unknown", ("R5",), "Unknown query parameters are ignored", _ignores_parameters),
    Check("keep-alive", ("R6", "W8"), "Connections are kept in HTTP/1.1, new ones are taken", _keeps_alive),
    Check("close", ("R6", "W3"), "A connection is closed on request, and the answer says so", _closes_when_asked),
    Check("close-said", ("W3",), "No connection is closed without a word", _says_that_it_closes),
    Check("expect", ("R6",), "Expect: 100-continue is heeded", _continues),
    Check("body-forms", ("R6",), "Bodies come in chunks, with a byte order mark, over several lines", _takes_forms),
    Check("request-type", ("R7",), "The Content-Type of a request is not checked", _takes_any_type),
    Check("content-type", ("R8",), "Answers in JSON say so, with their charset", _says_json, needs_document=False),
    Check("content-type-document", ("W2",), "The document comes as application/json", _begins_with_json),
    Check("content-length", ("R8",), "Answers have a correct Content-Length", _says_length, needs_document=False),
    Check("date", ("R8",), "Answers have a Date", _says_date, needs_document=False),
    Check("rate", ("R9", "A17"), "Requests are answered at any rate, or 429 where it is limited", _is_unlimited),
)
