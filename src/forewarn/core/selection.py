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
    Claim,
    Entry,
    EntryKind,
    Event,
    EventType,
    Maintenance,
    MaintenanceState,
    Source,
)

__all__ = ["EVERYTHING", "Selection", "takes_entry", "takes_event", "takes_maintenance", "without_case"]

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
        look_max: Maximum range of sequence numbers scanned for one page, if each row must be examined; the page then
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
    source: Source | None = None
    text: str | None = None
    look_max: int = 50_000

    @property
    def names_place(self) -> bool:
        """True if it names a VM, a scope or a host."""
        return not (self.vm is None and self.scope is None and self.host is None)

    @property
    def is_narrow(self) -> bool:
        """True if it takes the history of a few things only, which a store finds by their names."""
        return self.names_place or self.maintenance_id is not None

    @property
    def has_to_look_at_entries(self) -> bool:
        """True if a store must examine entries that it does not take."""
        words = (self.text, self.type, self.source, self.states or None)
        is_found = len(self.kinds) + (self.actor is not None) <= 1 and all(word is None for word in words)
        return not (self.is_narrow or is_found)

    @property
    def has_to_look_at_maintenances(self) -> bool:
        """True if a store must examine maintenances that it does not take."""
        words = (self.text, self.type, self.source, self.actor, self.kinds or None)
        is_found = len(self.states) <= 1 or ACTIVE_STATES.issuperset(self.states)
        return not self.is_narrow and not (is_found and all(word is None for word in words))

    def takes_moment(self, moment: datetime) -> bool:
        """Return True if `moment` is in the period from `since` to `until`."""
        return (self.since is None or self.since <= moment) and (self.until is None or moment < self.until)

    def takes_claim(self, claim: Claim) -> bool:
        """Return True if the claim is at the selected place."""
        return self.vm in {None, claim.vm} and self.scope in {None, claim.scope} and self.host in {None, claim.host}


EVERYTHING = Selection()
"""Selection of the whole history."""


def takes_entry(selection: Selection, entry: Entry, maintenance: Maintenance | None) -> bool:
    """Return True if the selection takes the entry.

    Args:
        selection: The selection.
        entry: An audit log entry.
        maintenance: Maintenance of the entry; None if it has none, or that one was deleted.
    """
    s = selection
    return (
        s.takes_moment(entry.at)
        and s.maintenance_id in {None, entry.maintenance_id}
        and (not s.kinds or entry.kind in s.kinds)
        and s.actor in {None, entry.actor}
        and _has_text(s, entry.reason)
        and _takes_kind_of(s, maintenance)
        and _takes_place_of(s, entry, maintenance)
    )


def takes_maintenance(selection: Selection, maintenance: Maintenance, entries: Iterable[Entry]) -> bool:
    """Return True if the selection takes the maintenance with these audit log entries."""
    s = selection
    return (
        s.takes_moment(maintenance.created_at)
        and s.maintenance_id in {None, maintenance.id}
        and _takes_kind_of(s, maintenance)
        and (not s.names_place or any(s.takes_claim(claim) for claim in maintenance.claims))
        and _has_text(s, maintenance.description, maintenance.force_reason)
        and (
            (not s.kinds and s.actor is None)
            or any((not s.kinds or e.kind in s.kinds) and s.actor in {None, e.actor} for e in entries)
        )
    )


def takes_event(selection: Selection, event: Event, maintenance: Maintenance) -> bool:
    """Return True if an event of a selected maintenance names a VM at the selected place."""
    if not selection.names_place:
        return True
    names = set(event.resources)
    return any(claim.vm in names and selection.takes_claim(claim) for claim in maintenance.claims)


def without_case(text: str) -> str:
    """Return the text in lower case, ASCII only: the same on every database."""
    return text.translate(_LOWER)


def _takes_kind_of(selection: Selection, maintenance: Maintenance | None) -> bool:
    s = selection
    if maintenance is None:
        return not s.states and s.type is None and s.source is None
    return (
        (not s.states or maintenance.state in s.states)
        and s.type in {None, maintenance.type}
        and s.source in {None, maintenance.source}
    )


def _takes_place_of(selection: Selection, entry: Entry, maintenance: Maintenance | None) -> bool:
    s = selection
    if not s.names_place:
        return True
    if maintenance is not None and any(s.takes_claim(claim) for claim in maintenance.claims):
        return True
    is_of_vm = s.vm is None or entry.vm == s.vm or entry.audience == f"vm:{s.vm}"
    is_of_scope = s.scope is None or entry.audience == f"scope:{s.scope}"
    return s.host is None and is_of_vm and is_of_scope


def _has_text(selection: Selection, *texts: str | None) -> bool:
    if selection.text is None:
        return True
    wanted = without_case(selection.text)
    return any(text is not None and wanted in without_case(text) for text in texts)
