"""What to do about which event: rules of the configuration, of which the first that matches decides.

Spec: R102
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from forewarn.agent.codec import Span
from forewarn.agent.handlers import AnyHandler
from forewarn.agent.window import Window
from forewarn.wire.document import Event

__all__ = ["LOG_ONLY", "Hook", "Rule", "Step", "first_match", "matches"]

_RETRIES_MAX = 100


class Step(StrEnum):
    """A moment in the life of an event at which hooks run."""

    PREPARE = "prepare"
    """It is Scheduled: get ready."""

    BEFORE_APPROVAL = "before-approval"
    """Everything is ready, and the approval is about to be sent."""

    STARTED = "started"
    """Its impact may happen at any moment."""

    RECOVER = "recover"
    """It is over."""

    CANCELED = "canceled"
    """It is gone without having happened."""

    ALERT = "alert"
    """A step has failed."""


class Hook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command or a webhook.

    Attributes:
        command: Program and arguments, run without a shell.
        shell: A line for the system's shell, instead of `command`.
        webhook: URL that gets the payload by POST, instead of `command`.
        headers: Of the webhook's request.
        timeout: For one try.
        retries: Further tries after a failure.
        retry_delay: Pause before each.
    """

    command: tuple[str, ...] = ()
    shell: str = ""
    webhook: str = ""
    headers: dict[str, str] = {}
    timeout: Span = Span(minutes=5)
    retries: int = 0
    retry_delay: Span = Span(seconds=1)

    def __post_init__(self) -> None:
        """Check what types cannot say.

        Raises:
            ValueError: It is not exactly one of the three, or the number of retries makes no sense.
        """
        if sum(map(bool, (self.command, self.shell, self.webhook))) != 1:
            msg = "a hook has exactly one of command, shell and webhook"
            raise ValueError(msg)
        if self.command and not self.command[0]:
            msg = "a command begins with the name of a program"
            raise ValueError(msg)
        if self.webhook and not self.webhook.startswith(("http://", "https://")):
            msg = f"{self.webhook!r} is not the URL of a webhook"
            raise ValueError(msg)
        if self.headers and not self.webhook:
            msg = "only a webhook has headers"
            raise ValueError(msg)
        if not 0 <= self.retries <= _RETRIES_MAX:
            msg = f"retries is expected to be 0 to {_RETRIES_MAX}"
            raise ValueError(msg)

    @property
    def label(self) -> str:
        """A short name for logs."""
        return self.webhook or self.shell or " ".join(self.command)


_Hooks: TypeAlias = tuple[tuple[str, ...] | Hook, ...]
"""In the configuration, a plain list of strings is a command."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events, and what to do about them.

    Attributes:
        name: For logs and `agent status`; "" becomes its place in the file.
        types: Event types; empty for all.
        sources: ``Platform``, ``User``; empty for all.
        min_duration: Least expected impact; an unknown one does not match.
        max_duration: Greatest expected impact; an unknown one does not match (R102).
        description: A regular expression that the description contains, in any case.
        affects: ``me``: this VM is in Resources; ``others``: it is not; ``any``.
        window: Times of the week at which it matches; empty for all. The event is seen first then.
        approve: ``at-once``; ``when-prepared``; ``by-hand``, with `forewarn agent approve`; ``never``.
        handlers: Built-in handlers: prepared in this order, before `prepare`; undone in reverse, after `recover`.
        prepare: Hooks when it is Scheduled.
        before_approval: Hooks just before the approval is sent.
        started: Hooks when it has started.
        recover: Hooks when it is over.
        canceled: Hooks when it was cancelled; empty: those of `recover`.
        alert: Hooks when a step has failed.
        on_failure: ``hold`` the approval when preparing fails, or ``approve`` anyway.
        interrupted: ``run-again`` a step during which the agent was killed, or ``mark`` it as failed.
        drain: Whether `/drainz` says that this VM should get no work; None: when the rule prepares something.
    """

    name: str = ""
    types: tuple[Literal["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"], ...] = ()
    sources: tuple[Literal["Platform", "User"], ...] = ()
    min_duration: Span | None = None
    max_duration: Span | None = None
    description: str | None = None
    affects: Literal["me", "others", "any"] = "me"
    window: tuple[Window, ...] = ()
    approve: Literal["at-once", "when-prepared", "by-hand", "never"] = "when-prepared"
    handlers: tuple[AnyHandler, ...] = ()
    prepare: _Hooks = ()
    before_approval: _Hooks = ()
    started: _Hooks = ()
    recover: _Hooks = ()
    canceled: _Hooks = ()
    alert: _Hooks = ()
    on_failure: Literal["hold", "approve"] = "hold"
    interrupted: Literal["run-again", "mark"] = "run-again"
    drain: bool | None = None

    def __post_init__(self) -> None:
        """Check what types cannot say.

        Raises:
            ValueError: It contradicts itself.
        """
        if self.approve == "at-once" and self.has_preparation:
            msg = "approve = 'at-once' does not wait for preparation: use 'when-prepared', or leave out what prepares"
            raise ValueError(msg)
        if self.description is not None:
            try:
                re.compile(self.description)
            except re.error as error:
                msg = f"description is not a regular expression: {error}"
                raise ValueError(msg) from error

    @property
    def has_preparation(self) -> bool:
        """Whether there is anything to do before the approval."""
        return bool(self.handlers or self.prepare)

    @property
    def drains(self) -> bool:
        """Whether this VM should get no work while such an event is there."""
        return self.has_preparation if self.drain is None else self.drain

    def hooks(self, step: Step) -> tuple[Hook, ...]:
        """The hooks of a step, in order; handlers are not among them."""
        given = {
            Step.PREPARE: self.prepare,
            Step.BEFORE_APPROVAL: self.before_approval,
            Step.STARTED: self.started,
            Step.RECOVER: self.recover,
            Step.CANCELED: self.canceled or self.recover,
            Step.ALERT: self.alert,
        }[step]
        return tuple(hook if isinstance(hook, Hook) else Hook(command=hook) for hook in given)


LOG_ONLY = Rule(name="none", affects="any", approve="never")
"""What holds when no rule matches."""


def matches(rule: Rule, event: Event, vm: str, local: datetime) -> bool:
    """Whether the rule is about that event.

    Args:
        rule: One of the configuration's.
        event: As it is seen first.
        vm: This VM's name.
        local: Now, in the time zone of the rules' windows.
    """
    duration = event.duration
    return (
        (not rule.types or event.type in rule.types)
        and (not rule.sources or event.source in rule.sources)
        and (rule.min_duration is None or (duration is not None and duration >= rule.min_duration))
        and (rule.max_duration is None or (duration is not None and duration <= rule.max_duration))
        and (rule.description is None or re.search(rule.description, event.description, re.IGNORECASE) is not None)
        and (rule.affects == "any" or event.affects(vm) == (rule.affects == "me"))
        and (not rule.window or any(window.holds(local) for window in rule.window))
    )


def first_match(rules: tuple[Rule, ...], event: Event, vm: str, local: datetime) -> Rule:
    """The first rule about that event; `LOG_ONLY` when there is none."""
    return next((rule for rule in rules if matches(rule, event, vm, local)), LOG_ONLY)
