"""The policy of a scope or of a standalone VM, as the inventory declares it and as it is stored."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

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

from forewarn.core.policy import ALL_APPROVERS, DAYS, NO_POLICY, ExtensionAllowance, Policy, QuietHours, TimeZone
from forewarn.core.quiet_hours import find_free_start
from forewarn.util.duration import format_duration, parse_duration

__all__ = ["ExtensionIn", "PolicyIn", "QuietHoursIn", "to_policy", "to_policy_in"]

_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_VM = re.compile(r"vm:[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")
# A fixed year, because only `clock.py` reads the time (invariant 2).
_A_YEAR = (datetime(2028, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC))
"""Year that is searched for a moment outside quiet hours."""

_QUIET_HOURS_MAX = 20
_APPROVERS_MAX = 100
_SPAN_MAX = timedelta(days=7)
_ZONE_NAME_LENGTH_MAX = 64


def _parse_time_of_day(value: object) -> time:
    """Parse a time such as ``08:00``; ``24:00`` is the midnight that ends a day."""
    if isinstance(value, time):
        return value
    match = _CLOCK.fullmatch("00:00" if value == "24:00" else str(value))
    if match is None:
        raise ValueError(f'{value!r} is not a time of day: expected for example "08:00", in quotes')
    return time(int(match[1]), int(match[2]))


def _load_zone(name: str) -> tzinfo:
    """Return the rules of a time zone, such as ``Europe/Berlin``. UTC needs neither the system's files nor the package.

    Raises:
        ValueError: No time zone has that name.
    """
    try:
        if len(name) > _ZONE_NAME_LENGTH_MAX:
            raise LookupError  # noqa: TRY301 - one message for all reasons
        rules = UTC if name == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        shown = name[:_ZONE_NAME_LENGTH_MAX]
        msg = f"{shown!r} is not a time zone that this machine has: expected for example 'Europe/Berlin'"
        raise ValueError(msg) from error
    return rules


def _check_zone_name(value: str) -> str:
    _load_zone(value)
    return value


def _check_approver(value: str) -> str:
    if value not in ALL_APPROVERS and _VM.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not an approver: expected one of {', '.join(ALL_APPROVERS)}, or vm:NAME")
    return value


def _check_span(span: timedelta) -> timedelta:
    if not timedelta(0) < span <= _SPAN_MAX:
        msg = f"{format_duration(span)} is out of range: expected more than 0s and at most {format_duration(_SPAN_MAX)}"
        raise ValueError(msg)
    return span


_Span = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    AfterValidator(_check_span),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["90s", "10m"]}),
]
_Clock = Annotated[
    time,
    BeforeValidator(_parse_time_of_day),
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
        ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        description="Days on which the hours begin.",
    )
    begin: _Clock = Field(alias="from", description="Start in local time, such as 08:00.")
    end: _Clock = Field(alias="to", description="End in local time; on the next day if it is not later than `from`.")
    timezone: Annotated[str, AfterValidator(_check_zone_name)] = Field(
        description="Time zone, such as Europe/Berlin or UTC."
    )


class ExtensionIn(_Strict):
    """Additional time to prepare, granted on request."""

    max: _Span = Field(description="Maximum total of additional time for one maintenance, such as 10m.")
    times: Annotated[int, Field(ge=1, le=100)] = 1


class PolicyIn(_Strict):
    """Policy of a scope, or of a standalone VM."""

    approve_user_operations: bool = Field(
        default=False,
        description="Approve restarts and redeployments by users immediately: their events go straight to Started.",
    )
    approve_freezes_up_to: _Span | None = Field(
        None, description="Approve a Freeze by the platform immediately if its announced duration is at most this."
    )
    quiet_hours: Annotated[list[QuietHoursIn], Field(max_length=_QUIET_HOURS_MAX)] = []
    user_operations_max: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Maximum number of user operations in progress at the same time."
    )
    unavailable_max: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None,
        description="Maximum number of the scope's VMs that may be under maintenance when routine maintenance of "
        "the platform is announced. Only for scopes that are not standalone.",
    )
    approvers: Annotated[
        list[Annotated[str, AfterValidator(_check_approver)]], Field(min_length=1, max_length=_APPROVERS_MAX)
    ] = Field(list(ALL_APPROVERS), description="Callers that may approve: vm, operator, tenant, or vm:NAME.")
    extension: ExtensionIn | None = Field(None, description="Additional time to prepare, granted on request.")

    @model_validator(mode="after")
    def _check_quiet_hours(self) -> PolicyIn:
        if self.quiet_hours and find_free_start(_to_quiet_hours(self), *_A_YEAR) is None:
            msg = "quiet_hours leave no time for maintenance: shorten them, or every maintenance must be forced"
            raise ValueError(msg)
        return self


def _to_quiet_hours(declared: PolicyIn) -> tuple[QuietHours, ...]:
    return tuple(
        QuietHours(
            days=tuple(sorted({DAYS.index(day) for day in each.days})),
            begin=each.begin,
            end=each.end,
            zone=TimeZone(name=each.timezone, rules=_load_zone(each.timezone)),
        )
        for each in declared.quiet_hours
    )


def to_policy(declared: PolicyIn | None) -> Policy:
    """Convert to a policy of the core."""
    if declared is None:
        return NO_POLICY
    extension = declared.extension
    return Policy(
        approves_user_operations=declared.approve_user_operations,
        approves_freezes_up_to=declared.approve_freezes_up_to,
        quiet_hours=_to_quiet_hours(declared),
        user_operations_max=declared.user_operations_max,
        unavailable_max=declared.unavailable_max,
        approvers=tuple(dict.fromkeys(declared.approvers)),
        extension=None if extension is None else ExtensionAllowance(max=extension.max, times=extension.times),
    )


def to_policy_in(policy: Policy) -> PolicyIn | None:
    """Convert to the form of the file, without fields that are not declared; None: nothing is declared."""
    if policy == NO_POLICY:
        return None
    extension = policy.extension
    fields = {
        "approve_user_operations": policy.approves_user_operations,
        "approve_freezes_up_to": policy.approves_freezes_up_to,
        "quiet_hours": [
            {"days": [DAYS[day] for day in q.days], "from": q.begin, "to": q.end, "timezone": q.zone.name}
            for q in policy.quiet_hours
        ],
        "user_operations_max": policy.user_operations_max,
        "unavailable_max": policy.unavailable_max,
        "approvers": list(policy.approvers),
        "extension": None if extension is None else {"max": extension.max, "times": extension.times},
    }
    said = {name: value for name, value in fields.items() if value != PolicyIn.model_fields[name].default}
    return PolicyIn.model_validate(said)
