"""Calls that were refused: how many came from where lately, and which of them the ledger is told.

Two things are bounded for each address and minute: calls without a valid token, after which such calls get 429, and
entries in the ledger, after which the rest is counted and told in one entry when the minute is over. An address is one
of IPv4, or a network of IPv6 of 64 bits, which is what one customer has. At most so many addresses are counted; what
was counted of one that had to make room is told without its name.

Minutes are those of this machine's uptime, also where the service's clock is virtual: floods come in real time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime

from forewarn.core.model import Entry, EntryKind
from forewarn.net.pool import counted_address

__all__ = ["Refusals"]

_WINDOW_S = 60.0
_OTHERS = "several addresses"


@dataclass(slots=True)
class _Window:
    """What an address did in its present minute."""

    began_s: float
    failures: int = 0
    written: int = 0
    left_out: int = 0


class Refusals:
    """What is counted of refused calls.

    Args:
        failures_max: Calls without a valid token per minute and address.
        entries_max: Entries per minute and address.
        entries_total_max: Entries per minute, of all addresses.
        addresses_max: Addresses that are counted at a time.
    """

    def __init__(self, *, failures_max: int, entries_max: int, entries_total_max: int, addresses_max: int) -> None:
        self._failures_max = failures_max
        self._entries_max = entries_max
        self._entries_total_max = entries_total_max
        self._addresses_max = addresses_max
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self._total = _Window(began_s=float("-inf"))
        self._ready: list[tuple[str, int]] = []

    def __len__(self) -> int:
        """How many addresses are counted."""
        return len(self._windows)

    def fail(self, address: str, now_s: float) -> float | None:
        """Count a call without a valid token.

        Returns:
            For how many seconds such calls from there get 429; None: this one does not yet.
        """
        window = self._window(address, now_s)
        window.failures += 1
        return window.began_s + _WINDOW_S - now_s if window.failures > self._failures_max else None

    def refuse(self, entry: Entry, now_s: float) -> Entry | None:
        """The entry, if the ledger is to be told of this call; None: it is counted only."""
        window = self._window(entry.source_address or "", now_s)
        if now_s - self._total.began_s >= _WINDOW_S:
            self._total = _Window(began_s=now_s)
        if window.written >= self._entries_max or self._total.written >= self._entries_total_max:
            window.left_out += 1
            return None
        window.written += 1
        self._total.written += 1
        return entry

    def sums(self, at: datetime, now_s: float, *, is_end: bool = False) -> list[Entry]:
        """Entries about the calls that were only counted, of minutes that are over; at the end, of all."""
        for key, window in list(self._windows.items()):
            if is_end or now_s - window.began_s >= _WINDOW_S:
                self._close(key, window)
        ready, self._ready = self._ready, []
        return [_sum(key, count, at) for key, count in ready]

    def next_sum_s(self) -> float | None:
        """When `sums` has something to tell next; None: nothing was left out."""
        waiting = [window.began_s + _WINDOW_S for window in self._windows.values() if window.left_out]
        return min(waiting, default=None) if not self._ready else float("-inf")

    def _window(self, address: str, now_s: float) -> _Window:
        key = counted_address(address)
        window = self._windows.get(key)
        if window is not None and now_s - window.began_s >= _WINDOW_S:
            self._close(key, window)
            window = None
        if window is None:
            while len(self._windows) >= self._addresses_max:
                self._close(*next(iter(self._windows.items())), name=_OTHERS)
            window = self._windows[key] = _Window(began_s=now_s)
        return window

    def _close(self, key: str, window: _Window, name: str | None = None) -> None:
        del self._windows[key]
        if not window.left_out:
            return
        if name is not None and self._ready and self._ready[-1][0] == name:
            self._ready[-1] = (name, self._ready[-1][1] + window.left_out)
        else:
            self._ready.append((name or key, window.left_out))


def _sum(key: str, count: int, at: datetime) -> Entry:
    words = f"{count} more within a minute" + (f", from {_OTHERS}" if key == _OTHERS else "")
    entry = Entry(kind=EntryKind.REFUSED, at=at, actor="unknown", reason=words)
    return entry if key in {"", _OTHERS} else replace(entry, source_address=key)
