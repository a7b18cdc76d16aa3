"""Parsing of HTML forms and of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.requests import Request

from forewarn.errors import InvalidRequest
from forewarn.util.duration import parse_duration

__all__ = ["describe_invalid_field", "parse_duration_field", "read_form", "split_names"]

_FIELDS_MAX = 100
_SPAN_LENGTH_MAX = 40


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; if a field is repeated, its last value.

    Raises:
        InvalidRequest: The body is not a URL-encoded form, or has too many fields.
    """
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if body and kind != "application/x-www-form-urlencoded":
        raise InvalidRequest("a form is expected (application/x-www-form-urlencoded)")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise InvalidRequest("cannot parse the form") from None
    return dict(pairs)


def split_names(text: str) -> list[str]:
    """Split names separated by commas, blanks or line breaks; drop duplicates."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def parse_duration_field(form: Mapping[str, str], name: str) -> timedelta | None:
    """Return the duration in a field; None if the field is empty.

    Raises:
        InvalidRequest: The field does not contain a duration.
    """
    text = form.get(name, "").strip()
    if not text:
        return None
    if len(text) > _SPAN_LENGTH_MAX:
        raise InvalidRequest(f"{name}: a duration is expected, for example 90s, 15m, 24h or 7d")
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from error


def describe_invalid_field(error: ValidationError) -> str:
    """Return the first problem that the model of a form found, with the name of the field."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return ": ".join(part for part in (where, first["msg"].removeprefix("Value error, ")) if part)
