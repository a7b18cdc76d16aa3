"""What the agent counts. `exposition` shows it to Prometheus, and is loaded when somebody asks for the first time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from forewarn.agent.record import Approval, Record
from forewarn.agent.rule import Step

__all__ = ["BUCKETS_S", "AgentMetrics", "Spans", "phase"]

BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 900)
"""Upper ends of the buckets into which spans are counted."""


def phase(record: Record) -> str:
    """Where an event stands, in one word, for `agent status` and the metric of events by state."""
    if record.gone_at is not None:
        has_failed = record.has_failed(Step.RECOVER) or record.has_failed(Step.CANCELED)
        return "recovery-failed" if has_failed else "recovering"
    if record.started_at is not None:
        return "started"
    if record.approval is Approval.ACCEPTED:
        return "approved"
    if record.has_failed(Step.PREPARE):
        return "failed"
    if record.rule.approve == "never" and not record.rule.has_preparation:
        return "watched"
    return "prepared" if record.is_prepared else "preparing"


@dataclass(slots=True)
class Spans:
    """How long something took, each time.

    Attributes:
        counts: How often it took at most so long as the end of each bucket, and more than the one before; the last
            place is for what took longer than all.
        sum_s: All of them together.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """It took so long once."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class AgentMetrics:
    """The counters of one agent.

    Args:
        records: Hands over what is there now, when it is asked for.
        now: The present moment.

    Attributes:
        ended_events: Events that are over, by type and outcome.
        unprepared_events: Events that started before this VM was prepared, by type.
        steps: How long steps took, by step and outcome.
        approvals: From the first sight of an event to the approval that the endpoint took.
        approval_failures: Approvals that it did not take.
        polls: Its answers, by outcome.
        last_poll_at: When it answered last; None while it never did.
        save_failures: Times that the state file could not be written.
        reloads: Configurations that were read again, by outcome.
        is_config_current: Whether the one that was read last was taken.
    """

    def __init__(self, records: Callable[[], Iterable[Record]], now: Callable[[], datetime]) -> None:
        self.records = records
        self.now = now
        self.ended_events: Counter[tuple[str, str]] = Counter()
        self.unprepared_events: Counter[str] = Counter()
        self.steps: dict[tuple[str, str], Spans] = {}
        self.approvals = Spans()
        self.approval_failures = 0
        self.polls = Counter({"ok": 0, "failed": 0})
        self.last_poll_at: datetime | None = None
        self.save_failures = 0
        self.reloads = Counter({"ok": 0, "failed": 0})
        self.is_config_current = True

    def render(self) -> bytes:
        """All of it, in the text form of Prometheus."""
        # Prometheus's library brings a web server with it: two megabytes, which an agent that nobody asks does without.
        from forewarn.agent.exposition import render

        return render(self)

    def polled(self, at: datetime) -> None:
        """The endpoint answered."""
        self.polls["ok"] += 1
        self.last_poll_at = at

    def missed(self) -> None:
        """The endpoint did not answer, or not with a document."""
        self.polls["failed"] += 1

    def stepped(self, step: Step, seconds: float, *, has_succeeded: bool) -> None:
        """A step came to its end."""
        self.steps.setdefault((step.value, "done" if has_succeeded else "failed"), Spans()).add(seconds)

    def approved(self, seconds: float) -> None:
        """The endpoint took an approval, so long after the event was seen first."""
        self.approvals.add(seconds)

    def approval_failed(self) -> None:
        """The endpoint did not take an approval."""
        self.approval_failures += 1

    def unprepared(self, event_type: str) -> None:
        """An event started before this VM was prepared."""
        self.unprepared_events[event_type] += 1

    def ended(self, event_type: str, outcome: str) -> None:
        """Nothing is left to do about an event."""
        self.ended_events[event_type, outcome] += 1

    def reloaded(self, *, is_taken: bool) -> None:
        """The configuration was read again, and taken or not."""
        self.reloads["ok" if is_taken else "failed"] += 1
        self.is_config_current = is_taken

    def save_failed(self) -> None:
        """The state file could not be written."""
        self.save_failures += 1
