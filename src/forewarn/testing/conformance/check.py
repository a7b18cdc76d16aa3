"""A check: one row of the catalogue, written above the function that carries it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from forewarn.testing.conformance.outcome import CheckOutcome
from forewarn.testing.conformance.probe import EndpointProbe

__all__ = ["CheckList", "CheckPhase", "ConformanceCheck"]

_Run: TypeAlias = Callable[[EndpointProbe], CheckOutcome]


class CheckPhase(IntEnum):
    """Phase of a check: its observations depend on what earlier checks have done."""

    LOOK = 0
    APPROVE = 1
    AFTERWARDS = 2


@dataclass(frozen=True, slots=True)
class ConformanceCheck:
    """One property of an endpoint to check.

    Attributes:
        code: Stable name, for programs.
        numbers: Requirements of SPEC.md that it covers.
        title: Expected property, in one line.
        run: Carries out the check, and returns the outcome.
        phase: `APPROVE` lets maintenance start, and runs only if that is allowed.
        needs_document: True if it is inconclusive at an endpoint without a document, where all refusals are alike.
    """

    code: str
    numbers: tuple[str, ...]
    title: str
    run: _Run
    phase: CheckPhase = CheckPhase.LOOK
    needs_document: bool = True

    @property
    def is_extension(self) -> bool:
        """True if it only covers extensions of Forewarn, which other endpoints need not have."""
        return all(number.startswith("X") for number in self.numbers)


class CheckList(list[ConformanceCheck]):
    """The checks of one part of the protocol, in the order of their functions."""

    def add(
        self,
        code: str,
        numbers: str,
        title: str,
        phase: CheckPhase = CheckPhase.LOOK,
        *,
        needs_document: bool = True,
    ) -> Callable[[_Run], _Run]:
        """Return a decorator that adds a function as a check of these requirements, separated by spaces."""

        def add_run(run: _Run) -> _Run:
            self.append(ConformanceCheck(code, tuple(numbers.split()), title, run, phase, needs_document))
            return run

        return add_run
