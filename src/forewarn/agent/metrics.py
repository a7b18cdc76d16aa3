"""What the agent counts, for Prometheus.

The names are part of the contract; `docs/reference/agent-metrics.md` is made from this file.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forewarn.agent.record import Approval, Record
from forewarn.agent.rule import Step

__all__ = ["AgentMetrics", "phase"]

_PRESENT_LABELS = {"forewarn_agent_events": ("type", "state")}
_STEP_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 900)


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


class AgentMetrics:
    """The counters of one agent.

    Args:
        records: Hands over what is there now, when it is asked for.
        now: The present moment.
    """

    def __init__(self, records: Callable[[], Iterable[Record]], now: Callable[[], datetime]) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_Present(records, now))
        self._events = Counter(
            "forewarn_agent_events_ended",
            "Events that are over, by type and outcome.",
            ["type", "outcome"],
            registry=registry,
        )
        self._unprepared = Counter(
            "forewarn_agent_unprepared", "Events that started before this VM was prepared.", ["type"], registry=registry
        )
        self._steps = Histogram(
            "forewarn_agent_step_seconds",
            "How long steps took, by step and outcome.",
            ["step", "outcome"],
            buckets=_STEP_BUCKETS_S,
            registry=registry,
        )
        self._approvals = Histogram(
            "forewarn_agent_approval_seconds",
            "From the first sight of an event to the approval that the endpoint took.",
            buckets=_STEP_BUCKETS_S,
            registry=registry,
        )
        self._approval_failures = Counter(
            "forewarn_agent_approval_failures", "Approvals that the endpoint did not take.", registry=registry
        )
        self._polls = Counter(
            "forewarn_agent_polls", "Answers of the endpoint, by outcome.", ["outcome"], registry=registry
        )
        self._last_poll = Gauge(
            "forewarn_agent_last_poll_timestamp_seconds", "When the endpoint answered last.", registry=registry
        )
        self._save_failures = Counter(
            "forewarn_agent_state_save_failures", "Times that the state file could not be written.", registry=registry
        )
        self._counted = (
            self._events,
            self._unprepared,
            self._steps,
            self._approvals,
            self._approval_failures,
            self._polls,
            self._last_poll,
            self._save_failures,
        )
        for outcome in ("ok", "failed"):
            self._polls.labels(outcome)

    def render(self) -> bytes:
        """All of it, in the text form of Prometheus."""
        return generate_latest(self._registry)

    def described(self) -> list[tuple[Metric, tuple[str, ...]]]:
        """Every metric with its labels, for the reference."""
        families = {family.name: family for family in self._registry.collect()}
        labels = {next(iter(metric.describe())).name: metric._labelnames for metric in self._counted}  # noqa: SLF001 - nothing else tells
        return [(family, labels.get(name, _PRESENT_LABELS.get(name, ()))) for name, family in sorted(families.items())]

    def polled(self, at: datetime) -> None:
        """The endpoint answered."""
        self._polls.labels("ok").inc()
        self._last_poll.set(at.timestamp())

    def missed(self) -> None:
        """The endpoint did not answer, or not with a document."""
        self._polls.labels("failed").inc()

    def stepped(self, step: Step, seconds: float, *, has_succeeded: bool) -> None:
        """A step came to its end."""
        self._steps.labels(step.value, "done" if has_succeeded else "failed").observe(seconds)

    def approved(self, seconds: float) -> None:
        """The endpoint took an approval, so long after the event was seen first."""
        self._approvals.observe(seconds)

    def approval_failed(self) -> None:
        """The endpoint did not take an approval."""
        self._approval_failures.inc()

    def unprepared(self, event_type: str) -> None:
        """An event started before this VM was prepared."""
        self._unprepared.labels(event_type).inc()

    def ended(self, event_type: str, outcome: str) -> None:
        """Nothing is left to do about an event."""
        self._events.labels(event_type, outcome).inc()

    def save_failed(self) -> None:
        """The state file could not be written."""
        self._save_failures.inc()


class _Present(Collector):
    """What is there at the moment of asking."""

    def __init__(self, records: Callable[[], Iterable[Record]], now: Callable[[], datetime]) -> None:
        self._records = records
        self._now = now

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges."""
        records = list(self._records())
        events = GaugeMetricFamily(
            "forewarn_agent_events", "Events that are there, by type and state.", labels=["type", "state"]
        )
        for (kind, state), count in Tally((record.event.type, phase(record)) for record in records).items():
            events.add_metric([kind, state], count)
        yield events
        waiting = [r.event.not_before for r in records if r.gone_at is None and r.event.not_before is not None]
        notice = GaugeMetricFamily(
            "forewarn_agent_notice_left_seconds", "Until the earliest NotBefore; absent when nothing is announced."
        )
        if waiting:
            notice.add_metric([], (min(waiting) - self._now()).total_seconds())
        yield notice
        yield GaugeMetricFamily(
            "forewarn_agent_drained",
            "1 while this VM should get no work.",
            value=float(any(record.rule.drains for record in records)),
        )
