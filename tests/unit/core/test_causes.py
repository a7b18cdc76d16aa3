from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.core.causes import (
    CAUSES,
    DEFAULT_CAUSE,
    MINIMUM_NOTICE,
    OS_IMAGE_NOTICE,
    TERMINATE_NOTICE_MAX,
    TERMINATE_NOTICE_MIN,
    OptInProfile,
)
from forewarn.core.model import EventSource, EventType, Scope, ScopeKind

DEFAULTS = {
    "live-migration": (
        EventType.FREEZE,
        EventSource.PLATFORM,
        5,
        "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
    ),
    "host-maintenance": (EventType.FREEZE, EventSource.PLATFORM, 9, "Host server is undergoing maintenance."),
    "platform-redeploy": (EventType.REDEPLOY, EventSource.PLATFORM, -1, "Virtual machine has encountered a failure."),
    "predicted-failure": (EventType.REDEPLOY, EventSource.PLATFORM, -1, "Virtual machine has encountered a failure."),
    "user-restart": (
        EventType.REBOOT,
        EventSource.USER,
        -1,
        "Virtual machine is going to be restarted as requested by authorized user.",
    ),
    "user-redeploy": (
        EventType.REDEPLOY,
        EventSource.USER,
        -1,
        "Virtual machine is going to be redeployed as requested by authorized user.",
    ),
    "hardware-failure": (EventType.REBOOT, EventSource.PLATFORM, -1, "Host server is undergoing an emergency repair."),
    "spot-eviction": (EventType.PREEMPT, EventSource.PLATFORM, -1, ""),
    "scale-set-delete": (EventType.TERMINATE, EventSource.USER, -1, ""),
    "os-upgrade": (EventType.REBOOT, EventSource.PLATFORM, -1, ""),
    "reimage": (EventType.REBOOT, EventSource.USER, -1, ""),
}


def test_every_cause_has_a_row_here() -> None:
    assert set(CAUSES) == set(DEFAULTS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_cause_has_the_type_source_duration_and_description_of_the_specification(name: str) -> None:
    """R31, R37, R38, R39, R72, R73, R87, R89, R90, R93 (A18)."""
    cause = CAUSES[name]
    assert (cause.type, cause.source, cause.duration_s, cause.description) == DEFAULTS[name]


def test_each_type_has_the_minimum_notice_of_the_specification() -> None:
    """R71."""
    assert {
        EventType.FREEZE: timedelta(minutes=15),
        EventType.REBOOT: timedelta(minutes=15),
        EventType.REDEPLOY: timedelta(minutes=10),
        EventType.PREEMPT: timedelta(seconds=30),
        EventType.TERMINATE: timedelta(minutes=5),
    } == MINIMUM_NOTICE


def test_only_a_hardware_failure_starts_without_notice() -> None:
    """R73, R78."""
    assert [name for name, cause in CAUSES.items() if cause.is_immediate] == ["hardware-failure"]


def test_neither_failures_nor_user_operations_are_routine() -> None:
    """R61."""
    routine = {name for name, cause in CAUSES.items() if cause.is_routine}
    assert routine == {"live-migration", "host-maintenance", "platform-redeploy", "os-upgrade"}
    assert all(CAUSES[name].source is EventSource.PLATFORM for name in routine)


def test_a_predicted_failure_is_told_seven_days_ahead() -> None:
    """R72."""
    assert CAUSES["predicted-failure"].notice == timedelta(days=7)


def test_host_maintenance_can_freeze_reboot_and_redeploy() -> None:
    """R89."""
    cause = CAUSES["host-maintenance"]
    assert cause.types | {cause.type} == {EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY}


def test_deletes_and_os_image_changes_want_an_opt_in() -> None:
    """R91, R93."""
    profiles = {name: cause.profile for name, cause in CAUSES.items() if cause.profile is not None}
    assert profiles == {
        "scale-set-delete": OptInProfile.TERMINATE,
        "os-upgrade": OptInProfile.OS_IMAGE,
        "reimage": OptInProfile.OS_IMAGE,
    }


def test_the_opt_ins_are_off_and_have_the_notice_of_the_specification() -> None:
    """R91, R93."""
    scope = Scope(name="fleet", kind=ScopeKind.SCALE_SET)
    assert not scope.terminate_notification.enable
    assert not scope.os_image_notification.enable
    assert scope.terminate_notification.not_before_timeout == TERMINATE_NOTICE_MIN == timedelta(minutes=5)
    assert timedelta(minutes=15) == TERMINATE_NOTICE_MAX
    assert scope.os_image_notification.not_before_timeout == OS_IMAGE_NOTICE == timedelta(minutes=15)


@pytest.mark.parametrize(("event_type", "source"), [(t, s) for t in EventType for s in EventSource])
def test_type_and_source_alone_mean_a_cause_that_has_that_type(event_type: EventType, source: EventSource) -> None:
    cause = CAUSES[DEFAULT_CAUSE[event_type, source]]
    assert event_type in cause.types | {cause.type}


def test_type_and_source_alone_mean_a_cause_of_that_source_where_there_is_one() -> None:
    """R87, R89."""
    for (event_type, source), name in DEFAULT_CAUSE.items():
        has_one = any(row.type is event_type and row.source is source for row in CAUSES.values())
        assert not has_one or CAUSES[name].source is source or event_type in CAUSES[name].types
