"""What every simulation leaves behind is put away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.simulated import OPEN


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()
