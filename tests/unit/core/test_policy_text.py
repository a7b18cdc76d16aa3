"""Policies in words."""

from __future__ import annotations

from datetime import UTC, time, timedelta

import pytest

from forewarn.core.fast_replace import replace
from forewarn.core.policy import NO_POLICY, ExtensionAllowance, Policy, QuietHours, TimeZone
from forewarn.core.policy_text import describe_policy, describe_quiet_hours

HOURS = QuietHours(days=(0, 1, 2, 3, 4), begin=time(8), end=time(18), zone=TimeZone(name="UTC", rules=UTC))


def test_the_default_declares_no_rule() -> None:
    assert not any(rule.is_declared for rule in describe_policy(NO_POLICY))


@pytest.mark.parametrize(
    ("policy", "name", "text"),
    [
        (Policy(approves_user_operations=True), "user operations", "restarts and redeployments by users begin at once"),
        (
            Policy(user_operations_max=2),
            "user operations",
            "restarts and redeployments by users wait for approval or NotBefore; at most 2 at a time",
        ),
        (
            Policy(approves_freezes_up_to=timedelta(seconds=10)),
            "pauses",
            "a Freeze by the platform that lasts at most 10s is approved automatically",
        ),
        (Policy(approvers=("operator", "vm:a")), "approvers", "only approvals by operators, VM a count"),
        (
            Policy(approvers=tuple(f"vm:{n}" for n in range(12))),
            "approvers",
            f"only approvals by {', '.join(f'VM {n}' for n in range(10))}, 2 more VMs count",
        ),
        (
            Policy(extension=ExtensionAllowance(max=timedelta(minutes=10), times=1)),
            "extension",
            "at most 10m in total for each maintenance, in at most 1 extension",
        ),
        (
            Policy(quiet_hours=(HOURS, replace(HOURS, days=(5,), begin=time(22), end=time(6)))),
            "quiet hours",
            "mon to fri 08:00 to 18:00 (UTC); sat 22:00 to 06:00 the next day (UTC); "  # noqa: ISC004 - one text
            "maintenance by the platform is kept out of them",
        ),
    ],
)
def test_a_declared_rule_is_a_sentence(policy: Policy, name: str, text: str) -> None:
    assert [(rule.name, rule.text) for rule in describe_policy(policy) if rule.is_declared] == [(name, text)]


def test_quiet_hours_of_every_day_name_no_day() -> None:
    assert describe_quiet_hours(replace(HOURS, days=tuple(range(7)))) == "every day 08:00 to 18:00 (UTC)"


def test_approvers_that_include_all_kinds_are_all() -> None:
    """`vm:a` adds nothing to `vm`."""
    texts = {rule.name: rule.text for rule in describe_policy(Policy(approvers=("vm", "tenant", "operator", "vm:a")))}
    assert texts["approvers"] == "approvals by VMs, operators and tenants count"
