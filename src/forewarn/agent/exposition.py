"""Metrics of the agent in the format of Prometheus.

The names are part of the contract; `docs/reference/agent-metrics.md` is made from this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from forewarn.agent.metrics import BUCKETS_S, AgentMetrics, DurationHistogram, get_display_state

__all__ = ["Family", "list_families", "render_metrics"]

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
"""A metric with all its samples."""


def render_metrics(metrics: AgentMetrics) -> bytes:
    """Render all metrics in the text format."""
    # A separate registry: the default one also exports metrics of the Python process.
    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    return generate_latest(registry)


def list_families(metrics: AgentMetrics) -> list[tuple[Family, tuple[str, ...]]]:
    """Return every metric with its labels, by name, for the reference."""
    families = sorted(_Collector(metrics).collect(), key=lambda family: family.name)
    return [(family, tuple(family._labelnames)) for family in families]  # noqa: SLF001 - no public attribute has them


class _Collector(Collector):
    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Family]:
        """Yield all metrics, with their values at the moment of the scrape."""
        yield from self._collect_state()
        yield from self._collect_counters()

    def _collect_state(self) -> Iterable[Family]:
        """Yield the metrics of the current state."""
        records = list(self._metrics.records())
        events = GaugeMetricFamily(
            "forewarn_agent_events", "Current events, by type and state.", labels=["type", "state"]
        )
        for (kind, state), count in Counter(
            (record.event.type, get_display_state(record)) for record in records
        ).items():
            events.add_metric([kind, state], count)
        yield events
        waiting = [r.event.not_before for r in records if r.gone_at is None and r.event.not_before is not None]
        notice = GaugeMetricFamily(
            "forewarn_agent_notice_left_seconds",
            "Time until the earliest NotBefore; absent if no event has a NotBefore.",
        )
        if waiting:
            notice.add_metric([], (min(waiting) - self._metrics.now()).total_seconds())
        yield notice
        yield GaugeMetricFamily(
            "forewarn_agent_drained",
            "1 while this VM should get no work, else 0.",
            value=float(any(record.rule.drains_vm for record in records)),
        )

    def _collect_counters(self) -> Iterable[Family]:
        """Yield the metrics counted since the agent started."""
        metrics = self._metrics
        ended = CounterMetricFamily(
            "forewarn_agent_events_ended", "Finished events, by type and outcome.", labels=["type", "outcome"]
        )
        for (kind, outcome), count in metrics.ended_events.items():
            ended.add_metric([kind, outcome], count)
        yield ended
        unprepared = CounterMetricFamily(
            "forewarn_agent_unprepared", "Events that started before this VM was prepared.", labels=["type"]
        )
        for kind, count in metrics.unprepared_events.items():
            unprepared.add_metric([kind], count)
        yield unprepared
        steps = HistogramMetricFamily(
            "forewarn_agent_step_seconds", "Duration of steps, by step and outcome.", labels=["step", "outcome"]
        )
        for labels, spans in metrics.steps.items():
            steps.add_metric(list(labels), _cumulate_buckets(spans), spans.sum_s)
        yield steps
        yield HistogramMetricFamily(
            "forewarn_agent_approval_seconds",
            "Time from the first sight of an event until the endpoint accepts its approval.",
            buckets=_cumulate_buckets(metrics.approvals),
            sum_value=metrics.approvals.sum_s,
        )
        yield CounterMetricFamily(
            "forewarn_agent_approval_failures",
            "Approvals that the endpoint did not accept.",
            value=metrics.approval_failures,
        )
        polls = CounterMetricFamily("forewarn_agent_polls", "Polls of the endpoint, by outcome.", labels=["outcome"])
        for outcome, count in metrics.polls.items():
            polls.add_metric([outcome], count)
        yield polls
        yield GaugeMetricFamily(
            "forewarn_agent_last_poll_timestamp_seconds",
            "Time of the endpoint's latest answer.",
            value=0.0 if metrics.last_poll_at is None else metrics.last_poll_at.timestamp(),
        )
        yield CounterMetricFamily(
            "forewarn_agent_state_save_failures",
            "Failed writes of the state file.",
            value=metrics.save_failures,
        )
        reloads = CounterMetricFamily(
            "forewarn_agent_config_reloads", "Reloads of the configuration, by outcome.", labels=["outcome"]
        )
        for outcome, count in metrics.reloads.items():
            reloads.add_metric([outcome], count)
        yield reloads
        yield GaugeMetricFamily(
            "forewarn_agent_config_current",
            "1 if the latest reload of the configuration was accepted, or there was none; 0 if it was rejected.",
            value=float(metrics.is_config_current),
        )


def _cumulate_buckets(spans: DurationHistogram) -> list[tuple[str, float]]:
    """Return the cumulative buckets, as Prometheus expects them."""
    ends = [*(str(float(end)) for end in BUCKETS_S), "+Inf"]
    return list(zip(ends, accumulate(spans.counts), strict=True))
