"""Pytest plugin with the fixtures `scheduled_events` and `async_scheduled_events`.

It comes with the package and needs no import. A test selects other VMs or settings with a marker::

    @pytest.mark.scheduled_events(["web-0", "web-1"], first_answer_delay="2m")
    def test_it(scheduled_events): ...
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forewarn.testing import AsyncScheduledEvents, ScheduledEvents

__all__ = ["async_scheduled_events", "pytest_configure", "scheduled_events"]

_MARKER = "scheduled_events"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "scheduled_events(inventory=None, *, start, enabled, **settings): arguments of the fixture scheduled_events",
    )


@pytest.fixture
def scheduled_events(request: pytest.FixtureRequest) -> Iterator[ScheduledEvents]:
    """Metadata endpoint in this process, on virtual time; see `forewarn.testing.ScheduledEvents`."""
    arguments, options = _get_marker_arguments(request)
    with _import_class("ScheduledEvents")(*arguments, **options) as events:
        yield events


@pytest.fixture
def async_scheduled_events(request: pytest.FixtureRequest) -> Iterator[AsyncScheduledEvents]:
    """Metadata endpoint for tests on asyncio or trio; see `forewarn.testing.AsyncScheduledEvents`."""
    arguments, options = _get_marker_arguments(request)
    with _import_class("AsyncScheduledEvents")(*arguments, **options) as events:
        yield events


def _get_marker_arguments(request: pytest.FixtureRequest) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the test's marker."""
    marker = request.node.get_closest_marker(_MARKER)
    return ((), {}) if marker is None else (marker.args, dict(marker.kwargs))


def _import_class(name: str) -> Any:  # noqa: ANN401 - a class of the module
    """Import a class of `forewarn.testing` on first use: sessions without such a test must not wait for it."""
    try:
        return getattr(importlib.import_module("forewarn.testing"), name)
    except ModuleNotFoundError as error:
        pytest.fail(str(error), pytrace=False)
