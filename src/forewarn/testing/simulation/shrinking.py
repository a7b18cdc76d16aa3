"""Search for a smaller world in which the same property is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from forewarn.testing.simulation.world import Size

__all__ = ["shrink"]

_RUNS_MAX = 60
_SPAN_S_MIN = 30.0
"""Shortest phase with faults in which something can still happen."""


def shrink(size: Size, fails: Callable[[Size], bool]) -> Size:
    """Return a world that is as small as could be found and still fails; it takes at most 60 runs.

    Args:
        size: World that fails, with its kinds of faults named.
        fails: Runs a world, and returns whether it breaks the same property.
    """
    tried = {size}
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for list_smaller in (_list_fewer_kinds, _list_fewer_machines, _list_fewer_operations, _list_shorter):
            # As long as it helps, more of the same: it is likely to help again.
            while (smaller := _find(list_smaller(size), tried, fails)) is not None:
                size, is_smaller = smaller, True
    return size


def _find(candidates: Iterator[Size], tried: set[Size], fails: Callable[[Size], bool]) -> Size | None:
    for candidate in candidates:
        if candidate not in tried and len(tried) <= _RUNS_MAX:
            tried.add(candidate)
            if fails(candidate):
                return candidate
    return None


def _list_fewer_kinds(size: Size) -> Iterator[Size]:
    kinds = size.kinds or ()
    if kinds:
        yield replace(size, kinds=())
    for kind in kinds:
        yield replace(size, kinds=tuple(each for each in kinds if each != kind))


def _list_fewer_machines(size: Size) -> Iterator[Size]:
    yield replace(size, replicas=1, hosts=1, vms=1)
    if size.replicas > 1:
        yield replace(size, replicas=size.replicas - 1)
    if size.hosts > 1:
        yield replace(size, hosts=size.hosts - 1)
    if size.vms > 1:
        yield replace(size, vms=size.vms - 1)


def _list_fewer_operations(size: Size) -> Iterator[Size]:
    if size.operations > 1:
        yield replace(size, operations=size.operations // 2)
        yield replace(size, operations=size.operations - 1)


def _list_shorter(size: Size) -> Iterator[Size]:
    if size.span_s > _SPAN_S_MIN:
        yield replace(size, span_s=size.span_s / 2)
