"""File descriptors: what the control address may take of them, and that a start with too few says so."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from forewarn.config.loading import make_settings
from forewarn.config.settings import Settings
from forewarn.endpoint.descriptors import fit_descriptors


def settings() -> Settings:
    return make_settings(connections_max=1000, control_connections_max=2000, control_unknown_connections_max=900)


@pytest.mark.parametrize("descriptors", [-1, 3512, 100_000])
def test_with_enough_of_them_settings_stay_as_they_are(descriptors: int) -> None:
    with capture_logs() as logs:
        assert fit_descriptors(settings(), descriptors) == settings()
    assert logs == []


@pytest.mark.parametrize(("descriptors", "control"), [(3000, 1488), (2000, 750), (1024, 384), (256, 96), (4, 1)])
def test_with_too_few_the_control_address_gets_what_vms_do_not_need_or_half(descriptors: int, control: int) -> None:
    with capture_logs() as logs:
        fitted = fit_descriptors(settings(), descriptors)
    assert fitted.control_connections_max == control
    assert fitted.control_unknown_connections_max <= max(control * 3 // 4, 1)
    assert fitted.connections_max == 1000
    (line,) = logs
    assert line["log_level"] == "warning"
    assert "too few file descriptors" in line["event"]
    assert (line["descriptors"], line["wanted"]) == (descriptors, 3512)


@pytest.mark.parametrize(("descriptors", "lines"), [(20_000, 0), (4096, 0), (4095, 1), (1024, 1)])
def test_limits_that_nobody_has_set_are_as_large_as_there_is_room_for(descriptors: int, lines: int) -> None:
    with capture_logs() as logs:
        fitted = fit_descriptors(make_settings(), descriptors)
    assert fitted.control_connections_max < descriptors // 2
    assert len(logs) == lines
