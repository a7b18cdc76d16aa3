"""A check: one row of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from forewarn.testing.conformance.outcome import CheckOutcome
from forewarn.testing.conformance.probe import EndpointProbe

__all__ = ["CheckPhase", "ConformanceCheck"]


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
    run: Callable[[EndpointProbe], CheckOutcome]
    phase: CheckPhase = CheckPhase.LOOK
    needs_document: bool = True

    @property
    def is_extension(self) -> bool:
        """True if it only covers extensions of Forewarn, which other endpoints need not have."""
        return all(number.startswith("X") for number in self.numbers)
