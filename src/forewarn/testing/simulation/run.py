"""One run of the simulation, with what it had in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from forewarn.testing.simulation.chaos import draw_plan
from forewarn.testing.simulation.outcome import Outcome
from forewarn.testing.simulation.parts import Parts
from forewarn.testing.simulation.properties import find_complaints
from forewarn.testing.simulation.world import Size, make_rng, simulate
from forewarn.util.failpoint import FailPoint

__all__ = ["Run", "run_seed"]

_NO_END = "the_run_ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of a run.

    Attributes:
        complaints: A line for each time that a property was broken; it begins with the name of the property.
        kinds: Kinds of faults that it had.
        facts: Number of facts in its trace, by kind.
        reached: How often each failpoint was reached.
        struck: At how many of them a process was killed or halted.
        outcome: Everything about it; None if it did not end.
    """

    seed: int
    complaints: list[str]
    kinds: tuple[str, ...] = ()
    facts: Counter[str] = field(default_factory=Counter)
    reached: Counter[FailPoint] = field(default_factory=Counter)
    struck: Counter[FailPoint] = field(default_factory=Counter)
    outcome: Outcome | None = None

    def without_outcome(self) -> Run:
        """Return this run without its outcome, which is large."""
        return replace(self, outcome=None)

    @property
    def broken(self) -> set[str]:
        """Names of the properties that were broken."""
        return {complaint.partition(":")[0] for complaint in self.complaints}


def run_seed(seed: int, size: Size, folder: Path, parts: Parts | None = None) -> Run:
    """Run a world from a seed, and check every property.

    Args:
        seed: Everything follows from it.
        size: Size of the world.
        folder: Folder with the operator's token.
        parts: What is not Forewarn's own; None if everything is.
    """
    try:
        outcome, _ = simulate(seed, folder, size, parts)
    # A run that cannot end is a complaint like any other. So is one that something has cancelled.
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as said
        complaint = f"{_NO_END}: the run raised {type(error).__name__}: {error}"
        plan = draw_plan(make_rng("chaos", seed), make_rng("busy world", seed), size.kinds)
        return Run(seed=seed, complaints=[complaint], kinds=plan.kinds)
    kinds = next(fact.details["kinds"] for fact in outcome.facts if fact.kind == "kinds")
    return Run(
        seed=seed,
        complaints=find_complaints(outcome),
        kinds=tuple(kinds),
        facts=Counter(fact.kind for fact in outcome.facts if fact.subject != "chaos"),
        reached=outcome.reached,
        struck=outcome.struck,
        outcome=outcome,
    )
