"""Types of JSON members, and the base classes of requests and responses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer

__all__ = [
    "NO_NUL",
    "SPAN_MAX_S",
    "Moment",
    "Name",
    "Reason",
    "RequestModel",
    "ResponseModel",
    "Seconds",
    "to_timedelta",
]

SPAN_MAX_S = 10 * 366 * 86400
"""Longest span in a request: ten years, in seconds."""

NO_NUL = r"^[^\x00]*$"
"""Pattern without the character NUL, which PostgreSQL refuses in a text."""


def _convert_to_utc(moment: datetime) -> datetime:
    try:
        # The first and last hours of the calendar fall outside of it in UTC.
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("out of range: expected a time between the years 1 and 9999 in UTC") from None


def _format_rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


Moment = Annotated[AwareDatetime, AfterValidator(_convert_to_utc), PlainSerializer(_format_rfc3339)]

Reason = Annotated[
    str, Field(min_length=1, max_length=1000, pattern=NO_NUL, description="Reason, recorded in the audit log.")
]

Seconds = Annotated[float, Field(ge=0, le=SPAN_MAX_S, allow_inf_nan=False)]

Name = Annotated[str, Field(min_length=1, max_length=128)]


class RequestModel(BaseModel):
    """Base of requests and of parts of files; unknown members are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ResponseModel(BaseModel):
    """Base of responses and of the data of notifications."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def copy_from(cls, value: object, **rest: Any) -> Self:  # noqa: ANN401 - checked by the model
        """Build from `rest`, and from the attributes of `value` that are named like the other required fields."""
        names = _list_required_fields(cls)
        return cls.model_validate({name: getattr(value, name) for name in names if name not in rest} | rest)


@cache
def _list_required_fields(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required()]


def to_timedelta(seconds: float | None) -> timedelta | None:
    """Convert a number of seconds to a timedelta; None stays None."""
    return None if seconds is None else timedelta(seconds=seconds)
