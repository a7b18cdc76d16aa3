"""Prometheus metrics of `/metrics`.

The hot path only increments plain integers; everything else is computed when the metrics are collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import EntryKind, MaintenanceState
from forewarn.core.subscription import DeliveryState, Subscription
from forewarn.publishing.feed import Feed

__all__ = ["EndpointCounters", "MetricSources", "Metrics"]

_LATENESS_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 3600)


class EndpointCounters(Protocol):
    """Counters of the metadata endpoint.

    Attributes:
        fast_path_counts: GETs answered by the hot path, by version.
        outcomes: Requests answered by the app, by version, method and status.
        over_limit: Requests and connections over a limit of the endpoint, by setting.
    """

    @property
    def fast_path_counts(self) -> Sequence[int]: ...  # noqa: D102 - described above
    @property
    def outcomes(self) -> Mapping[tuple[str, str, int], int]: ...  # noqa: D102
    @property
    def unknown_callers(self) -> int: ...  # noqa: D102
    @property
    def connections_refused(self) -> int: ...  # noqa: D102
    @property
    def over_limit(self) -> Mapping[str, int]: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """Sources of the metrics about replicas, hosts and notifications.

    Attributes:
        is_leader: True if this replica is the leader, which carries out due actions.
        skew_s: Seconds by which this replica's clock is ahead of the database's.
        watches: Number of host endpoints that watch this replica.
        deliveries: Notification attempts, by subscription and outcome.
        clock_jump_s: Size of an unconfirmed clock jump, in seconds; 0 if there is none.
        clock_jumps: Number of clock jumps.
        limited: Number of times that each limit of the control address was exceeded.
        control_connections: Connections to the control address, by known and unknown callers.
        endpoint_restarts: Number of restarts of the metadata process after it ended unexpectedly.
        undelivered_s: Age of the oldest pending delivery of each subscription, in seconds.
    """

    is_leader: Callable[[], bool] = lambda: True
    skew_s: Callable[[], float] = lambda: 0.0
    watches: Callable[[], int] = lambda: 0
    clock_jump_s: Callable[[], float] = lambda: 0.0
    clock_jumps: Callable[[], int] = lambda: 0
    deliveries: Callable[[], Mapping[tuple[str, str], int]] = dict
    undelivered_s: Callable[[], Mapping[str, float]] = dict
    limited: Callable[[], Mapping[str, int]] = dict
    control_connections: Callable[[], Mapping[str, int]] = dict
    endpoint_restarts: Callable[[], int] = lambda: 0


class Metrics(Collector):
    """All metrics of a service.

    Args:
        traffic: Counters of the endpoint.
        feed: Current documents.
        connections: Returns the number of open connections.
        sources: Sources of the metrics about replicas, hosts and notifications.
    """

    def __init__(
        self,
        traffic: EndpointCounters,
        feed: Feed,
        connections: Callable[[], int],
        sources: MetricSources | None = None,
    ) -> None:
        self._traffic = traffic
        self._feed = feed
        self._connections = connections
        self._sources = sources or MetricSources()
        self.counts: dict[MaintenanceState, int] = dict.fromkeys(MaintenanceState, 0)
        self.subscriptions: Sequence[Subscription] = ()
        self.deliveries: Mapping[tuple[str, DeliveryState], int] = {}
        self._entries: dict[EntryKind, int] = dict.fromkeys(EntryKind, 0)
        self._approvals: dict[str, int] = {}
        self._forgotten = {"maintenances": 0, "entries": 0}
        self.registry = CollectorRegistry()
        self._lateness = Histogram(
            "forewarn_start_lateness_seconds",
            "Seconds from the time at which a maintenance was due to start until VMs could see it as Started.",
            buckets=_LATENESS_BUCKETS_S,
            registry=self.registry,
        )
        self.registry.register(self)

    def observe_lateness(self, late_s: float) -> None:
        """Record how many seconds after its due time a start was published."""
        self._lateness.observe(late_s)

    def count_changes(self, changes: ChangeSet) -> None:
        """Count committed changes."""
        self._forgotten["maintenances"] += changes.pruned_maintenances
        self._forgotten["entries"] += changes.pruned_entries
        for entry in changes.entries:
            self._entries[entry.kind] += 1
            if entry.kind is EntryKind.APPROVED:
                who = entry.actor.partition(":")[0]
                self._approvals[who] = self._approvals.get(who, 0) + 1

    def render_text(self) -> bytes:
        """Return the metrics in the text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; called by the registry."""
        yield self._collect_requests()
        text = "Current documents: one for each audience (VMs that see the same events) for which events are enabled."
        yield _make_gauge("forewarn_documents", text, self._feed.enabled_count)
        yield _make_counter("forewarn_documents_published", "Documents published.", self._feed.documents_published)
        yield _make_gauge("forewarn_connections", "Open connections of VMs.", self._connections())
        fleet = self._sources
        yield _make_gauge("forewarn_leader", "1 if this replica is the leader, else 0.", fleet.is_leader())
        text = "Seconds by which this replica's clock is ahead of the database's clock."
        yield _make_gauge("forewarn_clock_skew_seconds", text, fleet.skew_s())
        text = (
            "Size of the unconfirmed clock jump; 0 if there is none. Until an operator confirms the jump, the service "
            "starts nothing that is due."
        )
        yield _make_gauge("forewarn_clock_jump_seconds", text, fleet.clock_jump_s())
        yield _make_counter(
            "forewarn_clock_jumps",
            "Clock jumps: changes of the clock by more than the setting clock_jump_max.",
            fleet.clock_jumps(),
        )
        yield _make_gauge("forewarn_watches", "Host endpoints that watch this replica.", fleet.watches())
        yield _make_counter(
            "forewarn_metadata_process_restarts",
            "Restarts of the metadata process, which answers VMs, after unexpected exits.",
            fleet.endpoint_restarts(),
        )
        yield _make_counter(
            "forewarn_connections_refused", "Refused connections of VMs.", self._traffic.connections_refused
        )
        yield _make_counter(
            "forewarn_unknown_callers",
            "Requests from addresses that are not in the inventory.",
            self._traffic.unknown_callers,
        )
        over = sorted(self._traffic.over_limit.items())
        yield _make_counters(
            "forewarn_over_limit",
            "Requests and connections of VMs over a limit, by the setting that defines the limit.",
            "limit",
            over,
        )
        limited = sorted(fleet.limited().items())
        yield _make_counters(
            "forewarn_limited",
            "How often a limit of the control address was exceeded, by limit.",
            "limit",
            limited,
        )
        control = fleet.control_connections().items()
        yield _make_gauges(
            "forewarn_control_connections",
            "Open connections to the control address, by caller: known by a token, or unknown.",
            "caller",
            control,
        )
        # Exported with 0 before the first one: `rate` would not see a series that begins with 1.
        approvers = sorted({"vm", "operator", "policy"} | self._approvals.keys())
        approvals = [(who, self._approvals.get(who, 0)) for who in approvers]
        yield _make_counters("forewarn_approvals", "Approvals that took effect, by kind of approver.", "by", approvals)
        entries = [(kind.value, count) for kind, count in self._entries.items()]
        yield _make_counters("forewarn_audit_log_entries", "Audit log entries, by kind.", "kind", entries)
        yield _make_counters(
            "forewarn_history_forgotten",
            "Deleted maintenances and audit log entries, by kind of object.",
            "what",
            self._forgotten.items(),
        )
        states = [(state.value, count) for state, count in self.counts.items()]
        yield _make_gauges("forewarn_maintenances", "Stored maintenances, by state.", "state", states)
        yield from self._collect_notifications()

    def _collect_notifications(self) -> Iterator[Metric]:
        states = Counter("given-up" if each.is_given_up else each.state.value for each in self.subscriptions)
        by_state = [(state, states[state]) for state in ("active", "paused", "given-up")]
        yield _make_gauges("forewarn_subscriptions", "Subscriptions, by state.", "state", by_state)
        letters = [(each.name, self.deliveries.get((each.id, DeliveryState.DEAD), 0)) for each in self.subscriptions]
        yield _make_gauges(
            "forewarn_dead_letters",
            "Stored notifications that were given up, by subscription.",
            "subscription",
            letters,
        )
        tries = CounterMetricFamily(
            "forewarn_deliveries", "Delivery attempts, by subscription and outcome.", labels=["subscription", "outcome"]
        )
        counts = dict(self._sources.deliveries())
        # Also names that only the counts have, those of subscriptions deleted a moment ago.
        names = {each.name for each in self.subscriptions} | {name for name, _ in counts}
        for name in sorted(names):
            for outcome in ("delivered", "failed", "dead"):
                tries.add_metric([name, outcome], counts.get((name, outcome), 0))
        yield tries
        text = "Age of the oldest undelivered notification, by subscription. Only the leader reports this metric."
        ages = sorted(self._sources.undelivered_s().items())
        yield _make_gauges("forewarn_undelivered_age_seconds", text, "subscription", ages)

    def describe(self) -> Iterable[Metric]:
        """Return no metrics in advance: they are created when collected."""
        return []

    def _collect_requests(self) -> Metric:
        counts = dict(self._traffic.outcomes)
        # The hot path answers nothing but successful GETs; all other requests are counted by the app.
        for version, count in zip(self._feed.versions, self._traffic.fast_path_counts, strict=True):
            key = (version.name, "GET", 200)
            counts[key] = counts.get(key, 0) + count
        metric = CounterMetricFamily(
            "forewarn_requests",
            "Requests of VMs, by api-version, method and status.",
            labels=["version", "method", "status"],
        )
        for (name, method, status), count in sorted(counts.items()):
            metric.add_metric([name, method, str(status)], count)
        return metric


def _make_gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _make_counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _make_gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a gauge with a sample for each value of its label."""
    gauge = GaugeMetricFamily(name, text, labels=[label])
    for word, value in values:
        gauge.add_metric([word], value)
    return gauge


def _make_counters(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a counter with a sample for each value of its label."""
    counter = CounterMetricFamily(name, text, labels=[label])
    for word, value in values:
        counter.add_metric([word], value)
    return counter
