"""Runner of steps: built-in handlers, commands and webhooks, in the order that the rule gives.

Preparation runs handlers, then hooks; recovery runs hooks, then handlers in reverse order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from forewarn.agent.codec import encode_json
from forewarn.agent.handlers.contract import BuiltInHandler, CommandResult
from forewarn.agent.process import run_process
from forewarn.agent.record import EventRecord
from forewarn.agent.rule import EventStep, Hook
from forewarn.agent.webhook_body import PLACEHOLDERS, fill_body
from forewarn.client.exchange import HttpRequest
from forewarn.client.transport import AsyncHttpTransport
from forewarn.clock import Clock
from forewarn.errors import ForewarnError, HookFailed
from forewarn.wire.document import Event

__all__ = [
    "VARIABLES",
    "DryRunExecutor",
    "LiveStepExecutor",
    "Remember",
    "StepExecutor",
    "build_environment",
    "build_payload",
    "build_placeholder_values",
]

_log = logging.getLogger("forewarn.agent")

Remember = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Saves the memory of the handler at that position in the rule; it is on disk when this returns."""

_SUCCESS = range(200, 300)
# Windows allows 32,767 characters for a variable, Linux 128 KiB.
_VARIABLE_BYTES_MAX = 32_000
_HEADLINE_NAME_MAX = 50


class StepExecutor(Protocol):
    """Runner of steps."""

    async def run(self, record: EventRecord, step: EventStep, vm: str, save_memory: Remember, reason: str = "") -> str:
        """Do what the event's rule requires at that step; cancelling stops it.

        Args:
            record: The event and its rule.
            step: Step to run.
            vm: This VM's name.
            save_memory: Function that saves the memory of handlers.
            reason: Reason for an alert.

        Returns:
            End of the output of the hooks.

        Raises:
            HookFailed: The step failed. In its details, ``output`` is the end of the output, ``exit_status`` the status
                of the command that failed, and ``has_timed_out`` is true if it took too long.
        """


class DryRunExecutor:
    """`StepExecutor` that only logs what it would do."""

    async def run(self, record: EventRecord, step: EventStep, vm: str, save_memory: Remember, reason: str = "") -> str:
        """Log it."""
        del vm, save_memory, reason
        would = [f"run {hook.label}" for hook in record.rule.get_hooks(step)]
        handled = [line for handler in record.rule.handlers for line in handler.describe_actions()]
        if step is EventStep.PREPARE:
            would = [*handled, *would]
        elif step in {EventStep.RECOVER, EventStep.CANCELED}:
            would += [f"undo: {line}" for line in reversed(handled)]
        for line in would:
            _log.info("dry run: %s would %s", step, line, extra={"event_id": record.event.id})
        return ""


class LiveStepExecutor:
    """`StepExecutor` that runs handlers and hooks.

    Args:
        clock: Clock for handlers.
        output_size_bytes_max: Maximum size of a hook's output that is kept.
    """

    def __init__(self, clock: Clock, output_size_bytes_max: int = 64 << 10) -> None:
        self._clock = clock
        self._output_size_bytes_max = output_size_bytes_max

    async def run(self, record: EventRecord, step: EventStep, vm: str, save_memory: Remember, reason: str = "") -> str:
        """Run handlers and hooks, one after the other."""
        handled = [
            (
                handler,
                _StepContext(
                    event=record.event,
                    vm=vm,
                    position=str(place),
                    save_memory=save_memory,
                    memory=dict(record.memory.get(str(place), {})),
                    clock=self._clock,
                    output_size_bytes_max=self._output_size_bytes_max,
                ),
            )
            for place, handler in enumerate(record.rule.handlers)
        ]
        hooks = record.rule.get_hooks(step)
        hook_input = _HookInput(
            payload=build_payload(record, step, vm, reason),
            variables=os.environ | build_environment(record, step, vm, reason),
            placeholder_values=build_placeholder_values(record, step, vm, reason),
        )
        match step:
            case EventStep.PREPARE:
                for handler, occasion in handled:
                    await _run_within_limit(handler, handler.prepare(occasion))
            case EventStep.STARTED:
                for handler, occasion in handled:
                    await _run_within_limit(handler, handler.react_to_start(occasion))
            case EventStep.RECOVER | EventStep.CANCELED:
                return await self._undo_all(handled, hooks, hook_input)
        return self._join_and_truncate([await self._run_hook(hook, hook_input) for hook in hooks])

    async def _undo_all(
        self, handled: Sequence[tuple[BuiltInHandler, _StepContext]], hooks: tuple[Hook, ...], hook_input: _HookInput
    ) -> str:
        """Undo everything that can be undone, even if a part of it fails."""
        failures: list[HookFailed] = []
        printed: list[str] = []

        async def attempt(work: Awaitable[str | None]) -> None:
            try:
                printed.append(await work or "")
            except HookFailed as error:
                failures.append(error)
                printed.append(str(error.details.get("output", "")))

        for hook in hooks:
            await attempt(self._run_hook(hook, hook_input))
        for handler, occasion in reversed(handled):
            await attempt(_run_within_limit(handler, handler.undo(occasion)))
        output = self._join_and_truncate(printed)
        if failures:
            # The details of the first failure win over those of later ones.
            details = {name: value for error in reversed(failures) for name, value in error.details.items()}
            raise HookFailed("; ".join(error.message for error in failures), **details | {"output": output})
        return output

    def _join_and_truncate(self, outputs: Iterable[str]) -> str:
        together = "".join(outputs)
        # Not [-max:], which would keep everything if the limit is 0.
        return together[max(len(together) - self._output_size_bytes_max, 0) :]

    async def _run_hook(self, hook: Hook, hook_input: _HookInput) -> str:
        """Run one hook, with its retries."""
        tries = hook.retries + 1
        for number in range(1, tries + 1):
            try:
                return await self._try_hook(hook, hook_input)
            except HookFailed as error:
                if number == tries:
                    raise
                _log.warning("%s; retrying", error.message)
                await asyncio.sleep(hook.retry_delay.total_seconds())
        raise AssertionError  # pragma: no cover - the last try returns or raises

    async def _try_hook(self, hook: Hook, hook_input: _HookInput) -> str:
        timeout_s = hook.timeout.total_seconds()
        if hook.webhook:
            body = fill_body(hook.template, hook.body, hook_input.placeholder_values) or hook_input.payload
            await _post_webhook(hook, body, timeout_s)
            return ""
        ran = await run_process(
            hook.shell or hook.command,
            stdin=hook_input.payload,
            environment=hook_input.variables,
            timeout_s=timeout_s,
            output_size_bytes_max=self._output_size_bytes_max,
        )
        if ran.status:
            raise _build_command_error(hook.label, ran)
        return ran.output + ran.errors


async def _run_within_limit(handler: BuiltInHandler, work: Awaitable[None]) -> None:
    """Await a handler's method, within the handler's time limit."""
    limit = asyncio.timeout(handler.timeout.total_seconds())
    try:
        async with limit:
            await work
    except HookFailed as error:
        raise HookFailed(f"handler {handler.name}: {error.message}", **error.details) from error
    except Exception as error:
        # The handler may raise its own TimeoutError; only an expired limit is this one.
        if limit.expired():
            msg = f"handler {handler.name} took longer than {handler.timeout.total_seconds():g} s"
            raise HookFailed(msg, has_timed_out=True) from error
        # One broken handler must not keep the others from being undone.
        _log.exception("handler %s failed unexpectedly", handler.name)
        raise HookFailed(f"handler {handler.name} failed unexpectedly: {type(error).__name__}: {error}") from error


async def _post_webhook(hook: Hook, body: bytes, timeout_s: float) -> None:
    """Send a body to a webhook."""
    parts = urlsplit(hook.webhook)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # Title case for all names, so that given headers replace the default one.
    headers = {"Content-Type": "application/json"} | {name.title(): value for name, value in hook.headers.items()}
    request = HttpRequest(method="POST", path=path, headers=headers, body=body, timeout_s=timeout_s)
    http = AsyncHttpTransport(f"{parts.scheme}://{parts.netloc}", connect_timeout_s=timeout_s)
    try:
        # The transport would allow the time limit twice: for connecting, and for the request.
        async with asyncio.timeout(timeout_s):
            answer = await http.send(request)
    except TimeoutError as error:
        raise HookFailed(f"webhook {parts.netloc} took longer than {timeout_s:g} s", has_timed_out=True) from error
    except ForewarnError as error:
        # The rest of the message calls the webhook a metadata endpoint.
        raise HookFailed(f"webhook {parts.netloc} does not answer: {error.message.rpartition(': ')[2]}") from error
    finally:
        await http.close()
    if answer.status not in _SUCCESS:
        raise HookFailed(f"webhook {parts.netloc} answered {answer.status}")


def _build_command_error(label: str, ran: CommandResult) -> HookFailed:
    """Return the error for a failed command, with its last line of output; output and status are in the details."""
    lines = (ran.errors.strip() or ran.output.strip()).splitlines()
    how = f"was killed by {_signal_name(-ran.status)}" if ran.status < 0 else f"ended with status {ran.status}"
    msg = f"{label} {how}" + (f": {lines[-1]}" if lines else "")
    return HookFailed(msg, output=ran.output + ran.errors, exit_status=ran.status)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Input of hooks

# The other placeholders only serve messages for people.
VARIABLES = {
    f"FOREWARN_{name.upper()}": meaning
    for name, meaning in PLACEHOLDERS.items()
    if name not in {"headline", "event_duration"}
}
"""Every variable that a hook gets in its environment in addition to the agent's own, with its meaning."""


def build_environment(record: EventRecord, step: EventStep, vm: str, reason: str = "") -> dict[str, str]:
    """Return the variables for a hook's environment; very long values are cut, because systems limit their size."""
    event = record.event
    variables = {
        "EVENT_ID": event.id,
        "EVENT_TYPE": event.type,
        "EVENT_STATUS": event.status,
        "EVENT_RESOURCES": _truncate_value(",".join(event.resources), end=","),
        "EVENT_NOT_BEFORE": _format_not_before(event),
        "EVENT_DESCRIPTION": _truncate_value(event.description),
        "EVENT_SOURCE": event.source,
        "EVENT_DURATION_S": str(event.duration_s),
        "STEP": step.value,
        "VM": vm,
        "RULE": record.rule.name,
        "PREPARED": "true" if record.is_prepared else "false",
        "REASON": reason,
    }
    # A variable cannot hold a NUL, but a description from the endpoint can.
    return {f"FOREWARN_{name}": value.replace("\0", "") for name, value in variables.items()}


_HEADLINES = {
    EventStep.PREPARE: " is announced",
    EventStep.BEFORE_APPROVAL: " is about to be approved",
    EventStep.STARTED: " has started",
    EventStep.RECOVER: " is over",
    EventStep.CANCELED: " is canceled",
    EventStep.ALERT: ": a step has failed",
}


def build_placeholder_values(record: EventRecord, step: EventStep, vm: str, reason: str = "") -> dict[str, str]:
    """Return the values of the placeholders in a webhook's body; see `webhook_body.PLACEHOLDERS`."""
    event = record.event
    variables = build_environment(record, step, vm, reason)
    values = {name.removeprefix("FOREWARN_").lower(): value for name, value in variables.items()}
    seconds = event.duration_s
    return values | {
        "headline": f"{event.type[:_HEADLINE_NAME_MAX]} of {_describe_vms(event, vm)}{_HEADLINES[step]}",
        "event_resources": values["event_resources"].replace(",", ", "),
        "event_duration": f"{seconds} s" if seconds > 0 else "unknown" if seconds else "none",
    }


def _describe_vms(event: Event, vm: str) -> str:
    """Name the VMs that an event hits, in a few words, beginning with this VM."""
    first = vm if event.affects(vm) else next(iter(event.resources), "no VM")
    others = len(event.resources) - 1
    return first[:_HEADLINE_NAME_MAX] + (f" and {others} more" if others > 0 else "")


def _truncate_value(text: str, end: str = "") -> str:
    """Cut a text to the size of a variable, at a separator if one is given."""
    content = text.encode()
    if len(content) <= _VARIABLE_BYTES_MAX:
        return text
    # The cut may be in the middle of a character, whose rest is dropped.
    cut = content[:_VARIABLE_BYTES_MAX].decode("utf-8", "ignore")
    return cut.rpartition(end)[0] if end else cut


def build_payload(record: EventRecord, step: EventStep, vm: str, reason: str = "") -> bytes:
    """Return the JSON that a command reads from standard input, and a webhook gets as its body."""
    event = record.event
    return encode_json(
        {
            "step": step.value,
            "vm": vm,
            "rule": record.rule.name,
            "prepared": record.is_prepared,
            "reason": reason,
            "event": {
                "id": event.id,
                "type": event.type,
                "status": event.status,
                "resources": event.resources,
                "not_before": _format_not_before(event),
                "description": event.description,
                "source": event.source,
                "duration_s": event.duration_s,
            },
        }
    )


def _format_not_before(event: Event) -> str:
    return "" if event.not_before is None else event.not_before.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class _HookInput:
    """Input of the hooks of one step."""

    payload: bytes
    variables: Mapping[str, str]
    placeholder_values: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class _StepContext:
    """The `HandlerContext` of one handler."""

    event: Event
    vm: str
    position: str
    save_memory: Remember
    memory: dict[str, Any] = field(default_factory=dict)
    clock: Clock
    output_size_bytes_max: int

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def remember(self, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        self.memory = self.memory | facts
        await self.save_memory(self.position, self.memory)

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        ran = await run_process(
            command,
            stdin=stdin,
            environment=os.environ,
            # If no limit is given, the time limit of the handler's method applies.
            timeout_s=timeout_s if timeout_s is not None else 86_400,
            # Handlers parse this output, so the configured limit, which may be 0, must not cut it short.
            output_size_bytes_max=max(self.output_size_bytes_max, 1 << 20),
        )
        if is_checked and ran.status:
            raise _build_command_error(" ".join(command), ran)
        return ran

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def log(self, text: str) -> None:
        _log.info("%s", text, extra={"event_id": self.event.id})
