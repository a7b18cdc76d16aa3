"""Why a property was broken: the smallest world in which that happens, and its story."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from forewarn.testing.simulation.run import Run
from forewarn.testing.simulation.shrinking import shrink
from forewarn.testing.simulation.story import tell
from forewarn.testing.simulation.world import Size

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of a broken property.

    Attributes:
        seed: Seed of the run.
        size: A small world in which the property is broken.
        complaints: What was broken in it; a line begins with the name of the property.
        story: What happened in it, a line for each fact; empty if the run did not end.
    """

    seed: int
    size: Size
    complaints: Sequence[str]
    story: Sequence[str]


def explain(run_world: Callable[[int, Size], Run], run: Run, size: Size) -> Explanation:
    """Search for a smaller world that breaks one of the same properties; it takes at most 60 runs.

    Args:
        run_world: Runs a world, as `run_seed` does.
        run: Run that failed.
        size: Its size.
    """
    small = shrink(
        replace(size, kinds=tuple(run.kinds)), lambda each: bool(run.broken & run_world(run.seed, each).broken)
    )
    again = run_world(run.seed, small)
    story = () if again.outcome is None else tuple(tell(again.outcome))
    return Explanation(seed=run.seed, size=small, complaints=tuple(again.complaints), story=story)
