"""Requests recorded by several metadata processes, merged into one journal in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from forewarn.endpoint.request_journal import JournalEntry, RequestJournal
from forewarn.wire.exchange import Exchange

__all__ = ["JournalMerge"]


class JournalMerge:
    """Requests that have arrived and are not in the journal yet.

    Each process numbers its requests; the journal numbers all of them anew. Numbers that are missing are requests that
    a process has dropped before they were fetched, and are missing in the journal, too.

    Args:
        journal: Receives the merged requests.
        requests_max: Maximum number of requests that wait here.
    """

    def __init__(self, journal: RequestJournal, requests_max: int) -> None:
        self._journal = journal
        self._requests_max = requests_max
        self._waiting: list[tuple[datetime, int, JournalEntry]] = []
        self._newest: dict[int, int] = {}
        self._dropped = 0
        self._seen_until: datetime | None = None

    def begin(self, process: int, requests_before: int) -> None:
        """Begin to take requests of a new process, which numbers them from `requests_before` + 1."""
        self._newest[process] = requests_before

    def get_newest(self, process: int) -> int:
        """Return the number of the newest request that has arrived from a process."""
        return self._newest.get(process, 0)

    def add(self, process: int, entries: Sequence[JournalEntry]) -> None:
        """Add requests of a process, oldest first, except those that have arrived already."""
        newest = self.get_newest(process)
        for entry in entries:
            # Two reports may overlap: a late one, and one that was requested before it arrived.
            if entry.number <= newest:
                continue
            self._dropped += entry.number - newest - 1
            newest = entry.number
            self._waiting.append((entry.at, process, entry))
        self._newest[process] = newest
        excess = len(self._waiting) - self._requests_max
        if excess > 0:
            del self._waiting[:excess]
            self._dropped += excess

    def merge(self, asked_at: datetime) -> None:
        """Move requests into the journal.

        Args:
            asked_at: Time at which the processes were asked. Each has sent what it had recorded by then. A later
                request waits for the next time, since another process may have an earlier one.
        """
        # A request waits once at most, even if the clock was set back meanwhile.
        until = asked_at if self._seen_until is None else max(asked_at, self._seen_until)
        due = [each for each in self._waiting if each[0] <= until]
        self._waiting = [each for each in self._waiting if each[0] > until]
        self._seen_until = max((at for at, _, _ in self._waiting), default=None)
        due.sort(key=lambda each: (each[0], each[1], each[2].number))
        number = self._journal.newest_number + self._dropped
        self._dropped = 0
        numbered = []
        for _, _, entry in due:
            number += 1
            numbered.append(_number(entry, number))
        self._journal.add_entries(numbered)


def _number(entry: JournalEntry, number: int) -> JournalEntry:
    if entry.number == number:
        return entry
    return replace(entry, number=number) if isinstance(entry, Exchange) else entry._replace(number=number)
