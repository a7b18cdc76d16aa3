"""Prometheus metrics of `/metrics`.

The hot path only increments plain integers; everything else is computed when the metrics are collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily as Count
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric
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
        connections: Returns the number of open connections of VMs.
        sources: Sources of the other metrics; None for the defaults.
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
        yield Gauge("forewarn_documents", text, self._feed.enabled_count)
        yield Count("forewarn_documents_published", "Documents published.", self._feed.documents_published)
        yield Gauge("forewarn_connections", "Open connections of VMs.", self._connections())
        fleet = self._sources
        yield Gauge("forewarn_leader", "1 if this replica is the leader, else 0.", fleet.is_leader())
        text = "Seconds by which this replica's clock is ahead of the database's clock."
        yield Gauge("forewarn_clock_skew_seconds", text, fleet.skew_s())
        text = (
            "Size of the unconfirmed clock jump; 0 if there is none. Until an operator confirms the jump, the service "
            "starts nothing that is due."
        )
        yield Gauge("forewarn_clock_jump_seconds", text, fleet.clock_jump_s())
        text = "Clock jumps: changes of the clock by more than the setting clock_jump_max."
        yield Count("forewarn_clock_jumps", text, fleet.clock_jumps())
        yield Gauge("forewarn_watches", "Host endpoints that watch this replica.", fleet.watches())
        text = "Restarts of the metadata process, which answers VMs, after unexpected exits."
        yield Count("forewarn_metadata_process_restarts", text, fleet.endpoint_restarts())
        refused = self._traffic.connections_refused
        yield Count("forewarn_connections_refused", "Refused connections of VMs.", refused)
        text = "Requests from addresses that are not in the inventory."
        yield Count("forewarn_unknown_callers", text, self._traffic.unknown_callers)
        text = "Requests and connections of VMs over a limit, by the setting that defines the limit."
        yield _fill(Count("forewarn_over_limit", text, labels=["limit"]), sorted(self._traffic.over_limit.items()))
        text = "How often a limit of the control address was exceeded, by limit."
        yield _fill(Count("forewarn_limited", text, labels=["limit"]), sorted(fleet.limited().items()))
        text = "Open connections to the control address, by caller: known by a token, or unknown."
        control = Gauge("forewarn_control_connections", text, labels=["caller"])
        yield _fill(control, fleet.control_connections().items())
        # Exported with 0 before the first one: `rate` would not see a series that begins with 1.
        approvers = sorted({"vm", "operator", "policy"} | self._approvals.keys())
        approvals = [(who, self._approvals.get(who, 0)) for who in approvers]
        text = "Approvals that took effect, by kind of approver."
        yield _fill(Count("forewarn_approvals", text, labels=["by"]), approvals)
        entries = Count("forewarn_audit_log_entries", "Audit log entries, by kind.", labels=["kind"])
        yield _fill(entries, self._entries.items())
        text = "Deleted maintenances and audit log entries, by kind of object."
        yield _fill(Count("forewarn_history_forgotten", text, labels=["what"]), self._forgotten.items())
        states = Gauge("forewarn_maintenances", "Stored maintenances, by state.", labels=["state"])
        yield _fill(states, self.counts.items())
        yield from self._collect_notifications()

    def _collect_notifications(self) -> Iterator[Metric]:
        states = Counter("given-up" if each.is_given_up else each.state.value for each in self.subscriptions)
        by_state = [(state, states[state]) for state in ("active", "paused", "given-up")]
        yield _fill(Gauge("forewarn_subscriptions", "Subscriptions, by state.", labels=["state"]), by_state)
        letters = [(each.name, self.deliveries.get((each.id, DeliveryState.DEAD), 0)) for each in self.subscriptions]
        text = (
            "Dead letters, by subscription: notifications that Forewarn no longer tries to deliver, but still stores."
        )
        yield _fill(Gauge("forewarn_dead_letters", text, labels=["subscription"]), letters)
        text = "Delivery attempts, by subscription and outcome."
        tries = Count("forewarn_deliveries", text, labels=["subscription", "outcome"])
        counts = dict(self._sources.deliveries())
        # Also names that only the counts have, those of subscriptions deleted a moment ago.
        names = {each.name for each in self.subscriptions} | {name for name, _ in counts}
        for name in sorted(names):
            for outcome in ("delivered", "failed", "dead"):
                tries.add_metric([name, outcome], counts.get((name, outcome), 0))
        yield tries
        text = "Age of the oldest undelivered notification, by subscription. Only the leader reports this metric."
        ages = sorted(self._sources.undelivered_s().items())
        yield _fill(Gauge("forewarn_undelivered_age_seconds", text, labels=["subscription"]), ages)

    def describe(self) -> Iterable[Metric]:
        """Return no metrics in advance: they are created when collected."""
        return []

    def _collect_requests(self) -> Metric:
        counts = dict(self._traffic.outcomes)
        # The hot path answers nothing but successful GETs; all other requests are counted by the app.
        for version, count in zip(self._feed.versions, self._traffic.fast_path_counts, strict=True):
            key = (version.name, "GET", 200)
            counts[key] = counts.get(key, 0) + count
        text = "Requests of VMs, by api-version, method and status."
        metric = Count("forewarn_requests", text, labels=["version", "method", "status"])
        for (name, method, status), count in sorted(counts.items()):
            metric.add_metric([name, method, str(status)], count)
        return metric


def _fill(metric: Count | Gauge, values: Iterable[tuple[str, float]]) -> Metric:
    """Add a sample for each value of the metric's only label, and return the metric."""
    for word, value in values:
        metric.add_metric([word], value)
    return metric
