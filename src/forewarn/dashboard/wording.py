"""Wording of the dashboard in one place, so that every page uses the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote

from forewarn.control.attention import TROUBLES
from forewarn.control.board import BoardItem
from forewarn.core.maintenance.forecast import MaintenanceProblem, MissingVote, NextStep
from forewarn.core.model import Event, EventStatus, Maintenance, MaintenanceState
from forewarn.core.subscription import Subscription

__all__ = [
    "STATES",
    "TROUBLES",
    "NextStepText",
    "describe_missing_approval",
    "describe_next_step",
    "describe_place",
    "describe_problem",
    "describe_subscription_filter",
    "find_badge",
    "join_names",
    "list_missing_tenants",
    "make_title",
    "tenant_name",
    "tenant_path",
]

STATES: Mapping[MaintenanceState, str] = {
    MaintenanceState.QUEUED: "…",
    MaintenanceState.SCHEDULED: "◷",
    MaintenanceState.STARTED: "▶",
    MaintenanceState.COMPLETED: "✓",
    MaintenanceState.CANCELED: "⊘",
    MaintenanceState.FAILED: "✕",
}
"""Symbol for each state, so that states differ without colours."""

_NAMES_MAX = 3


def tenant_name(audience: str) -> str:
    """Return the name of an audience: a scope or a standalone VM."""
    return audience.partition(":")[2]


def tenant_path(audience: str) -> str:
    """Return the path of an audience's page."""
    kind, _, name = audience.partition(":")
    return f"/{'scopes' if kind == 'scope' else 'vms'}/{quote(name, safe='')}"


def join_names(names: Iterable[str], most: int = _NAMES_MAX) -> str:
    """Join the first `most` names, and the number of further ones."""
    all_names = list(names)
    rest = len(all_names) - most
    if rest > 0:
        return f"{', '.join(all_names[:most])} and {rest} more"
    return " and ".join([", ".join(all_names[:-1]), all_names[-1]]) if len(all_names) > 1 else "".join(all_names)


def describe_place(maintenance: Maintenance) -> str:
    """Return the hosts of a maintenance, or its VMs if it names no hosts."""
    return join_names(maintenance.hosts or maintenance.vms)


def make_title(maintenance: Maintenance) -> str:
    """Return a title for a maintenance."""
    return f"{maintenance.type} of {describe_place(maintenance) or 'nothing'}"


def list_missing_tenants(votes: Iterable[MissingVote], reason: str | None = None) -> list[str]:
    """Return the tenants whose approval is missing, each once; with `reason`, only those missing for that cause."""
    return list(dict.fromkeys(tenant_name(vote.audience) for vote in votes if reason is None or vote.reason == reason))


class NextStepText(NamedTuple):
    """What a maintenance waits for, and its next step.

    Attributes:
        text: Sentence without a full stop.
        at: Time to append to the sentence; None if the sentence is complete without one.
        is_ahead: True if the time is in the future, and the sentence is wrong once the time is over.
    """

    text: str
    at: datetime | None = None
    is_ahead: bool = False


def describe_next_step(item: BoardItem) -> NextStepText:
    """Return what a maintenance waits for, and its next step."""
    return _NEXT[item.forecast.next_step](item)


def _describe_announcement(item: BoardItem) -> NextStepText:
    if item.forecast.has_hidden_blockers:
        return NextStepText("It is announced when earlier maintenances are over")
    if not item.forecast.blocked_by:
        return NextStepText("It is announced next")
    return NextStepText(f"It is announced when {_describe_blockers(item)} over")


def _describe_start(item: BoardItem) -> NextStepText:
    outlook = item.forecast
    if outlook.is_due:
        return _describe_due_start(item)
    missing = list_missing_tenants(outlook.votes)
    have = "have" if len(missing) > 1 else "has"
    # For a tenant: others, whom it must not see, hold the maintenance up as well.
    if outlook.has_hidden_blockers:
        whom = f"{join_names([*missing, 'others'])} have approved" if missing else "others have approved"
        return _ahead(item, f"It also affects VMs of other tenants. It starts when {whom}, at the latest")
    if outlook.blocked_by:
        starts = f"It starts when {_describe_blockers(item)} over"
        if not missing:
            return NextStepText(starts)
        return _ahead(item, f"{starts} and {join_names(missing)} {have} approved. Its notice ends")
    if missing:
        verb = "approve" if len(missing) > 1 else "approves"
        return _ahead(item, f"It starts as soon as {join_names(missing)} {verb}, at the latest")
    has_votes = any(event.is_listed for event in item.events)
    return _ahead(item, f"{'All tenants have approved' if has_votes else 'No approval is needed'}. It starts")


def _describe_due_start(item: BoardItem) -> NextStepText:
    # Approvals no longer matter, because NotBefore has come.
    if item.forecast.blocked_by:
        return NextStepText(f"It starts when {_describe_blockers(item)} over")
    if MaintenanceProblem.LATE in item.forecast.problems:
        return NextStepText("It should have started", item.forecast.at)
    return NextStepText("It is due to start")


def _ahead(item: BoardItem, text: str) -> NextStepText:
    return NextStepText(text, item.forecast.at, is_ahead=True)


def _describe_end(item: BoardItem) -> NextStepText:
    outlook = item.forecast
    if item.maintenance.attempts:
        often = item.maintenance.attempts
        return NextStepText(f"The actuator has failed {often} time{'' if often == 1 else 's'} and will be retried")
    if MaintenanceProblem.OVERRUN in outlook.problems:
        return NextStepText("It is under way and should have ended", outlook.at)
    if outlook.at is None:
        return NextStepText("It is under way; its end is not known")
    if outlook.is_due:
        return NextStepText("It is under way and was expected to end", outlook.at)
    return _ahead(item, "It is under way and expected to end")


def _describe_final_state(item: BoardItem) -> NextStepText:
    text = {
        MaintenanceState.COMPLETED: "It is over",
        MaintenanceState.CANCELED: "It was canceled",
    }.get(item.maintenance.state, f"It failed and is not retried. {_find_cause(item)}")
    return NextStepText(text)


def _find_cause(item: BoardItem) -> str:
    # The reason of a failure may name hosts and VMs of others, so a tenant's history does not have it.
    return "Ask the operator for the cause" if item.is_redacted else "See History for the cause"


def find_badge(item: BoardItem) -> MaintenanceProblem | None:
    """Return the problem to show beside the state: the worst one, unless the state says the same."""
    problem = item.worst_problem
    return None if problem is MaintenanceProblem.FAILED else problem


def describe_missing_approval(status: EventStatus) -> str:
    """Return what became of an event without approval that no longer needs one."""
    if status is EventStatus.WITHDRAWN:
        return "withdrawn, no approval needed"
    return "not approved"


def describe_problem(problem: MaintenanceProblem, item: BoardItem) -> str:
    """Return the sentence for a problem of a maintenance, and where its cause is found."""
    _, sentence = TROUBLES[problem]
    has_cause = problem in {MaintenanceProblem.FAILED, MaintenanceProblem.FAILING}
    return f"{sentence} {_find_cause(item)}." if has_cause else sentence


_NEXT = {
    NextStep.ANNOUNCED: _describe_announcement,
    NextStep.STARTED: _describe_start,
    NextStep.OVER: _describe_end,
    NextStep.NOTHING: _describe_final_state,
}


def _describe_blockers(item: BoardItem) -> str:
    mine = make_title(item.maintenance)
    titles = [make_title(maintenance) for maintenance in item.blocked_by]
    names = [f"the other {each}" if each == mine else each for each in titles] or list(item.forecast.blocked_by)
    return f"{join_names(names)} {'are' if len(names) > 1 else 'is'}"


def count_approvals(events: Iterable[Event]) -> str:
    """Return the number of listed events that are approved, out of all listed events."""
    asked = [event for event in events if event.is_listed]
    return f"{sum(event.is_approved for event in asked)} of {len(asked)}" if asked else "none needed"


def describe_tenants(item: BoardItem) -> str:
    """Return the scopes and standalone VMs that are affected; empty if `describe_place` says the same."""
    names = join_names(dict.fromkeys(claim.scope or claim.vm for claim in item.maintenance.claims))
    return "" if names == describe_place(item.maintenance) else names


def describe_subscription_filter(subscription: Subscription, most: int = _NAMES_MAX) -> str:
    """Return the kinds of notifications and the tenants that a subscription covers, at most `most` names of each."""
    kinds = join_names(subscription.kinds, most) or "all kinds"
    return f"{kinds}; {join_names([*subscription.scopes, *subscription.vms], most) or 'all tenants'}"
