"""The JSON of requests to the control API."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from forewarn.core.causes import CAUSES, DEFAULT_CAUSE
from forewarn.core.fault import FAULTS
from forewarn.core.label import SELECTOR_LENGTH_MAX
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventSource, EventType
from forewarn.wire.json_types import NO_NUL, SPAN_MAX_S, Moment, Name, Reason, RequestModel, Seconds, to_timedelta

__all__ = [
    "ApprovalIn",
    "ClockAdvanceIn",
    "ClockConfirmationIn",
    "DeferralIn",
    "ExtendIn",
    "FailurePredictionIn",
    "FaultIn",
    "ForcedStartIn",
    "HostFailureIn",
    "ImpactIn",
    "MaintenanceIn",
    "OperationIn",
    "ReasonIn",
]

_PositiveSeconds = Annotated[float, Field(gt=0, le=SPAN_MAX_S, allow_inf_nan=False)]


class _ForceableIn(RequestModel):
    force: bool = Field(
        default=False, description="Allow less than the minimum notice, and ignore quiet hours. Requires `reason`."
    )
    reason: Reason | None = None

    @model_validator(mode="after")
    def _check_reason(self) -> _ForceableIn:
        if self.force and self.reason is None:
            raise ValueError("force requires a reason")
        return self

    @property
    def force_reason(self) -> str | None:
        """Reason of a forced request; None if it is not forced."""
        return self.reason if self.force else None


class MaintenanceIn(_ForceableIn):
    """A maintenance to schedule, for hosts or for VMs. Omitted fields get the defaults of the cause."""

    hosts: list[Name] = Field(default_factory=list, description="Hosts of which every running VM is affected.")
    vms: list[Name] = Field(default_factory=list, description="VMs that are affected.")
    selector: Annotated[str, Field(min_length=1, max_length=SELECTOR_LENGTH_MAX, pattern=NO_NUL)] | None = Field(
        None,
        description="Instead of `hosts` and `vms`: all hosts that have these labels now, such as `rack=r1,model!=x`.",
        examples=["rack=r1"],
    )
    type: EventType | None = None
    source: EventSource | None = None
    cause: str | None = Field(None, max_length=64, description=f"One of {', '.join(CAUSES)}.")
    description: str | None = Field(None, max_length=1000, pattern=NO_NUL)
    duration_s: Annotated[int, Field(ge=-1, le=SPAN_MAX_S)] | None = Field(
        None, description="Expected duration of the impact in seconds. 0: no interruption; -1: unknown."
    )
    impact: EventType | None = Field(
        None, description="`Freeze` for a Reboot that only freezes the VMs. Null: the same as `type`."
    )
    notice_s: Seconds | None = Field(None, description="Seconds from announcement to NotBefore.")
    not_before: Moment | None = None
    latest_start: Moment | None = Field(
        None, description="Latest time to which NotBefore can be postponed. Null: the maintenance cannot be deferred."
    )
    now: bool = Field(
        default=False,
        description="Start immediately, without notice. If any affected VM can be warned by an event, it must get its "
        "notice, so the request is refused unless `force` is true.",
    )

    @model_validator(mode="after")
    def _check_type_and_time(self) -> MaintenanceIn:
        if self.type is None and self.cause is None:
            raise ValueError("name a type or a cause")
        if self.selector is not None and (self.hosts or self.vms):
            raise ValueError("name hosts, VMs or a selector, not several of them")
        if self.now and (self.notice_s is not None or self.not_before is not None):
            raise ValueError("now cannot be combined with notice_s or not_before")
        return self

    def to_request(self) -> MaintenanceRequest:
        """Convert to a request of the core; without the hosts that `selector` selects."""
        cause = self.cause
        if cause is None and self.type is not None:
            cause = DEFAULT_CAUSE[self.type, self.source or EventSource.PLATFORM]
        return MaintenanceRequest(
            cause=cause or "",
            type=self.type,
            source=self.source,
            description=self.description,
            duration_s=self.duration_s,
            impact=self.impact,
            notice=to_timedelta(self.notice_s),
            not_before=self.not_before,
            hosts=tuple(dict.fromkeys(self.hosts)),
            vms=tuple(self.vms),
            force_reason=self.force_reason,
            reason=self.reason,
            latest_start=self.latest_start,
            is_now=self.now,
        )


class OperationIn(_ForceableIn):
    """A user's or the platform's operation on one VM."""

    notice_s: Seconds | None = Field(None, description="Seconds from announcement to NotBefore. Default: the minimum.")
    source: EventSource | None = None

    def to_request(self, cause: str, vm: str) -> MaintenanceRequest:
        """Convert to a request of the core."""
        return MaintenanceRequest(
            cause=cause,
            vms=(vm,),
            source=self.source,
            notice=to_timedelta(self.notice_s),
            force_reason=self.force_reason,
            reason=self.reason,
        )


class HostFailureIn(RequestModel):
    """A hardware failure of a host. It has already happened, so there is no notice (R73)."""

    reason: Reason | None = None


class FailurePredictionIn(_ForceableIn):
    """A predicted hardware failure of a host (R72)."""

    notice_s: Seconds | None = Field(None, description="Seconds from announcement to NotBefore. Default: 7 days.")
    type: EventType | None = Field(
        None, description="Redeploy (default), or Freeze if the VMs are migrated live (A15)."
    )


class ReasonIn(RequestModel):
    """An optional reason."""

    reason: Reason | None = None


class ForcedStartIn(RequestModel):
    """A start without waiting for approvals or NotBefore."""

    reason: Reason


class DeferralIn(RequestModel):
    """A later NotBefore."""

    not_before: Moment | None = Field(None, description="New NotBefore. Cannot be combined with `by_s`.")
    by_s: _PositiveSeconds | None = Field(
        None, description="Seconds by which to postpone NotBefore. Cannot be combined with `not_before`."
    )
    reason: Reason | None = None

    @model_validator(mode="after")
    def _check_one_given(self) -> DeferralIn:
        if (self.not_before is None) == (self.by_s is None):
            raise ValueError("give either not_before or by_s")
        return self

    @property
    def by(self) -> timedelta | None:
        """Delay of NotBefore; None if a moment is given."""
        return to_timedelta(self.by_s)


class ExtendIn(RequestModel):
    """More time to prepare."""

    by_s: _PositiveSeconds
    scope: Name | None = Field(
        None,
        description="Scope or standalone VM that needs the time. Optional if the maintenance affects only one. If a "
        "scope and a VM have the same name, write `scope:NAME` or `vm:NAME`.",
    )
    reason: Reason | None = None

    @property
    def by(self) -> timedelta:
        """Amount of additional time."""
        return timedelta(seconds=self.by_s)


class ImpactIn(RequestModel):
    """A further impact of a started maintenance (R80)."""

    duration_s: Annotated[int, Field(ge=0, le=86400)]


class ApprovalIn(RequestModel):
    """Events to approve for the VMs (X6)."""

    event_ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1, max_length=1000)]


class FaultIn(RequestModel):
    """A fault to inject."""

    kind: str = Field(max_length=64, description=f"One of {', '.join(FAULTS)}.")
    vms: list[Name] = Field(
        default_factory=list, max_length=1000, description="VMs whose requests are affected. Empty: all."
    )
    method: Literal["GET", "POST"] | None = Field(None, description="Affect only requests with this method.")
    count: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        None, description="Number of requests to affect. Null: no limit."
    )
    rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        1.0, description="Fraction of the requests to affect."
    )
    lasts_s: _PositiveSeconds | None = Field(None, description="Seconds until the fault ends.")
    delay_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] | None = Field(
        None, description="Delay in seconds, for kinds that delay."
    )


class ClockAdvanceIn(RequestModel):
    """Amount by which to move a virtual clock forward."""

    by_s: Seconds


class ClockConfirmationIn(RequestModel):
    """Confirmation of a clock that has jumped."""

    reason: str | None = Field(None, max_length=1000, description="Reason, recorded in the audit log.")
