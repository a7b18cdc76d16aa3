"""The client side of the scheduled-events protocol, as generators that do no I/O.

`Conversation` holds what one request teaches the next: the api-version that the endpoint accepts, and its answer time
limit. Its methods are generators over `exchange`; `Client` and `AsyncClient` are short drivers.

Spec: R15, R23, R66, R97, R100 to R105, X1
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from forewarn.client.change import Change, diff
from forewarn.client.exchange import FlowPause, HttpAnswer, HttpRequest
from forewarn.client.pace import Pace
from forewarn.client.poll_timing import PollTiming
from forewarn.errors import BadAnswer, EndpointError, EndpointRefused, EndpointUnreachable
from forewarn.wire.document import Document, NoDocument, decode_document, decode_moment, encode_approval

__all__ = ["API_VERSIONS", "Conversation", "Flow", "PollAnswered", "PollFailed", "Watching"]

T = TypeVar("T")

Flow: TypeAlias = Generator[HttpRequest | FlowPause, HttpAnswer | None, T]
"""Generator that asks its driver for requests and pauses, and returns a `T`."""

API_VERSIONS = ("2020-07-01", "2019-08-01", "2019-04-01", "2019-01-01", "2017-11-01", "2017-08-01", "2017-03-01")
"""Every api-version of the protocol, newest first (R16)."""

_PATH = "/metadata/scheduledevents"
# The instance document has its own api-versions (R24), and a single field needs `format=text` (R111).
_NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_METADATA = {"Metadata": "true"}
_NAME_LENGTH_MAX = 256
# A captive portal or another service may answer with HTML or JSON, which is no name.
_MARKUP = ("<", "{", "[")
# Room for a sentence of the endpoint. A page of a proxy in between must not fill the log.
_SAID_LENGTH_MAX = 300

_log = logging.getLogger("forewarn.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollAnswered:
    """The endpoint answered a poll.

    Attributes:
        document: Current document.
        is_changed: True if it differs from the previous one (R101).
        served_at: Time on the endpoint's clock, from the answer's ``Date``, in whole seconds; None if it has none.
    """

    document: Document
    is_changed: bool
    served_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFailed:
    """The endpoint did not answer, or its answer was not a document. The last known document remains valid.

    Attributes:
        failures: Number of failures in a row.
        retry_in_s: Pause until the next request.
    """

    error: EndpointError
    failures: int
    retry_in_s: float


Watching: TypeAlias = Generator[HttpRequest | FlowPause | PollAnswered | PollFailed, HttpAnswer | None, None]
"""Endless `Flow` that also yields its observations."""


class Conversation:
    """Conversation of one client with one endpoint. Its flows may run concurrently; none consumes another's results.

    Args:
        pace: Intervals, time-outs and retries.
        versions: Api-versions to try, in that order.
        chance: Source of random numbers from 0 to 1, for the jitter of retries.

    Raises:
        ValueError: `versions` is empty.
    """

    def __init__(self, pace: Pace, versions: Iterable[str], chance: Callable[[], float]) -> None:
        self.pace = pace
        self._all_versions = (versions,) if isinstance(versions, str) else tuple(versions)
        if not self._all_versions:
            raise ValueError("at least one api-version is needed")
        self._versions = self._all_versions
        self._chance = chance
        self._has_answered = False
        self._unanswered = 0

    @property
    def version(self) -> str:
        """The api-version in use; an older one after the endpoint has refused a newer one (R15).

        After the endpoint was unreachable, the newest is tried again: it may come back upgraded.
        """
        return self._versions[0]

    # Single requests

    def fetch(self) -> Flow[Document]:
        """Return the current document; see `Client.fetch`."""
        return (yield from self._retry_until_done(self._get_document))

    def approve(self, event_ids: Iterable[str]) -> Flow[None]:
        """Approve events; an empty list sends nothing; see `Client.approve`."""
        body = encode_approval(event_ids)
        yield from self._retry_until_done(lambda: self._post_approval(body))

    def approve_once(self, event_ids: Iterable[str]) -> Flow[None]:
        """Approve events without retries, for callers with their own retry policy; an empty list sends nothing."""
        yield from self._post_approval(encode_approval(event_ids))

    def fetch_name(self) -> Flow[str]:
        """Return this VM's name (R106, W7, X3). One request, without retries; see `Client.fetch_name`."""
        answer = yield from self._send_request(
            HttpRequest(method="GET", path=_NAME_PATH, headers=_METADATA, timeout_s=self._timeout_s)
        )
        if answer.status != HTTPStatus.OK:
            raise _build_refusal(answer, "its name")
        name = answer.body.decode("utf-8-sig", "replace").strip().strip('"')
        if not name or len(name) > _NAME_LENGTH_MAX or not name.isprintable() or name.startswith(_MARKUP):
            raise BadAnswer("the metadata endpoint answered without a name", elapsed_s=answer.elapsed_s)
        return name

    # Endless flows

    def follow(self) -> Watching:
        """Ask again and again; yield `PollAnswered` for each answer and `PollFailed` for each failure.

        Uses long polls where the endpoint supports them; otherwise polls at intervals (X1, R97).
        """
        rhythm = PollTiming(self.pace)
        known: Document | None = None
        failures = 0
        while True:
            # After a failure the document is requested without conditions, so that its changes are known at once.
            conditions = rhythm.build_conditional_headers(None if failures else known)
            try:
                answer, version = yield from self._get_answer(conditions)
                # A 304 counts only as the answer to our own conditions; otherwise it is refused like any other status.
                if conditions and known is not None and answer.status == HTTPStatus.NOT_MODIFIED:
                    document = known
                else:
                    document = self._decode_answer(answer, version)
            except EndpointError as error:
                rhythm.record_failure(error)
                failures += 1
                pause_s = self._compute_pause_s(failures, error)
                yield PollFailed(error=error, failures=failures, retry_in_s=pause_s)
            else:
                # More than R101 asks for, because the incarnation may be missing, or return to an old number (R46).
                is_changed = document != known
                known, failures = document, 0
                pause_s = rhythm.record_answer(answer, is_changed=is_changed)
                served_at = decode_moment(answer.headers.get("date", ""))
                yield PollAnswered(document=document, is_changed=is_changed, served_at=served_at)
            if pause_s > 0:
                yield FlowPause(seconds=pause_s)

    def watch(self) -> Generator[HttpRequest | FlowPause | Change, HttpAnswer | None, None]:
        """Yield the changes of events. Failures are retried; the log records their beginning and end."""
        previous: Document | None = None
        is_away = False
        following = self.follow()
        step = next(following)
        while True:
            if isinstance(step, PollAnswered):
                if is_away:
                    _log.info("the metadata endpoint answers again")
                is_away = False
                if step.is_changed:
                    yield from diff(previous, step.document)
                    previous = step.document
                step = next(following)
            elif isinstance(step, PollFailed):
                if not is_away:
                    _log.warning("%s; retrying until it answers", step.error)
                is_away = True
                step = next(following)
            else:
                try:
                    # Pass requests and pauses to the driver, as `yield from` would; it cannot be used, since
                    # observations stay here.
                    came = yield step
                except EndpointUnreachable as error:
                    step = following.throw(error)
                else:
                    step = following.send(came)

    # Internals

    @property
    def _timeout_s(self) -> float:
        # Until the first answer the endpoint may take two minutes to enable the service. Later, silence means an
        # outage.
        return self.pace.timeout_after(self._unanswered) if self._has_answered else self.pace.first_timeout_s

    def _compute_pause_s(self, failures: int, error: EndpointError) -> float:
        return self.pace.retry_after(failures, error.details.get("headers", {}), self._chance())

    def _send_request(self, request: HttpRequest) -> Flow[HttpAnswer]:
        try:
            answer = yield request
        except EndpointUnreachable:
            self._unanswered += 1
            # The endpoint may come back upgraded, so negotiation starts with the newest version again.
            self._versions = self._all_versions
            raise
        assert answer is not None  # noqa: S101 - a driver sends the answer to a request
        self._unanswered = 0
        return answer

    def _retry_until_done(self, attempt: Callable[[], Flow[T]]) -> Flow[T]:
        """Retry until it succeeds, is refused permanently, or `retry_for_s` is over."""
        spent_s = 0.0
        failures = 0
        while True:
            try:
                return (yield from attempt())
            except EndpointError as error:
                failures += 1
                if not _is_transient(error):
                    raise
                pause_s = self._compute_pause_s(failures, error)
                # Summed up instead of read from a clock, since a flow has none.
                spent_s += error.details.get("elapsed_s", 0.0) + pause_s
                if spent_s > self.pace.retry_for_s:
                    raise
            yield FlowPause(seconds=pause_s)

    def _get_document(self) -> Flow[Document]:
        return self._decode_answer(*(yield from self._get_answer({})))

    def _get_answer(self, conditions: Mapping[str, str]) -> Flow[tuple[HttpAnswer, str]]:
        """Return the answer to a GET and its api-version: the newest that the endpoint accepts."""
        while True:
            version = self.version
            answer = yield from self._send_request(
                HttpRequest(
                    method="GET",
                    path=f"{_PATH}?api-version={version}",
                    headers={**_METADATA, **conditions},
                    timeout_s=self._timeout_s + (self.pace.hold_s if "Prefer" in conditions else 0.0),
                )
            )
            if not self._negotiate_version(answer, version):
                return answer, version

    def _post_approval(self, body: bytes) -> Flow[None]:
        # An empty list would be answered 200 without any effect (R56).
        if b"EventId" not in body:
            return
        while True:
            version = self.version
            answer = yield from self._send_request(
                HttpRequest(
                    method="POST",
                    path=f"{_PATH}?api-version={version}",
                    headers={**_METADATA, "Content-Type": "application/json"},
                    body=body,
                    # An approval enables nothing, so the long time-out applies only until the first answer.
                    timeout_s=self.pace.timeout_s if self._has_answered else self.pace.first_timeout_s,
                )
            )
            if answer.status in _ACCEPTED:
                self._has_answered = True
                return
            if not self._negotiate_version(answer, version):
                raise _build_refusal(answer, "an approval")

    def _negotiate_version(self, answer: HttpAnswer, version: str) -> bool:
        """Return True if the endpoint refused the api-version and another one is left to try (R15, R64)."""
        if answer.status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}:
            return False
        content = _parse_json_object(answer.body)
        # R64 gives the current text; an older one is "Not found. Invalid version requested" (C11).
        text = str(content.get("error", "")).lower()
        if "api-version" not in text and "invalid version" not in text:
            return False
        if version != self.version:
            return True  # Another flow has switched versions meanwhile.
        older = self._versions[1:]
        taken = content.get("newest-versions")
        # Endpoints that list the versions they accept save a request for each version in between.
        named = [name for name in older if isinstance(taken, list) and name in taken]
        if older:
            self._versions = older[older.index(named[0]) :] if named else older
        return bool(older)

    def _decode_answer(self, answer: HttpAnswer, version: str) -> Document:
        """Return the document in the answer to a GET.

        Raises:
            EndpointRefused: The status is not 200.
            BadAnswer: It is a 200 without a valid document.
        """
        if answer.status != HTTPStatus.OK:
            raise _build_refusal(answer, "its document")
        try:
            document = decode_document(answer.body, version)
        except NoDocument as error:
            raise BadAnswer(f"the metadata endpoint answered 200, but {error}", elapsed_s=answer.elapsed_s) from error
        self._has_answered = True
        return document


def _build_refusal(answer: HttpAnswer, subject: str) -> EndpointRefused:
    said = " ".join(str(_parse_json_object(answer.body).get("error", "")).split())[:_SAID_LENGTH_MAX]
    text = f"the metadata endpoint answered {answer.status} for {subject}"
    return EndpointRefused(
        f"{text}: {said}" if said else text,
        status=answer.status,
        headers=dict(answer.headers),
        said=said,
        elapsed_s=answer.elapsed_s,
    )


_ACCEPTED = range(HTTPStatus.OK, HTTPStatus.MULTIPLE_CHOICES)
"""Statuses that accept an approval. The protocol's is 200 (W4); other endpoints may use 202 and 204."""

_GONE_FOR_GOOD = range(HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR)
_PASSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GONE, HTTPStatus.TOO_MANY_REQUESTS})


def _is_transient(error: EndpointError) -> bool:
    """Return True if the same request may succeed later: 408, 410, 429, 5xx, no answer, an empty one (R66, R104)."""
    status = error.details.get("status")
    return status is None or status in _PASSING or status not in _GONE_FOR_GOOD


def _parse_json_object(body: bytes) -> dict[str, object]:
    try:
        content = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
