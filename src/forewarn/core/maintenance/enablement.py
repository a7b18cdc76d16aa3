"""Enabling and disabling the service for an audience.

Spec: R45, R46, R67 to R70
"""

from __future__ import annotations

from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.announcement import announce_to_new_audience
from forewarn.core.maintenance.decision import Draft
from forewarn.core.model import Audience, EntryKind, Event

__all__ = ["disable_audience", "enable_audience", "restart_incarnation", "withdraw_event"]


def enable_audience(draft: Draft, audience: Audience) -> Audience:
    """Enable the service at the first valid GET, and show waiting events (R67, R70b); a repetition changes nothing."""
    if audience.enabled_at is not None:
        return audience
    enabled = replace(
        audience,
        enabled_at=draft.now,
        # Incarnations start over (R46); the epoch distinguishes the new document from an old one with the same number.
        epoch=audience.epoch + 1,
        incarnation=draft.rules.initial_incarnation,
        # The GET that enables the service counts as a request (R69).
        active_until=draft.now,
    )
    draft.put(enabled)
    draft.record(EntryKind.ENABLED, audience=audience.key)
    announce_to_new_audience(draft, enabled)
    return enabled


def restart_incarnation(draft: Draft, audience: Audience) -> Audience:
    """Restart the incarnation, with the same events (R46); used by an injected fault."""
    if audience.enabled_at is None:
        return audience
    renumbered = replace(audience, epoch=audience.epoch + 1, incarnation=draft.rules.initial_incarnation)
    draft.put(renumbered)
    return renumbered


def withdraw_event(draft: Draft, event: Event) -> None:
    """Remove an event from the document before its maintenance is over, and its vote with it (R70, R86)."""
    draft.put(replace(event, is_listed=False))
    draft.record_event(EntryKind.WITHDRAWN, event)


def disable_audience(draft: Draft, audience: Audience) -> Audience:
    """Disable a silent audience: its events leave the document, their maintenances go on without its vote (R70)."""
    # A copy, because withdrawing an event replaces it in the draft.
    for event in list(draft.events.values()):
        if event.audience == audience.key and event.is_listed:
            withdraw_event(draft, event)
    disabled = replace(audience, enabled_at=None, active_until=None)
    draft.put(disabled)
    draft.record(EntryKind.DISABLED, audience=audience.key)
    return disabled
