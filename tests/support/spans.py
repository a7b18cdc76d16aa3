"""Real time in tests.

A slow machine makes everything take longer, so no test states the longest time something may take. It may state
the shortest (`lasts`), compare two times measured side by side (`typical_s`), or wait with a guard against hanging
(`GUARD_S`), which is no statement about speed. `tests/unit/test_time_in_tests.py` enforces this.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["GUARD_S", "lasts", "typical_s"]

GUARD_S = 60.0
"""How long a test waits for something that a working program does soon, before it fails instead of hanging."""


_GRAIN_S = 0.002
"""Event loops count whole milliseconds, so what waits for 500 of them may have waited for 499.1."""


@contextmanager
def lasts(at_least_s: float) -> Iterator[None]:
    """Assert that the block takes at least this long."""
    began_s = time.monotonic()  # noqa: TID251 - a slow machine only makes it longer
    yield
    took_s = time.monotonic() - began_s  # noqa: TID251 - as above
    assert took_s >= at_least_s - _GRAIN_S, f"it took {took_s:.3f} s, and was expected to take {at_least_s} s or longer"


def typical_s(action: Callable[[], object], times: int) -> float:
    """Return the median time of so many calls, to be compared with another one of the same test."""
    spans_s = []
    for _ in range(times):
        began_s = time.perf_counter()
        action()
        spans_s.append(time.perf_counter() - began_s)
    return statistics.median(spans_s)
