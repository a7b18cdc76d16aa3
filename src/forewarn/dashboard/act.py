"""Actions of the dashboard's buttons: commands of the control API, sent from a browser."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from forewarn.control import commands
from forewarn.control.access import ROUTES
from forewarn.control.context import Context
from forewarn.core import rollout_commands
from forewarn.core.access import Principal
from forewarn.engine.transaction import Key
from forewarn.errors import Conflict, Forbidden, InvalidRequest, NotFound
from forewarn.util.duration import parse_span
from forewarn.wire.control import MaintenanceIn

__all__ = [
    "approve",
    "check_maintenance",
    "check_may",
    "may",
    "on_maintenance",
    "on_rollout",
    "recover_host",
    "schedule",
]

_REASON_MAX = 1000
_SPAN_LENGTH_MAX = 40

_BUTTONS: Mapping[str, str] = {
    "approve": "POST /v1/events/approve",
    "cancel": "POST /v1/maintenance/{maintenance_id}/cancel",
    "defer": "POST /v1/maintenance/{maintenance_id}/defer",
    "extend": "POST /v1/maintenance/{maintenance_id}/extend",
    "start": "POST /v1/maintenance/{maintenance_id}/start",
    "complete": "POST /v1/maintenance/{maintenance_id}/complete",
    "schedule": "POST /v1/maintenance",
    "recover": "POST /v1/hosts/{name}/recover",
    "rollout": "POST /v1/rollouts/{rollout_id}/pause",
}
"""API route for each button: the roles that may call the route may press the button."""


def may(caller: Principal) -> set[str]:
    """Return the buttons that the caller's role may press."""
    return {name for name, route in _BUTTONS.items() if caller.role in ROUTES[route]}


def check_may(caller: Principal, name: str) -> None:
    """Check that the caller may press a button.

    Raises:
        Forbidden: The caller's role may not.
    """
    if name not in may(caller):
        msg = f"{caller.actor} may not do this: it is not for the role {caller.role}"
        raise Forbidden(msg, role=caller.role.value)


@dataclass(frozen=True, slots=True)
class _Press:
    """A press of a button of a maintenance."""

    context: Context
    caller: Principal
    maintenance_id: str
    form: Mapping[str, str]

    def reason(self, verb: str = "") -> str | None:
        return _reason(self.form, verb)


async def _cancel(press: _Press) -> None:
    await commands.cancel(press.context, press.caller, press.maintenance_id, reason=press.reason())


async def _start(press: _Press) -> None:
    reason = press.reason("start it now") or ""
    await press.context.engine.start(press.maintenance_id, actor=press.caller.actor, reason=reason)


async def _complete(press: _Press) -> None:
    await press.context.engine.complete(press.maintenance_id, actor=press.caller.actor)


async def _defer(press: _Press) -> None:
    by = _span(press.form, "by")
    await commands.defer(press.context, press.caller, press.maintenance_id, by=by, reason=press.reason())


async def _extend(press: _Press) -> None:
    by, tenant = _span(press.form, "by"), press.form.get("tenant") or None
    await commands.extend(press.context, press.caller, press.maintenance_id, by, tenant=tenant, reason=press.reason())


_VERBS: Mapping[str, Callable[[_Press], Awaitable[None]]] = {
    "cancel": _cancel,
    "start": _start,
    "complete": _complete,
    "defer": _defer,
    "extend": _extend,
}


async def on_maintenance(
    context: Context, verb: str, maintenance_id: str, form: Mapping[str, str], caller: Principal
) -> None:
    """Cancel, start, complete, defer or extend a maintenance.

    Raises:
        NotFound: The verb does not exist, or the maintenance does not exist for the caller.
        Forbidden: The caller may not press the button.
        InvalidRequest: A start has no reason, or a duration cannot be read.
        Conflict: The state or the limits of the maintenance do not allow it.
    """
    if verb not in _VERBS:
        raise _no_verb(verb)
    check_may(caller, verb)
    await _VERBS[verb](_Press(context, caller, maintenance_id, form))


def check_maintenance(verb: str, form: Mapping[str, str], caller: Principal) -> None:
    """Check that a button of a maintenance may be pressed, before the page asks for confirmation.

    Raises:
        NotFound: The verb does not exist.
        Forbidden: The caller may not press the button.
        InvalidRequest: A start has no reason.
    """
    if verb not in _VERBS:
        raise _no_verb(verb)
    check_may(caller, verb)
    _reason(form, "start it now" if verb == "start" else "")


async def recover_host(context: Context, name: str, form: Mapping[str, str], caller: Principal) -> None:
    """Report that a failed host works again.

    Raises:
        NotFound: The host does not exist.
        Forbidden: The caller may not press the button.
        Conflict: The host has not failed.
    """
    check_may(caller, "recover")
    await context.engine.recover_host(name, actor=caller.actor, reason=_reason(form))


async def approve(context: Context, event_id: str, caller: Principal) -> None:
    """Approve an event for its VMs (X6).

    Raises:
        NotFound: No event of the caller has that id.
        Forbidden: The caller may not press the button.
        Conflict: A policy leaves the approval to another party.
    """
    check_may(caller, "approve")
    (outcome,) = (await commands.approve(context, caller, [event_id])).values()
    if outcome == "unknown":
        msg = f"event {event_id!r} does not exist"
        raise NotFound(msg, id=event_id)
    if outcome == "refused":
        msg = f"the policy of those whom event {event_id!r} hits leaves its approval to others"
        raise Conflict(msg, id=event_id)


async def on_rollout(context: Context, verb: str, rollout_id: str, form: Mapping[str, str], caller: Principal) -> None:
    """Pause, resume or abort a rollout.

    Raises:
        NotFound: The verb or the rollout does not exist.
        Forbidden: The caller may not press the button.
        Conflict: The state of the rollout does not allow it.
    """
    check_may(caller, "rollout")
    reason = _reason(form)
    changes = {
        "pause": (lambda r, now: rollout_commands.pause(r, now, reason=reason), "paused"),
        "resume": (lambda r, now: rollout_commands.resume(r, now, accept_health="accept" in form), "resumed"),
        "abort": (lambda r, now: rollout_commands.abort(r, now, reason=reason), "aborted"),
    }
    if verb not in changes:
        raise _no_verb(verb)
    change, word = changes[verb]
    await context.engine.change_rollout(rollout_id, change, word, actor=caller.actor)


async def schedule(context: Context, wanted: MaintenanceIn, key: str, caller: Principal) -> list[str]:
    """Schedule the maintenance of a form, once for each key: a form sent twice schedules it once.

    Returns:
        Ids of the maintenances.

    Raises:
        Forbidden: The caller may not press the button.
    """
    check_may(caller, "schedule")
    actor = caller.actor
    content = f"{actor}\n{wanted.model_dump_json()}".encode()
    once = Key(key=f"{actor}/form/{key[:100]}", fingerprint=hashlib.sha256(content).hexdigest()) if key else None
    made = await context.engine.schedule(wanted.to_request(), actor=actor, key=once)
    return [maintenance.id for maintenance in made]


def _reason(form: Mapping[str, str], verb: str = "") -> str | None:
    text = form.get("reason", "").strip()
    if len(text) > _REASON_MAX or "\x00" in text:
        msg = f"the reason is longer than {_REASON_MAX} characters, or holds what is no text"
        raise InvalidRequest(msg)
    if not text and verb:
        msg = f"to {verb}, say why: the reason stands in the audit log"
        raise InvalidRequest(msg)
    return text or None


def _span(form: Mapping[str, str], name: str) -> timedelta:
    text = form.get(name, "").strip()
    try:
        if 0 < len(text) <= _SPAN_LENGTH_MAX:
            return parse_span(text)
    except ValueError:
        pass
    msg = "say by how much, for example 30m, 2h or 1d"
    raise InvalidRequest(msg)


def _no_verb(verb: str) -> NotFound:
    return NotFound(f"there is no button {verb!r}")
