"""Counters of the agent. `exposition` renders them for Prometheus, and is loaded at the first scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from forewarn.agent.record import ApprovalState, EventRecord
from forewarn.agent.rule import EventStep

__all__ = ["BUCKETS_S", "AgentMetrics", "DurationHistogram", "get_display_state"]

BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 900)
"""Upper bounds of the histogram buckets for durations, in seconds."""


def get_display_state(record: EventRecord) -> str:
    """Return the state of an event in one word, for `agent status` and the metric of events by state."""
    if record.gone_at is not None:
        has_failed = record.has_failed(EventStep.RECOVER) or record.has_failed(EventStep.CANCELED)
        return "recovery-failed" if has_failed else "recovering"
    if record.started_at is not None:
        return "started"
    if record.approval is ApprovalState.ACCEPTED:
        return "approved"
    if record.has_failed(EventStep.PREPARE):
        return "failed"
    if record.rule.approve == "never" and not record.rule.has_preparation:
        return "watched"
    return "prepared" if record.is_prepared else "preparing"


@dataclass(slots=True)
class DurationHistogram:
    """Histogram of durations.

    Attributes:
        counts: Number of durations in each bucket, not cumulative: up to its bound and above the one before; the last
            item counts those above all bounds.
        sum_s: Sum of all durations.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class AgentMetrics:
    """The counters of one agent.

    Args:
        records: Function that returns the current records.
        now: Function that returns the current time.

    Attributes:
        ended_events: Events that are over, by type and outcome.
        unprepared_events: Events that started before this VM was prepared, by type.
        steps: Durations of steps, by step and ``done`` or ``failed``.
        approvals: Times from the first sight of an event to its accepted approval.
        approval_failures: Number of approvals that the endpoint did not accept.
        polls: Polls of the endpoint, by outcome.
        last_poll_at: Time of its latest answer; None before the first.
        save_failures: Number of failed writes of the state file.
        reloads: Reloads of the configuration, by outcome.
        is_config_current: True if the latest reload was accepted.
    """

    def __init__(self, records: Callable[[], Iterable[EventRecord]], now: Callable[[], datetime]) -> None:
        self.records = records
        self.now = now
        self.ended_events: Counter[tuple[str, str]] = Counter()
        self.unprepared_events: Counter[str] = Counter()
        self.steps: defaultdict[tuple[str, str], DurationHistogram] = defaultdict(DurationHistogram)
        self.approvals = DurationHistogram()
        self.approval_failures = 0
        # Present from the start, so that a rate can be computed for the first failure.
        self.polls = Counter({"ok": 0, "failed": 0})
        self.last_poll_at: datetime | None = None
        self.save_failures = 0
        self.reloads = Counter({"ok": 0, "failed": 0})
        self.is_config_current = True

    def count_reload(self, *, is_accepted: bool) -> None:
        """Count a reload of the configuration, accepted or not."""
        self.reloads["ok" if is_accepted else "failed"] += 1
        self.is_config_current = is_accepted
