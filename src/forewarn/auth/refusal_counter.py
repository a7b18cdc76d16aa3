"""Rejected calls: counts per address, and selection of those recorded in the audit log.

Two things are limited per address and minute: calls without a valid token, after which such calls get 429, and
audit log entries, after which the rest is counted and recorded as one entry when the minute is over. An address is an
IPv4 address or an IPv6 /64, the usual share of one customer. The number of addresses is limited; the count of an
evicted address is recorded without its name.

Minutes follow this machine's uptime even if the service's clock is virtual, since floods come in real time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime

from forewarn.core.model import AuditEntry, EntryKind
from forewarn.net.pool import get_counting_key

__all__ = ["RefusalCounter"]

_WINDOW_S = 60.0
_OTHERS = "several addresses"


@dataclass(slots=True)
class _Window:
    """Counts of one address in its current minute."""

    began_s: float
    failures: int = 0
    written: int = 0
    left_out: int = 0


class RefusalCounter:
    """Counters of refused calls.

    Args:
        failures_max: Maximum number of calls without a valid token per minute and address.
        entries_max: Maximum number of entries per minute and address.
        entries_total_max: Maximum number of entries per minute for all addresses.
        addresses_max: Maximum number of addresses counted at the same time.
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
        """Return the number of addresses counted."""
        return len(self._windows)

    def count_failure(self, address: str, now_s: float) -> float | None:
        """Count a call without a valid token; return for how many seconds more of them get 429, None if they do not."""
        window = self._get_window(address, now_s)
        window.failures += 1
        return window.began_s + _WINDOW_S - now_s if window.failures > self._failures_max else None

    def filter_entry(self, entry: AuditEntry, now_s: float) -> AuditEntry | None:
        """Return the entry if this call is to be recorded in the audit log; None if it is only counted."""
        window = self._get_window(entry.source_address or "", now_s)
        if now_s - self._total.began_s >= _WINDOW_S:
            self._total = _Window(began_s=now_s)
        # Neither one address nor many together may fill the audit log.
        if window.written >= self._entries_max or self._total.written >= self._entries_total_max:
            window.left_out += 1
            return None
        window.written += 1
        self._total.written += 1
        return entry

    def collect_summaries(self, at: datetime, now_s: float, *, is_end: bool = False) -> list[AuditEntry]:
        """Return entries that sum up the calls only counted in past minutes; at the end, in all minutes."""
        for key, window in list(self._windows.items()):
            if is_end or now_s - window.began_s >= _WINDOW_S:
                self._close_window(key, window)
        ready, self._ready = self._ready, []
        return [_make_summary(key, count, at) for key, count in ready]

    def next_summary_s(self) -> float | None:
        """Return the uptime, in seconds, at which `collect_summaries` next has entries; None if it has none."""
        waiting = [window.began_s + _WINDOW_S for window in self._windows.values() if window.left_out]
        return min(waiting, default=None) if not self._ready else float("-inf")

    def _get_window(self, address: str, now_s: float) -> _Window:
        key = get_counting_key(address)
        window = self._windows.get(key)
        if window is not None and now_s - window.began_s >= _WINDOW_S:
            self._close_window(key, window)
            window = None
        if window is None:
            # Windows are in the order in which they began, so the first one is the oldest.
            while len(self._windows) >= self._addresses_max:
                self._close_window(*next(iter(self._windows.items())), name=_OTHERS)
            window = self._windows[key] = _Window(began_s=now_s)
        return window

    def _close_window(self, key: str, window: _Window, name: str | None = None) -> None:
        del self._windows[key]
        if not window.left_out:
            return
        # A flood from ever new addresses evicts one after the other: their counts become one entry.
        if name is not None and self._ready and self._ready[-1][0] == name:
            self._ready[-1] = (name, self._ready[-1][1] + window.left_out)
        else:
            self._ready.append((name or key, window.left_out))


def _make_summary(key: str, count: int, at: datetime) -> AuditEntry:
    words = f"{count} more within a minute" + (f", from {_OTHERS}" if key == _OTHERS else "")
    entry = AuditEntry(kind=EntryKind.REFUSED, at=at, actor="unknown", reason=words)
    return entry if key in {"", _OTHERS} else replace(entry, source_address=key)
