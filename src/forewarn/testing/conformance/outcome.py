"""What a check found: a requirement holds, is broken, is met in another spelling, or could not be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Inconclusive", "Outcome", "Verdict", "breaks", "excerpt", "holds", "inconclusive", "judge", "note"]

_NAMED_MAX = 3
_EXCERPT_MAX = 120


class Verdict(StrEnum):
    """The outcome of a check.

    `NOTE` is a difference that no client of JSON can be hurt by (R112). `INCONCLUSIVE`: what was seen does not tell a
    right endpoint from a wrong one. Neither fails a run.
    """

    HOLDS = "holds"
    BREAKS = "breaks"
    NOTE = "note"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and one sentence of what was seen."""

    verdict: Verdict
    seen: str


class Inconclusive(Exception):
    """Nothing can be seen of the requirement: the message says why."""


def holds(seen: str) -> Outcome:
    """The requirement holds, as far as was looked."""
    return Outcome(Verdict.HOLDS, seen)


def breaks(seen: str) -> Outcome:
    """The requirement is broken."""
    return Outcome(Verdict.BREAKS, seen)


def note(seen: str) -> Outcome:
    """The endpoint differs where nobody can be hurt by it (R112)."""
    return Outcome(Verdict.NOTE, seen)


def inconclusive(reason: str) -> Outcome:
    """What has to be known for a judgement is not there."""
    return Outcome(Verdict.INCONCLUSIVE, reason)


def judge(wrong: Sequence[str], right: str, blind: Sequence[str] = ()) -> Outcome:
    """Return the outcome of several observations.

    Args:
        wrong: What breaks the requirement.
        right: What was seen if it holds.
        blind: Observations that a wrong endpoint would have given as well; any of them leaves the check inconclusive.
    """
    if wrong:
        return breaks(_first_of(wrong))
    return inconclusive(_first_of(blind)) if blind else holds(right)


def _first_of(observations: Sequence[str]) -> str:
    named = list(dict.fromkeys(observations))
    rest = [f"and {len(named) - _NAMED_MAX} more"] if len(named) > _NAMED_MAX else []
    return "; ".join([*named[:_NAMED_MAX], *rest])


def excerpt(body: bytes) -> str:
    """The beginning of a body, on one line."""
    if not body:
        return "an empty body"
    text = " ".join(body[: 4 * _EXCERPT_MAX].decode("utf-8", "replace").split())
    return text if len(text) <= _EXCERPT_MAX else text[:_EXCERPT_MAX] + "..."
