"""What a check found: a requirement holds, it is broken, or nothing can be seen of it from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Outcome", "Unseen", "Verdict", "breaks", "excerpt", "holds", "judge", "unseen"]

_NAMED_MAX = 3
_EXCERPT_MAX = 120


class Verdict(StrEnum):
    """The three outcomes; there is no fourth."""

    HOLDS = "holds"
    BREAKS = "breaks"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and one sentence of what was seen."""

    verdict: Verdict
    seen: str


class Unseen(Exception):
    """Nothing can be seen of the requirement: the message says why."""


def holds(seen: str) -> Outcome:
    """The requirement holds, as far as was looked."""
    return Outcome(Verdict.HOLDS, seen)


def breaks(seen: str) -> Outcome:
    """The requirement is broken."""
    return Outcome(Verdict.BREAKS, seen)


def unseen(reason: str) -> Outcome:
    """What has to be known for a judgement is not there."""
    return Outcome(Verdict.UNSEEN, reason)


def judge(wrong: Sequence[str], right: str) -> Outcome:
    """Broken if anything is wrong, with the first few of it; otherwise it holds, and `right` says what was seen."""
    if not wrong:
        return holds(right)
    named = list(dict.fromkeys(wrong))
    rest = [f"and {len(named) - _NAMED_MAX} more"] if len(named) > _NAMED_MAX else []
    return breaks("; ".join([*named[:_NAMED_MAX], *rest]))


def excerpt(body: bytes) -> str:
    """The beginning of a body, on one line."""
    if not body:
        return "an empty body"
    text = " ".join(body[: 4 * _EXCERPT_MAX].decode("utf-8", "replace").split())
    return text if len(text) <= _EXCERPT_MAX else text[:_EXCERPT_MAX] + "..."
