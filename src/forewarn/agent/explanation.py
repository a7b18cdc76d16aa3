"""Explanation of what a configuration would do about typical events, for `forewarn agent check`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from forewarn.agent.configuration import Configuration
from forewarn.agent.rule import LOG_ONLY, EventStep, Rule, find_first_match
from forewarn.wire.document import Event

__all__ = ["TYPICAL", "EventExplanation", "TypicalEvent", "explain_configuration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalEvent:
    """A typical event of a platform.

    Attributes:
        cause: Cause of the event.
        is_mine: True if this VM is in Resources.
    """

    cause: str
    type: str
    source: str
    duration_s: int = -1
    description: str = ""
    status: str = "Scheduled"
    is_mine: bool = True

    def build_event(self, vm: str) -> Event:
        """Return the event, for that VM or for another."""
        return Event(
            id="EXAMPLE",
            type=self.type,
            status=self.status,
            resources=(vm,) if self.is_mine else (f"not-{vm}",),
            description=self.description,
            source=self.source,
            duration_s=self.duration_s,
        )


_MIGRATION = "Virtual machine is being paused because of a memory-preserving Live Migration operation."

TYPICAL = (
    TypicalEvent(cause="live migration", type="Freeze", source="Platform", duration_s=5, description=_MIGRATION),
    TypicalEvent(
        cause="host maintenance",
        type="Freeze",
        source="Platform",
        duration_s=9,
        description="Host server is undergoing maintenance.",
    ),
    TypicalEvent(
        cause="restart by a user",
        type="Reboot",
        source="User",
        description="Virtual machine is going to be restarted as requested by authorized user.",
    ),
    TypicalEvent(
        cause="hardware failure",
        type="Reboot",
        source="Platform",
        description="Host server is undergoing an emergency repair.",
        status="Started",
    ),
    TypicalEvent(
        cause="failing hardware",
        type="Redeploy",
        source="Platform",
        description="Virtual machine has encountered a failure.",
    ),
    TypicalEvent(
        cause="redeploy by a user",
        type="Redeploy",
        source="User",
        description="Virtual machine is going to be redeployed as requested by authorized user.",
    ),
    TypicalEvent(cause="spot eviction", type="Preempt", source="Platform"),
    TypicalEvent(cause="scale-set delete", type="Terminate", source="User"),
    TypicalEvent(
        cause="another VM's migration",
        type="Freeze",
        source="Platform",
        duration_s=5,
        description=_MIGRATION,
        is_mine=False,
    ),
)
"""Causes of events in the protocol, with their usual fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventExplanation:
    """Explanation of what would be done about a case.

    Attributes:
        rule: Name of the rule that matches; ``none``: it is only logged.
        prepares: Actions before the approval, or at once if it has started; one line for each.
        approves: Time of the approval, in words.
        recovers: Actions once it is over, one line for each.
    """

    case: TypicalEvent
    rule: str
    prepares: tuple[str, ...]
    approves: str
    recovers: tuple[str, ...]


def explain_configuration(
    configuration: Configuration, local: datetime, cases: tuple[TypicalEvent, ...] = TYPICAL
) -> tuple[EventExplanation, ...]:
    """Explain what that configuration would do about each case.

    Args:
        configuration: Configuration of the agent.
        local: Time of the first sight, in the time zone of the rules' windows.
        cases: Events to explain.
    """
    # Any name serves: rules only test whether it is in Resources.
    vm = configuration.name or "this-vm"
    return tuple(
        _explain_case(case, find_first_match(configuration.rules, case.build_event(vm), vm, local), configuration)
        for case in cases
    )


def _explain_case(case: TypicalEvent, rule: Rule, configuration: Configuration) -> EventExplanation:
    prepared = [line for handler in rule.handlers for line in handler.describe_actions()]
    undone = [f"undo {handler.name}" for handler in reversed(rule.handlers)]
    return EventExplanation(
        case=case,
        rule=rule.name,
        prepares=(*prepared, *_list_hook_labels(rule, EventStep.PREPARE)),
        approves=_describe_approval(rule, configuration, has_started=case.status == "Started"),
        recovers=(*_list_hook_labels(rule, EventStep.RECOVER), *undone),
    )


def _list_hook_labels(rule: Rule, step: EventStep) -> tuple[str, ...]:
    return tuple(hook.label for hook in rule.get_hooks(step))


_TOGETHER = {
    "each": "",
    "leader": "if first in Resources",
    "primary": "for all VMs of the event",
    "secondary": "if the primary has not",
    "all-prepared": "once all VMs of the event are prepared",
}


def _describe_approval(rule: Rule, configuration: Configuration, *, has_started: bool) -> str:
    if has_started:
        return "no: it has started"
    if rule is LOG_ONLY or rule.approve == "never":
        return "never: NotBefore decides"
    if rule.approve == "by-hand":
        return "manually: forewarn agent approve"
    when = "at once" if rule.approve == "at-once" or not rule.has_preparation else "when prepared"
    mode = configuration.together.mode
    together = _TOGETHER[mode]
    if mode == "secondary":
        return f"{when}, {together} within {configuration.together.secondary_after.total_seconds():g} s"
    return f"{when}, {together}" if together else when
