"""A check: a row of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from forewarn.testing.conformance.outcome import Outcome
from forewarn.testing.conformance.probe import Probe

__all__ = ["Check", "Phase"]


class Phase(IntEnum):
    """When a check has its turn: what it sees depends on what others have done before."""

    LOOK = 0
    APPROVE = 1
    AFTERWARDS = 2


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at.

    Attributes:
        code: Stable name, for programs.
        numbers: Requirements of SPEC.md that it is about.
        title: What ought to be so, in one line.
        look: Looks, and says what it found.
        phase: `APPROVE` lets a maintenance start, and has its turn only if that is allowed.
        needs_document: Whether it is inconclusive at an endpoint that shows no document: every refusal is then alike.
    """

    code: str
    numbers: tuple[str, ...]
    title: str
    look: Callable[[Probe], Outcome]
    phase: Phase = Phase.LOOK
    needs_document: bool = True

    @property
    def is_extension(self) -> bool:
        """Whether it is about what Forewarn adds: an endpoint without it is none the worse."""
        return all(number.startswith("X") for number in self.numbers)
