"""Actions of the dashboard's buttons: commands of the control API, sent from a browser."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta

from pydantic import BaseModel, ValidationError

from forewarn.control import commands
from forewarn.control.access import ROUTES
from forewarn.control.context import Context
from forewarn.core.access import Principal, Token
from forewarn.core.rollout import rollout_commands
from forewarn.dashboard.forms import describe_invalid_field
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.errors import Conflict, Forbidden, InvalidRequest, NotFound
from forewarn.net.outbound import PostOutcome
from forewarn.util.duration import parse_duration
from forewarn.wire.access import AccessTokenIn
from forewarn.wire.control_request import MaintenanceIn
from forewarn.wire.subscription import RedeliveryIn

__all__ = [
    "act_on_maintenance",
    "act_on_rollout",
    "act_on_subscription",
    "approve_event",
    "check_button_allowed",
    "check_maintenance_action",
    "create_token",
    "list_allowed_buttons",
    "recover_host",
    "revoke_token",
    "schedule_maintenance",
    "test_subscription",
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
    # One entry for pause, resume and abort, which the same roles may call.
    "rollout": "POST /v1/rollouts/{rollout_id}/pause",
    "create-token": "POST /v1/tokens",
    "revoke-token": "DELETE /v1/tokens/{token_id}",
    # One entry for all buttons of a subscription, which the same roles may call.
    "subscription": "POST /v1/subscriptions/{name}/pause",
}
"""API route for each button: the roles that may call the route may press the button."""

_MAINTENANCE_VERBS = frozenset({"cancel", "start", "complete", "defer", "extend"})


def list_allowed_buttons(caller: Principal) -> set[str]:
    """Return the buttons that the caller's role may press."""
    return {name for name, route in _BUTTONS.items() if caller.role in ROUTES[route]}


def check_button_allowed(caller: Principal, name: str) -> None:
    """Check that the caller may press a button.

    Raises:
        Forbidden: The caller's role may not.
    """
    if name not in list_allowed_buttons(caller):
        raise Forbidden(f"{caller.actor} may not do this: not allowed for role {caller.role}", role=caller.role.value)


async def act_on_maintenance(
    context: Context, verb: str, maintenance_id: str, form: Mapping[str, str], caller: Principal
) -> None:
    """Cancel, start, complete, defer or extend a maintenance.

    Raises:
        NotFound: The verb does not exist, or the maintenance does not exist for the caller.
        Forbidden: The caller may not press the button.
        InvalidRequest: A start has no reason, or a duration cannot be read.
        Conflict: The state or the limits of the maintenance do not allow it.
    """
    check_maintenance_action(verb, form, caller)
    maintenances, reason = context.engine.maintenances, _read_reason(form)
    match verb:
        case "cancel":
            await commands.cancel_maintenance(context, caller, maintenance_id, reason=reason)
        case "start":
            await maintenances.start(maintenance_id, actor=caller.actor, reason=reason or "")
        case "complete":
            await maintenances.complete(maintenance_id, actor=caller.actor)
        case "defer":
            by = _parse_duration_field(form, "by")
            await commands.defer_maintenance(context, caller, maintenance_id, by=by, reason=reason)
        case "extend":
            by, tenant = _parse_duration_field(form, "by"), form.get("tenant") or None
            await commands.extend_maintenance(context, caller, maintenance_id, by, tenant=tenant, reason=reason)


def check_maintenance_action(verb: str, form: Mapping[str, str], caller: Principal) -> None:
    """Check that a button of a maintenance may be pressed, before the page asks for confirmation.

    Raises:
        NotFound: The verb does not exist.
        Forbidden: The caller may not press the button.
        InvalidRequest: A start has no reason.
    """
    if verb not in _MAINTENANCE_VERBS:
        raise _unknown_button_error(verb)
    check_button_allowed(caller, verb)
    _read_reason(form, "start it now" if verb == "start" else "")


async def recover_host(context: Context, name: str, form: Mapping[str, str], caller: Principal) -> None:
    """Report that a failed host works again.

    Raises:
        NotFound: The host does not exist.
        Forbidden: The caller may not press the button.
        Conflict: The host has not failed.
    """
    check_button_allowed(caller, "recover")
    await context.engine.inventory.recover_host(name, actor=caller.actor, reason=_read_reason(form))


async def approve_event(context: Context, event_id: str, caller: Principal) -> None:
    """Approve an event for its VMs (X6).

    Raises:
        NotFound: No event of the caller has that id.
        Forbidden: The caller may not press the button.
        Conflict: A policy leaves the approval to another party.
    """
    check_button_allowed(caller, "approve")
    (outcome,) = (await commands.approve_events(context, caller, [event_id])).values()
    if outcome == "unknown":
        raise NotFound(f"event {event_id!r} does not exist", id=event_id)
    if outcome == "refused":
        raise Conflict(f"cannot approve event {event_id!r}: a policy leaves its approval to another party", id=event_id)


async def act_on_rollout(
    context: Context, verb: str, rollout_id: str, form: Mapping[str, str], caller: Principal
) -> None:
    """Pause, resume or abort a rollout.

    Raises:
        NotFound: The verb or the rollout does not exist.
        Forbidden: The caller may not press the button.
        Conflict: The state of the rollout does not allow it.
    """
    check_button_allowed(caller, "rollout")
    reason = _read_reason(form)
    changes = {
        "pause": (lambda r, now: rollout_commands.pause_rollout(r, now, reason=reason), "paused"),
        "resume": (lambda r, now: rollout_commands.resume_rollout(r, now, accept_health="accept" in form), "resumed"),
        "abort": (lambda r, now: rollout_commands.abort_rollout(r, now, reason=reason), "aborted"),
    }
    if verb not in changes:
        raise _unknown_button_error(verb)
    change, word = changes[verb]
    await context.engine.rollouts.change(rollout_id, change, word, actor=caller.actor)


async def schedule_maintenance(context: Context, wanted: MaintenanceIn, key: str, caller: Principal) -> list[str]:
    """Schedule the maintenance of a form once for each key, also if the form is sent twice; return the ids.

    Raises:
        Forbidden: The caller may not press the button.
    """
    check_button_allowed(caller, "schedule")
    actor = caller.actor
    once = _make_form_key(actor, key, wanted)
    made = await context.engine.maintenances.schedule(wanted.to_request(), actor=actor, key=once)
    return [maintenance.id for maintenance in made]


async def create_token(context: Context, wanted: AccessTokenIn, key: str, caller: Principal) -> tuple[Token, str]:
    """Create the token of a form once for each key; return it with its secret.

    Raises:
        Forbidden: The caller may not press the button.
        Conflict: The form was sent before.
    """
    check_button_allowed(caller, "create-token")
    return await commands.create_token(
        context, wanted, actor=caller.actor, key=_make_form_key(caller.actor, key, wanted)
    )


async def revoke_token(context: Context, token_id: str, caller: Principal) -> None:
    """Revoke a token.

    Raises:
        NotFound: No token has this id.
        Forbidden: The caller may not press the button.
    """
    check_button_allowed(caller, "revoke-token")
    await context.engine.tokens.revoke(token_id, actor=caller.actor)


async def act_on_subscription(
    context: Context, verb: str, name: str, form: Mapping[str, str], caller: Principal
) -> None:
    """Pause, resume or delete a subscription, or send its dead deliveries again.

    Raises:
        NotFound: The verb, the subscription or the delivery does not exist.
        Forbidden: The caller may not press the button.
        InvalidRequest: The reason is too long, or the id is not that of a delivery.
        Conflict: The subscription is paused, so that nothing can be sent.
    """
    check_button_allowed(caller, "subscription")
    subscriptions = context.engine.subscriptions
    match verb:
        case "pause":
            await subscriptions.pause(name, actor=caller.actor, reason=_read_reason(form))
        case "resume":
            await subscriptions.resume(name, actor=caller.actor, is_skipping="skip" in form)
        case "delete":
            await subscriptions.delete(name, actor=caller.actor)
        case "redeliver":
            await subscriptions.redeliver(name, _read_delivery_keys(form), actor=caller.actor)
        case _:
            raise _unknown_button_error(verb)


async def test_subscription(context: Context, name: str, caller: Principal) -> PostOutcome:
    """Post a ping to the receiver of a subscription; return its answer.

    Raises:
        NotFound: The subscription does not exist.
        Forbidden: The caller may not press the button.
    """
    check_button_allowed(caller, "subscription")
    return await context.notifier.send_ping(name)


def _read_delivery_keys(form: Mapping[str, str]) -> list[tuple[int, str]] | None:
    """Return the key of the delivery that a form names; None if it names none, for all."""
    if "id" not in form:
        return None
    try:
        return RedeliveryIn(ids=[form["id"]]).to_keys()
    except ValidationError as error:
        raise InvalidRequest(describe_invalid_field(error)) from error


def _make_form_key(actor: str, key: str, wanted: BaseModel) -> IdempotencyKey | None:
    """Return the key under which a form takes effect once; None if the form has none."""
    if not key:
        return None
    content = f"{actor}\n{wanted.model_dump_json()}".encode()
    # Prefixed to keep the keys of forms apart from the Idempotency-Keys that the same person sends to the API.
    return IdempotencyKey(key=f"{actor}/form/{key[:100]}", fingerprint=hashlib.sha256(content).hexdigest())


def _read_reason(form: Mapping[str, str], verb: str = "") -> str | None:
    text = form.get("reason", "").strip()
    if len(text) > _REASON_MAX or "\x00" in text:
        raise InvalidRequest(f"the reason is longer than {_REASON_MAX} characters or contains a NUL character")
    if not text and verb:
        raise InvalidRequest(f"give a reason to {verb}: it is recorded in the audit log")
    return text or None


def _parse_duration_field(form: Mapping[str, str], name: str) -> timedelta:
    text = form.get(name, "").strip()
    try:
        if 0 < len(text) <= _SPAN_LENGTH_MAX:
            return parse_duration(text)
    except ValueError:
        pass
    raise InvalidRequest("enter a duration, for example 30m, 2h or 1d")


def _unknown_button_error(verb: str) -> NotFound:
    return NotFound(f"action {verb!r} does not exist")
