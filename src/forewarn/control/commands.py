"""What callers ask of maintenances and events, whether through the API or the dashboard.

The engine decides. Here stands what comes before it for a tenant: what it does not own does not exist for it, and no
error tells it of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from forewarn.control.context import Context, missing
from forewarn.core.access import Owned, Principal, Role
from forewarn.core.approval import Approver
from forewarn.core.model import Maintenance
from forewarn.core.selection import Selection
from forewarn.engine.transaction import Key
from forewarn.errors import Forbidden, InvalidRequest, QuietHoursConflict
from forewarn.store.contract import Reader

__all__ = ["approve", "cancel", "defer", "extend"]


async def approve(context: Context, caller: Principal, event_ids: Iterable[str]) -> dict[str, str]:
    """Approve events for their VMs (X6).

    Those that can be are approved, even when others are unknown or left to others by a policy.

    Returns:
        ``approved``, ``unchanged``, ``unknown`` or ``refused`` for each id, in capitals, in the order given.
    """
    wanted = list(dict.fromkeys(event_id.upper() for event_id in event_ids))
    outcomes: dict[str, str] = {}
    owned = caller.owned
    if owned is not None:  # what is foreign gets no further than what never was
        known = await context.engine.read(lambda reader: reader.owned_events(wanted, owned))
        outcomes = dict.fromkeys((i for i in wanted if i not in known), "unknown")
    while len(outcomes) < len(wanted):
        left = [i for i in wanted if i not in outcomes]
        result = await context.engine.approve(left, Approver(actor=caller.actor))
        # With one that cannot be approved none was: the others are tried again.
        outcomes |= dict.fromkeys(result.unknown, "unknown") | dict.fromkeys(result.refused, "refused")
        outcomes |= dict.fromkeys(result.approved, "approved") | dict.fromkeys(result.unchanged, "unchanged")
    return {event_id: outcomes[event_id] for event_id in wanted}


async def cancel(
    context: Context, caller: Principal, maintenance_id: str, *, reason: str | None, key: Key | None = None
) -> Maintenance:
    """Take back a queued or scheduled maintenance; a tenant, what a tenant asked for.

    Raises:
        NotFound: There is none of that id, or it is for none of the caller's VMs.
        Forbidden: A tenant would take back what is the platform's.
        Conflict: Its state does not allow it.
    """
    if caller.owned is not None:
        await _check_asked_by_tenant(context, caller, maintenance_id)
    return await context.engine.cancel(maintenance_id, actor=caller.actor, reason=reason, key=key)


async def defer(  # noqa: PLR0913 - those of the engine's command
    context: Context,
    caller: Principal,
    maintenance_id: str,
    *,
    not_before: datetime | None = None,
    by: timedelta | None = None,
    reason: str | None = None,
    key: Key | None = None,
) -> Maintenance:
    """Put a scheduled maintenance to a later moment, up to its latest start; see `core.moving.defer` for its errors.

    Raises:
        NotFound: It is for none of the caller's VMs.
    """
    if caller.owned is not None:
        await _own_names(context, caller.owned, maintenance_id)
    with _told_to(caller):
        return await context.engine.defer(
            maintenance_id, actor=caller.actor, not_before=not_before, by=by, reason=reason, key=key
        )


async def extend(  # noqa: PLR0913 - those of the engine's command
    context: Context,
    caller: Principal,
    maintenance_id: str,
    by: timedelta,
    *,
    tenant: str | None = None,
    reason: str | None = None,
    key: Key | None = None,
) -> Maintenance:
    """Give who prepares a little more time, as its policy grants; see `core.moving.extend` for its errors.

    Raises:
        NotFound: It is for none of the caller's VMs.
        InvalidRequest: A tenant asks for somebody else, or does not say for which of its names.
    """
    if caller.owned is not None:
        tenant = _own_name(tenant, await _own_names(context, caller.owned, maintenance_id), maintenance_id)
    with _told_to(caller):
        return await context.engine.extend(
            maintenance_id, by, actor=caller.actor, tenant=tenant, reason=reason, key=key
        )


async def _check_asked_by_tenant(context: Context, caller: Principal, maintenance_id: str) -> None:
    """See that it is for the caller's VMs alone, and that who asked for it was a tenant, who then owned them.

    Raises:
        NotFound: It is for none of them.
        Forbidden: It is the platform's.
    """

    def read(reader: Reader) -> tuple[Maintenance | None, bool]:
        found = reader.maintenance(maintenance_id, caller.owned)
        if found is None:
            return None, False
        first = reader.entries(selection=Selection(maintenance_id=maintenance_id), limit=1).items
        return found, any(entry.actor.startswith(f"{Role.TENANT}:") for entry in first)

    found, is_asked_by_tenant = await context.engine.read(read)
    if found is None:
        raise missing(maintenance_id, "maintenance")
    if not (is_asked_by_tenant and caller.owns_all(found)):
        msg = f"maintenance {maintenance_id!r} was not asked for by a tenant: only an operator may cancel it"
        raise Forbidden(msg, id=maintenance_id)


async def _own_names(context: Context, owned: Owned, maintenance_id: str) -> list[str]:
    """Names of the tenant's scopes and lone VMs that a maintenance hits.

    Raises:
        NotFound: It hits none of them.
    """
    found = await context.engine.read(lambda reader: reader.maintenance(maintenance_id, owned))
    if found is None:
        raise missing(maintenance_id, "maintenance")
    return sorted({claim.scope or claim.vm for claim in owned.claims(found)})


def _own_name(named: str | None, names: list[str], maintenance_id: str) -> str:
    """For which of its names a tenant asks.

    Raises:
        InvalidRequest: For none of its own, or it does not say.
    """
    if named is None and len(names) == 1:
        return names[0]
    if named is None or named not in names:
        msg = f"maintenance {maintenance_id} is for {', '.join(names)} of yours: say which"
        raise InvalidRequest(msg, id=maintenance_id)
    return named


@contextmanager
def _told_to(caller: Principal) -> Iterator[None]:
    """Whose quiet hours are in the way is not told to a tenant: they may be a neighbour's."""
    try:
        yield
    except QuietHoursConflict:
        if caller.owned is None:
            raise
        msg = "every moment that is left is in the quiet hours of somebody whom it hits: it stays where it is"
        raise QuietHoursConflict(msg) from None
