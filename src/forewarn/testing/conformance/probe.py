"""Requests of the checks, and everything that the checks have seen so far.

All documents are kept: a check of single members examines all of them, including those fetched by other checks.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from itertools import groupby
from typing import Any

from forewarn.errors import EndpointUnreachable
from forewarn.testing.conformance.outcome import Inconclusive, excerpt_body
from forewarn.testing.conformance.raw_connection import EndpointAddress, RawConnection
from forewarn.testing.conformance.raw_document import RawDocument, parse_raw_document
from forewarn.testing.conformance.raw_reply import RawReply
from forewarn.testing.conformance.raw_request import (
    EVENTS,
    UNKNOWN_ID,
    RawRequest,
    build_get,
    build_post,
    encode_approval,
)
from forewarn.testing.conformance.version_table import VERSIONS

__all__ = ["NO_PATH", "EndpointProbe", "HarmlessApproval", "UnprovokedFailures", "VersionedDocuments"]

FIRST_TIMEOUT_S = 130.0
"""Timeout of the answer that enables the service: it may be held for two minutes (R67)."""

_RETRIED = frozenset({HTTPStatus.GONE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_TRIES_MAX = 4
_RETRY_S = 1.0
_RETRY_S_MAX = 10.0
# Four requests per second, below the five that the documentation of the instance metadata allows (R9).
_PACE_S = 0.25
_HISTORY_MAX = 1000
# Each unanswered request costs a whole timeout, and a run sends some 400.
_SILENCES_MAX = 6
_STEADY_TRIES = 3
_MALFORMED = b"{"
_NO_VERSION = "2099-01-01"
NO_PATH = EVENTS + "x"
"""A path that no endpoint has."""

_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})


@dataclass(slots=True)
class UnprovokedFailures:
    """Failures that no check has provoked (R9, R66).

    Attributes:
        answers: Total number of answers.
        retried_statuses: Number of answers with each of 410, 429 and 503; each retry that is refused counts again.
        unexcused: Failures without an excuse: 500 and above, a time-out, or a document without a body.
    """

    answers: int = 0
    retried_statuses: Counter[int] = field(default_factory=Counter)
    unexcused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmlessApproval:
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

    def is_understood(self, reply: RawReply) -> bool:
        """Return True if the answer is that of an endpoint that has understood it."""
        return reply.status == self.status and self.answer in {None, reply.body}


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedDocuments:
    """The document at one moment in every api-version.

    Attributes:
        replies: All answers, newest version first.
        documents: Those answers that are documents.
        is_steady: True if the newest version was the same before and after, so that all show the same moment.
    """

    replies: dict[str, RawReply]
    documents: dict[str, RawDocument]
    is_steady: bool


class EndpointProbe:
    """Sends requests to one endpoint, and remembers the answers.

    Args:
        address: Address of the endpoint.
        timeout_s: Time limit for each answer but the first.
        allow_approve: True if events may be approved.
    """

    def __init__(self, address: EndpointAddress, *, timeout_s: float = 5.0, allow_approve: bool = False) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.allow_approve = allow_approve
        self.documents_seen: list[RawDocument] = []
        self.failures = UnprovokedFailures()
        self.approved_ids: list[str] = []
        self.target_not_before = ""
        self.has_waited_for_start = False
        self._unanswered_in_row = 0
        self._pace_s = 0.0

    # Requests

    def open_connection(self) -> closing[RawConnection]:
        """Open a new connection for one block."""
        return closing(RawConnection(self.address, self.timeout_s))

    def send_request(self, request: RawRequest, *, timeout_s: float | None = None) -> RawReply:
        """Return the answer to a request on a new connection; retry after 410, 429 and 503.

        Raises:
            EndpointUnreachable: There was no answer.
            Inconclusive: Too many requests in a row were unanswered, so nothing was sent.
        """
        reply = self.send_once(request, timeout_s)
        for _ in range(_TRIES_MAX - 1):
            if reply.status not in _RETRIED:
                break
            self.failures.retried_statuses[reply.status] += 1
            self._pace_s = _PACE_S if reply.status == HTTPStatus.TOO_MANY_REQUESTS else self._pace_s
            time.sleep(_parse_retry_after(reply))
            reply = self.send_once(request, timeout_s)
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.failures.unexcused.append(f"{request.method} {request.target} returns {reply.status}")
        return reply

    def list_wrong_statuses(
        self, requests: Mapping[str, RawRequest], status: int = HTTPStatus.BAD_REQUEST
    ) -> list[str]:
        """Send these requests; return an observation about each, by its name, that gets a different status."""
        replies = {name: self.send_request(request) for name, request in requests.items()}
        return [
            f"{name} returns {reply.status}, not {status:d}"
            for name, reply in replies.items()
            if reply.status != status
        ]

    def send_once(self, request: RawRequest, timeout_s: float | None = None) -> RawReply:
        """Return the answer to a request, without retries."""
        if self._unanswered_in_row >= _SILENCES_MAX:
            raise Inconclusive(f"not sent: the endpoint did not answer {_SILENCES_MAX} requests in a row")
        time.sleep(self._pace_s)
        try:
            with self.open_connection() as line:
                reply = line.send_request(request, timeout_s)
        except EndpointUnreachable as error:
            self._unanswered_in_row += 1
            if error.details.get("timed_out"):
                self.failures.unexcused.append(error.message)
            raise
        self._unanswered_in_row = 0
        self.failures.answers += 1
        return reply

    # Documents

    def fetch_document(self) -> RawDocument:
        """Return the current document in the newest api-version.

        Raises:
            Inconclusive: The answer is not a document.
        """
        version = self.newest_version
        reply = self.send_request(build_get(version))
        shown = self.remember_document(version, reply)
        if shown is None:
            raise Inconclusive(f"api-version {version} returns {reply.status} with {excerpt_body(reply.body)}")
        return shown

    def remember_document(self, version: str, reply: RawReply) -> RawDocument | None:
        """Remember the answer to a GET if it is a document."""
        shown = parse_raw_document(version, reply, time.perf_counter())
        # Documents may have megabytes, and the first thousand are enough for every check.
        if shown is not None and len(self.documents_seen) < _HISTORY_MAX:
            self.documents_seen.append(shown)
        if reply.status == HTTPStatus.OK and not reply.body:
            self.failures.unexcused.append(f"GET in {version} returns 200 with an empty body")
        return shown

    @cached_property
    def versioned_documents(self) -> VersionedDocuments:
        """First document in every version; fetched once, or up to three times if it changes meanwhile."""
        found = self._fetch_all_versions()
        for _ in range(_STEADY_TRIES - 1):
            if found.is_steady:
                break
            found = self._fetch_all_versions()
        return found

    def _fetch_all_versions(self) -> VersionedDocuments:
        replies: dict[str, RawReply] = {}
        shown: dict[str, RawDocument] = {}
        for number, version in enumerate(VERSIONS):
            is_first = number == 0 and not self.documents_seen and not self._unanswered_in_row
            patience_s = max(self.timeout_s, FIRST_TIMEOUT_S) if is_first else None
            replies[version.name] = self.send_request(build_get(version.name), timeout_s=patience_s)
            found = self.remember_document(version.name, replies[version.name])
            if found is not None:
                shown[version.name] = found
        newest = next(iter(shown), None)
        if newest is None:
            return VersionedDocuments(replies=replies, documents=shown, is_steady=True)
        # Seven requests take time; if the newest is still the same, all of them show one moment.
        again = self.send_request(build_get(newest))
        self.remember_document(newest, again)
        return VersionedDocuments(replies=replies, documents=shown, is_steady=again.body == shown[newest].reply.body)

    def find_refusal(self) -> int | None:
        """Return the status that refuses all api-versions alike, as for a caller that is no VM; None if there is none.

        Raises:
            EndpointUnreachable: There was no answer.
        """
        replies = self.versioned_documents.replies.values()
        statuses = {reply.status for reply in replies}
        # An error about the api-version comes after the caller was accepted, so the checks can judge it.
        is_about_version = any(b"api-version" in reply.body for reply in replies)
        if len(statuses) > 1 or not statuses <= _REFUSALS or is_about_version:
            return None
        return statuses.pop()

    @property
    def newest_version(self) -> str:
        """Newest api-version with a document; the newest of all if none has one."""
        return next(iter(self.versioned_documents.documents), VERSIONS[0].name)

    @property
    def supported_versions(self) -> list[str]:
        """Api-versions with a document, newest first.

        Raises:
            Inconclusive: There is none.
        """
        if not self.versioned_documents.documents:
            raise Inconclusive("no api-version returns a document")
        return list(self.versioned_documents.documents)

    def get_first_document(self, version: str | None = None) -> RawDocument:
        """Return the first document in that version, or in the newest.

        Raises:
            Inconclusive: There is none.
        """
        supported = self.supported_versions
        name = version or supported[0]
        if name not in self.versioned_documents.documents:
            raise Inconclusive(f"api-version {name} does not return a document")
        return self.versioned_documents.documents[name]

    def require_version_dependence(self) -> None:
        """Check that the api-version makes a difference; without one, equal answers in two versions prove nothing.

        Raises:
            Inconclusive: It makes none.
        """
        bodies = {shown.reply.body for shown in self.versioned_documents.documents.values()}
        reply = self.send_request(build_get(_NO_VERSION))
        is_answered = parse_raw_document(_NO_VERSION, reply, 0.0) is not None
        if len(bodies) < 2 and is_answered:  # noqa: PLR2004 - a pair
            raise Inconclusive(f"every api-version returns the same document, even {_NO_VERSION}")

    def require_path_dependence(self) -> None:
        """Check that the path makes a difference.

        Raises:
            Inconclusive: It makes none.
        """
        reply = self.send_request(build_get(self.newest_version, path=NO_PATH))
        if parse_raw_document(self.newest_version, reply, 0.0) is not None:
            raise Inconclusive(f"{NO_PATH} returns the document as well")

    def list_documents(self, version: str | None = None) -> list[RawDocument]:
        """Return every document seen in that version, or in the newest, without consecutive duplicates.

        Raises:
            Inconclusive: There is none.
        """
        name = version or self.get_first_document().version
        seen = (shown for shown in self.documents_seen if shown.version == name)
        return [next(same) for _, same in groupby(seen, key=lambda shown: shown.reply.body)]

    def list_event_states(self, version: str | None = None) -> list[dict[str, Any]]:
        """Return every state of every event seen in that version, or in the newest.

        Raises:
            Inconclusive: There was no event.
        """
        found: list[dict[str, Any]] = []
        for shown in self.list_documents(version):
            found += [event for event in shown.events if event not in found]
        if not found:
            raise Inconclusive("the document has no events now")
        return found

    # Approvals

    @property
    def harmless_approval(self) -> HarmlessApproval:
        """Approval of nothing that this endpoint distinguishes from nonsense.

        Raises:
            Inconclusive: It answers both alike.
        """
        if isinstance(self._harmless_or_reason, Inconclusive):
            raise self._harmless_or_reason
        return self._harmless_or_reason

    @property
    def empty_approval(self) -> bytes:
        """Body that approves nothing: the one that is understood, or an empty list if that is unknown."""
        try:
            return self.harmless_approval.body
        except Inconclusive:
            return encode_approval([])

    @cached_property
    def refused_approval(self) -> dict[str, Any] | None:
        """Well-formed approval that this endpoint refuses; None if it answers 200 to any approval.

        A 200 proves something only next to such a refusal: other endpoints may not even read the body.
        """
        tried: list[dict[str, Any]] = [{"StartRequests": [{"EventId": UNKNOWN_ID}]}, {"StartRequests": [{}]}]
        for content in tried:
            reply = self.send_request(build_post(json.dumps(content).encode(), self.newest_version))
            if reply.status != HTTPStatus.OK:
                return content
        return None

    # A failure is kept as well: most checks of approvals need this, and would send the same POSTs again.
    @cached_property
    def _harmless_or_reason(self) -> HarmlessApproval | Inconclusive:
        nonsense = self.send_request(build_post(_MALFORMED, self.newest_version))
        nothing = self.send_request(build_post(encode_approval([]), self.newest_version))
        # A 200 shows that the body was read only if nonsense gets another status.
        if nothing.status == HTTPStatus.OK != nonsense.status:
            return HarmlessApproval(content={"StartRequests": []}, status=200, answer=None)
        unknown = self.send_request(build_post(encode_approval([UNKNOWN_ID]), self.newest_version))
        if (unknown.status, unknown.body) != (nonsense.status, nonsense.body):
            content = {"StartRequests": [{"EventId": UNKNOWN_ID}]}
            return HarmlessApproval(content=content, status=unknown.status, answer=unknown.body)
        return Inconclusive(f"invalid JSON and an approval of nothing both return {nonsense.status}")

    def fetch_scheduled_ids(self) -> list[str]:
        """Return the ids of the events that are Scheduled now, in their original spelling."""
        events = self.fetch_document().events_by_id().values()
        return [str(event["EventId"]) for event in events if event.get("EventStatus") == "Scheduled"]

    @cached_property
    def target_event_id(self) -> str:
        """Id of the event to approve: the first that was Scheduled at the first use.

        Raises:
            Inconclusive: None was.
        """
        events = self.fetch_document().events_by_id().values()
        waiting = [event for event in events if event.get("EventStatus") == "Scheduled"]
        if not waiting:
            raise Inconclusive("no event is Scheduled now, so there is none to approve")
        self.target_not_before = str(waiting[0].get("NotBefore"))
        return str(waiting[0]["EventId"])

    def approve_target(self, request: RawRequest) -> RawReply:
        """Send an approval of the target, and fetch the document after it."""
        reply = self.send_request(request)
        if reply.status == HTTPStatus.OK:
            self.approved_ids.append(self.target_event_id)
        self.fetch_document()
        return reply


def _parse_retry_after(reply: RawReply) -> float:
    said = reply.get_header("retry-after")
    return min(float(said), _RETRY_S_MAX) if said.isascii() and said.isdigit() else _RETRY_S
