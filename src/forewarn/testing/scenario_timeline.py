"""A scenario as a timeline: a line for each step, with its time."""

from __future__ import annotations

from collections.abc import Iterator

from forewarn.testing.player import describe_step
from forewarn.testing.scenario_loader import Scenario
from forewarn.testing.scenario_model import TimelineStep
from forewarn.util.duration import format_duration

__all__ = ["format_timeline"]

_WIDTH = 24


def format_timeline(scenario: Scenario) -> Iterator[str]:
    """Yield the lines of the timeline, from top to bottom."""
    for step in scenario.steps:
        mark = "?" if step.expect is not None else "!" if step.fault is not None else "●"
        only = "" if step.only is None else f" (only: {step.only})"
        yield f"{_format_start(step):>{_WIDTH}}  {mark} {step.note or describe_step(step)}{only}"
        if step.expect is not None and step.expect.within:
            yield f"{'':>{_WIDTH}}    within {format_duration(step.expect.within)}"


def _format_start(step: TimelineStep) -> str:
    if step.at is not None:
        span = format_duration(step.at.span)
        return f"{span} later" if step.at.is_relative else f"at {span}"
    if step.after is not None:
        return f"{step.after.operation} {step.after.transition}"
    return ""
