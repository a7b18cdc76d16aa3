"""Why a property was broken: a small world in which that happens, and its story."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from forewarn.testing.simulation.run import Run
from forewarn.testing.simulation.shrinking import shrink
from forewarn.testing.simulation.story import tell
from forewarn.testing.simulation.workers import run_in_worker
from forewarn.testing.simulation.world import Size

__all__ = ["Explanation", "explain", "run_with_story"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of a broken property.

    Attributes:
        seed: Seed of the run.
        size: A small world in which the property is broken.
        complaints: A line for each violation in it; it begins with the name of the property.
        story: What happened in it, a line for each fact; empty if the run raised an error.
    """

    seed: int
    size: Size
    complaints: Sequence[str]
    story: Sequence[str]


def explain(run_world: Callable[[int, Size], Run], run: Run, size: Size) -> Explanation:
    """Search for a smaller world that breaks one of the same properties; it takes at most 61 runs.

    Args:
        run_world: Runs a world, as `run_seed` does; each run in a new process.
        run: Run that failed.
        size: Its size.
    """

    def repeat(each: Size) -> tuple[Run, Sequence[str]]:
        return run_in_worker(lambda size: run_with_story(run_world, run.seed, size), each)

    small = shrink(replace(size, kinds=tuple(run.kinds)), lambda each: bool(run.broken & repeat(each)[0].broken))
    again, story = repeat(small)
    return Explanation(seed=run.seed, size=small, complaints=tuple(again.complaints), story=tuple(story))


def run_with_story(run_world: Callable[[int, Size], Run], seed: int, size: Size) -> tuple[Run, Sequence[str]]:
    """Return a run without its outcome, and what happened in it, in lines."""
    run = run_world(seed, size)
    return run.without_outcome(), [] if run.outcome is None else list(tell(run.outcome))
