"""A second, small metadata endpoint, which keeps to the protocol until a fault is switched on.

It shares nothing with Forewarn's own. A fault changes what is heard, what is told, or how the bytes go out; the rest
stays right, so that a check has to find just that.
"""

from __future__ import annotations

import json
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

__all__ = ["EVENTS", "FAULTS", "Asked", "Endpoint", "Fault", "Told", "wrong_endpoint"]

EVENTS = "/metadata/scheduledevents"
_VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
_LATER = {"Description": "2019-04-01", "EventSource": "2019-08-01", "DurationInSeconds": "2020-07-01"}
_LATER_TYPES = {"Preempt": "2017-11-01", "Terminate": "2019-01-01"}
_GUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_JSON = "application/json; charset=utf-8"
_NOT_BEFORE = "Mon, 19 Sep 2016 18:29:47 GMT"
_DATE = "Mon, 19 Sep 2016 18:14:47 GMT"
_NO_METADATA = b'{ "error": "Bad request: . Required metadata header not specified" }'
_NO_VERSION = (
    b'{ "error": "Bad request. api-version is invalid or was not specified in the request. For more information refer '
    b'to aka.ms/azureimds", "newest-versions": [ "2020-07-01", "2019-08-01", "2019-04-01" ] }'
)


@dataclass(frozen=True)
class Asked:
    """A request; header names in lower case."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: dict[str, str]
    body: bytes

    @property
    def version(self) -> str:
        """The first api-version."""
        return next((value for name, value in self.query if name == "api-version"), "")

    @property
    def is_about_events(self) -> bool:
        """Whether the path is that of the events."""
        return self.path.lower().rstrip("/") == EVENTS

    def having(self, **headers: str) -> Asked:
        """With other headers; an underscore stands for a hyphen."""
        return replace(self, headers=self.headers | {name.replace("_", "-"): value for name, value in headers.items()})

    def without(self, header: str) -> Asked:
        """Without that header."""
        return replace(self, headers={name: value for name, value in self.headers.items() if name != header})


@dataclass(frozen=True)
class Told:
    """An answer."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": _JSON, "date": _DATE})

    @property
    def content(self) -> Any:  # noqa: ANN401 - whatever JSON holds
        return json.loads(self.body)

    def having(self, **headers: str) -> Told:
        """With other headers."""
        return replace(self, headers=self.headers | {name.replace("_", "-"): value for name, value in headers.items()})


Tell: TypeAlias = Callable[["Endpoint", Asked, Told], Told]


@dataclass(frozen=True)
class Fault:
    """What is wrong, and the check that has to find it.

    Attributes:
        ask: Changes what is heard.
        tell: Changes what is told.
        wire: A habit of the connection.
        events: Changes the events at the start.
        verdict: What the check has to come to.
    """

    check: str
    name: str
    ask: Callable[[Asked], Asked] = lambda asked: asked
    tell: Tell = lambda _, __, told: told
    wire: str = ""
    events: Callable[[list[dict[str, Any]]], None] = lambda _: None
    verdict: str = "breaks"


def _event(number: int, event_type: str, status: str, source: str, duration: int) -> dict[str, Any]:
    return {
        "EventId": f"{number}7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": status,
        "EventType": event_type,
        "ResourceType": "VirtualMachine",
        "Resources": [f"Vm-{number}", "Vm-1"] if number > 1 else ["Vm-1"],
        "NotBefore": "" if status == "Started" else _NOT_BEFORE,
        "Description": "Host server is undergoing maintenance.",
        "EventSource": source,
        "DurationInSeconds": duration,
    }


def _events() -> list[dict[str, Any]]:
    return [
        _event(1, "Freeze", "Scheduled", "Platform", 5),
        _event(2, "Reboot", "Started", "User", -1),
        _event(3, "Preempt", "Scheduled", "Platform", -1),
        _event(4, "Terminate", "Scheduled", "User", 0),
        _event(5, "Redeploy", "Scheduled", "User", -1),
    ]


class Endpoint:
    """Its state, and what it says to whom.

    Attributes:
        asked: How many requests there were.
        memory: Where a fault may remember something.
    """

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault or Fault("", "none")
        self.events = _events()
        self.fault.events(self.events)
        self.incarnation = 5
        self.asked = 0
        self.memory: dict[str, Any] = {}

    def answer(self, asked: Asked) -> Told:
        """What is told, with the fault in force."""
        self.asked += 1
        asked = self.fault.ask(asked)
        return self.fault.tell(self, asked, self.right_answer(asked))

    def right_answer(self, asked: Asked) -> Told:
        """What ought to be told."""
        route = asked.path.lower().rstrip("/")
        if route == "/metadata/versions":
            return Told(200, json.dumps({"apiVersions": _VERSIONS}).encode())
        if route == "/metadata/instance" or route.startswith("/metadata/instance/"):
            return _instance(route.split("/")[3:], dict(asked.query))
        refusal = _refusal(asked)
        if refusal is not None:
            return refusal
        return self.approve(asked.body) if asked.method == "POST" else self.document(asked)

    def document(self, asked: Asked) -> Told:
        """The document, or 304."""
        tags = [tag.strip().removeprefix("W/").strip('"') for tag in asked.headers.get("if-none-match", "").split(",")]
        if str(self.incarnation) in tags:
            if asked.headers.get("prefer") == "wait=1":
                time.sleep(1)
            return Told(304).having(etag=f'"{self.incarnation}"')
        events = [self.show(event, asked.version) for event in self.events if _is_shown(event, asked.version)]
        content = {"DocumentIncarnation": self.incarnation, "Events": events}
        return Told(200, _compact(content)).having(etag=f'"{self.incarnation}"')

    def show(self, event: dict[str, Any], version: str) -> dict[str, Any]:
        """The event as the version has it."""
        shown = {name: value for name, value in event.items() if _LATER.get(name, "") <= version}
        if version == "2017-03-01":
            shown["Resources"] = [f"_{name}" for name in event["Resources"]]
            shown["NotBefore"] = "2016-09-19T18:29:47Z" if event["NotBefore"] else ""
        return shown

    def approve(self, body: bytes) -> Told:
        """Approve, or refuse all of it."""
        try:
            content = json.loads(body.decode("utf-8-sig"))
            ids = [_guid(request["EventId"]) for request in _array(content["StartRequests"])]
        except (ValueError, TypeError, KeyError):
            return _error(400, "Bad request: . The body is malformed")
        known = {event["EventId"].upper() for event in self.events}
        if not {event_id.upper() for event_id in ids} <= known:
            return _error(400, "Bad request: . EventId is not known")
        self.start(ids)
        return Told(200)

    def start(self, ids: list[str]) -> None:
        """Let these events start."""
        wanted = {event_id.upper() for event_id in ids}
        starting = [e for e in self.events if e["EventId"].upper() in wanted and e["EventStatus"] == "Scheduled"]
        for event in starting:
            event.update(EventStatus="Started", NotBefore="")
        self.incarnation += bool(starting)


def _refusal(asked: Asked) -> Told | None:
    """What is wrong with the request, in the order in which it is looked at; None if nothing is."""
    has_metadata = asked.version == "2017-03-01" or asked.headers.get("metadata", "").lower() == "true"
    has_version = asked.version in _VERSIONS and [name for name, _ in asked.query].count("api-version") == 1
    tests = (
        (asked.is_about_events, _error(404, "Not found")),
        (asked.method in {"GET", "POST"}, _error(405, "Method not allowed").having(allow="GET, POST")),
        ("x-forwarded-for" not in asked.headers, _error(400, "Bad request: . X-Forwarded-For is not allowed")),
        (has_metadata, Told(400, _NO_METADATA)),
        (has_version, Told(400, _NO_VERSION)),
    )
    return next((told for is_right, told in tests if not is_right), None)


def _array(value: Any) -> list[Any]:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(value, list):
        raise TypeError
    return value


def _guid(value: str) -> str:
    if not _GUID.fullmatch(value):
        raise ValueError
    return value


def _is_shown(event: dict[str, Any], version: str) -> bool:
    return _LATER_TYPES.get(event["EventType"], "") <= version


def _compact(content: Any) -> bytes:  # noqa: ANN401 - whatever JSON holds
    return json.dumps(content, separators=(",", ":")).encode()


def _error(status: int, text: str) -> Told:
    return Told(status, json.dumps({"error": text}).encode())


def _instance(path: list[str], query: dict[str, str]) -> Told:
    texts = "vmId location zone resourceGroupName subscriptionId vmScaleSetName vmSize osType platformFaultDomain"
    compute: dict[str, Any] = {"name": "Vm-1"} | dict.fromkeys(texts.split(), "")
    compute |= {"platformUpdateDomain": "", "priority": "", "tags": "", "tagsList": []}
    value: Any = {"compute": compute, "network": {"interface": []}}
    if query.get("api-version") not in {"2017-04-02", "2021-02-01"}:
        newest = ["2025-04-07", "2024-07-17", "2024-03-15"]
        return Told(400, json.dumps({"error": "Invalid version requested", "newest-versions": newest}).encode())
    for name in path:
        value = value[name]
    if isinstance(value, str) and query.get("format") != "text":
        return _error(400, "Bad request")
    if query.get("format") == "text":
        return Told(200, str(value).encode(), {"content-type": "text/plain", "date": _DATE})
    return Told(200, _compact(value))


# On the wire


class _Handler(socketserver.StreamRequestHandler):
    """One connection."""

    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        try:
            while self.turn():
                pass
        except (OSError, ValueError):
            pass  # the client is gone

    def turn(self) -> bool:
        """Answer one request; whether the connection stays open."""
        line = self.rfile.readline().decode("latin-1").split()
        if not line:
            return False
        headers: dict[str, str] = {}
        while (header := self.rfile.readline().decode("latin-1").strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        endpoint, wire = self.server.endpoint, self.server.endpoint.fault.wire
        if "expect" in headers and wire != "no continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        path, _, query = line[1].partition("?")
        asked = Asked(line[0], path, tuple(parse_qsl(query, keep_blank_values=True)), headers, self.body(headers))
        with self.server.lock:
            told = endpoint.answer(asked)
        closes = headers.get("connection") == "close" and wire != "keeps open"
        closes = closes or wire in {"closes", "HTTP/1.0"} or (wire == "cuts errors" and told.status >= 400)
        says = closes and wire not in {"cuts errors", "closes in silence"}
        self.wfile.write(self.encode(line[0], told, wire, says_close=says))
        return not (closes or wire == "closes in silence")

    def body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(headers.get("content-length", "0")))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    @staticmethod
    def encode(method: str, told: Told, wire: str, *, says_close: bool) -> bytes:
        headers = dict(told.headers)
        body = b"" if method == "HEAD" or told.status == 304 else told.body
        if wire == "chunks":
            headers["transfer-encoding"] = "chunked"
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n" if method != "HEAD" else b""
        elif wire == "goes on":
            headers["content-length"] = str(max(len(body) - 1, 0))
        else:
            headers["content-length"] = str(len(told.body))
        if says_close:
            headers["connection"] = "close"
        version = "1.0" if wire == "HTTP/1.0" else "1.1"
        lines = [f"{name}: {value}" for name, value in headers.items() if value]
        return "\r\n".join([f"HTTP/{version} {told.status} Told", *lines, "", ""]).encode("latin-1") + body


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)


@contextmanager
def wrong_endpoint(fault: Fault | None = None) -> Iterator[str]:
    """The URL of an endpoint with that fault, or without any."""
    with _Server(Endpoint(fault)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


# What can be wrong


def _when(condition: Callable[[Asked, Told], bool], then: Callable[[Told], Told]) -> Tell:
    """Tell something else to some requests."""
    return lambda _, asked, told: then(told) if condition(asked, told) else told


def _status(status: int) -> Callable[[Told], Told]:
    return lambda told: replace(told, status=status)


def _refuses(condition: Callable[[Asked, Told], bool], status: int = 400) -> Tell:
    return _when(condition, lambda _: _error(status, "Refused"))


def _is_document(asked: Asked, told: Told) -> bool:
    return asked.is_about_events and asked.method == "GET" and told.status == 200


def _in_document(change: Callable[[dict[str, Any], str], object]) -> Tell:
    """Change the document, given its version."""

    def tell(_: Endpoint, asked: Asked, told: Told) -> Told:
        if not _is_document(asked, told):
            return told
        content = told.content
        change(content, asked.version)
        return replace(told, body=_compact(content))

    return tell


def _in_events(change: Callable[[dict[str, Any]], object], *versions: str) -> Tell:
    """Change each event, in all versions or in some."""

    def change_all(content: dict[str, Any], version: str) -> None:
        for event in content["Events"]:
            if not versions or version in versions:
                change(event)

    return _in_document(change_all)


def _in_each(member: str, value: object) -> Tell:
    return _in_events(lambda event: event.update({member: value}) if member in event else None)


def _once_started(change: Callable[[dict[str, Any]], object]) -> Tell:
    return _in_events(lambda event: change(event) if event["EventStatus"] == "Started" else None)


def _posts(told_status: int | None = None) -> Callable[[Asked, Told], bool]:
    return lambda asked, told: asked.method == "POST" and told_status in {None, told.status}


def _approves(asked: Asked, told: Told) -> bool:
    """Whether it is an approval of an event that is there."""
    return asked.method == "POST" and told.status == 200 and b"EventId" in asked.body


def _reordered(content: dict[str, Any], _: str) -> None:
    for event in content["Events"]:
        event["EventStatus"] = event.pop("EventStatus")


def _events_first(content: dict[str, Any], _: str) -> None:
    content["DocumentIncarnation"] = content.pop("DocumentIncarnation")


def _renamed(event: dict[str, Any]) -> None:
    event["EventId"] = "F" + event["EventId"][1:]


def _starts_all(endpoint: Endpoint, asked: Asked, told: Told) -> Told:
    """Whatever is refused starts everything."""
    if asked.method == "POST" and asked.is_about_events and told.status == 400:
        endpoint.start([event["EventId"] for event in endpoint.events])
    return told


def _starts_named(condition: Callable[[Asked], bool]) -> Tell:
    """What is refused starts the events that are named in it."""

    def tell(endpoint: Endpoint, asked: Asked, told: Told) -> Told:
        if asked.method == "POST" and told.status == 400 and condition(asked):
            endpoint.start(re.findall(_GUID_TEXT, asked.body.decode()))
        return told

    return tell


_GUID_TEXT = r"[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}"


def _starts_one(endpoint: Endpoint, asked: Asked, told: Told) -> Told:
    """Only the first of a list is started."""
    if _approves(asked, told):
        first = json.loads(asked.body.decode("utf-8-sig"))["StartRequests"][0]["EventId"].upper()
        for event in endpoint.events:
            if event["EventId"] != first and event["EventType"] != "Reboot":
                event.update(EventStatus="Scheduled", NotBefore=_NOT_BEFORE)
    return told


def _counts(step: int) -> Tell:
    """The incarnation moves by another step when an event starts."""

    def tell(endpoint: Endpoint, asked: Asked, told: Told) -> Told:
        if not _is_document(asked, told):
            return told
        content = told.content
        content["DocumentIncarnation"] = 5 + step * (endpoint.incarnation - 5)
        return replace(told, body=_compact(content)).having(etag=f'"{content["DocumentIncarnation"]}"')

    return tell


def _never_the_same(endpoint: Endpoint, asked: Asked, told: Told) -> Told:
    return _in_each("Description", f"request {endpoint.asked}")(endpoint, asked, told)


def _now_and_then(status: int, body: bytes | None = None) -> Tell:
    """Every ninth GET of the document goes wrong."""

    def tell(endpoint: Endpoint, asked: Asked, told: Told) -> Told:
        if not _is_document(asked, told):
            return told
        endpoint.memory["gets"] = endpoint.memory.get("gets", 0) + 1
        is_bad = endpoint.memory["gets"] > 9 and endpoint.memory["gets"] % 2 == 0
        return replace(told, status=status, body=told.body if body is None else body) if is_bad else told

    return tell


def _refuses_again(endpoint: Endpoint, asked: Asked, told: Told) -> Told:
    if not _approves(asked, told):
        return told
    before = endpoint.memory.setdefault("approved", set())
    ids = set(re.findall(_GUID_TEXT, asked.body.decode("utf-8-sig").upper()))
    is_known = ids <= before
    before |= ids
    return _error(409, "Already approved") if is_known else told


def _map_version(old: str, new: str) -> Callable[[Asked], Asked]:
    def ask(asked: Asked) -> Asked:
        return replace(asked, query=tuple((n, new if v == old else v) for n, v in asked.query))

    return ask


def _forget_ids(asked: Asked) -> Asked:
    """An approval of events that are there becomes one of nothing."""
    if re.search(rb"7061BAC", asked.body, re.IGNORECASE):
        return replace(asked, body=b'{"StartRequests":[]}')
    return asked


def _map_path(asked: Asked) -> Asked:
    return replace(asked, path=EVENTS) if asked.path.startswith(EVENTS) else asked


def _assume_version(asked: Asked) -> Asked:
    is_missing = asked.is_about_events and not asked.version
    return replace(asked, query=(*asked.query, ("api-version", "2020-07-01"))) if is_missing else asked


def _assume_metadata(method: str) -> Callable[[Asked], Asked]:
    return lambda asked: asked.having(metadata="true") if asked.method == method else asked


def _version_first(_: Endpoint, asked: Asked, told: Told) -> Told:
    return Told(400, _NO_VERSION) if told.body == _NO_METADATA and not asked.version else told


def _checks_incarnation(endpoint: Endpoint, asked: Asked, told: Told) -> Told:
    if asked.method != "POST" or told.status != 200:
        return told
    said = json.loads(asked.body.decode("utf-8-sig")).get("DocumentIncarnation", endpoint.incarnation)
    return told if str(said) == str(endpoint.incarnation) else _error(409, "Stale")


def _has_bom(asked: Asked, _: Told) -> bool:
    return asked.body.startswith(b"\xef\xbb\xbf")


def _has_member(name: bytes) -> Callable[[Asked, Told], bool]:
    return lambda asked, told: name in asked.body and told.status == 200


def _is_lower(asked: Asked, told: Told) -> bool:
    return _approves(asked, told) and b"7061bac" in asked.body


def _repeats_an_id(asked: Asked, told: Told) -> bool:
    ids = re.findall(_GUID_TEXT, asked.body.decode("utf-8-sig"))
    return _approves(asked, told) and len(set(ids)) < len(ids)


def _in_json(path: str, change: Callable[[dict[str, Any]], object]) -> Tell:
    def tell(_: Endpoint, asked: Asked, told: Told) -> Told:
        if asked.path.lower() != path:
            return told
        content = told.content
        change(content)
        return replace(told, body=_compact(content))

    return tell


FAULTS = (
    Fault("endpoint", "wants a password", tell=lambda _, __, ___: Told(401, b"{}")),
    Fault("endpoint", "has no POST", tell=_refuses(_posts(), 405)),
    Fault("path-case", "minds the case", tell=_refuses(lambda a, _: a.is_about_events and EVENTS not in a.path, 404)),
    Fault("path-slash", "minds the slash", tell=_refuses(lambda a, _: a.path == EVENTS + "/", 404)),
    Fault("path-unknown", "takes any path below", ask=_map_path),
    Fault("methods", "answers 501", tell=_when(lambda _, t: t.status == 405, _status(501))),
    Fault("methods", "allows nothing", tell=_when(lambda _, t: t.status == 405, lambda t: t.having(allow=""))),
    Fault("parameter-repeated", "takes the last", ask=lambda a: replace(a, query=tuple(dict(a.query).items()))),
    Fault(
        "parameter-unknown", "minds others", tell=_refuses(lambda a, _: a.is_about_events and len(dict(a.query)) > 1)
    ),
    Fault("keep-alive", "closes each", wire="closes"),
    Fault("keep-alive", "speaks HTTP/1.0", wire="HTTP/1.0"),
    Fault("close", "stays open", wire="keeps open"),
    Fault("close-said", "cuts after errors", wire="cuts errors"),
    Fault("keep-alive", "cuts each", wire="closes in silence"),
    Fault("expect", "waits for the body", wire="no continue"),
    Fault("expect", "refuses it", tell=_refuses(lambda a, _: "expect" in a.headers, 417)),
    Fault("body-forms", "minds the mark", tell=_refuses(_has_bom)),
    Fault(
        "request-type",
        "wants JSON",
        tell=_refuses(lambda a, _: a.method == "POST" and "json" not in a.headers.get("content-type", ""), 415),
    ),
    Fault("content-type", "calls it HTML", tell=lambda _, __, t: t.having(content_type="text/html")),
    Fault("content-type-document", "calls it text", tell=lambda _, __, t: t.having(content_type="text/json")),
    Fault("content-type", "leaves out the charset", tell=lambda _, __, t: t.having(content_type="application/json")),
    Fault("content-length", "goes on", wire="goes on"),
    Fault("content-length", "sends chunks", wire="chunks"),
    Fault("date", "has none", tell=lambda _, __, t: t.having(date="")),
    Fault("date", "writes ISO", tell=lambda _, __, t: t.having(date="2016-09-19T18:29:47Z")),
    Fault("rate", "forgets itself", tell=_now_and_then(404)),
    Fault("metadata-get", "wants none to GET", ask=_assume_metadata("GET")),
    Fault("metadata-post", "wants none to POST", ask=_assume_metadata("POST")),
    Fault("metadata-body", "says less", tell=_when(lambda _, t: t.body == _NO_METADATA, lambda _: _error(400, "no"))),
    Fault(
        "metadata-value",
        "minds the case",
        tell=_refuses(lambda a, _: a.headers.get("metadata", "").lower() == "true" != a.headers.get("metadata")),
    ),
    Fault("metadata-value", "takes any", ask=lambda a: a.having(metadata="true") if "metadata" in a.headers else a),
    Fault(
        "metadata-preview",
        "wants it to POST",
        tell=_refuses(lambda a, _: a.method == "POST" and "metadata" not in a.headers),
    ),
    Fault("forwarded", "lets it pass", ask=lambda a: a.without("x-forwarded-for")),
    Fault("etag", "has none", tell=lambda _, __, t: t.having(etag="")),
    Fault("etag", "has a hash", tell=lambda _, __, t: t.having(etag='"abc"') if "etag" in t.headers else t),
    Fault("if-none-match", "takes no notice", ask=lambda a: a.without("if-none-match")),
    Fault(
        "if-none-match",
        "wants quotes",
        ask=lambda a: a if '"' in a.headers.get("if-none-match", '"') else a.without("if-none-match"),
    ),
    Fault(
        "if-none-match-post",
        "answers 412",
        tell=_refuses(lambda a, _: a.method == "POST" and "if-none-match" in a.headers, 412),
    ),
    Fault("version-missing", "assumes one", ask=_assume_version),
    Fault(
        "version-body", "recommends none", tell=_when(lambda _, t: t.body == _NO_VERSION, lambda _: _error(400, "no"))
    ),
    Fault("versions", "lacks one", ask=_map_version("2019-04-01", "")),
    Fault("versions-imds", "takes another", ask=_map_version("2019-11-01", "2019-08-01")),
    Fault("version-latest", "has a latest", ask=_map_version("latest", "2020-07-01")),
    Fault(
        "versions-mixed",
        "has no old POST",
        tell=_refuses(lambda a, _: a.method == "POST" and a.version == "2017-08-01"),
    ),
    Fault("members", "lacks one", tell=_in_events(lambda e: e.pop("ResourceType"))),
    Fault("member-order", "has another order", tell=_in_document(_reordered), verdict="note"),
    Fault("member-order", "sorts the document", tell=_in_document(_events_first), verdict="note"),
    Fault("members-later", "shows more", tell=_in_events(lambda e: e.update(Description=""), "2019-01-01")),
    Fault("types", "shows newer", tell=_in_events(lambda e: e.update(EventType="Preempt"), "2017-03-01")),
    Fault("types", "lacks older", tell=_in_document(lambda c, v: c.update(Events=[]) if v == "2017-08-01" else None)),
    Fault(
        "incarnation-shared",
        "counts apart",
        tell=_in_document(lambda c, v: c.update(DocumentIncarnation=99) if v < "2018" else None),
    ),
    Fault(
        "names-preview",
        "has no underscore",
        tell=_in_events(lambda e: e.update(Resources=[n[1:] for n in e["Resources"]]), "2017-03-01"),
    ),
    Fault(
        "not-before-form",
        "writes ISO",
        tell=_in_events(lambda e: e.update(NotBefore="2016-09-19T18:29:47Z"), "2020-07-01"),
    ),
    Fault(
        "not-before-form",
        "has the wrong day",
        tell=_in_events(lambda e: e.update(NotBefore="Tue, 19 Sep 2016 18:29:47 GMT"), "2020-07-01"),
    ),
    Fault(
        "not-before-preview",
        "is late",
        tell=_in_events(lambda e: e.update(NotBefore="2016-09-19T18:29:48Z"), "2017-03-01"),
    ),
    Fault(
        "not-before-preview",
        "is local",
        tell=_in_events(lambda e: e.update(NotBefore="19.09.2016 18:29"), "2017-03-01"),
    ),
    Fault("document", "has more", tell=_in_document(lambda c, _: c.update(More=1))),
    Fault("document", "has null", tell=_in_document(lambda c, _: c.update(Events=None))),
    Fault(
        "document-compact",
        "is pretty",
        tell=_when(_is_document, lambda t: replace(t, body=json.dumps(t.content, indent=1).encode())),
    ),
    Fault(
        "document-compact",
        "ends its line",
        tell=_when(_is_document, lambda t: replace(t, body=t.body + b"\n")),
        verdict="note",
    ),
    Fault("document-repeated", "varies", tell=_never_the_same),
    Fault("incarnation", "is a text", tell=_in_document(lambda c, _: c.update(DocumentIncarnation="5"))),
    Fault("incarnation-set", "is zero", tell=_in_document(lambda c, _: c.update(DocumentIncarnation=0))),
    Fault("incarnation-growth", "counts twice", tell=_counts(2)),
    Fault("incarnation-growth", "stays", tell=_counts(0)),
    Fault("incarnation-growth", "goes back", tell=_counts(-1)),
    Fault("event-id", "is a number", tell=_in_each("EventId", "5")),
    Fault(
        "event-id-case",
        "is lower",
        tell=_in_events(lambda e: e.update(EventId=e["EventId"].lower())),
        verdict="note",
    ),
    Fault("event-id-unique", "is repeated", events=lambda events: events[4].update(EventId=events[1]["EventId"])),
    Fault("event-id-versions", "differs", tell=_in_events(_renamed, "2019-01-01")),
    Fault(
        "event-id-constant",
        "is new",
        tell=_once_started(lambda e: e.update(EventId="F" + e["EventId"][1:]) if e["EventType"] == "Freeze" else None),
    ),
    Fault("event-type", "is Pause", tell=_in_each("EventType", "Pause")),
    Fault("resource-type", "is Vm", tell=_in_each("ResourceType", "Vm")),
    Fault("resources", "is a text", tell=_in_each("Resources", "Vm-1")),
    Fault("resources", "is empty", tell=_in_each("Resources", [])),
    Fault("event-status", "is Completed", tell=_in_each("EventStatus", "Completed")),
    Fault("not-before", "stays", tell=_in_each("NotBefore", _NOT_BEFORE)),
    Fault("not-before", "is null", tell=_once_started(lambda e: e.update(NotBefore=None))),
    Fault("description", "is null", tell=_in_each("Description", None)),
    Fault("event-source", "is Azure", tell=_in_each("EventSource", "Azure")),
    Fault("duration", "is a text", tell=_in_each("DurationInSeconds", "5")),
    Fault("duration", "is a fraction", tell=_in_each("DurationInSeconds", 5.0)),
    Fault("life", "changes", tell=_once_started(lambda e: e.update(Description="Started."))),
    Fault("approval-malformed", "takes anything", tell=_when(_posts(400), lambda _: Told(200))),
    Fault(
        "approval-unknown",
        "answers 409",
        tell=_refuses(lambda _, t: t.status == 400 and b"EventId is not known" in t.body, 409),
    ),
    Fault(
        "approval-empty",
        "refuses none",
        tell=_refuses(lambda a, t: a.method == "POST" and t.status == 200 and b"EventId" not in a.body),
    ),
    Fault("approval-body", "says OK", tell=_when(_posts(200), lambda t: replace(t, body=b"OK"))),
    Fault("approval-members", "minds others", tell=_refuses(_has_member(b"Reason"))),
    Fault("approval-incarnation", "checks it", tell=_checks_incarnation),
    Fault("approval-none", "starts all", tell=_starts_all),
    Fault("approve-headers", "approves first", tell=_starts_named(lambda a: a.headers.get("metadata") != "true")),
    Fault("approve-malformed", "takes the good", tell=_starts_named(lambda _: True)),
    Fault("approve-unknown", "takes the known", tell=_starts_named(lambda _: True)),
    Fault("approve", "answers 202", tell=_when(_approves, _status(202))),
    Fault("approve-effect", "forgets it", ask=_forget_ids, verdict="inconclusive"),
    Fault("approve-body", "says OK", tell=_when(_approves, lambda t: replace(t, body=b"OK"))),
    Fault("approve-again", "answers 409", tell=_refuses_again),
    Fault("approve-case", "minds the case", tell=_refuses(_is_lower)),
    Fault("approve-several", "minds repeats", tell=_refuses(_repeats_an_id)),
    Fault("approve-several", "takes the first", tell=_starts_one),
    Fault("approve-versions", "has no old one", tell=_refuses(lambda a, t: _approves(a, t) and a.version < "2018")),
    Fault(
        "approve-forms", "wants JSON", tell=_refuses(lambda a, t: _approves(a, t) and "content-type" not in a.headers)
    ),
    Fault("approve-started", "answers 409", tell=_refuses_again),
    Fault("error-body", "is plain", tell=_when(lambda _, t: t.status >= 400, lambda t: replace(t, body=b"No."))),
    Fault("error-order", "looks at the version first", tell=_version_first),
    Fault("outages", "fails", tell=_now_and_then(500)),
    Fault("outages", "is empty", tell=_now_and_then(200, b"")),
    Fault(
        "names", "spells otherwise", tell=_in_events(lambda e: e.update(Resources=[n.lower() for n in e["Resources"]]))
    ),
    Fault(
        "long-poll",
        "answers 200",
        tell=_when(
            lambda a, t: t.status == 304 and "prefer" in a.headers,
            lambda _: Told(200, b'{"DocumentIncarnation":5,"Events":[]}'),
        ),
    ),
    Fault("version-list", "lists numbers", tell=_in_json("/metadata/versions", lambda c: c.update(apiVersions=[1]))),
    Fault(
        "instance-format",
        "gives JSON",
        tell=_when(lambda a, t: a.path.endswith("/compute/name") and t.status == 400, lambda _: Told(200, b'"Vm-1"')),
    ),
    Fault("instance-version", "takes any", ask=_map_version("2017-07-01", "2021-02-01")),
    Fault(
        "instance-version",
        "recommends those of events",
        tell=_when(
            lambda a, t: a.path.startswith("/metadata/instance") and t.status == 400, lambda _: Told(400, _NO_VERSION)
        ),
    ),
    Fault("instance", "has numbers", tell=_in_json("/metadata/instance", lambda c: c["compute"].update(tags=5))),
)
"""Every fault, by the check that has to find it."""
