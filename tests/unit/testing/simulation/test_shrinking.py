"""A world that fails is made smaller, as long as it still fails."""

from __future__ import annotations

from forewarn.testing.simulation.shrinking import shrink
from forewarn.testing.simulation.world import Size

FULL = Size(kinds=("isolate", "kill-agent", "vm-clock"))


def test_only_what_the_failure_needs_is_left() -> None:
    small = shrink(FULL, lambda size: "vm-clock" in (size.kinds or ()) and size.vms >= 2 and size.operations >= 3)
    assert small.kinds == ("vm-clock",)
    assert (small.vms, small.operations) == (2, 3)
    assert (small.hosts, small.replicas) == (1, 1)
    assert small.span_s < FULL.span_s


def test_a_world_that_fails_only_as_it_is_stays_as_it_is() -> None:
    assert shrink(FULL, lambda size: size == FULL) == FULL


def test_the_search_ends() -> None:
    tried: list[Size] = []

    def fails(size: Size) -> bool:
        tried.append(size)
        return True

    small = shrink(FULL, fails)
    assert (small.kinds, small.vms, small.hosts, small.replicas, small.operations) == ((), 1, 1, 1, 1)
    assert len(tried) <= 12, "each run takes a second"
