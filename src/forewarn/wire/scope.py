"""The JSON of scopes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import Field

from forewarn.core.model import Scope, ScopeKind
from forewarn.wire.json_types import Moment, ResponseModel
from forewarn.wire.policy import PolicyIn, to_policy_in
from forewarn.wire.policy_in_force import PolicyRuleOut, to_rules_out

__all__ = ["ScopeOut"]


class ScopeOut(ResponseModel):
    """A scope: a group of VMs that see each other's events, unless it is standalone."""

    name: str
    kind: ScopeKind
    fault_domain_count: int | None = Field(description="Number of fault domains. Null: not declared.")
    vm_count: int = Field(description="Number of VMs in the scope.")
    enabled_vm_count: int = Field(description="Number of its VMs for which events are enabled (R67, R69).")
    last_polled_at: Moment | None = Field(
        description="Time at or after which one of its VMs last requested events, as far as known. "
        "Null: events are not enabled, or no request is known."
    )
    policy: PolicyIn | None = Field(description="Policy as declared. Null: the default applies.")
    rules: list[PolicyRuleOut] = Field(description="The policy in words, with the defaults.")
    labels: dict[str, str]

    @classmethod
    def from_model(
        cls, scope: Scope, *, vm_count: int, enabled_vm_count: int, polls: Iterable[datetime | None]
    ) -> ScopeOut:
        """Build from the model; `polls` are the known times of requests, None for an unknown one."""
        return cls.copy_from(
            scope,
            vm_count=vm_count,
            enabled_vm_count=enabled_vm_count,
            last_polled_at=max((at for at in polls if at is not None), default=None),
            policy=to_policy_in(scope.policy),
            rules=to_rules_out(scope.policy),
            labels=dict(scope.labels),
        )
