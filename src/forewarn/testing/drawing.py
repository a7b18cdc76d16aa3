"""A scenario as a timeline: a line for each step, with its time."""

from __future__ import annotations

from collections.abc import Iterator

from forewarn.testing.loading import Scenario
from forewarn.testing.player import describe
from forewarn.testing.scenario import Step
from forewarn.util.duration import format_span

__all__ = ["draw"]

_WIDTH = 24


def draw(scenario: Scenario) -> Iterator[str]:
    """Yield the lines of the timeline, from top to bottom."""
    for step in scenario.steps:
        mark = "?" if step.expect is not None else "!" if step.fault is not None else "●"
        only = "" if step.only is None else f" (only: {step.only})"
        yield f"{_when(step):>{_WIDTH}}  {mark} {step.note or describe(step)}{only}"
        if step.expect is not None and step.expect.within:
            yield f"{'':>{_WIDTH}}    within {format_span(step.expect.within)}"


def _when(step: Step) -> str:
    if step.at is not None:
        span = format_span(step.at.span)
        return f"{span} later" if step.at.is_relative else f"at {span}"
    if step.after is not None:
        return f"{step.after.operation} {step.after.what}"
    return ""
