"""Counters of all metadata processes together, those that have ended included."""

from __future__ import annotations

from collections import Counter

from forewarn.endpoint.messages import CounterReport
from forewarn.endpoint.traffic import Traffic

__all__ = ["TrafficTotals"]


class TrafficTotals:
    """Sums of the reports, written into the counters of the service.

    Args:
        traffic: Receives the sums.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._latest: dict[int, CounterReport] = {}
        self._ended = _Sums(len(traffic.fast_path_counts))

    @property
    def connections(self) -> int:
        """Number of open connections of VMs, as last reported."""
        return sum(report.connections for report in self._latest.values())

    def count(self, process: int, report: CounterReport) -> None:
        """Replace the latest report of a process."""
        self._latest[process] = report
        sums = self._ended.copy()
        for each in self._latest.values():
            sums.add(each)
        sums.write_to(self._traffic)
        self._traffic.quotas.limit_log.add_counts(report.limits_met)

    def end(self, process: int) -> None:
        """Keep what a process has counted that has ended; the next one with this number counts from 0."""
        report = self._latest.pop(process, None)
        if report is not None:
            self._ended.add(report)


class _Sums:
    """Sums of some reports."""

    def __init__(self, versions: int) -> None:
        self.fast = [0] * versions
        self.outcomes: Counter[tuple[str, str, int]] = Counter()
        self.unknown_callers = 0
        self.connections_refused = 0
        self.over_limit: Counter[str] = Counter()

    def copy(self) -> _Sums:
        """Return independent sums that are equal."""
        made = _Sums(0)
        made.fast, made.outcomes, made.over_limit = list(self.fast), self.outcomes.copy(), self.over_limit.copy()
        made.unknown_callers, made.connections_refused = self.unknown_callers, self.connections_refused
        return made

    def add(self, report: CounterReport) -> None:
        """Add a report."""
        self.fast = [a + b for a, b in zip(self.fast, report.fast, strict=True)]
        for version, method, status, count in report.outcomes:
            self.outcomes[version, method, status] += count
        self.unknown_callers += report.unknown_callers
        self.connections_refused += report.connections_refused
        self.over_limit.update(report.over_limit)

    def write_to(self, traffic: Traffic) -> None:
        """Set the counters to these sums."""
        traffic.fast_path_counts[:] = self.fast
        traffic.outcomes = self.outcomes
        traffic.unknown_callers = self.unknown_callers
        traffic.connections_refused = self.connections_refused
        traffic.quotas.refusals = self.over_limit
