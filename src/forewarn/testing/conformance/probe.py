"""Requests of the checks, and everything that the checks have seen so far.

All documents are kept: a check of single members examines all of them, including those fetched by other checks.
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
"""Timeout of the answer that enables the service: it may be held for two minutes (R67)."""

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
    """Failures that no check has provoked (R9, R66).

    Attributes:
        answers: Total number of answers.
        refused: Number of answers with each of 410, 429 and 503; each retry that is refused counts again.
        failed: Failures without an excuse: 500 and above, a time-out, or a document without a body.
    """

    answers: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmless:
    """A well-formed approval of nothing, with the answer that shows that it was understood.

    Attributes:
        content: Body as a value.
        status: Expected status.
        answer: Expected body of the answer; None for any.
    """

    content: dict[str, Any]
    status: int
    answer: bytes | None

    @property
    def body(self) -> bytes:
        """Body as JSON."""
        return json.dumps(self.content).encode()

    def is_taken(self, reply: Reply) -> bool:
        """Return True if the answer is that of an endpoint that has understood it."""
        return reply.status == self.status and self.answer in {None, reply.body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The document at one moment in every api-version.

    Attributes:
        replies: All answers, newest version first.
        shown: Those answers that are documents.
        is_steady: True if the newest version was the same before and after, so that all show the same moment.
    """

    replies: dict[str, Reply]
    shown: dict[str, Shown]
    is_steady: bool


class Probe:
    """Sends requests to one endpoint, and remembers the answers.

    Args:
        address: Address of the endpoint.
        timeout_s: Time limit for each answer but the first.
        allow_approve: True if events may be approved.
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

    # Requests

    def line(self) -> Line:
        """Open a new connection."""
        return Line(self.address, self.timeout_s)

    def ask(self, request: Request, *, timeout_s: float | None = None) -> Reply:
        """Return the answer to a request on a new connection; retry after 410, 429 and 503.

        Raises:
            EndpointUnreachable: There was no answer.
            Inconclusive: Too many requests in a row were unanswered, so nothing was sent.
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
        """Return the answer to a request, without retries."""
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
        """Return the current document.

        Raises:
            Inconclusive: The answer is not a document.
        """
        version = version or self.version
        reply = self.ask(get(version))
        shown = self.keep(version, reply)
        if shown is None:
            msg = f"api-version {version} is answered {reply.status} with {excerpt(reply.body)}"
            raise Inconclusive(msg)
        return shown

    def keep(self, version: str, reply: Reply) -> Shown | None:
        """Remember the answer to a GET if it is a document."""
        shown = as_shown(version, reply, time.perf_counter())
        if shown is not None and len(self.history) < _HISTORY_MAX:
            self.history.append(shown)
        if reply.status == HTTPStatus.OK and not reply.body:
            self.outages.failed.append(f"GET of {version} is answered 200 with an empty body")
        return shown

    @property
    def views(self) -> Views:
        """First document in every version; fetched once, or up to three times if it changes meanwhile."""
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
        """Return the status that refuses all api-versions alike, as for a caller that is no VM; None if there is none.

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
        """Newest api-version with a document; the newest of all if none has one."""
        return next(iter(self.views.shown), VERSIONS[0].name)

    @property
    def supported(self) -> list[str]:
        """Api-versions with a document, newest first.

        Raises:
            Inconclusive: There is none.
        """
        if not self.views.shown:
            msg = "no api-version is answered with a document"
            raise Inconclusive(msg)
        return list(self.views.shown)

    def shown(self, version: str | None = None) -> Shown:
        """Return the first document in that version, or in the newest.

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
        """Check that the api-version makes a difference; without one, equal answers in two versions prove nothing.

        Raises:
            Inconclusive: It makes none.
        """
        bodies = {shown.reply.body for shown in self.views.shown.values()}
        if len(bodies) < 2 and as_shown(_NO_VERSION, self.ask(get(_NO_VERSION)), 0.0) is not None:  # noqa: PLR2004 - a pair
            msg = f"every api-version is answered with the same document, {_NO_VERSION} as well"
            raise Inconclusive(msg)

    def require_paths_to_count(self) -> None:
        """Check that the path makes a difference.

        Raises:
            Inconclusive: It makes none.
        """
        if as_shown(self.version, self.ask(get(self.version, path=NO_PATH)), 0.0) is not None:
            msg = f"{NO_PATH} is answered with the document as well"
            raise Inconclusive(msg)

    def all_shown(self, version: str | None = None) -> list[Shown]:
        """Return every document seen in that version, or in the newest, without consecutive duplicates.

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
        """Return every state of every event seen in that version, or in the newest.

        Raises:
            Inconclusive: There was no event.
        """
        found: list[dict[str, Any]] = []
        for shown in self.all_shown(version):
            found += [event for event in shown.events if event not in found]
        if not found:
            msg = "the document holds no event now"
            raise Inconclusive(msg)
        return found

    # Approvals

    @property
    def harmless(self) -> Harmless:
        """Approval of nothing that this endpoint distinguishes from nonsense.

        Raises:
            Inconclusive: It answers both alike.
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
        """Body that approves nothing: the one that is understood, or an empty list if that is unknown."""
        try:
            return self.harmless.body
        except Inconclusive:
            return approval([])

    @property
    def refused(self) -> dict[str, Any] | None:
        """Well-formed approval that this endpoint refuses; None if it answers 200 to any approval.

        A 200 proves something only next to such a refusal: other endpoints may not even read the body.
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
        """Return the ids of the events that are Scheduled now, in their original spelling."""
        events = self.fetch().by_id().values()
        return [str(event["EventId"]) for event in events if event.get("EventStatus") == "Scheduled"]

    @property
    def target(self) -> str:
        """Id of the event to approve: the first that was Scheduled at the first use.

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
        """Send an approval of the target, and fetch the document after it."""
        reply = self.ask(request)
        if reply.status == HTTPStatus.OK:
            self.approved_ids.append(self.target)
        self.fetch()
        return reply


def _retry_s(reply: Reply) -> float:
    said = reply.header("retry-after")
    return min(float(said), _RETRY_S_MAX) if said.isascii() and said.isdigit() else _RETRY_S
