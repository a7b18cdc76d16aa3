"""Search for a smaller world in which the same property is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from forewarn.testing.simulation.world import Size

__all__ = ["shrink"]

_RUNS_MAX = 60


def shrink(size: Size, fails: Callable[[Size], bool]) -> Size:
    """Return a world that is as small as could be found and still fails; it takes at most 60 runs.

    Args:
        size: World that fails, with its kinds of faults named.
        fails: Runs a world, and returns whether it breaks the same property.
    """
    runs = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _list_smaller(size):
            if runs == _RUNS_MAX:
                return size
            runs += 1
            if fails(smaller):
                size, is_smaller = smaller, True
                break
    return size


def _list_smaller(size: Size) -> Iterator[Size]:
    """Yield the worlds that lack one thing: large steps first."""
    kinds = size.kinds or ()
    for kind in kinds:
        yield replace(size, kinds=tuple(each for each in kinds if each != kind))
    if size.operations > 1:
        yield replace(size, operations=size.operations // 2)
        yield replace(size, operations=size.operations - 1)
    if size.vms > 1:
        yield replace(size, vms=size.vms - 1)
    if size.hosts > 1:
        yield replace(size, hosts=size.hosts - 1)
    if size.replicas > 1:
        yield replace(size, replicas=size.replicas - 1)
    if size.span_s > 30:  # noqa: PLR2004 - seconds in which something can still happen
        yield replace(size, span_s=size.span_s / 2)
