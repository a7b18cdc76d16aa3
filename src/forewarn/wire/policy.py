"""The policy of a scope or of a lone VM, as the inventory declares it and as the store keeps it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from forewarn.core.policy import ALL_APPROVERS, DAYS, NO_POLICY, Extension, Policy, QuietHours, Zone
from forewarn.core.quiet import first_calm
from forewarn.util.duration import format_span, parse_span
from forewarn.util.time_zones import load_zone

__all__ = ["ExtensionIn", "PolicyIn", "QuietHoursIn", "show_policy", "to_policy"]

_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_VM = re.compile(r"vm:[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")
_A_YEAR = (datetime(2028, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC))
"""Year that is searched for a moment outside quiet hours."""

_QUIET_HOURS_MAX = 20
_APPROVERS_MAX = 100
_SPAN_MAX = timedelta(days=7)


def _clock(value: object) -> time:
    """Parse a time such as ``08:00``; ``24:00`` is the midnight that ends a day."""
    if isinstance(value, time):
        return value
    match = _CLOCK.fullmatch("00:00" if value == "24:00" else str(value))
    if match is None:
        msg = f'{value!r} is no time of day: expected for example "08:00", in quotes'
        raise ValueError(msg)
    return time(int(match[1]), int(match[2]))


def _zone_name(value: str) -> str:
    load_zone(value)
    return value


def _approver(value: str) -> str:
    if value not in ALL_APPROVERS and _VM.fullmatch(value) is None:
        msg = f"{value!r} is no approver: expected one of {', '.join(ALL_APPROVERS)}, or vm:NAME"
        raise ValueError(msg)
    return value


def _positive(span: timedelta) -> timedelta:
    if not timedelta(0) < span <= _SPAN_MAX:
        msg = f"{format_span(span)} is out of range: expected more than nothing, and at most {format_span(_SPAN_MAX)}"
        raise ValueError(msg)
    return span


_Span = Annotated[
    timedelta,
    BeforeValidator(parse_span),
    AfterValidator(_positive),
    PlainSerializer(format_span, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["90s", "10m"]}),
]
_Clock = Annotated[
    time,
    BeforeValidator(_clock),
    PlainSerializer(lambda value: value.strftime("%H:%M"), return_type=str),
    WithJsonSchema({"type": "string", "examples": ["08:00"]}),
]
_Day = Annotated[
    Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)


class QuietHoursIn(_Strict):
    """A part of the week without platform maintenance."""

    days: Annotated[list[_Day], Field(min_length=1, max_length=len(DAYS))] = Field(
        ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], description="On which it begins; without it every day."
    )
    begin: _Clock = Field(alias="from", description="Local time, such as 08:00.")
    end: _Clock = Field(alias="to", description="Local time; of the next day where it is not later than `from`.")
    timezone: Annotated[str, AfterValidator(_zone_name)] = Field(description="Such as Europe/Berlin, or UTC.")


class ExtensionIn(_Strict):
    """Additional time to prepare, granted on request."""

    max: _Span = Field(description="In sum for one maintenance, such as 10m.")
    times: Annotated[int, Field(ge=1, le=100)] = 1


class PolicyIn(_Strict):
    """Policy of the owner of a scope, or of a VM that stands alone."""

    approve_user_operations: bool = Field(
        default=False, description="User restarts and redeployments go straight to Started."
    )
    approve_freezes_up_to: _Span | None = Field(
        None, description="A platform Freeze announced as no longer than that is approved at once."
    )
    quiet_hours: Annotated[list[QuietHoursIn], Field(max_length=_QUIET_HOURS_MAX)] = []
    user_operations_max: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="User operations that may go on at once."
    )
    approvers: Annotated[
        list[Annotated[str, AfterValidator(_approver)]], Field(min_length=1, max_length=_APPROVERS_MAX)
    ] = Field(list(ALL_APPROVERS), description="Whose approvals count: vm, operator, tenant, or vm:NAME.")
    extension: ExtensionIn | None = Field(None, description="More time to prepare, for the asking.")

    @model_validator(mode="after")
    def _leaves_time(self) -> PolicyIn:
        if self.quiet_hours and first_calm(_quiet_hours(self), *_A_YEAR) is None:
            msg = "quiet_hours leave no moment for maintenance: some is needed, or it could only ever be forced"
            raise ValueError(msg)
        return self


def _quiet_hours(said: PolicyIn) -> tuple[QuietHours, ...]:
    return tuple(
        QuietHours(
            days=tuple(sorted({DAYS.index(day) for day in each.days})),
            begin=each.begin,
            end=each.end,
            zone=Zone(name=each.timezone, rules=load_zone(each.timezone)),
        )
        for each in said.quiet_hours
    )


def to_policy(said: PolicyIn | None) -> Policy:
    """Convert to a policy of the core."""
    if said is None:
        return NO_POLICY
    extension = said.extension
    return Policy(
        approves_user_operations=said.approve_user_operations,
        approves_freezes_up_to=said.approve_freezes_up_to,
        quiet_hours=_quiet_hours(said),
        user_operations_max=said.user_operations_max,
        approvers=tuple(dict.fromkeys(said.approvers)),
        extension=None if extension is None else Extension(max=extension.max, times=extension.times),
    )


def show_policy(policy: Policy) -> PolicyIn | None:
    """Convert to the form of the file, without fields that are not declared; None: nothing is declared."""
    said: dict[str, Any] = {}
    if policy.approves_user_operations:
        said["approve_user_operations"] = True
    if policy.quiet_hours:
        said["quiet_hours"] = [
            {"days": [DAYS[day] for day in q.days], "from": q.begin, "to": q.end, "timezone": q.zone.name}
            for q in policy.quiet_hours
        ]
    if policy.approvers != ALL_APPROVERS:
        said["approvers"] = list(policy.approvers)
    if policy.extension is not None:
        said["extension"] = {"max": policy.extension.max, "times": policy.extension.times}
    plain = {
        "approve_freezes_up_to": policy.approves_freezes_up_to,
        "user_operations_max": policy.user_operations_max,
    }
    said |= {name: value for name, value in plain.items() if value is not None}
    return PolicyIn.model_validate(said) if said else None
