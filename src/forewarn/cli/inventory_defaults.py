"""An inventory without the members that have their default, for files that people read and edit."""

from __future__ import annotations

from typing import Any

from forewarn.core.policy import ALL_APPROVERS

__all__ = ["EMPTY_VALUES", "drop_defaults"]

EMPTY_VALUES: tuple[object, ...] = (None, "", [], {})
"""Values that mean the same as an absent member."""


def drop_defaults(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the inventory without empty members of hosts, scopes and VMs."""
    return {
        noun: [
            {name: _drop_policy_defaults(name, member) for name, member in item.items() if member not in EMPTY_VALUES}
            for item in items
        ]
        for noun, items in value.items()
    }


def _drop_policy_defaults(name: str, member: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a policy without its default members; any other value unchanged."""
    if name != "policy":
        return member
    is_default = {"approve_user_operations": False, "approvers": list(ALL_APPROVERS)}
    return {key: value for key, value in member.items() if value not in EMPTY_VALUES and value != is_default.get(key)}
