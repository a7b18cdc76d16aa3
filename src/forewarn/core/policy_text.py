"""A policy in words, for people: one sentence for each rule, declared or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from forewarn.core.policy import ALL_APPROVERS, DAYS, NO_POLICY, Policy, QuietHours
from forewarn.util.duration import format_duration

__all__ = ["PolicyRule", "describe_policy", "describe_quiet_hours"]

_NAMES_MAX = 10
_KINDS = {"vm": "VMs", "operator": "operators", "tenant": "tenants"}
_WEEK = tuple(range(len(DAYS)))
_WORKING_DAYS = _WEEK[:5]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """One rule of a policy.

    Attributes:
        name: Name of the rule, such as ``quiet hours``.
        text: What it allows or asks for, as a sentence without a full stop.
        is_declared: True if the policy differs from the default here.
    """

    name: str
    text: str
    is_declared: bool


def describe_policy(policy: Policy) -> tuple[PolicyRule, ...]:
    """Return all rules of a policy in words, in a fixed order."""
    return tuple(_list_rules(policy))


def describe_quiet_hours(quiet_hours: QuietHours) -> str:
    """Return quiet hours as ``mon to fri 08:00 to 18:00 (Europe/Berlin)``."""
    hours = f"{quiet_hours.begin:%H:%M} to {quiet_hours.end:%H:%M}"
    is_next_day = quiet_hours.end <= quiet_hours.begin
    return f"{_format_days(quiet_hours.days)} {hours}{' the next day' if is_next_day else ''} ({quiet_hours.zone.name})"


def _format_days(days: Iterable[int]) -> str:
    found = tuple(days)
    if found == _WEEK:
        return "every day"
    return "mon to fri" if found == _WORKING_DAYS else ", ".join(DAYS[day] for day in found)


def _list_rules(policy: Policy) -> Iterator[PolicyRule]:
    hours = "; ".join(describe_quiet_hours(each) for each in policy.quiet_hours)
    yield PolicyRule(
        name="quiet hours",
        text=f"{hours}; maintenance by the platform is kept out of them"
        if hours
        else "none: maintenance may begin at any time",
        is_declared=bool(policy.quiet_hours),
    )
    yield PolicyRule(
        name="approvers",
        text=_describe_approvers(policy),
        is_declared=policy.approvers != NO_POLICY.approvers,
    )
    pause = policy.approves_freezes_up_to
    yield PolicyRule(
        name="pauses",
        text="none is approved automatically"
        if pause is None
        else f"a Freeze by the platform that lasts at most {format_duration(pause)} is approved automatically",
        is_declared=pause is not None,
    )
    yield PolicyRule(
        name="user operations",
        text=_describe_user_operations(policy),
        is_declared=policy.approves_user_operations or policy.user_operations_max is not None,
    )
    extension = policy.extension
    yield PolicyRule(
        name="extension",
        text="none is granted"
        if extension is None
        else f"at most {format_duration(extension.max)} in total for each maintenance, in at most {extension.times} "
        f"extension{'' if extension.times == 1 else 's'}",
        is_declared=extension is not None,
    )


def _describe_approvers(policy: Policy) -> str:
    if set(policy.approvers) >= set(ALL_APPROVERS):
        return "approvals by VMs, operators and tenants count"
    kinds = [_KINDS[each] for each in policy.approvers if each in _KINDS]
    names = [f"VM {each.partition(':')[2]}" for each in policy.approvers if each not in _KINDS]
    more = [f"{len(names) - _NAMES_MAX} more VMs"] if len(names) > _NAMES_MAX else []
    return f"only approvals by {', '.join([*kinds, *names[:_NAMES_MAX], *more])} count"


def _describe_user_operations(policy: Policy) -> str:
    text = (
        "restarts and redeployments by users begin at once"
        if policy.approves_user_operations
        else "restarts and redeployments by users wait for approval or NotBefore"
    )
    most = policy.user_operations_max
    return text if most is None else f"{text}; at most {most} at a time"
