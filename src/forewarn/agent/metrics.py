"""Counters of the agent. `exposition` renders them for Prometheus, and is loaded at the first scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
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
        steps: Durations of steps, by step and outcome.
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
        self.steps: dict[tuple[str, str], DurationHistogram] = {}
        self.approvals = DurationHistogram()
        self.approval_failures = 0
        # Present from the start, so that a rate can be computed for the first failure.
        self.polls = Counter({"ok": 0, "failed": 0})
        self.last_poll_at: datetime | None = None
        self.save_failures = 0
        self.reloads = Counter({"ok": 0, "failed": 0})
        self.is_config_current = True

    def count_answer(self, at: datetime) -> None:
        """Count an answer of the endpoint."""
        self.polls["ok"] += 1
        self.last_poll_at = at

    def count_failed_poll(self) -> None:
        """Count a poll without an answer, or without a document."""
        self.polls["failed"] += 1

    def count_step(self, step: EventStep, seconds: float, *, has_succeeded: bool) -> None:
        """Count the end of a step."""
        self.steps.setdefault((step.value, "done" if has_succeeded else "failed"), DurationHistogram()).add(seconds)

    def count_approval(self, seconds: float) -> None:
        """Count an accepted approval, and the time since the event was first seen."""
        self.approvals.add(seconds)

    def count_failed_approval(self) -> None:
        """Count an approval that the endpoint did not accept."""
        self.approval_failures += 1

    def count_unprepared_event(self, event_type: str) -> None:
        """Count an event that started before this VM was prepared."""
        self.unprepared_events[event_type] += 1

    def count_ended_event(self, event_type: str, outcome: str) -> None:
        """Count an event on which no work is left."""
        self.ended_events[event_type, outcome] += 1

    def count_reload(self, *, is_accepted: bool) -> None:
        """Count a reload of the configuration, accepted or not."""
        self.reloads["ok" if is_accepted else "failed"] += 1
        self.is_config_current = is_accepted

    def count_failed_save(self) -> None:
        """Count a failed write of the state file."""
        self.save_failures += 1
