"""Approval of events by a VM (StartRequests) or by an operator (control API)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.tenancy import get_tenant
from forewarn.core.model import EntryKind, MaintenanceState

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
    # All ids are checked before the first is approved, because an approval is all or nothing.
    refused = tuple(i for i in known if _is_reserved(draft, i, approver))
    if refused:
        return ApprovalResult(refused=refused)
    approved = [i for i in known if _approve_event(draft, i, approver)]
    return ApprovalResult(approved=tuple(approved), unchanged=tuple(i for i in known if i not in set(approved)))


def _can_be_approved(draft: Draft, event_id: str) -> bool:
    """Return True if approving the event changes anything."""
    event = draft.events[event_id]
    is_waiting = draft.maintenances[event.maintenance_id].state is MaintenanceState.SCHEDULED
    return is_waiting and event.is_listed and not event.is_settled


def _is_reserved(draft: Draft, event_id: str, approver: Approver) -> bool:
    """Return True if the tenant's policy reserves the approval for others. A settled event is never refused."""
    event = draft.events[event_id]
    # An approval that changes nothing gets its 200 (R49), even if the policy reserves the event by now.
    if not _can_be_approved(draft, event_id):
        return False
    _, policy = get_tenant(draft, event, draft.maintenances[event.maintenance_id])
    return not policy.accepts_approval_of(approver.actor)


def _approve_event(draft: Draft, event_id: str, approver: Approver) -> bool:
    event = draft.events[event_id]
    maintenance = draft.maintenances[event.maintenance_id]
    if not _can_be_approved(draft, event_id):
        return False
    draft.put(replace(event, approved_at=draft.now, approved_by=approver.actor))
    draft.record(
        EntryKind.APPROVED,
        actor=approver.actor,
        maintenance_id=maintenance.id,
        event_id=event.id,
        audience=event.audience,
        vm=approver.vm,
        source_address=approver.source_address,
        api_version=approver.api_version,
    )
    return True
