"""Approval of events by a VM (StartRequests) or by an operator (control API)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.tenancy import get_tenant
from forewarn.core.model import EntryKind, Event, MaintenanceState

__all__ = ["ApprovalResult", "Approver", "approve_events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approver:
    """The VM or operator that approves.

    Attributes:
        actor: ``vm:NAME`` or ``operator:NAME``.
        audience: The audience whose events it may approve (R51); None for an operator, who may approve all (X6).
        vm: Name of the VM; None for an operator.
    """

    actor: str
    audience: str | None = None
    vm: str | None = None
    source_address: str | None = None
    api_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalResult:
    """Result of an approval, by event id.

    Attributes:
        unknown: Ids that the approver never received; if there are any, nothing was approved (R55).
        approved: Ids approved now, for the first time.
        unchanged: Ids approved before, already started or finished: accepted, without effect (R49, R55).
        refused: Ids that a policy reserves for other approvers; if there are any, nothing was approved.
    """

    unknown: tuple[str, ...] = ()
    approved: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def approve_events(draft: Draft, event_ids: Iterable[str], approver: Approver) -> ApprovalResult:
    """Approve all events, or none if one of them is unknown to the approver or reserved for another.

    Args:
        draft: Decision that holds the events of that audience among `event_ids`, finished ones included.
        event_ids: Upper-case GUIDs; repeats count once (R52).
        approver: The VM or operator that approves.

    Spec: R49 to R57a, R85, X6
    """
    ids = list(dict.fromkeys(event_ids))
    # An event of another audience counts as unknown, so that a VM cannot probe for events of others.
    known = [i for i in ids if i in draft.events and approver.audience in (None, draft.events[i].audience)]
    if len(known) < len(ids):
        return ApprovalResult(unknown=tuple(i for i in ids if i not in set(known)))
    # All ids are checked before the first is approved, because an approval is all or nothing. One that changes nothing
    # gets its 200 (R49), even if the policy reserves the event by now.
    waiting = [i for i in known if _can_be_approved(draft, draft.events[i])]
    refused = tuple(i for i in waiting if _is_reserved(draft, draft.events[i], approver))
    if refused:
        return ApprovalResult(refused=refused)
    for event_id in waiting:
        _approve_event(draft, draft.events[event_id], approver)
    return ApprovalResult(approved=tuple(waiting), unchanged=tuple(i for i in known if i not in set(waiting)))


def _can_be_approved(draft: Draft, event: Event) -> bool:
    """Return True if approving the event changes anything."""
    is_waiting = draft.maintenances[event.maintenance_id].state is MaintenanceState.SCHEDULED
    return is_waiting and event.is_listed and not event.is_settled


def _is_reserved(draft: Draft, event: Event, approver: Approver) -> bool:
    """Return True if the tenant's policy reserves the approval for others."""
    _, policy = get_tenant(draft, event, draft.maintenances[event.maintenance_id])
    return not policy.accepts_approval_of(approver.actor)


def _approve_event(draft: Draft, event: Event, approver: Approver) -> None:
    draft.put(replace(event, approved_at=draft.now, approved_by=approver.actor))
    draft.record_event(
        EntryKind.APPROVED,
        event,
        actor=approver.actor,
        vm=approver.vm,
        source_address=approver.source_address,
        api_version=approver.api_version,
    )
