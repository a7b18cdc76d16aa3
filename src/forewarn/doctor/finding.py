"""Result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CheckResult", "Finding", "fail", "ok", "skip", "warn"]


class CheckResult(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of a check, with its reason.

    Attributes:
        reason: What was found, in one line.
        advice: One sentence with what to do; empty if there is nothing to do.
    """

    result: CheckResult
    reason: str
    advice: str = ""


def ok(reason: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(result=CheckResult.OK, reason=reason)


def warn(reason: str, advice: str) -> Finding:
    """Return the finding that something will go wrong or may have gone wrong."""
    return Finding(result=CheckResult.WARN, reason=reason, advice=advice)


def fail(reason: str, advice: str) -> Finding:
    """Return the finding that something is wrong."""
    return Finding(result=CheckResult.FAIL, reason=reason, advice=advice)


def skip(reason: str) -> Finding:
    """Return the finding that the check could not be made, or does not apply."""
    return Finding(result=CheckResult.SKIPPED, reason=reason)
