"""Confirmation of irreversible actions: a page asks first, and its form repeats the request with a confirmation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from forewarn.control.context import Context, find_maintenance
from forewarn.core.access import Principal
from forewarn.core.subscription import DeliveryState, Subscription
from forewarn.engine.subscriptions import find_subscription
from forewarn.errors import NotFound
from forewarn.store.contract import Reader

__all__ = [
    "Confirmation",
    "confirm_maintenance_action",
    "confirm_rollout_action",
    "confirm_subscription_action",
    "confirm_token_revocation",
    "is_confirmed",
]

_CONFIRM = "confirm"
_NAMES_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """A question to confirm an action.

    Attributes:
        title: The question in a few words.
        text: Consequences, and the VMs or hosts affected.
        button: Label of the button.
        action: Path that the form is sent to.
        back: Path of the page with the original button.
        fields: Fields of the original form, and the confirmation.
    """

    title: str
    text: str
    button: str
    action: str
    back: str
    fields: Mapping[str, str]


def is_confirmed(form: Mapping[str, str]) -> bool:
    """Return True if a form was sent from the confirmation page."""
    return form.get(_CONFIRM) == "yes"


async def confirm_maintenance_action(
    context: Context, verb: str, maintenance_id: str, path: str, form: Mapping[str, str]
) -> Confirmation | None:
    """Return the question to ask before an action on a maintenance; None if none is needed.

    Raises:
        NotFound: The maintenance does not exist.
    """
    if verb not in {"start", "complete"} or is_confirmed(form):
        return None
    found = await context.engine.read(lambda reader: find_maintenance(reader, maintenance_id))
    whom = _list_vms(found.vms)
    if verb == "start":
        title, button = "Start it now?", "Start now"
        text = (
            f"The {found.type} of {whom} starts at once, without waiting for approvals or for the announced time. It "
            "cannot be stopped afterwards."
        )
    else:
        title, button = "Mark it as completed?", "Mark as completed"
        text = (
            f"The {found.type} of {whom} ends for all tenants: its events disappear and the actuator is asked to stop. "
            "It cannot be started again."
        )
    return _make_confirmation(title, text, button, path, form, f"/maintenance/{maintenance_id}")


async def confirm_rollout_action(
    context: Context, verb: str, rollout_id: str, path: str, form: Mapping[str, str]
) -> Confirmation | None:
    """Return the question to ask before an action on a rollout; None if none is needed.

    Raises:
        NotFound: The rollout does not exist.
    """
    if verb != "abort" or is_confirmed(form):
        return None
    found, _ = await context.engine.rollouts.read(rollout_id)
    left = sum(host.state.value == "pending" for host in found.hosts)
    text = (
        f"The rollout {found.spec.name} ends: {left} of its {len(found.hosts)} hosts will be skipped, and "
        "maintenances that are announced but not started are canceled. An aborted rollout cannot be resumed; to stop "
        "for a while, pause it."
    )
    return _make_confirmation("Abort the rollout?", text, "Abort", path, form, f"/rollouts/{rollout_id}")


async def confirm_token_revocation(
    context: Context, token_id: str, caller: Principal, path: str, form: Mapping[str, str]
) -> Confirmation | None:
    """Return the question to ask before a token is revoked; None if it was confirmed.

    Raises:
        NotFound: The token does not exist.
    """
    if is_confirmed(form):
        return None
    found = await context.engine.tokens.find(token_id)
    # Tokens of hosts have their own command.
    if found is None or found.host is not None:
        raise NotFound(f"token {token_id!r} does not exist", id=token_id)
    text = (
        f"The token {found.id} of {found.to_principal().actor} stops working at once: its requests are refused, and "
        "its streams and sessions end. It cannot be made valid again."
    )
    if found.id == caller.token_id:
        text += " You are logged in with this token: you will be logged out."
    return _make_confirmation("Revoke the token?", text, "Revoke", path, form, "/administration/tokens")


async def confirm_subscription_action(
    context: Context, verb: str, name: str, path: str, form: Mapping[str, str]
) -> Confirmation | None:
    """Return the question to ask before an action on a subscription; None if none is needed.

    Raises:
        NotFound: The subscription does not exist.
    """
    if is_confirmed(form) or (verb != "delete" and not (verb == "resume" and "skip" in form)):
        return None

    def read(reader: Reader) -> tuple[Subscription, int]:
        found, counts = find_subscription(reader, name), reader.count_deliveries()
        states = (DeliveryState.WAITING, DeliveryState.DEAD) if verb == "delete" else (DeliveryState.WAITING,)
        return found, sum(counts.get((found.id, state), 0) for state in states)

    found, count = await context.engine.read(read)
    deliveries = f"{count} stored {'delivery' if count == 1 else 'deliveries'}"
    if verb == "delete":
        title, button = "Delete the subscription?", "Delete"
        text = (
            f"The subscription {found.name} and its {deliveries} are deleted, and its receiver gets nothing more. Its "
            "signing secret cannot be restored."
        )
    else:
        title, button = "Skip notifications?", "Skip and resume"
        text = (
            f"The subscription {found.name} continues from now on. Its receiver never learns what has happened since "
            f"the pause, and its {deliveries} to be retried will not be sent."
        )
    back = f"/administration/subscriptions/{quote(found.name, safe='')}"
    return _make_confirmation(title, text, button, path, form, back)


def _make_confirmation(  # noqa: PLR0913 - the members of one value
    title: str, text: str, button: str, path: str, form: Mapping[str, str], back: str
) -> Confirmation:
    # Nothing is reserved meanwhile: the confirmed request is checked against the state at that time.
    fields = {**form, _CONFIRM: "yes"}
    return Confirmation(title=title, text=text, button=button, action=path, back=back, fields=fields)


def _list_vms(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_NAMES_MAX])
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return f"{len(names)} VM{'' if len(names) == 1 else 's'} ({shown}{more})" if names else "no VM"
