"""Wording of the dashboard in one place, so that every page uses the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote

from forewarn.core.model import Event, Maintenance, MaintenanceState
from forewarn.core.outlook import Next, Trouble, Vote
from forewarn.dashboard.board import Item

__all__ = ["STATES", "TROUBLES", "listed", "next_words", "place_of", "tenant", "tenant_path", "title", "waits_for"]

STATES: Mapping[MaintenanceState, str] = {
    MaintenanceState.QUEUED: "…",
    MaintenanceState.SCHEDULED: "◷",
    MaintenanceState.STARTED: "▶",
    MaintenanceState.COMPLETED: "✓",
    MaintenanceState.CANCELED: "⊘",
    MaintenanceState.FAILED: "✕",
}
"""Symbol for each state, so that states differ without colours."""

TROUBLES: Mapping[Trouble, tuple[str, str]] = {
    Trouble.FAILED: ("Failed", "The actuator gave up. What it did, and why, stands in the history below."),
    Trouble.FAILING: ("Failing", "The actuator has failed, and is asked again."),
    Trouble.LATE: ("Late", "Its time has come, and it has not started."),
    Trouble.OVERRUN: ("Overrun", "It has been going on for longer than was announced."),
    Trouble.UNSEEN: ("Not seen", "A tenant has not asked since it was announced: no handler there knows of it."),
    Trouble.UNAPPROVED: ("Not approved", "A tenant has not approved, and most of its notice is over."),
}
"""Label and sentence for each trouble."""

_NAMES_MAX = 3


def tenant(audience: str) -> str:
    """Return the name of an audience: a scope or a standalone VM."""
    return audience.partition(":")[2]


def tenant_path(audience: str) -> str:
    """Return the path of an audience's page."""
    kind, _, name = audience.partition(":")
    return f"/{'scopes' if kind == 'scope' else 'vms'}/{quote(name, safe='')}"


def listed(names: Iterable[str], most: int = _NAMES_MAX) -> str:
    """Join the first `most` names, and the number of further ones."""
    all_names = list(names)
    rest = len(all_names) - most
    if rest > 0:
        return f"{', '.join(all_names[:most])} and {rest} more"
    return " and ".join([", ".join(all_names[:-1]), all_names[-1]]) if len(all_names) > 1 else "".join(all_names)


def place_of(maintenance: Maintenance) -> str:
    """Return the hosts of a maintenance, or its VMs if it names no hosts."""
    return listed(maintenance.hosts or maintenance.vms)


def title(maintenance: Maintenance) -> str:
    """Return a title for a maintenance."""
    return f"{maintenance.type} of {place_of(maintenance) or 'nothing'}"


def waits_for(votes: Iterable[Vote], why: str | None = None) -> list[str]:
    """Return the tenants whose approval is missing, each once; with `why`, only those missing for that cause."""
    return list(dict.fromkeys(tenant(vote.audience) for vote in votes if why is None or vote.why == why))


def next_words(item: Item) -> str:
    """Return what a maintenance waits for and its next step, without a full stop; the page may append a time."""
    return _NEXT[item.outlook.next](item)


def _announced(item: Item) -> str:
    if item.outlook.has_others:
        return "It is announced when what comes first is over"
    if not item.outlook.behind:
        return "It is announced next"
    return f"It is announced when {_others(item)} over"


def _started(item: Item) -> str:
    outlook = item.outlook
    missing = waits_for(outlook.votes)
    if outlook.has_others and Trouble.LATE not in outlook.troubles:
        whom = f"{listed([*missing, 'others'])} have approved" if missing else "others have approved"
        return f"It hits VMs of others, too, who are not named here. It starts when {whom}, at the latest"
    if outlook.behind:
        approved = f" and {listed(missing)} approved, or its notice has passed" if missing else ""
        return f"It starts when {_others(item)} over{approved}"
    if Trouble.LATE in outlook.troubles:
        return "It should have started"
    if missing:
        verb = "approve" if len(missing) > 1 else "approves"
        return f"It starts as soon as {listed(missing)} {verb}, at the latest"
    if any(event.is_listed for event in item.events):
        return "Everybody has approved. It starts now"
    return "Nobody is asked. It starts"


def _over(item: Item) -> str:
    if item.maintenance.attempts:
        often = item.maintenance.attempts
        return f"The actuator has failed {often} time{'' if often == 1 else 's'}, and is asked again"
    if Trouble.OVERRUN in item.outlook.troubles:
        return "It is under way, and should have been over"
    return "It is under way, and is expected to be over" if item.outlook.at else "It is under way, and ends by itself"


def _nothing(item: Item) -> str:
    return {
        MaintenanceState.COMPLETED: "It is over",
        MaintenanceState.CANCELED: "It was taken back, and does not happen",
    }.get(
        item.maintenance.state, "It failed, and nothing more happens by itself. Its history says what was done, and why"
    )


_NEXT = {Next.ANNOUNCED: _announced, Next.STARTED: _started, Next.OVER: _over, Next.NOTHING: _nothing}


def _others(item: Item) -> str:
    mine = title(item.maintenance)
    titles = [title(maintenance) for maintenance in item.behind]
    names = [f"the other {each}" if each == mine else each for each in titles] or list(item.outlook.behind)
    return f"{listed(names)} {'are' if len(names) > 1 else 'is'}"


def approvals(events: Iterable[Event]) -> str:
    """Return the number of listed events that are approved, out of all listed events."""
    asked = [event for event in events if event.is_listed]
    return f"{sum(event.is_approved for event in asked)} of {len(asked)}" if asked else "nobody is asked"


def tenants_of(item: Item) -> str:
    """Return the scopes and standalone VMs that are affected; empty if `place_of` says the same."""
    names = listed(dict.fromkeys(claim.scope or claim.vm for claim in item.maintenance.claims))
    return "" if names == place_of(item.maintenance) else names
