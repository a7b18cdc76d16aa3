"""Outcomes of checks: a requirement holds, is broken, is met in another spelling, or could not be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Inconclusive", "Outcome", "Verdict", "breaks", "excerpt", "holds", "inconclusive", "judge", "note"]

_NAMED_MAX = 3
_EXCERPT_MAX = 120


class Verdict(StrEnum):
    """Verdict of a check.

    `NOTE` is a difference that cannot harm a JSON client (R112). `INCONCLUSIVE`: the observations do not distinguish a
    right endpoint from a wrong one. Neither fails a run.
    """

    HOLDS = "holds"
    BREAKS = "breaks"
    NOTE = "note"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict with one sentence about the observations."""

    verdict: Verdict
    seen: str


class Inconclusive(Exception):
    """The requirement cannot be judged: the message gives the reason."""


def holds(seen: str) -> Outcome:
    """Return that the requirement holds, as far as checked."""
    return Outcome(Verdict.HOLDS, seen)


def breaks(seen: str) -> Outcome:
    """Return that the requirement is broken."""
    return Outcome(Verdict.BREAKS, seen)


def note(seen: str) -> Outcome:
    """Return that the endpoint differs in a way that harms no client (R112)."""
    return Outcome(Verdict.NOTE, seen)


def inconclusive(reason: str) -> Outcome:
    """Return that the observations do not allow a verdict."""
    return Outcome(Verdict.INCONCLUSIVE, reason)


def judge(wrong: Sequence[str], right: str, blind: Sequence[str] = ()) -> Outcome:
    """Return the outcome of several observations.

    Args:
        wrong: Observations that break the requirement.
        right: Observation to report if it holds.
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
    """Return the beginning of a body, on one line."""
    if not body:
        return "an empty body"
    text = " ".join(body[: 4 * _EXCERPT_MAX].decode("utf-8", "replace").split())
    return text if len(text) <= _EXCERPT_MAX else text[:_EXCERPT_MAX] + "..."
