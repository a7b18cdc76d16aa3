"""What the checks ask through, and what they have seen so far.

Documents are kept as they come: a check of single members looks at all of them, also at those that another check saw.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from forewarn.errors import EndpointUnreachable
from forewarn.testing.conformance.line import Address, Line
from forewarn.testing.conformance.outcome import Inconclusive, excerpt
from forewarn.testing.conformance.reply import Reply
from forewarn.testing.conformance.request import EVENTS, UNKNOWN_ID, Request, approval, get, post
from forewarn.testing.conformance.shown import Shown, as_shown
from forewarn.testing.conformance.table import VERSIONS

__all__ = ["NO_PATH", "Harmless", "Outages", "Probe", "Views"]

FIRST_TIMEOUT_S = 130.0
"""For the answer that enables the service: it may be held for two minutes (R67)."""

_RETRIED = frozenset({HTTPStatus.GONE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_TRIES_MAX = 4
_RETRY_S = 1.0
_RETRY_S_MAX = 10.0
_PACE_S = 0.25
_HISTORY_MAX = 1000
_SILENCES_MAX = 6
_STEADY_TRIES = 3
_MALFORMED = b"{"
_NO_VERSION = "2099-01-01"
NO_PATH = EVENTS + "x"
"""A path that no endpoint has."""

_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})


@dataclass(slots=True)
class Outages:
    """What went wrong without being asked for (R9, R66).

    Attributes:
        answers: How many there were at all.
        refused: How often 410, 429 or 503 was answered; asked again, and again counted.
        failed: What has no excuse: 500 and above, or a document without a body.
    """

    answers: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmless:
    """A well-formed approval of nothing, and how to tell that it was understood.

    Attributes:
        content: The body as a value.
        status: Of the answer.
        answer: The body of the answer; None where any will do.
    """

    content: dict[str, Any]
    status: int
    answer: bytes | None

    @property
    def body(self) -> bytes:
        """It as JSON."""
        return json.dumps(self.content).encode()

    def is_taken(self, reply: Reply) -> bool:
        """Whether this is what an endpoint says that has understood it."""
        return reply.status == self.status and self.answer in {None, reply.body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """One state of affairs in every api-version.

    Attributes:
        replies: The answers, newest version first.
        shown: Those that are documents.
        is_steady: Whether the newest said the same before and after: then all are about the same moment.
    """

    replies: dict[str, Reply]
    shown: dict[str, Shown]
    is_steady: bool


class Probe:
    """Asks one endpoint.

    Args:
        address: Where it is.
        timeout_s: For each answer but the first.
        allow_approve: Whether events may be approved.
    """

    def __init__(self, address: Address, *, timeout_s: float = 5.0, allow_approve: bool = False) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.allow_approve = allow_approve
        self.history: list[Shown] = []
        self.outages = Outages()
        self.approved_ids: list[str] = []
        self.target_not_before = ""
        self.has_waited = False
        self._views: Views | None = None
        self._harmless: Harmless | Inconclusive | None = None
        self._refused: dict[str, Any] | None = None
        self._has_tried = False
        self._target: str | None = None
        self._silences = 0
        self._pace_s = 0.0

    # Asking

    def line(self) -> Line:
        """A connection of its own."""
        return Line(self.address, self.timeout_s)

    def ask(self, request: Request, *, timeout_s: float | None = None) -> Reply:
        """The answer to a request on a new connection; asked again after 410, 429 and 503.

        Raises:
            EndpointUnreachable: There was none.
            Inconclusive: It has left too many in a row unanswered to be asked again.
        """
        reply = self._ask_once(request, timeout_s)
        for _ in range(_TRIES_MAX - 1):
            if reply.status not in _RETRIED:
                break
            self.outages.refused[reply.status] = self.outages.refused.get(reply.status, 0) + 1
            self._pace_s = _PACE_S if reply.status == HTTPStatus.TOO_MANY_REQUESTS else self._pace_s
            time.sleep(_retry_s(reply))
            reply = self._ask_once(request, timeout_s)
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.outages.failed.append(f"{request.method} {request.target} is answered {reply.status}")
        return reply

    def ask_once(self, request: Request) -> Reply:
        """The answer to a request, whatever it is."""
        return self._ask_once(request, None)

    def _ask_once(self, request: Request, timeout_s: float | None) -> Reply:
        if self._silences >= _SILENCES_MAX:
            msg = f"not asked: the endpoint left {_SILENCES_MAX} requests in a row unanswered"
            raise Inconclusive(msg)
        time.sleep(self._pace_s)
        try:
            with self.line() as line:
                reply = line.ask(request, timeout_s)
        except EndpointUnreachable as error:
            self._silences += 1
            if error.details.get("timed_out"):
                self.outages.failed.append(error.message)
            raise
        self._silences = 0
        self.outages.answers += 1
        return reply

    # Documents

    def fetch(self, version: str | None = None) -> Shown:
        """The document as it is now.

        Raises:
            Inconclusive: The answer is none.
        """
        version = version or self.version
        reply = self.ask(get(version))
        shown = self.keep(version, reply)
        if shown is None:
            msg = f"api-version {version} is answered {reply.status} with {excerpt(reply.body)}"
            raise Inconclusive(msg)
        return shown

    def keep(self, version: str, reply: Reply) -> Shown | None:
        """Remember the answer to a GET, if it is a document."""
        shown = as_shown(version, reply, time.perf_counter())
        if shown is not None and len(self.history) < _HISTORY_MAX:
            self.history.append(shown)
        if reply.status == HTTPStatus.OK and not reply.body:
            self.outages.failed.append(f"GET of {version} is answered 200 with an empty body")
        return shown

    @property
    def views(self) -> Views:
        """The document in every version; asked once, and again while it changes under our hands."""
        if self._views is None:
            self._views = self._look()
            for _ in range(_STEADY_TRIES - 1):
                if self._views.is_steady:
                    break
                self._views = self._look()
        return self._views

    def _look(self) -> Views:
        replies: dict[str, Reply] = {}
        shown: dict[str, Shown] = {}
        for number, version in enumerate(VERSIONS):
            is_first = number == 0 and not self.history and not self._silences
            patience_s = max(self.timeout_s, FIRST_TIMEOUT_S) if is_first else None
            replies[version.name] = self.ask(get(version.name), timeout_s=patience_s)
            found = self.keep(version.name, replies[version.name])
            if found is not None:
                shown[version.name] = found
        newest = next(iter(shown), None)
        if newest is None:
            return Views(replies=replies, shown=shown, is_steady=True)
        again = self.ask(get(newest))
        self.keep(newest, again)
        return Views(replies=replies, shown=shown, is_steady=again.body == shown[newest].reply.body)

    def find_refusal(self) -> int | None:
        """The status with which every api-version is refused, as for a caller that is no VM; None if it is not so.

        Raises:
            EndpointUnreachable: There was no answer.
        """
        replies = self.views.replies.values()
        statuses = {reply.status for reply in replies}
        is_about_version = any(b"api-version" in reply.body for reply in replies)
        if len(statuses) > 1 or not statuses <= _REFUSALS or is_about_version:
            return None
        return statuses.pop()

    @property
    def version(self) -> str:
        """The newest api-version in which there is a document; the newest there is if there is none in any."""
        return next(iter(self.views.shown), VERSIONS[0].name)

    @property
    def supported(self) -> list[str]:
        """The api-versions in which there is a document, newest first.

        Raises:
            Inconclusive: There is none in any.
        """
        if not self.views.shown:
            msg = "no api-version is answered with a document"
            raise Inconclusive(msg)
        return list(self.views.shown)

    def shown(self, version: str | None = None) -> Shown:
        """The document as it was at first, in that version or in the newest.

        Raises:
            Inconclusive: There is none.
        """
        supported = self.supported
        name = version or supported[0]
        if name not in self.views.shown:
            msg = f"api-version {name} is not answered with a document"
            raise Inconclusive(msg)
        return self.views.shown[name]

    def require_versions_to_count(self) -> None:
        """Go on only where the api-version makes a difference; elsewhere equal answers to different ones say nothing.

        Raises:
            Inconclusive: It makes none.
        """
        bodies = {shown.reply.body for shown in self.views.shown.values()}
        if len(bodies) < 2 and as_shown(_NO_VERSION, self.ask(get(_NO_VERSION)), 0.0) is not None:  # noqa: PLR2004 - a pair
            msg = f"every api-version is answered with the same document, {_NO_VERSION} as well"
            raise Inconclusive(msg)

    def require_paths_to_count(self) -> None:
        """Go on only where the path makes a difference.

        Raises:
            Inconclusive: It makes none.
        """
        if as_shown(self.version, self.ask(get(self.version, path=NO_PATH)), 0.0) is not None:
            msg = f"{NO_PATH} is answered with the document as well"
            raise Inconclusive(msg)

    def all_shown(self, version: str | None = None) -> list[Shown]:
        """Every document that was seen in that version, or in the newest; of those in a row that are equal, one.

        Raises:
            Inconclusive: There is none.
        """
        name = version or self.shown().version
        found: list[Shown] = []
        for shown in self.history:
            if shown.version == name and (not found or found[-1].reply.body != shown.reply.body):
                found.append(shown)
        return found

    def events(self, version: str | None = None) -> list[dict[str, Any]]:
        """Every event in each form in which it was seen in that version, or in the newest.

        Raises:
            Inconclusive: There was none.
        """
        found: list[dict[str, Any]] = []
        for shown in self.all_shown(version):
            found += [event for event in shown.events if event not in found]
        if not found:
            msg = "the document holds no event now"
            raise Inconclusive(msg)
        return found

    # Approving

    @property
    def harmless(self) -> Harmless:
        """An approval of nothing that this endpoint tells from nonsense.

        Raises:
            Inconclusive: It answers sense and nonsense alike.
        """
        if self._harmless is None:
            try:
                self._harmless = self._find_harmless()
            except Inconclusive as reason:
                self._harmless = reason
        if isinstance(self._harmless, Inconclusive):
            raise self._harmless
        return self._harmless

    @property
    def nothing(self) -> bytes:
        """A body that approves nothing: the one that is understood, or an empty list where none can be told."""
        try:
            return self.harmless.body
        except Inconclusive:
            return approval([])

    @property
    def refused(self) -> dict[str, Any] | None:
        """A well-formed approval that this endpoint refuses; None: it answers 200 whatever an approval says.

        Only beside one can a 200 be told from that of an endpoint that does not read what it is sent.
        """
        if not self._has_tried:
            self._has_tried = True
            tried: list[dict[str, Any]] = [{"StartRequests": [{"EventId": UNKNOWN_ID}]}, {"StartRequests": [{}]}]
            for content in tried:
                if self.ask(post(json.dumps(content).encode(), self.version)).status != HTTPStatus.OK:
                    self._refused = content
                    break
        return self._refused

    def _find_harmless(self) -> Harmless:
        nonsense = self.ask(post(_MALFORMED, self.version))
        nothing = self.ask(post(approval([]), self.version))
        if nothing.status == HTTPStatus.OK != nonsense.status:
            return Harmless(content={"StartRequests": []}, status=200, answer=None)
        unknown = self.ask(post(approval([UNKNOWN_ID]), self.version))
        if (unknown.status, unknown.body) != (nonsense.status, nonsense.body):
            content = {"StartRequests": [{"EventId": UNKNOWN_ID}]}
            return Harmless(content=content, status=unknown.status, answer=unknown.body)
        msg = f"a body that is no JSON and one that approves nothing are both answered {nonsense.status}"
        raise Inconclusive(msg)

    def scheduled(self) -> list[str]:
        """Ids of the events that are Scheduled now, as they are spelled."""
        events = self.fetch().by_id().values()
        return [str(event["EventId"]) for event in events if event.get("EventStatus") == "Scheduled"]

    @property
    def target(self) -> str:
        """The id of the event that is approved: the first that was Scheduled when somebody asked.

        Raises:
            Inconclusive: None was.
        """
        if self._target is None:
            events = self.fetch().by_id().values()
            waiting = [event for event in events if event.get("EventStatus") == "Scheduled"]
            if not waiting:
                msg = "no event is Scheduled now, so that there is none to approve"
                raise Inconclusive(msg)
            self._target = str(waiting[0]["EventId"])
            self.target_not_before = str(waiting[0].get("NotBefore"))
        return self._target

    def approve(self, request: Request) -> Reply:
        """Send what approves the target, and look what has become of it."""
        reply = self.ask(request)
        if reply.status == HTTPStatus.OK:
            self.approved_ids.append(self.target)
        self.fetch()
        return reply


def _retry_s(reply: Reply) -> float:
    said = reply.header("retry-after")
    return min(float(said), _RETRY_S_MAX) if said.isascii() and said.isdigit() else _RETRY_S
