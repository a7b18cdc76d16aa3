"""The policy that applies to a VM or a scope, and why it is that one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.core.maintenance.tenancy import policy_of
from forewarn.core.model import Scope, VirtualMachine
from forewarn.core.policy import NO_POLICY, Policy

__all__ = ["PolicyInForce", "PolicyOrigin", "find_policy_in_force", "get_scope_policy"]


class PolicyOrigin(StrEnum):
    """Object that declares a policy."""

    SCOPE = "scope"
    VM = "vm"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """A policy, with the reason why it applies.

    Attributes:
        reason: Sentence for people, without a full stop.
    """

    policy: Policy
    origin: PolicyOrigin
    reason: str


def find_policy_in_force(vm: VirtualMachine, scope: Scope | None) -> PolicyInForce:
    """Return the policy that applies to a VM, given its scope."""
    policy = policy_of(vm, scope)
    if scope is not None:
        place = f"VM {vm.name} is in scope {scope.name}"
        if policy == NO_POLICY:
            reason = f"{place}, which declares no policy"
            return PolicyInForce(policy=policy, origin=PolicyOrigin.DEFAULT, reason=reason)
        reason = f"{place}, whose policy applies to all its VMs"
        return PolicyInForce(policy=policy, origin=PolicyOrigin.SCOPE, reason=reason)
    if policy == NO_POLICY:
        reason = f"VM {vm.name} is in no scope and declares no policy"
        return PolicyInForce(policy=policy, origin=PolicyOrigin.DEFAULT, reason=reason)
    reason = f"VM {vm.name} is in no scope, so its own policy applies"
    return PolicyInForce(policy=policy, origin=PolicyOrigin.VM, reason=reason)


def get_scope_policy(scope: Scope) -> PolicyInForce:
    """Return the policy that applies to all VMs of a scope."""
    if scope.policy == NO_POLICY:
        reason = f"scope {scope.name} declares no policy"
        return PolicyInForce(policy=scope.policy, origin=PolicyOrigin.DEFAULT, reason=reason)
    reason = f"scope {scope.name} declares it for all its VMs"
    return PolicyInForce(policy=scope.policy, origin=PolicyOrigin.SCOPE, reason=reason)
