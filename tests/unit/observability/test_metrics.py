"""What `/metrics` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forewarn.core.maintenance.decision import AudienceDocument, ChangeSet
from forewarn.core.model import Audience, AuditEntry, EntryKind, MaintenanceState
from forewarn.observability.metrics import Metrics
from forewarn.publishing.feed import Feed
from forewarn.wire.imds import Dialect
from tests.support.world import NOW


@dataclass
class Counted:
    """What an endpoint counts."""

    fast_path_counts: list[int]
    outcomes: dict[tuple[str, str, int], int] = field(default_factory=dict)
    unknown_callers: int = 0
    connections_refused: int = 0
    over_limit: dict[str, int] = field(default_factory=dict)


@pytest.fixture
def counted() -> Counted:
    return Counted(fast_path_counts=[0] * len(Dialect().list_versions()))


@pytest.fixture
def feed() -> Feed:
    return Feed(Dialect())


@pytest.fixture
def metrics(counted: Counted, feed: Feed) -> Metrics:
    return Metrics(counted, feed, lambda: 3)


def samples(metrics: Metrics) -> Mapping[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(metrics.render_text().decode())
    return {(s.name, tuple(sorted(s.labels.values()))): s.value for family in families for s in family.samples}


def test_requests_of_the_hot_path_and_of_the_app_are_one_figure(metrics: Metrics, counted: Counted) -> None:
    counted.fast_path_counts[-1] = 5
    counted.outcomes[("2020-07-01", "GET", 200)] = 2
    counted.outcomes[("other", "POST", 400)] = 1
    shown = samples(metrics)
    assert shown["forewarn_requests_total", ("200", "2020-07-01", "GET")] == 7
    assert shown["forewarn_requests_total", ("400", "POST", "other")] == 1


def test_documents_connections_and_strangers_are_shown(metrics: Metrics, counted: Counted, feed: Feed) -> None:
    counted.unknown_callers, counted.connections_refused = 4, 2
    counted.over_limit["approvals_at_work_per_vm_max"] = 7
    feed.publish_documents([AudienceDocument(audience=Audience(key="vm:db", enabled_at=NOW, epoch=1, incarnation=1))])
    shown = samples(metrics)
    assert shown["forewarn_documents", ()] == 1
    assert shown["forewarn_documents_published_total", ()] == 1
    assert shown["forewarn_connections", ()] == 3
    assert shown["forewarn_connections_refused_total", ()] == 2
    assert shown["forewarn_unknown_callers_total", ()] == 4
    assert shown["forewarn_over_limit_total", ("approvals_at_work_per_vm_max",)] == 7


def test_approvals_are_counted_by_who_gave_them(metrics: Metrics) -> None:
    actors = ["vm:db", "vm:web", "operator:ann", "policy"]
    metrics.count_changes(
        ChangeSet(entries=[AuditEntry(kind=EntryKind.APPROVED, at=NOW, actor=actor) for actor in actors])
    )
    shown = samples(metrics)
    assert [shown["forewarn_approvals_total", (who,)] for who in ("vm", "operator", "policy")] == [2, 1, 1]
    assert shown["forewarn_audit_log_entries_total", ("approved",)] == 4


def test_every_kind_and_state_is_there_before_it_happens(metrics: Metrics) -> None:
    """A rate can be taken only of what was zero before."""
    shown = samples(metrics)
    assert all(shown["forewarn_audit_log_entries_total", (kind.value,)] == 0 for kind in EntryKind)
    assert all(shown["forewarn_maintenances", (state.value,)] == 0 for state in MaintenanceState)
    assert [shown["forewarn_approvals_total", (who,)] for who in ("vm", "operator", "policy")] == [0, 0, 0]


def test_lateness_of_starts_is_a_histogram(metrics: Metrics) -> None:
    for late_s in (0.0, 0.02, 5000.0):
        metrics.observe_lateness(late_s)
    shown = samples(metrics)
    assert shown["forewarn_start_lateness_seconds_count", ()] == 3
    assert shown["forewarn_start_lateness_seconds_bucket", ("0.005",)] == 1
    assert shown["forewarn_start_lateness_seconds_bucket", ("3600.0",)] == 2
