"""Commands on maintenances, events and tokens, shared by the API and the dashboard.

The engine decides. This module adds the checks that come before: to a tenant, objects it does not own do not exist, and
no error reveals other tenants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from forewarn.control.context import Context, find_maintenance
from forewarn.core.access import Ownership, Principal, Token, is_requested_by_tenant
from forewarn.core.maintenance.approval import Approver
from forewarn.core.maintenance.tenancy import get_tenant_key, get_tenant_name
from forewarn.core.model import Maintenance
from forewarn.core.selection import Selection
from forewarn.engine.idempotency import IdempotencyKey
from forewarn.engine.tokens import TokenRequest
from forewarn.errors import Forbidden, InvalidRequest, LimitExceeded, QuietHoursConflict
from forewarn.store.contract import Reader
from forewarn.wire.access import AccessTokenIn

__all__ = ["approve_events", "cancel_maintenance", "create_token", "defer_maintenance", "extend_maintenance"]


async def approve_events(context: Context, caller: Principal, event_ids: Iterable[str]) -> dict[str, str]:
    """Approve events for their VMs (X6).

    Approves as many as possible, even if others are unknown or a policy leaves their approval to another party.

    Returns:
        ``approved``, ``unchanged``, ``unknown`` or ``refused`` for each id; ids in upper case, in the order given.
    """
    wanted = list(dict.fromkeys(event_id.upper() for event_id in event_ids))
    outcomes: dict[str, str] = {}
    owned = caller.ownership
    if owned is not None:  # events of other tenants are answered exactly like events that never existed
        known = await context.engine.read(lambda reader: reader.find_owned_events(wanted, owned))
        outcomes = dict.fromkeys((i for i in wanted if i not in known), "unknown")
    # This ends: each round rejects at least one id, or accepts all that are left.
    while len(outcomes) < len(wanted):
        left = [i for i in wanted if i not in outcomes]
        result = await context.engine.authority.approve(left, Approver(actor=caller.actor))
        # The engine approves all or none, so retry without the ids that it rejected.
        outcomes |= dict.fromkeys(result.unknown, "unknown") | dict.fromkeys(result.refused, "refused")
        outcomes |= dict.fromkeys(result.approved, "approved") | dict.fromkeys(result.unchanged, "unchanged")
    return {event_id: outcomes[event_id] for event_id in wanted}


async def cancel_maintenance(
    context: Context, caller: Principal, maintenance_id: str, *, reason: str | None, key: IdempotencyKey | None = None
) -> Maintenance:
    """Cancel a queued or scheduled maintenance; tenants can cancel only those that a tenant requested.

    Raises:
        NotFound: No maintenance has that id, or it affects none of the caller's VMs.
        Forbidden: The caller is a tenant and the maintenance is the platform's, or affects VMs of others too.
        Conflict: The state of the maintenance does not allow it.
    """
    if caller.ownership is not None:
        await _check_requested_by_tenant(context, caller, maintenance_id)
    return await context.engine.maintenances.cancel(maintenance_id, actor=caller.actor, reason=reason, key=key)


async def defer_maintenance(  # noqa: PLR0913 - the parameters of the engine's command
    context: Context,
    caller: Principal,
    maintenance_id: str,
    *,
    not_before: datetime | None = None,
    by: timedelta | None = None,
    reason: str | None = None,
    key: IdempotencyKey | None = None,
) -> Maintenance:
    """Defer a scheduled maintenance, up to its latest start; see `postponement.defer_maintenance` for further errors.

    Raises:
        NotFound: The maintenance affects none of the caller's VMs.
    """
    if caller.ownership is not None:
        await _list_own_keys(context, caller.ownership, maintenance_id)
    with _hide_quiet_hours(caller):
        return await context.engine.maintenances.defer(
            maintenance_id, actor=caller.actor, not_before=not_before, by=by, reason=reason, key=key
        )


async def extend_maintenance(  # noqa: PLR0913 - the parameters of the engine's command
    context: Context,
    caller: Principal,
    maintenance_id: str,
    by: timedelta,
    *,
    tenant: str | None = None,
    reason: str | None = None,
    key: IdempotencyKey | None = None,
) -> Maintenance:
    """Give a tenant the extra time to prepare that its policy grants; see `postponement.extend_maintenance` for errors.

    Raises:
        NotFound: The maintenance affects none of the caller's VMs.
        InvalidRequest: The caller is a tenant and names another tenant, or has several names and gives none.
    """
    if caller.ownership is not None:
        tenant = _choose_own_key(
            tenant, await _list_own_keys(context, caller.ownership, maintenance_id), maintenance_id
        )
    with _hide_quiet_hours(caller):
        return await context.engine.maintenances.extend(
            maintenance_id, by, actor=caller.actor, tenant=tenant, reason=reason, key=key
        )


async def _check_requested_by_tenant(context: Context, caller: Principal, maintenance_id: str) -> None:
    """Check that a maintenance affects only the caller's VMs, and that a tenant, then their owner, requested it.

    Raises:
        NotFound: The maintenance affects none of the caller's VMs.
        Forbidden: The maintenance is the platform's, or affects VMs of others too.
    """

    def read(reader: Reader) -> bool:
        found = find_maintenance(reader, maintenance_id, caller.ownership)
        first = reader.list_entries(selection=Selection(maintenance_id=maintenance_id), limit=1).items
        return is_requested_by_tenant(first) and caller.owns_maintenance(found)

    if not await context.engine.read(read):
        msg = f"maintenance {maintenance_id!r} was not requested by a tenant: only an operator may cancel it"
        raise Forbidden(msg, id=maintenance_id)


async def _list_own_keys(context: Context, owned: Ownership, maintenance_id: str) -> list[str]:
    """Return the keys of the tenant's scopes and standalone VMs that a maintenance affects.

    Raises:
        NotFound: The maintenance affects none of them.
    """
    found = await context.engine.read(lambda reader: find_maintenance(reader, maintenance_id, owned))
    return sorted({get_tenant_key(claim.vm, claim.scope) for claim in owned.select_claims(found)})


def _choose_own_key(requested: str | None, keys: list[str], maintenance_id: str) -> str:
    """Return the key of the scope or standalone VM for which a tenant asks.

    Raises:
        InvalidRequest: The name is not one of the tenant's, or it has several and gives none.
    """
    # A key rather than a name: another tenant may own a scope with the name of this tenant's VM.
    chosen = [key for key in keys if requested is None or requested in {key, get_tenant_name(key)}]
    if len(chosen) != 1:
        names = sorted(map(get_tenant_name, keys))
        listed = ", ".join(names if len(set(names)) == len(names) else keys)
        raise InvalidRequest(f"maintenance {maintenance_id} affects your {listed}: name one of them", id=maintenance_id)
    return chosen[0]


@contextmanager
def _hide_quiet_hours(caller: Principal) -> Iterator[None]:
    """Hide from tenants whose quiet hours are in the way: they may be another tenant's."""
    try:
        yield
    except QuietHoursConflict:
        if caller.ownership is None:
            raise
        msg = "cannot move the maintenance: all remaining times are in the quiet hours of an affected tenant"
        raise QuietHoursConflict(msg) from None


async def create_token(
    context: Context, body: AccessTokenIn, *, actor: str, key: IdempotencyKey | None = None
) -> tuple[Token, str]:
    """Create a token for a person or a program; return it with its secret, which is shown only once.

    Raises:
        LimitExceeded: It names too many scopes and VMs, or there are too many tokens.
        InvalidRequest: The lifetime is too long, a scope is of the kind standalone, or a VM is in another scope.
        NotFound: A scope or VM does not exist.
        Conflict: The key has created a token already.
    """
    settings, count = context.settings, len(body.scopes) + len(body.vms)
    if count > settings.token_names_max:
        msg = f"{count} scopes and VMs are named: the limit is {settings.token_names_max} (token_names_max)"
        raise LimitExceeded(msg)
    lifetime = settings.token_lifetime if body.expires_in_s is None else timedelta(seconds=body.expires_in_s)
    if lifetime > settings.token_lifetime_max:
        msg = f"the maximum token lifetime is {settings.token_lifetime_max.days} days (token_lifetime_max)"
        raise InvalidRequest(msg)
    wanted = TokenRequest(
        name=body.name, role=body.role, scopes=tuple(body.scopes), vms=tuple(body.vms), lifetime=lifetime
    )
    return await context.engine.tokens.create(wanted, actor=actor, key=key)
