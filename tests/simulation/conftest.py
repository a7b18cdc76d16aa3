"""What every simulation leaves behind is put away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.support.simulated import OPEN


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    """Faults are logged with their traces, and there are many of them."""
    with structlog.testing.capture_logs() as lines:
        yield
    assert all(isinstance(line["event"], str) for line in lines), "a log line without words"
