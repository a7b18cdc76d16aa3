"""The request journal: what VMs asked, and what they were answered; the last so many requests.

The hot path leaves only references behind. What a request says is read from its bytes when somebody looks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from forewarn.wire.exchange import BODY_BYTES_MAX, Exchange

__all__ = ["Journal", "JournalEntry"]


class _Hit(NamedTuple):
    """An answer of the hot path: a tuple, since one is made for each."""

    number: int
    at: datetime
    vm: str
    source_address: str
    request: bytes
    answer: bytes

    def read(self) -> Exchange:
        head, _, _ = self.request.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, *_ = f"{first}  ".split(" ")
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


JournalEntry = Exchange | _Hit
"""A request as it is kept."""


class Journal:
    """The last requests.

    Args:
        now: The service's time.
        most: How many are kept; 0: none.
        before: Number of the last request that was written down elsewhere, before this journal began.

    Attributes:
        listeners: Called after each request that is written down.
    """

    def __init__(self, now: Callable[[], datetime], most: int = 1000, before: int = 0) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._now = now
        self._most = most
        self._entries: deque[JournalEntry] = deque(maxlen=most)
        self._numbers = itertools.count(before + 1)

    def __bool__(self) -> bool:
        """Whether it keeps anything at all."""
        return self._most > 0

    def hit(self, vm: str, source_address: str, request: bytes, answer: bytes) -> None:
        """Write down an answer of the hot path."""
        hit = (next(self._numbers), self._now(), vm, source_address, request, answer)
        self._entries.append(tuple.__new__(_Hit, hit))  # as `_make` does, in half the time
        for listener in self.listeners:
            listener()

    def note(  # noqa: PLR0913 - what an exchange is made of
        self,
        *,
        vm: str,
        source_address: str,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        status: int,
        answer: bytes,
        took_s: float,
        fault: str = "",
    ) -> None:
        """Write down any other."""
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
        )
        self._entries.append(exchange)
        for listener in self.listeners:
            listener()

    @property
    def newest(self) -> int:
        """Number of the last request that is kept; 0: none is."""
        return self._entries[-1].number if self._entries else 0

    def since(self, number: int) -> list[JournalEntry]:
        """Those with a larger number, oldest first, as they are kept."""
        found = list(itertools.takewhile(lambda each: each.number > number, reversed(self._entries)))
        return found[::-1]

    def take_over(self, entries: Iterable[JournalEntry]) -> None:
        """Keep what another process has written down; what is known already is left out."""
        newest = self.newest
        self._entries.extend(each for each in entries if each.number > newest)

    def exchanges(
        self, *, after: int = 0, vm: str = "", most: int | None = None, is_shown: Callable[[str], bool] | None = None
    ) -> list[Exchange]:
        """Those that are kept, oldest first; on whichever thread.

        Args:
            after: Only those with a larger number.
            vm: Only those of that VM.
            most: The newest so many of them; None: all.
            is_shown: Whether those of a VM are wanted at all, asked once for each VM; the others are not read.
        """
        entries = list(self._entries)  # in one step: others go on writing down
        shown = None if is_shown is None else {name for name in {each.vm for each in entries} if is_shown(name)}
        wanted = [
            each
            for each in entries
            if each.number > after and (not vm or each.vm == vm) and (shown is None or each.vm in shown)
        ]
        if most is not None:
            wanted = wanted[max(len(wanted) - most, 0) :]
        return [each.read() if isinstance(each, _Hit) else each for each in wanted]

    def clear(self) -> None:
        """Forget all; numbers go on."""
        self._entries.clear()
