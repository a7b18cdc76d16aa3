"""How one talks to a scheduled-events endpoint, as generators that do no I/O.

`Conversation` holds what one request teaches the next: the api-version that the endpoint takes, whether it holds long
polls, the last document. Its methods are generators over `exchange`; `Client` and `AsyncClient` are short drivers.

Spec: R15, R23, R66, R97, R100 to R105, X1
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from forewarn.client.change import Change, diff
from forewarn.client.exchange import Answer, Pause, Request
from forewarn.errors import BadAnswer, EndpointError, EndpointRefused, EndpointUnreachable
from forewarn.wire.document import Document, NoDocument, decode_document, decode_moment, encode_approval

__all__ = ["API_VERSIONS", "Conversation", "Flow", "Missed", "Pace", "Seen", "Watching"]

T = TypeVar("T")

Flow: TypeAlias = Generator[Request | Pause, Answer | None, T]
"""A generator that asks its driver for requests and pauses, and returns a `T`."""

API_VERSIONS = ("2020-07-01", "2019-08-01", "2019-04-01", "2019-01-01", "2017-11-01", "2017-08-01", "2017-03-01")
"""Every api-version of the protocol, newest first (R16)."""

_PATH = "/metadata/scheduledevents"
_NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_METADATA = {"Metadata": "true"}
_NAME_LENGTH_MAX = 256
_DIGITS_MAX = 6
_RUSHES_MAX = 5
"""After so many changes in a row that each came at once, the endpoint is given a pause."""

_HELD_MIN_S = 0.05
"""An endpoint that claims to hold requests and answers sooner than this, unchanged, is asked at intervals instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often to ask, and how long to wait.

    Attributes:
        poll_interval_s: From one poll to the next (R97); above 0.
        wait_s: How long to ask the endpoint to hold a request until something changes (X1); 0 for never, at most 300.
        first_timeout_s: For an answer while none has come yet: enabling may take two minutes (R67, R104).
        timeout_s: For every answer after that.
        retry_for_s: How long `fetch` and `approve` go on after 410, 429, 5xx or no answer (R66, R104).
        retry_min_s: First pause after a failure; it doubles each time.
        retry_max_s: Longest pause. Short, because the notice of a Preempt is 30 s (R71).
        refresh_s: How often a document is asked for outright, even where the endpoint says that nothing changed.
    """

    poll_interval_s: float = 1.0
    wait_s: float = 20.0
    first_timeout_s: float = 130.0
    timeout_s: float = 10.0
    retry_for_s: float = 70.0
    retry_min_s: float = 0.5
    retry_max_s: float = 8.0
    refresh_s: float = 300.0

    def retry_after(self, failures: int, headers: Mapping[str, str], chance: float) -> float:
        """The pause after so many failures in a row, in seconds.

        Args:
            failures: 1 for the first.
            headers: Of the answer; ``Retry-After`` in seconds is honoured within the limits.
            chance: 0 to 1; spreads the pauses of many clients over the upper half.
        """
        asked = headers.get("retry-after", "").strip()
        if asked.isdecimal() and len(asked) < _DIGITS_MAX:
            return min(max(float(asked), self.retry_min_s), self.retry_max_s)
        longest: float = min(self.retry_min_s * 2.0 ** min(failures - 1, 30), self.retry_max_s)
        return longest * (0.5 + 0.5 * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The endpoint answered.

    Attributes:
        document: As it is now.
        is_changed: Whether it differs from the one before (R101).
        served_at: The endpoint's clock, from the answer's ``Date``; whole seconds. None: it did not say.
    """

    document: Document
    is_changed: bool
    served_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """The endpoint did not answer, or not with a document. What was known before still stands.

    Attributes:
        failures: How many in a row.
        retry_in_s: When it is asked again.
    """

    error: EndpointError
    failures: int
    retry_in_s: float


Watching: TypeAlias = Generator[Request | Pause | Seen | Missed, Answer | None, None]
"""Like a `Flow`, but it never ends, and yields what it sees in between."""


class Conversation:
    """One client's talk with one endpoint.

    Args:
        pace: How often, how long.
        versions: Api-versions to try, in that order.
        chance: Gives numbers from 0 to 1, to spread retries.

    Attributes:
        document: The last one that was seen.
        version: The api-version in use.
    """

    def __init__(self, pace: Pace, versions: Iterable[str], chance: Callable[[], float]) -> None:
        self.pace = pace
        self.document: Document | None = None
        self._versions = list(versions)
        if not self._versions:
            msg = "at least one api-version is needed"
            raise ValueError(msg)
        self._chance = chance
        self._has_answered = False

    @property
    def version(self) -> str:
        """The api-version in use; an older one after the endpoint has refused a newer (R15)."""
        return self._versions[0]

    def forget(self) -> None:
        """Take the next document for a new one: whoever begins to follow is told what there is."""
        self.document = None

    # One question each

    def fetch(self) -> Flow[Document]:
        """The current document.

        Raises:
            EndpointError: It could not be had within `Pace.retry_for_s`.
        """
        return (yield from self._persist(self._get))

    def approve(self, event_ids: Iterable[str]) -> Flow[None]:
        """Approve events; with none, nothing is sent.

        Raises:
            EndpointRefused: At least one id is not known to the endpoint; none was approved (R55).
            EndpointError: No answer within `Pace.retry_for_s`. Whether it was approved is not known.
        """
        body = encode_approval(event_ids)
        if b"EventId" not in body:
            return
        yield from self._persist(lambda: self._post(body))

    def approve_once(self, event_ids: Iterable[str]) -> Flow[None]:
        """The same without retries, for who retries on its own."""
        yield from self._post(encode_approval(event_ids))

    def name(self) -> Flow[str]:
        """The VM's own name, as ``Resources`` has it (R106, W7, X3). Asked once, without retries.

        Raises:
            EndpointError: The endpoint does not say.
        """
        answer = yield from self._ask(Request(method="GET", path=_NAME_PATH, headers=_METADATA, timeout_s=self._limit))
        if answer.status != HTTPStatus.OK:
            raise _refused(answer, "its name")
        name = answer.body.decode("utf-8-sig", "replace").strip().strip('"')
        if not name or len(name) > _NAME_LENGTH_MAX or not name.isprintable():
            msg = "the metadata endpoint answered without a name"
            raise BadAnswer(msg)
        return name

    # For ever

    def follow(self) -> Watching:
        """Ask again and again, and yield what is seen: `Seen` for each answer, `Missed` for each failure.

        Where the endpoint holds requests until something changes, it is asked so; else at intervals (X1, R97).
        """
        failures = 0
        rushes = 0
        since_refresh_s = 0.0
        may_hold = self.pace.wait_s > 0
        self.forget()
        while True:
            is_conditional = self.document is not None and not failures and since_refresh_s < self.pace.refresh_s
            try:
                answer = yield from self._get_answer(self._conditions(may_hold=may_hold) if is_conditional else {})
                seen = self._read(answer)
            except EndpointError as error:
                failures += 1
                pause_s = self.pace.retry_after(failures, error.details.get("headers", {}), self._chance())
                yield Missed(error=error, failures=failures, retry_in_s=pause_s)
                yield Pause(seconds=pause_s)
                continue
            failures = 0
            since_refresh_s = since_refresh_s + answer.elapsed_s if is_conditional else 0.0
            yield seen
            was_held = answer.headers.get("preference-applied", "").startswith("wait")
            rushes = rushes + 1 if seen.is_changed and may_hold else 0
            if 0 < rushes <= _RUSHES_MAX:
                continue  # What follows may come soon, and only a held request hears of it at once.
            if not was_held or answer.elapsed_s < _HELD_MIN_S:
                pause_s = max(self.pace.poll_interval_s - answer.elapsed_s, 0.0)
                since_refresh_s += pause_s
                yield Pause(seconds=pause_s)

    def watch(self) -> Generator[Request | Pause | Change, Answer | None, None]:
        """The same, told as what became of each event; failures are retried silently."""
        previous = None
        following = self.follow()
        sent: Answer | None = None
        thrown: EndpointUnreachable | None = None
        while True:
            step = following.send(sent) if thrown is None else following.throw(thrown)
            sent, thrown = None, None
            if isinstance(step, Seen):
                if step.is_changed:
                    yield from diff(previous, step.document)
                    previous = step.document
            elif not isinstance(step, Missed):
                try:
                    sent = yield step
                except EndpointUnreachable as error:
                    thrown = error

    # Inside

    @property
    def _limit(self) -> float:
        return self.pace.timeout_s if self._has_answered else self.pace.first_timeout_s

    def _ask(self, request: Request) -> Flow[Answer]:
        try:
            answer = yield request
        except EndpointUnreachable:
            self._has_answered = False  # It may have been restarted, and need its two minutes again.
            raise
        assert answer is not None  # noqa: S101 - a driver sends the answer to a request
        return answer

    def _persist(self, attempt: Callable[[], Flow[T]]) -> Flow[T]:
        """Try until it succeeds, is refused for good, or the time for retries is over."""
        waited_s = 0.0
        failures = 0
        while True:
            try:
                return (yield from attempt())
            except EndpointError as error:
                failures += 1
                if not _is_passing(error):
                    raise
                pause_s = self.pace.retry_after(failures, error.details.get("headers", {}), self._chance())
                if waited_s + pause_s > self.pace.retry_for_s:
                    raise
            waited_s += pause_s
            yield Pause(seconds=pause_s)

    def _get(self) -> Flow[Document]:
        answer = yield from self._get_answer({})
        return self._read(answer).document

    def _get_answer(self, conditions: Mapping[str, str]) -> Flow[Answer]:
        """The answer to a GET, in the newest api-version that the endpoint takes."""
        while True:
            is_held = "Prefer" in conditions
            answer = yield from self._ask(
                Request(
                    method="GET",
                    path=f"{_PATH}?api-version={self.version}",
                    headers={**_METADATA, **conditions},
                    timeout_s=self._limit + (self.pace.wait_s if is_held else 0.0),
                )
            )
            if not self._negotiate(answer):
                return answer

    def _post(self, body: bytes) -> Flow[None]:
        while True:
            answer = yield from self._ask(
                Request(
                    method="POST",
                    path=f"{_PATH}?api-version={self.version}",
                    headers={**_METADATA, "Content-Type": "application/json"},
                    body=body,
                    timeout_s=self._limit,
                )
            )
            if answer.status == HTTPStatus.OK:
                self._has_answered = True
                return
            if not self._negotiate(answer):
                raise _refused(answer, "an approval")

    def _negotiate(self, answer: Answer) -> bool:
        """Whether the endpoint refused the api-version, and an older one is left to ask in (R15, R64)."""
        if answer.status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND} or len(self._versions) == 1:
            return False
        content = _json_object(answer.body)
        text = str(content.get("error", "")).lower()
        if "api-version" not in text and "invalid version" not in text:
            return False
        taken = content.get("newest-versions")
        older = self._versions[1:]
        named = [version for version in older if isinstance(taken, list) and version in taken]
        self._versions = older[older.index(named[0]) :] if named else older
        return True

    def _conditions(self, *, may_hold: bool) -> dict[str, str]:
        document = self.document
        if document is None or document.incarnation is None or not may_hold:
            return {}
        return {"If-None-Match": f'"{document.incarnation}"', "Prefer": f"wait={self.pace.wait_s:.0f}"}

    def _read(self, answer: Answer) -> Seen:
        """What an answer to a GET says.

        Raises:
            EndpointRefused: It is an error.
            BadAnswer: It is a 200 that says nothing.
        """
        served_at = decode_moment(answer.headers.get("date", ""))
        if answer.status == HTTPStatus.NOT_MODIFIED and self.document is not None:
            self._has_answered = True
            return Seen(document=self.document, is_changed=False, served_at=served_at)
        if answer.status != HTTPStatus.OK:
            raise _refused(answer, "its document")
        try:
            document = decode_document(answer.body, self.version)
        except NoDocument as error:
            msg = f"the metadata endpoint answered 200, but {error}"
            raise BadAnswer(msg) from error
        self._has_answered = True
        is_changed = document != self.document
        self.document = document
        return Seen(document=document, is_changed=is_changed, served_at=served_at)


def _refused(answer: Answer, what: str) -> EndpointRefused:
    said = str(_json_object(answer.body).get("error", "")).strip()
    text = f"the metadata endpoint answered {answer.status} for {what}"
    return EndpointRefused(
        f"{text}: {said}" if said else text, status=answer.status, headers=dict(answer.headers), said=said
    )


_GONE_FOR_GOOD = range(HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR)
_PASSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GONE, HTTPStatus.TOO_MANY_REQUESTS})


def _is_passing(error: EndpointError) -> bool:
    """Whether the same request may succeed later: 410, 429, 5xx, no answer, an empty one (R66, R104)."""
    status = error.details.get("status")
    return status is None or status in _PASSING or status not in _GONE_FOR_GOOD


def _json_object(body: bytes) -> dict[str, object]:
    try:
        content = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
