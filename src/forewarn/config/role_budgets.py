"""Limits on the use of the control API by one principal, for each role."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from forewarn.core.access import Role
from forewarn.core.usage_limits import UsageLimits

__all__ = ["RoleBudgets"]


class _RoleBudget(BaseModel):
    """Limits on the concurrent use by one principal of a role.

    Attributes:
        connections_max: Connections to the control address.
        requests_max: Requests in progress, not counting streams.
        watches_max: API streams. A host's new watch replaces its oldest one.
        live_pages_max: Dashboard streams.
        body_size_bytes_max: Bytes of request bodies held in memory.
        changes_per_minute_max: Requests that change something.
        watch_starts_per_minute_max: API streams opened.
        refusals_per_minute_max: Requests over one of the other limits; further ones are refused unread.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    connections_max: int = Field(ge=1)
    requests_max: int = Field(ge=1)
    watches_max: int = Field(ge=1)
    live_pages_max: int = Field(ge=1)
    body_size_bytes_max: int = Field(ge=256)
    changes_per_minute_max: int = Field(ge=1)
    watch_starts_per_minute_max: int = Field(ge=1)
    refusals_per_minute_max: int = Field(ge=1)


class _OperatorBudget(_RoleBudget):
    connections_max: int = Field(8192, ge=1)
    requests_max: int = Field(256, ge=1)
    watches_max: int = Field(1000, ge=1)
    live_pages_max: int = Field(2000, ge=1)
    body_size_bytes_max: int = Field(256 << 20, ge=256)
    changes_per_minute_max: int = Field(12_000, ge=1)
    watch_starts_per_minute_max: int = Field(6000, ge=1)
    refusals_per_minute_max: int = Field(3000, ge=1)


class _ReaderBudget(_OperatorBudget):
    body_size_bytes_max: int = Field(8 << 20, ge=256)
    changes_per_minute_max: int = Field(600, ge=1)


class _TenantBudget(_RoleBudget):
    connections_max: int = Field(512, ge=1)
    requests_max: int = Field(32, ge=1)
    watches_max: int = Field(20, ge=1)
    live_pages_max: int = Field(100, ge=1)
    body_size_bytes_max: int = Field(8 << 20, ge=256)
    changes_per_minute_max: int = Field(300, ge=1)
    watch_starts_per_minute_max: int = Field(120, ge=1)
    refusals_per_minute_max: int = Field(300, ge=1)


class _HostBudget(_RoleBudget):
    connections_max: int = Field(128, ge=1)
    requests_max: int = Field(128, ge=1)
    watches_max: int = Field(4, ge=1)
    live_pages_max: int = Field(1, ge=1)
    body_size_bytes_max: int = Field(8 << 20, ge=256)
    changes_per_minute_max: int = Field(6000, ge=1)
    watch_starts_per_minute_max: int = Field(120, ge=1)
    refusals_per_minute_max: int = Field(120, ge=1)


class RoleBudgets(BaseModel):
    """Limits on the use of the control API by one principal, by role.

    Attributes:
        operator: Limits for each operator.
        read_only: Limits for each reader.
        tenant: Limits for each tenant; tokens that own the same scopes and VMs share one budget.
        host: Limits for the endpoint on each host.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    operator: _OperatorBudget = _OperatorBudget()
    read_only: _ReaderBudget = _ReaderBudget()
    tenant: _TenantBudget = _TenantBudget()
    host: _HostBudget = _HostBudget()

    def by_role(self) -> dict[Role, UsageLimits]:
        """Return the budgets by role, as the accounts use them."""
        # The names of the fields equal those of `UsageLimits`, so a row can be passed on as it is.
        rows = {
            Role.OPERATOR: self.operator,
            Role.READ_ONLY: self.read_only,
            Role.TENANT: self.tenant,
            Role.HOST: self.host,
        }
        return {role: UsageLimits(**row.model_dump()) for role, row in rows.items()}
