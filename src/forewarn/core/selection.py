"""Selection of a part of the history: audit log entries, maintenances, events.

The functions here define what a selection takes, without a database. A store may use any faster way; the conformance
suite compares the two.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from forewarn.core.model import (
    ACTIVE_STATES,
    AuditEntry,
    Claim,
    EntryKind,
    Event,
    EventSource,
    EventType,
    Maintenance,
    MaintenanceState,
)

__all__ = [
    "ACTIVE",
    "EVERYTHING",
    "Selection",
    "matches_entry",
    "matches_event",
    "matches_maintenance",
    "to_ascii_lower",
]

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Filter on the history; a field that is None or empty takes all.

    Attributes:
        since: Start of the period, inclusive: an entry counts when written, a maintenance when created.
        until: End of the period, exclusive.
        vm: Name of a VM. Takes maintenances that claim it, their entries, and entries that name it or its audience.
        scope: Name of a scope; likewise.
        host: Name of a host that a claimed VM was on when the maintenance was made; likewise.
        maintenance_id: One maintenance and its entries.
        kinds: Entries of these kinds; maintenances that have one.
        actor: Entries of this actor, such as ``operator:ann``; maintenances that have one. With `kinds`, an entry of
            both.
        states: Maintenances that are in one of these states now, and their entries.
        type: Maintenances of this type, and their entries.
        source: Maintenances of this source, and their entries.
        text: Text contained in the reason of an entry, or in the description or force reason of a maintenance. Case is
            ignored, in ASCII.
        scan_max: Maximum range of sequence numbers scanned for one page, if each row must be examined; the page then
            ends, however few rows it has.
    """

    since: datetime | None = None
    until: datetime | None = None
    vm: str | None = None
    scope: str | None = None
    host: str | None = None
    maintenance_id: str | None = None
    kinds: tuple[EntryKind, ...] = ()
    actor: str | None = None
    states: tuple[MaintenanceState, ...] = ()
    type: EventType | None = None
    source: EventSource | None = None
    text: str | None = None
    scan_max: int = 50_000

    @property
    def has_place(self) -> bool:
        """True if it names a VM, a scope or a host."""
        return not (self.vm is None and self.scope is None and self.host is None)

    @property
    def is_narrow(self) -> bool:
        """True if it takes the history of a few things only, which a store finds by their names."""
        return self.has_place or self.maintenance_id is not None

    @property
    def must_scan_entries(self) -> bool:
        """True if a store must examine entries that it does not take."""
        filters = (self.text, self.type, self.source, self.states or None)
        # An index serves one kind or one actor; every further condition is tested row by row.
        is_found = len(self.kinds) + (self.actor is not None) <= 1 and all(value is None for value in filters)
        return not (self.is_narrow or is_found)

    @property
    def must_scan_maintenances(self) -> bool:
        """True if a store must examine maintenances that it does not take."""
        filters = (self.text, self.type, self.source, self.actor, self.kinds or None)
        # Active maintenances are few and have an index, so several active states need no scan.
        is_found = len(self.states) <= 1 or ACTIVE_STATES.issuperset(self.states)
        return not self.is_narrow and not (is_found and all(value is None for value in filters))

    def matches_time(self, moment: datetime) -> bool:
        """Return True if `moment` is in the period from `since` to `until`."""
        return (self.since is None or self.since <= moment) and (self.until is None or moment < self.until)

    def matches_claim(self, claim: Claim) -> bool:
        """Return True if the claim is at the selected place."""
        return self.vm in {None, claim.vm} and self.scope in {None, claim.scope} and self.host in {None, claim.host}


EVERYTHING = Selection()
"""Selection of the whole history."""

ACTIVE = Selection(states=tuple(sorted(ACTIVE_STATES)))
"""Selection of the active maintenances."""


def matches_entry(selection: Selection, entry: AuditEntry, maintenance: Maintenance | None) -> bool:
    """Return True if the selection takes the entry; `maintenance` is None if it has none, or that one was deleted."""
    s = selection
    return (
        s.matches_time(entry.at)
        and s.maintenance_id in {None, entry.maintenance_id}
        and (not s.kinds or entry.kind in s.kinds)
        and s.actor in {None, entry.actor}
        and _matches_text(s, entry.reason)
        and _matches_maintenance_fields(s, maintenance)
        and _matches_place(s, entry, maintenance)
    )


def matches_maintenance(selection: Selection, maintenance: Maintenance, entries: Iterable[AuditEntry]) -> bool:
    """Return True if the selection takes the maintenance with these audit log entries."""
    s = selection
    return (
        s.matches_time(maintenance.created_at)
        and s.maintenance_id in {None, maintenance.id}
        and _matches_maintenance_fields(s, maintenance)
        and (not s.has_place or any(s.matches_claim(claim) for claim in maintenance.claims))
        and _matches_text(s, maintenance.description, maintenance.force_reason)
        and (
            (not s.kinds and s.actor is None)
            or any((not s.kinds or e.kind in s.kinds) and s.actor in {None, e.actor} for e in entries)
        )
    )


def matches_event(selection: Selection, event: Event, maintenance: Maintenance) -> bool:
    """Return True if an event of a selected maintenance names a VM at the selected place."""
    if not selection.has_place:
        return True
    names = set(event.resources)
    return any(claim.vm in names and selection.matches_claim(claim) for claim in maintenance.claims)


def to_ascii_lower(text: str) -> str:
    """Return the text in lower case, ASCII only: the same on every database."""
    return text.translate(_LOWER)


def _matches_maintenance_fields(selection: Selection, maintenance: Maintenance | None) -> bool:
    s = selection
    if maintenance is None:
        # Without a maintenance there is no state, type or source, so a filter on any of them excludes the entry.
        return not s.states and s.type is None and s.source is None
    return (
        (not s.states or maintenance.state in s.states)
        and s.type in {None, maintenance.type}
        and s.source in {None, maintenance.source}
    )


def _matches_place(selection: Selection, entry: AuditEntry, maintenance: Maintenance | None) -> bool:
    s = selection
    if not s.has_place:
        return True
    if maintenance is not None and any(s.matches_claim(claim) for claim in maintenance.claims):
        return True
    is_of_vm = s.vm is None or entry.vm == s.vm or entry.audience == f"vm:{s.vm}"
    is_of_scope = s.scope is None or entry.audience == f"scope:{s.scope}"
    # An entry names no host, so a filter on a host can match only through a claim.
    return s.host is None and is_of_vm and is_of_scope


def _matches_text(selection: Selection, *texts: str | None) -> bool:
    if selection.text is None:
        return True
    wanted = to_ascii_lower(selection.text)
    return any(text is not None and wanted in to_ascii_lower(text) for text in texts)
