"""Outcomes of checks: a requirement holds, is broken, is met in another spelling, or could not be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

__all__ = [
    "CheckOutcome",
    "CheckVerdict",
    "Inconclusive",
    "breaks",
    "excerpt_body",
    "holds",
    "inconclusive",
    "judge",
    "note_difference",
]

_NAMED_MAX = 3
_EXCERPT_MAX = 120


class CheckVerdict(StrEnum):
    """Verdict of a check.

    `NOTE` is a difference that cannot harm a JSON client (R112). `INCONCLUSIVE`: the observations do not distinguish a
    right endpoint from a wrong one. Neither fails a run.
    """

    HOLDS = "holds"
    BREAKS = "breaks"
    NOTE = "note"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """A verdict with one sentence about the observations."""

    verdict: CheckVerdict
    seen: str


class Inconclusive(Exception):
    """The requirement cannot be judged: the message gives the reason."""


holds = partial(CheckOutcome, CheckVerdict.HOLDS)
breaks = partial(CheckOutcome, CheckVerdict.BREAKS)
note_difference = partial(CheckOutcome, CheckVerdict.NOTE)
inconclusive = partial(CheckOutcome, CheckVerdict.INCONCLUSIVE)


def judge(violations: Sequence[str], success: str, ambiguous: Sequence[str] = ()) -> CheckOutcome:
    """Return the outcome of several observations.

    Args:
        violations: Observations that break the requirement.
        success: Observation to report if it holds.
        ambiguous: Observations that a wrong endpoint would have given as well; any of them leaves the check
            inconclusive.
    """
    if violations:
        return breaks(_join_first(violations))
    return inconclusive(_join_first(ambiguous)) if ambiguous else holds(success)


def _join_first(observations: Sequence[str]) -> str:
    named = list(dict.fromkeys(observations))
    rest = [f"and {len(named) - _NAMED_MAX} more"] if len(named) > _NAMED_MAX else []
    return "; ".join([*named[:_NAMED_MAX], *rest])


def excerpt_body(body: bytes) -> str:
    """Return the beginning of a body, on one line."""
    if not body:
        return "an empty body"
    text = " ".join(body[: 4 * _EXCERPT_MAX].decode("utf-8", "replace").split())
    return text if len(text) <= _EXCERPT_MAX else text[:_EXCERPT_MAX] + "..."
