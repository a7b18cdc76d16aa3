"""Stages of a maintenance for which a command can wait."""

from __future__ import annotations

import pytest

from forewarn.cli.maintenance_wait import Stage, has_reached
from forewarn.core.model import MaintenanceState


@pytest.mark.parametrize(
    ("state", "reached"),
    [
        ("queued", [False, False, False, False]),
        ("scheduled", [True, False, False, False]),
        ("started", [True, True, False, False]),
        ("completed", [True, True, True, True]),
        ("failed", [True, True, None, True]),
        ("canceled", [None, None, None, True]),
    ],
)
def test_each_state_has_reached_a_stage_or_may_or_never_will(state: str, reached: list[bool | None]) -> None:
    assert [has_reached(MaintenanceState(state), stage) for stage in Stage] == reached
