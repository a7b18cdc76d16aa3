"""The JSON of the policy that applies to a VM or a scope, in words and with its effect."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import Field

from forewarn.core.maintenance.policy_in_force import PolicyOrigin
from forewarn.core.maintenance.postponement import get_remaining_extension
from forewarn.core.maintenance.start_preview import StartPreview
from forewarn.core.model import EventType, Maintenance
from forewarn.core.policy import ExtensionAllowance, Policy
from forewarn.core.policy_text import describe_policy
from forewarn.core.quiet_hours import QuietPeriod
from forewarn.wire.json_types import Moment, ResponseModel
from forewarn.wire.policy import PolicyIn

__all__ = [
    "ExtensionLeftOut",
    "PolicyInForceOut",
    "PolicyRuleOut",
    "QuietPeriodOut",
    "StartPreviewOut",
    "to_rules_out",
]


class PolicyRuleOut(ResponseModel):
    """One rule of a policy, in words."""

    name: str = Field(description="Name of the rule, such as `quiet hours`.")
    text: str = Field(description="What the rule allows or asks for.")
    is_declared: bool = Field(description="False if this is the default, which applies without a policy.")


def to_rules_out(policy: Policy) -> list[PolicyRuleOut]:
    """Return all rules of a policy in words, in a fixed order."""
    return [PolicyRuleOut.copy_from(rule) for rule in describe_policy(policy)]


class QuietPeriodOut(ResponseModel):
    """An occurrence of quiet hours."""

    begin: Moment
    end: Moment
    timezone: str
    local_begin: str = Field(description="`begin` in the time zone of the quiet hours, with its offset from UTC.")
    local_end: str

    @classmethod
    def from_model(cls, period: QuietPeriod) -> QuietPeriodOut:
        """Build from the model."""
        zone = period.quiet_hours.zone

        def to_local(moment: datetime) -> str:
            return moment.astimezone(zone.rules).isoformat(timespec="minutes")

        return cls.copy_from(
            period, timezone=zone.name, local_begin=to_local(period.begin), local_end=to_local(period.end)
        )


class ExtensionLeftOut(ResponseModel):
    """What the policy still grants for a scheduled maintenance."""

    maintenance_id: str
    type: EventType
    not_before: Moment | None
    times_left: int = Field(description="Number of further extensions.")
    time_left_s: float = Field(description="Maximum total of further time, in seconds. 0 if `times_left` is 0.")

    @classmethod
    def from_model(cls, allowance: ExtensionAllowance | None, maintenance: Maintenance) -> ExtensionLeftOut:
        """Build from the model; `allowance` is None if the policy grants no extension."""
        left = None if allowance is None else get_remaining_extension(allowance, maintenance)
        time_left = left.time if left is not None and left.times else timedelta(0)
        return cls.copy_from(
            maintenance,
            maintenance_id=maintenance.id,
            times_left=0 if left is None else left.times,
            time_left_s=time_left.total_seconds(),
        )


class StartPreviewOut(ResponseModel):
    """When a maintenance by the platform could start if announced now; other maintenance is left out of account."""

    type: EventType
    is_refused: bool = Field(description="True if it would be refused; the last reason says why.")
    notice_s: float | None = Field(description="Notice that the VM would get. Null if it would be refused.")
    not_before: Moment | None
    starts_at: Moment | None = Field(
        description="Start without an approval by a caller: NotBefore, or earlier if the policy approves it."
    )
    approved_starts_at: Moment | None = Field(description="Start if all that have to approve do so now.")
    reasons: list[str]

    @classmethod
    def from_model(cls, event_type: EventType, preview: StartPreview) -> StartPreviewOut:
        """Build from the model."""
        notice_s = None if preview.notice is None else preview.notice.total_seconds()
        return cls.copy_from(preview, type=event_type, notice_s=notice_s, reasons=list(preview.reasons))


class PolicyInForceOut(ResponseModel):
    """The policy that applies to a VM or a scope, and why."""

    vm: str | None = Field(description="Null if the policy of a scope was requested.")
    scope: str | None
    origin: PolicyOrigin = Field(description="Which object declares the policy: `scope`, `vm`, or `default` for none.")
    reason: str = Field(description="Why this policy applies.")
    policy: PolicyIn | None = Field(
        description="Policy as declared. Null: none is declared, or it names VMs that the caller does not own."
    )
    rules: list[PolicyRuleOut] = Field(description="The policy in words, with the defaults.")
    next_quiet_hours: list[QuietPeriodOut] = Field(description="The next quiet hours, with those that it is in.")
    extensions: list[ExtensionLeftOut] = Field(description="What is left for each scheduled maintenance.")
    start: StartPreviewOut | None = Field(description="Null unless `type` is given.")
