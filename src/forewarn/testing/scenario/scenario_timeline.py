"""A scenario in words: its steps, and its timeline with a line for each step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from forewarn.testing.scenario.scenario_loader import Scenario
from forewarn.testing.scenario.scenario_model import (
    ApproveStep,
    DeferStep,
    ExpectStep,
    ExtendStep,
    FaultStep,
    HostStep,
    ImpactStep,
    ScheduleStep,
    TimelineStep,
    VmStep,
)
from forewarn.util.duration import format_duration

__all__ = ["describe_step", "format_timeline"]

_WIDTH = 24
_DOCUMENT_SHOWN = 60


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


def describe_step(step: TimelineStep) -> str:  # noqa: C901, PLR0911, PLR0912 - one return for each kind of action
    """Return a description of a step."""
    action = step.action
    match action:
        case ExpectStep():
            said = action.model_dump(exclude_none=True, exclude_defaults=True, exclude={"within", "version", "always"})
            if action.document is not None:
                said["document"] = _shorten_document(action.document)
            words = ", ".join(f"{name} {_format_value(value)}" for name, value in said.items())
            return f"expect {words}"
        case ScheduleStep():
            where = ", ".join(action.vms or action.hosts or ())
            return f"{action.type or action.cause} is scheduled for {where}"
        case ApproveStep():
            return f"{action.by} approves {action.operation}"
        case FaultStep():
            return f"fault {action.kind} for {', '.join(action.vms) if action.vms else 'all'}"
        case DeferStep():
            return f"{action.operation} is deferred by {format_duration(action.by)}"
        case ExtendStep():
            asking = "" if action.scope is None else f" for {action.scope}"
            return f"{action.operation} is extended by {format_duration(action.by)}{asking}"
        case ImpactStep():
            return f"further impact of {action.operation}, {action.duration} s"
        case VmStep() | HostStep():
            return f"{step.action_name.replace('_', ' ')} {action.name}"
        case tuple():
            return f"{', '.join(action)} {'polls' if len(action) == 1 else 'poll'}"
        case timedelta():
            return f"wait {format_duration(action)} of real time, without changes"
        case bool():
            return "all faults end"
        case _:
            return f"{step.action_name} {action}"


def _shorten_document(document: str) -> str:
    """Return the beginning and end of a document, and its length."""
    if len(document) <= _DOCUMENT_SHOWN:
        return document
    half = _DOCUMENT_SHOWN // 2
    return f"{document[:half]} … {document[-half:]} ({len(document.encode())} bytes)"


def _format_value(value: object) -> str:
    text = str(getattr(value, "value", value))
    return text or '""'
