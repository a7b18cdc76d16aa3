"""The claims of the demo, checked after every observation, so that it cannot show a story that did not happen.

A claim takes the record of an act and returns one sentence on how it was broken, or None.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from forewarn.demo.act_record import ActRecord, Sighting
from forewarn.demo.vms import CAST

__all__ = ["ANNOUNCED", "UNANNOUNCED", "Claim", "find_broken_claim"]

Claim = Callable[[ActRecord], str | None]

_VOTES = len(CAST)


def starts_only_when_all_have_approved(record: ActRecord) -> str | None:
    """Check that nothing starts before the last tenant has approved (R83, R84)."""
    votes = 0
    for entry in sorted(record.entries, key=lambda entry: entry.sequence):
        votes += entry.kind == "approved"
        if entry.kind == "started" and votes < _VOTES:
            return f"the maintenance started when {votes} of {_VOTES} had approved"
    started = next((s for s in record.sightings if any(e.status == "Started" for e in s.events)), None)
    if started is not None and len(record.approvals) < _VOTES:
        return f"{started.vm.name} saw its event Started when {len(record.approvals)} of {_VOTES} had approved"
    return None


def starts_before_notbefore(record: ActRecord) -> str | None:
    """Check that approvals have an effect: the maintenance starts before NotBefore."""
    started_at = record.find_time("started")
    for sighting in record.sightings:
        for event in sighting.events:
            if event.status != "Scheduled":
                continue
            if event.not_before is None:
                return f"{sighting.vm.name} saw a Scheduled event whose NotBefore is ''"
            if started_at is not None and started_at >= event.not_before:
                return "the maintenance waited for NotBefore, although all had approved"
    return None


def tenants_see_their_own(record: ActRecord) -> str | None:
    """Check that a VM sees the events of its whole scope, and no ids or names of the other tenant (R58, R85)."""
    ids: dict[str | None, set[str]] = {}
    for sighting in record.sightings:
        ids.setdefault(sighting.vm.scope, set()).update(event.id for event in sighting.events)
    for sighting in record.sightings:
        foreign = [vm.name for vm in CAST if vm.scope != sighting.vm.scope]
        # The raw body is searched, so that a leak in a member that the demo does not decode is found too.
        foreign += [i for scope, known in ids.items() if scope != sighting.vm.scope for i in known]
        shown = next((name for name in foreign if name in sighting.body), None)
        if shown is not None:
            return f"{sighting.vm.name} was shown {shown} of the other tenant"
        named = {name for event in sighting.events for name in event.resources}
        missing = {vm.name for vm in CAST if vm.scope == sighting.vm.scope} - named
        if sighting.events and missing:
            return f"{sighting.vm.name} was not shown the event of {', '.join(sorted(missing))} in its own scope"
    return None


def started_events_have_no_notbefore(record: ActRecord) -> str | None:
    """Check that NotBefore is empty once Started (R36)."""
    for sighting in record.sightings:
        if any(event.status == "Started" and event.not_before for event in sighting.events):
            return f"{sighting.vm.name} saw a Started event that still had a NotBefore"
    return None


def incarnations_grow_by_one(record: ActRecord) -> str | None:
    """Check that each change of the events increases the incarnation by one (R42)."""
    for vm in CAST:
        seen = [s for s in record.sightings if s.vm == vm]
        for before, after in itertools.pairwise(seen):
            if after.incarnation != before.incarnation + 1:
                return f"{vm.name} saw incarnation {after.incarnation} after {before.incarnation}"
    return None


def is_never_announced(record: ActRecord) -> str | None:
    """Check that a hardware failure comes without notice (R73, R78)."""
    seen: Sighting | None = next((s for s in record.sightings if any(e.status != "Started" for e in s.events)), None)
    return None if seen is None else f"{seen.vm.name} saw an event of the failed host that had not started"


_ALWAYS = (tenants_see_their_own, started_events_have_no_notbefore, incarnations_grow_by_one)

ANNOUNCED: tuple[Claim, ...] = (starts_only_when_all_have_approved, starts_before_notbefore, *_ALWAYS)
"""Claims of the act with announced maintenance."""

UNANNOUNCED: tuple[Claim, ...] = (is_never_announced, *_ALWAYS)
"""Claims of the act in which a host fails."""


def find_broken_claim(claims: tuple[Claim, ...], record: ActRecord) -> str | None:
    """Return one sentence on the first claim that does not hold; None if all hold."""
    return next((fault for claim in claims if (fault := claim(record)) is not None), None)
