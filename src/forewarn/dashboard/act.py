"""What buttons do: the commands of the control API, for somebody with a browser."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from forewarn.commit import Key
from forewarn.control.context import Context
from forewarn.core import rollout_commands
from forewarn.core.approval import Approver
from forewarn.errors import InvalidRequest, NotFound
from forewarn.wire.control import MaintenanceIn

__all__ = ["approve", "on_maintenance", "on_rollout", "schedule"]

_REASON_MAX = 1000


def _reason(form: Mapping[str, str], verb: str = "") -> str | None:
    text = form.get("reason", "").strip()
    if len(text) > _REASON_MAX or "\x00" in text:
        msg = f"the reason is longer than {_REASON_MAX} characters, or holds what is no text"
        raise InvalidRequest(msg)
    if not text and verb:
        msg = f"to {verb}, say why: the reason stands in the ledger"
        raise InvalidRequest(msg)
    return text or None


async def on_maintenance(context: Context, verb: str, maintenance_id: str, form: Mapping[str, str], actor: str) -> None:
    """Cancel, start or complete a maintenance.

    Raises:
        NotFound: There is no such verb, or no such maintenance.
        InvalidRequest: A start without a reason.
        Conflict: Its state does not allow it.
    """
    engine = context.engine
    match verb:
        case "cancel":
            await engine.cancel(maintenance_id, actor=actor, reason=_reason(form))
        case "start":
            await engine.start(maintenance_id, actor=actor, reason=_reason(form, "start it now") or "")
        case "complete":
            await engine.complete(maintenance_id, actor=actor)
        case _:
            raise _no_verb(verb)


async def approve(context: Context, event_id: str, actor: str) -> None:
    """Approve an event for its VMs (X6).

    Raises:
        NotFound: There is none of that id.
    """
    approval = await context.engine.approve([event_id.upper()], Approver(actor=actor))
    if approval.unknown:
        msg = f"event {event_id!r} does not exist"
        raise NotFound(msg, id=event_id)


async def on_rollout(context: Context, verb: str, rollout_id: str, form: Mapping[str, str], actor: str) -> None:
    """Pause, resume or abort a rollout.

    Raises:
        NotFound: There is no such verb, or no such rollout.
        Conflict: Its state does not allow it.
    """
    reason = _reason(form)
    changes = {
        "pause": (lambda r, now: rollout_commands.pause(r, now, reason=reason), "paused"),
        "resume": (lambda r, now: rollout_commands.resume(r, now, accept_health="accept" in form), "resumed"),
        "abort": (lambda r, now: rollout_commands.abort(r, now, reason=reason), "aborted"),
    }
    if verb not in changes:
        raise _no_verb(verb)
    change, word = changes[verb]
    await context.engine.change_rollout(rollout_id, change, word, actor=actor)


async def schedule(context: Context, wanted: MaintenanceIn, key: str, actor: str) -> list[str]:
    """Schedule what the form says, once for each key: a form that is sent twice makes one maintenance.

    Returns:
        The ids.
    """
    content = f"{actor}\n{wanted.model_dump_json()}".encode()
    once = Key(key=f"{actor}/form/{key[:100]}", fingerprint=hashlib.sha256(content).hexdigest()) if key else None
    made = await context.engine.schedule(wanted.to_request(), actor=actor, key=once)
    return [maintenance.id for maintenance in made]


def _no_verb(verb: str) -> NotFound:
    return NotFound(f"there is no button {verb!r}")
