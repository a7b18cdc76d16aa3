"""Rules of the configuration: the first that matches an event decides what is done about it.

Spec: R102
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from forewarn.agent.codec import Duration, InvalidValue
from forewarn.agent.handlers import AnyHandler
from forewarn.agent.webhook_body import check_body
from forewarn.agent.window import WeeklyWindow
from forewarn.client.transport import check_url
from forewarn.errors import ConfigError
from forewarn.wire.document import Event

__all__ = ["LOG_ONLY", "EventStep", "Hook", "Rule", "find_first_match", "matches_event", "matches_kind"]

_RETRIES_MAX = 100
_LABEL_LENGTH_MAX = 120
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Without line breaks, which would add headers of their own to the request.
_HEADER_VALUE = re.compile(r"[!-~]([ \t!-~]*[!-~])?")
# h11 frames the body by these, and a wrong value would break the request.
_OUR_HEADERS = {"content-length", "transfer-encoding"}


class EventStep(StrEnum):
    """A moment in the life of an event at which hooks run."""

    PREPARE = "prepare"
    """The event is Scheduled, or it started before the agent prepared anything: prepare the VM."""

    BEFORE_APPROVAL = "before-approval"
    """Preparation has ended, and the approval is about to be sent."""

    STARTED = "started"
    """The event has started: the impact may happen at any moment."""

    RECOVER = "recover"
    """The event is over: put the VM back to work."""

    CANCELED = "canceled"
    """The event disappeared before `NotBefore`, neither approved nor started."""

    ALERT = "alert"
    """A step has failed."""


class Hook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command or a webhook.

    Attributes:
        command: Program and arguments, run without a shell.
        shell: Command line for the system's shell, instead of `command`.
        webhook: URL to which the agent posts a message, instead of `command`.
        headers: Headers of the webhook's request.
        template: Service behind the webhook. ``slack``, ``teams`` (a workflow's webhook) and ``discord`` get a message
            for people. With ``forewarn``, the webhook gets the JSON that hook commands read from standard input.
        body: JSON to send instead of the message of `template`. Its strings may hold placeholders like
            ``$event_type``. The agent escapes their values for the service that `template` names.
        timeout: Time limit for one attempt.
        retries: Number of further attempts after a failure.
        retry_delay: Pause before each further attempt.
    """

    command: tuple[str, ...] = ()
    shell: str = ""
    webhook: str = ""
    headers: dict[str, str] = {}
    template: Literal["forewarn", "slack", "teams", "discord"] = "forewarn"
    body: str = ""
    timeout: Duration = Duration(minutes=5)
    retries: int = 0
    retry_delay: Duration = Duration(seconds=1)

    def __post_init__(self) -> None:
        """Refuse, by an InvalidValue, settings that contradict each other, and a hook that could never run."""
        if sum(map(bool, (self.command, self.shell, self.webhook))) != 1:
            raise InvalidValue("a hook needs exactly one of command, shell and webhook")
        if self.command and not self.command[0]:
            raise InvalidValue("a command must begin with the name of a program", "command")
        if "\0" in self.shell or any("\0" in argument for argument in self.command):
            raise InvalidValue("a command cannot contain a NUL character", "shell" if self.shell else "command")
        if self.webhook and not _is_url(self.webhook):
            # The URL may hold a secret, so the message does not repeat it.
            msg = "expected a URL without user and password, for example https://example.com/maintenance"
            raise InvalidValue(msg, "webhook")
        self._check_headers()
        self._check_body()
        if not 0 <= self.retries <= _RETRIES_MAX:
            raise InvalidValue(f"{self.retries} is out of range: expected 0 to {_RETRIES_MAX}", "retries")
        _check_timeout(self.timeout, "timeout")

    def _check_headers(self) -> None:
        if self.headers and not self.webhook:
            raise InvalidValue("only a webhook can have headers", "headers")
        for name, value in self.headers.items():
            if _HEADER_NAME.fullmatch(name) is None or name.lower() in _OUR_HEADERS:
                msg = f"{name!r} cannot be set" if name.lower() in _OUR_HEADERS else f"{name!r} is not a header name"
                raise InvalidValue(msg, "headers", name)
            if value and _HEADER_VALUE.fullmatch(value) is None:
                raise InvalidValue("expected printable ASCII characters, without spaces around them", "headers", name)

    def _check_body(self) -> None:
        if self.template != "forewarn" and not self.webhook:
            raise InvalidValue("only a webhook can have a template", "template")
        if self.body and not self.webhook:
            raise InvalidValue("only a webhook can have a body", "body")
        if self.body:
            try:
                check_body(self.body)
            except ValueError as error:
                raise InvalidValue(str(error), "body") from error

    @property
    def label(self) -> str:
        """A short name for logs, on one line. It omits all of a URL after the host, which may be secret."""
        if self.webhook:
            return f"webhook {urlsplit(self.webhook).netloc}"
        label = " ".join((self.shell or " ".join(self.command)).split())
        return label if len(label) <= _LABEL_LENGTH_MAX else label[: _LABEL_LENGTH_MAX - 3] + "..."


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        check_url(f"{parts.scheme}://{parts.netloc}")
    except (ValueError, ConfigError):
        return False
    return url.isascii() and url.isprintable() and " " not in url


def _check_timeout(timeout: Duration, *keys: str | int) -> None:
    if not timeout:
        raise InvalidValue("expected more than 0s", *keys)


_Hooks: TypeAlias = tuple[tuple[str, ...] | Hook, ...]
"""Hooks as configured; a plain list of strings is a command."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition on events, and the response to those that match.

    Attributes:
        name: Name for logs and `agent status`; if not set, the rule's position in the file, such as ``rule 2``.
        types: Event types that match; if not set, all types.
        sources: Event sources that match, ``Platform`` or ``User``; if not set, both.
        min_duration: Minimum expected duration of the impact; an unknown duration does not match.
        max_duration: Maximum expected duration of the impact; an unknown duration does not match.
        description: Regular expression that must match a part of the event's description; case is ignored.
        affects: ``me``: events with this VM in `Resources` match; ``others``: events without this VM match; ``any``:
            both match.
        window: Times of the week. The rule matches only if the agent first sees the event during one of them. If not
            set, the rule matches at any time.
        approve: When the agent approves: ``at-once``, ``when-prepared``, ``by-hand`` (a person runs `forewarn agent
            approve`) or ``never``.
        handlers: Built-in handlers. To prepare, they run in this order, before the hooks of `prepare`. To recover,
            they run in reverse order, after the hooks of `recover`.
        prepare: Hooks that prepare the VM for the event.
        before_approval: Hooks that run just before the approval is sent.
        started: Hooks for an event that has started.
        recover: Hooks that put the VM back to work after the event.
        canceled: Hooks to run instead of `recover` if the event was canceled; if not set, the hooks of `recover`.
        alert: Hooks for a failed step.
        on_failure: What the agent does if a step before the approval fails: ``hold`` the approval, or ``approve``
            anyway.
        interrupted: What the agent does with a step during which the agent was killed: ``run-again`` repeats the step,
            ``mark`` marks the step as failed.
        drain: True to let `/drainz` report, during the event, that this VM should get no work. If not set: true for
            rules with `handlers` or `prepare`.
    """

    name: str = ""
    types: tuple[Literal["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"], ...] = ()
    sources: tuple[Literal["Platform", "User"], ...] = ()
    min_duration: Duration | None = None
    max_duration: Duration | None = None
    description: str | None = None
    affects: Literal["me", "others", "any"] = "me"
    window: tuple[WeeklyWindow, ...] = ()
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
        """Refuse, by an InvalidValue, contradictory settings, and a rule that could never be carried out."""
        if self.approve == "at-once" and self.has_preparation:
            msg = "'at-once' does not wait for preparation: use 'when-prepared', or remove the preparation"
            raise InvalidValue(msg, "approve")
        if self.min_duration is not None and self.max_duration is not None and self.min_duration > self.max_duration:
            raise InvalidValue("greater than max_duration, so no event would match", "min_duration")
        if self.description is not None:
            try:
                re.compile(self.description, re.IGNORECASE)
            # `re` raises the latter two for huge repetition counts and for deep nesting.
            except (re.error, OverflowError, RecursionError) as error:
                raise InvalidValue(f"not a valid regular expression: {error}", "description") from error
        for place, handler in enumerate(self.handlers):
            # Checked here, because each handler's `__post_init__` would have to repeat it.
            _check_timeout(handler.timeout, "handlers", place, "timeout")
        for step in EventStep:
            self._check_commands(step)

    def _check_commands(self, step: EventStep) -> None:
        """Check the hooks that are plain lists; the others have been checked already."""
        for place, hook in enumerate(self._get_configured_hooks(step)):
            try:
                _convert_to_hook(hook)
            except InvalidValue as mistake:
                raise InvalidValue(str(mistake), step.name.lower(), place) from mistake

    @property
    def conditions(self) -> tuple[object, ...]:
        """Settings that select events."""
        kind = (self.types, self.sources, self.min_duration, self.max_duration)
        return (*kind, self.description, self.affects, self.window)

    @property
    def has_preparation(self) -> bool:
        """True if there is anything to do before the approval."""
        return bool(self.handlers or self.prepare)

    @property
    def drains_vm(self) -> bool:
        """True if this VM should get no work during such an event."""
        return self.has_preparation if self.drain is None else self.drain

    def get_hooks(self, step: EventStep) -> tuple[Hook, ...]:
        """Return the hooks of a step, in order, without handlers."""
        return tuple(map(_convert_to_hook, self._get_configured_hooks(step)))

    def _get_configured_hooks(self, step: EventStep) -> _Hooks:
        """Return the hooks of a step as configured."""
        # Most rules put things back in the same way, whether the event happened or not.
        if step is EventStep.CANCELED and not self.canceled:
            step = EventStep.RECOVER
        hooks: _Hooks = getattr(self, step.name.lower())
        return hooks


def _convert_to_hook(configured: tuple[str, ...] | Hook) -> Hook:
    return configured if isinstance(configured, Hook) else Hook(command=configured)


# With `never`, this VM asks its peers to hold an event for which it has no rule.
LOG_ONLY = Rule(name="none", affects="any", approve="never")
"""Rule for events that no other rule matches."""


def matches_event(rule: Rule, event: Event, vm: str, local: datetime) -> bool:
    """Return True if the rule matches the event, first seen at `local` in the time zone of the rules' windows."""
    return (
        matches_kind(rule, event.type, event.source, event.duration, is_mine=event.affects(vm))
        and (rule.description is None or re.search(rule.description, event.description, re.IGNORECASE) is not None)
        and (not rule.window or any(window.contains_time(local) for window in rule.window))
    )


def matches_kind(rule: Rule, event_type: str, source: str, duration: timedelta | None, *, is_mine: bool) -> bool:
    """Return True if the rule matches events of that kind, ignoring descriptions and the time.

    The duration of the impact is None if it is unknown; `is_mine` is true if this VM is in Resources.
    """
    return (
        (not rule.types or event_type in rule.types)
        and (not rule.sources or source in rule.sources)
        and (rule.min_duration is None or (duration is not None and duration >= rule.min_duration))
        and (rule.max_duration is None or (duration is not None and duration <= rule.max_duration))
        and (rule.affects == "any" or is_mine == (rule.affects == "me"))
    )


def find_first_match(rules: tuple[Rule, ...], event: Event, vm: str, local: datetime) -> Rule:
    """Return the first rule that matches the event; `LOG_ONLY` if there is none."""
    return next((rule for rule in rules if matches_event(rule, event, vm, local)), LOG_ONLY)
