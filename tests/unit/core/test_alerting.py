"""Alerts: what is recorded of a maintenance that is unseen or late, and when it is checked next."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from forewarn.core.maintenance.alert_schedule import SEEN_LAG, AlertCheck, AlertThresholds
from forewarn.core.maintenance.alerting import run_alert_check
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Maintenance, MaintenanceState
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import vm

THRESHOLDS = AlertThresholds(unseen_before=minutes(5), late_start_after=minutes(1), late_end_after=minutes(2))
SECOND = timedelta(seconds=1)
REBOOT = MaintenanceRequest(cause="host-maintenance", vms=("a",))


class Alerted:
    """A maintenance with a notice of 15 minutes, announced at `NOW`."""

    def __init__(self, thresholds: AlertThresholds = THRESHOLDS) -> None:
        self.world = World(vm("a"), rules=DecisionRules(alert_thresholds=thresholds))
        self.maintenance = self.world.plan_one(REBOOT)
        assert self.maintenance.not_before == NOW + minutes(15)

    def change(self, **fields: object) -> None:
        changed: Maintenance = replace(self.maintenance, **fields)  # type: ignore[arg-type] # of any field
        self.maintenance = self.world.maintenances[changed.id] = changed

    def check(self, at: datetime, polled_at: datetime | None = None) -> tuple[list[str], datetime | None]:
        """Return what is recorded at that time, and the time of the next check."""
        self.world.now = at
        draft = self.world.draft("forewarn", settles=False)
        polls = {} if polled_at is None else {"vm:a": polled_at}
        following = run_alert_check(draft, AlertCheck(maintenance_id=self.maintenance.id, at=at), polls)
        entries = draft.finish().entries
        assert {entry.maintenance_id for entry in entries} <= {self.maintenance.id}
        assert following is None or following.maintenance_id == self.maintenance.id
        recorded = [f"{entry.kind.value}: {entry.reason}" for entry in entries]
        return recorded, None if following is None else following.at


UNSEEN_AT, LATE_AT = NOW + minutes(10), NOW + minutes(16)


def test_an_event_that_no_vm_has_polled_is_recorded_before_not_before() -> None:
    unseen = "unseen: not polled since the announcement; 300 s left until NotBefore"
    assert Alerted().check(UNSEEN_AT) == ([unseen], LATE_AT)
    assert Alerted().check(UNSEEN_AT, NOW - SECOND) == ([unseen], LATE_AT)


def test_an_event_that_was_polled_is_not_recorded() -> None:
    assert Alerted().check(UNSEEN_AT, NOW) == ([], LATE_AT)


def test_before_its_time_nothing_is_recorded() -> None:
    assert Alerted().check(UNSEEN_AT - SECOND) == ([], UNSEEN_AT)
    assert Alerted().check(LATE_AT - SECOND) == ([], LATE_AT)


@pytest.mark.parametrize("notice", [SEEN_LAG - SECOND, SEEN_LAG])
def test_with_a_notice_too_short_to_know_who_polls_only_a_late_start_is_recorded(notice: timedelta) -> None:
    made = Alerted()
    made.change(not_before=NOW + notice)
    assert made.check(NOW) == ([], NOW + notice + minutes(1))


def test_a_late_start_is_recorded_once() -> None:
    assert Alerted().check(LATE_AT) == (["late: not started 60 s after NotBefore"], None)


def test_a_late_end_counts_from_the_impact_and_the_announced_duration() -> None:
    made = Alerted()
    made.change(state=MaintenanceState.STARTED, started_at=NOW, duration_s=60)
    assert made.check(NOW + minutes(3) - SECOND) == ([], NOW + minutes(3))
    late = "late: not completed 180 s after the start; announced duration: 60 s"
    assert made.check(NOW + minutes(3)) == ([late], None)
    made.change(impacted_at=NOW + minutes(2))
    assert made.check(NOW + minutes(3)) == ([], NOW + minutes(5))


@pytest.mark.parametrize("state", [MaintenanceState.COMPLETED, MaintenanceState.CANCELED, MaintenanceState.FAILED])
def test_of_one_that_has_ended_nothing_is_recorded(state: MaintenanceState) -> None:
    made = Alerted()
    made.change(state=state, started_at=NOW)
    assert made.check(LATE_AT) == ([], None)


def test_of_one_that_was_deleted_nothing_is_recorded() -> None:
    made = Alerted()
    made.world.maintenances.clear()
    made.world.events.clear()
    assert made.check(LATE_AT) == ([], None)


def test_without_thresholds_nothing_is_recorded() -> None:
    made = Alerted(AlertThresholds())
    assert made.check(UNSEEN_AT) == ([], None)
    assert made.check(LATE_AT) == ([], None)
