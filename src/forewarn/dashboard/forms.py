"""Parsing of HTML forms."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

from forewarn.errors import InvalidRequest

__all__ = ["read_form"]

_FIELDS_MAX = 100


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
