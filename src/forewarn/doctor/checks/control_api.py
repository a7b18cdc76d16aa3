"""The control API answers."""

from __future__ import annotations

from forewarn.doctor.finding import Finding, fail, ok, skip
from forewarn.doctor.situation import Situation
from forewarn.errors import Forbidden, ForewarnError

__all__ = ["check_control_api"]


def check_control_api(situation: Situation) -> Finding:
    """Check that the service answers, with this token."""
    answer = situation.answer
    if isinstance(answer, Forbidden):
        return skip(f"{answer.message}; use the token of an operator, or a read-only one")
    if isinstance(answer, ForewarnError):
        return fail(answer.message, "Start the service, or check --control-url and --token-file.")
    return ok(f"version {answer['version']} answers")
