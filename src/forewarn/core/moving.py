"""Postponing an announced maintenance at the request of an affected tenant.

There are two ways, each with its limits:

- **Defer**: to another moment, up to the latest start set by the operator. Without one, it cannot be deferred.
- **Extend**: a little more time to prepare, as granted by the asking tenant's policy, in total for the maintenance.

Only NotBefore moves, for all tenants alike, and with it each document (R40, R42). Approvals remain valid: an approval
that was accepted is never asked for again (invariant 5 of the design). So, once every vote is in, nothing is left to
postpone.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from forewarn.core.announcement import ceil_to_second
from forewarn.core.causes import CAUSES
from forewarn.core.decision import Draft
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState
from forewarn.core.settlement import is_approved_by_all
from forewarn.core.tenancy import CalmMoment, move_words, must_be_calm, tenant_of, tenants
from forewarn.core.value import replace
from forewarn.errors import Conflict, InvalidRequest
from forewarn.util.duration import format_span

__all__ = ["defer", "extend"]

_ADVICE = "it stays where it is"


def defer(
    draft: Draft,
    maintenance: Maintenance,
    *,
    not_before: datetime | None = None,
    by: timedelta | None = None,
    reason: str | None = None,
) -> Maintenance:
    """Move NotBefore to a later time, and past any quiet hours that contain it.

    Args:
        draft: The decision.
        maintenance: A scheduled one.
        not_before: New NotBefore; exclusive with `by`.
        by: Delay added to the current NotBefore.
        reason: Reason for the audit log.

    Raises:
        InvalidRequest: Both or none was named, or the time is not later than before.
        Conflict: It cannot be deferred: its state, its kind, no latest start, or too many deferrals; every tenant has
            approved; or the time is after the latest start.
        QuietHoursConflict: Every moment up to the latest start is in a tenant's quiet hours.

    Spec: R40, R42, R74
    """
    before = _check_movable(draft, maintenance, "deferred")
    if (not_before is None) == (by is None):
        msg = "name the moment, or by how much it is put off, and not both"
        raise InvalidRequest(msg)
    if maintenance.latest_start is None:
        msg = f"maintenance {maintenance.id} cannot be deferred: it was scheduled without a latest start"
        raise Conflict(msg, id=maintenance.id)
    if maintenance.deferrals >= draft.rules.deferrals_max:
        msg = (
            f"maintenance {maintenance.id} was deferred {maintenance.deferrals} times: that is the most (deferrals_max)"
        )
        raise Conflict(msg, id=maintenance.id)
    wanted = ceil_to_second(not_before if not_before is not None else before + (by or timedelta(0)))
    if wanted <= before:
        msg = f"{_words(wanted)} is not later than NotBefore, which is {_words(before)}"
        raise InvalidRequest(msg, id=maintenance.id)
    _refuse_after_latest_start(maintenance, wanted)
    moved = replace(maintenance, deferrals=maintenance.deferrals + 1)
    return _move(draft, moved, must_be_calm(draft, maintenance, wanted, _ADVICE), EntryKind.DEFERRED, reason)


def extend(
    draft: Draft, maintenance: Maintenance, *, by: timedelta, tenant: str | None = None, reason: str | None = None
) -> Maintenance:
    """Give a tenant a little more time to prepare, as its policy grants.

    Args:
        draft: The decision.
        maintenance: A scheduled one.
        by: Additional time.
        tenant: Name of the scope or standalone VM that asks; None if the maintenance affects only one.
        reason: Reason for the audit log.

    Raises:
        InvalidRequest: The time is not positive, or it is not clear which tenant asks.
        Conflict: It cannot be moved, as with `defer`; the tenant has approved, or its policy grants no more.
        QuietHoursConflict: Every moment that is left is in a tenant's quiet hours.

    Spec: R40, R42, R74
    """
    before = _check_movable(draft, maintenance, "extended")
    if by <= timedelta(0):
        msg = f"{format_span(by)} is no more time: expected for example 5m"
        raise InvalidRequest(msg, id=maintenance.id)
    name = _asking(draft, maintenance, tenant)
    left = _left(draft, maintenance, name)
    if by > left:
        msg = f"{format_span(by)} is more than the {format_span(left)} that the policy of {name} still grants"
        raise Conflict(msg, id=maintenance.id)
    wanted = ceil_to_second(before + by)
    _refuse_after_latest_start(maintenance, wanted)
    moment = must_be_calm(draft, maintenance, wanted, _ADVICE)
    given = moment.at - before
    if given > left:
        msg = (
            f"quiet hours would put it to {_words(moment.at)}, and the policy of {name} grants {format_span(left)} more"
        )
        raise Conflict(msg, id=maintenance.id)
    moved = replace(maintenance, extensions=maintenance.extensions + 1, extended=maintenance.extended + given)
    return _move(draft, moved, moment, EntryKind.EXTENDED, reason)


def _check_movable(draft: Draft, maintenance: Maintenance, what: str) -> datetime:
    """Return the current NotBefore, after checking that the maintenance may be moved at all."""
    if maintenance.state is not MaintenanceState.SCHEDULED or maintenance.not_before is None:
        msg = f"maintenance {maintenance.id} is {maintenance.state}: only a scheduled one can be {what}"
        raise Conflict(msg, id=maintenance.id, state=maintenance.state.value)
    if CAUSES[maintenance.cause].is_fixed:
        msg = f"maintenance {maintenance.id} is a {maintenance.cause}: its NotBefore is fixed"
        raise Conflict(msg, id=maintenance.id)
    if maintenance.not_before <= draft.now:
        msg = f"maintenance {maintenance.id} cannot be {what} any more: its NotBefore has come"
        raise Conflict(msg, id=maintenance.id)
    if is_approved_by_all(draft.events_of(maintenance.id)):
        msg = (
            f"maintenance {maintenance.id} cannot be {what}: everybody has approved it, and it starts as soon as it can"
        )
        raise Conflict(msg, id=maintenance.id)
    return maintenance.not_before


def _refuse_after_latest_start(maintenance: Maintenance, moment: datetime) -> None:
    if maintenance.latest_start is not None and moment > maintenance.latest_start:
        msg = f"{_words(moment)} is after the latest start, which is {_words(maintenance.latest_start)}"
        raise Conflict(msg, id=maintenance.id, latest_start=_words(maintenance.latest_start))


def _asking(draft: Draft, maintenance: Maintenance, tenant: str | None) -> str:
    """Return the name of the asking tenant: one that has an event and has not approved it."""
    open_events: dict[str, bool] = {}
    for event in draft.events_of(maintenance.id):
        if event.is_listed:
            name, _ = tenant_of(draft, event, maintenance)
            open_events[name] = open_events.get(name, False) or not event.is_approved
    if tenant is None and len(open_events) > 1:
        msg = f"say for which scope, or VM that stands alone: maintenance {maintenance.id} hits several"
        raise InvalidRequest(msg, id=maintenance.id)
    if not open_events:
        msg = f"nobody is told of maintenance {maintenance.id}: nobody prepares for it"
        raise Conflict(msg, id=maintenance.id)
    name = tenant if tenant is not None else next(iter(open_events))
    if name not in open_events:
        msg = f"{name!r} is not told of maintenance {maintenance.id}: name a scope, or VM that stands alone, that is"
        raise InvalidRequest(msg, id=maintenance.id)
    if not open_events[name]:
        msg = f"{name} has approved maintenance {maintenance.id}: it needs no more time"
        raise Conflict(msg, id=maintenance.id)
    return name


def _left(draft: Draft, maintenance: Maintenance, name: str) -> timedelta:
    """Return how much more time the policy of that tenant grants."""
    extension = tenants(draft, maintenance)[name].extension
    if extension is None:
        msg = f"the policy of {name} grants no extension"
        raise Conflict(msg, id=maintenance.id)
    if maintenance.extensions >= extension.times:
        msg = f"maintenance {maintenance.id} was extended {maintenance.extensions} times: {name} is granted no more"
        raise Conflict(msg, id=maintenance.id)
    return max(extension.max - maintenance.extended, timedelta(0))


def _move(draft: Draft, maintenance: Maintenance, to: CalmMoment, kind: EntryKind, reason: str | None) -> Maintenance:
    before = maintenance.not_before
    moved = replace(maintenance, not_before=to.at, due_at=to.at, moved_from=to.moved_from, moved_by=to.moved_by)
    draft.put(moved)
    words = f"NotBefore {_words(to.at)} instead of {'' if before is None else _words(before)}"
    if to.moved_from is not None:
        words = f"{words}, {move_words(to.moved_from, to.moved_by)}"
    draft.note(kind, maintenance_id=moved.id, reason=words if reason is None else f"{words}: {reason}")
    return moved


def _words(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
