"""Request journal: the latest requests of VMs, with their responses.

The hot path stores only references; the request bytes are parsed when the journal is read.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from forewarn.wire.exchange import BODY_BYTES_MAX, Exchange

__all__ = ["JournalEntry", "RequestJournal"]


class _FastPathEntry(NamedTuple):
    """Request answered by the hot path; a tuple, because it is cheap to create."""

    number: int
    at: datetime
    vm: str
    source_address: str
    request: bytes
    answer: bytes

    def to_exchange(self) -> Exchange:
        # These bytes have passed the HTTP parser before, so they are split without any checks.
        # Empty lines before a request mean nothing (RFC 9112, section 2.2).
        head, _, _ = self.request.lstrip(b"\r\n").partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, *_ = first.split(" ")
        headers = tuple((name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
        return Exchange(
            number=self.number,
            at=self.at,
            vm=self.vm,
            source_address=self.source_address,
            method=method,
            target=target,
            headers=headers,
            status=200,
            answer=self.answer[:BODY_BYTES_MAX],
        )


JournalEntry = Exchange | _FastPathEntry
"""Request as stored in the journal."""


class RequestJournal:
    """Bounded journal of the latest requests.

    Args:
        now: Clock of the service.
        requests_max: Maximum number of requests kept; 0 for none.
        numbered_after: Number of the last request recorded elsewhere before this journal began.

    Attributes:
        listeners: Callables called after each recorded request.
    """

    def __init__(self, now: Callable[[], datetime], requests_max: int = 1000, numbered_after: int = 0) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._now = now
        self._requests_max = requests_max
        self._entries: deque[JournalEntry] = deque(maxlen=requests_max)
        self._numbers = itertools.count(numbered_after + 1)

    def __bool__(self) -> bool:
        """Return True if the journal keeps any requests."""
        return self._requests_max > 0

    def now(self) -> datetime:
        """Return the time of a request that is recorded now."""
        return self._now()

    def record_fast_request(
        self, vm: str, source_address: str, request: bytes, answer: bytes, at: datetime | None = None
    ) -> None:
        """Record a request answered by the hot path, now or at the given time."""
        hit = (next(self._numbers), at or self._now(), vm, source_address, request, answer)
        self._entries.append(tuple.__new__(_FastPathEntry, hit))  # like `_make`, in half the time
        for listener in self.listeners:
            listener()

    def record_request(  # noqa: PLR0913 - the parts of an exchange
        self,
        *,
        vm: str,
        source_address: str,
        status: int,
        method: str = "",
        target: str = "",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        answer: bytes = b"",
        took_s: float = 0.0,
        fault: str = "",
        is_client_gone: bool = False,
    ) -> None:
        """Record any other request; what is left out was not read, or not sent."""
        exchange = Exchange(
            number=next(self._numbers),
            at=self._now(),
            vm=vm,
            source_address=source_address,
            method=method,
            target=target,
            headers=tuple((name.lower(), value) for name, value in headers),
            body=body[:BODY_BYTES_MAX],
            status=status,
            answer=answer[:BODY_BYTES_MAX],
            took_s=took_s,
            fault=fault,
            is_client_gone=is_client_gone,
        )
        self._entries.append(exchange)
        for listener in self.listeners:
            listener()

    @property
    def newest_number(self) -> int:
        """Number of the latest request kept; 0 if there is none."""
        return self._entries[-1].number if self._entries else 0

    def list_entries_after(self, number: int) -> list[JournalEntry]:
        """Return the requests with a larger number, oldest first, as stored."""
        # From the newest end: this is called often, and only a few requests are new each time.
        found = list(itertools.takewhile(lambda each: each.number > number, reversed(self._entries)))
        return found[::-1]

    def add_entries(self, entries: Iterable[JournalEntry]) -> None:
        """Add requests recorded by another process, except those already known."""
        # Two reports may overlap: a late one, and one that was requested before it arrived.
        newest = self.newest_number
        self._entries.extend(each for each in entries if each.number > newest)

    def list_exchanges(
        self, *, after: int = 0, vm: str = "", is_visible: Callable[[str], bool] | None = None
    ) -> list[Exchange]:
        """Return the requests kept, oldest first; safe on any thread.

        Args:
            after: Number after which requests are returned.
            vm: Name of the VM whose requests are returned; empty for all.
            is_visible: Filter by VM name, called once per VM; None for all. Excluded requests are not parsed.
        """
        entries = list(self._entries)  # one atomic copy, since another thread may be recording
        shown = None if is_visible is None else {name for name in {each.vm for each in entries} if is_visible(name)}
        wanted = [
            each
            for each in entries
            if each.number > after and (not vm or each.vm == vm) and (shown is None or each.vm in shown)
        ]
        return [each.to_exchange() if isinstance(each, _FastPathEntry) else each for each in wanted]
