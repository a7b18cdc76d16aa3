"""Error responses, with the headers and audit log entries that some errors need."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from forewarn.control.refusal_log import REFUSED
from forewarn.errors import ForewarnError, TooManyFailures

__all__ = ["make_error_response", "respond_to_error"]


def make_error_response(
    status: int, code: str, message: str, details: dict[str, Any] | None = None, **headers: str
) -> Response:
    """Return a response in the format that all errors share."""
    content = {"error": {"code": code, "message": message, "details": details or {}}}
    # `json.dumps` escapes to ASCII: a message may quote text that UTF-8 cannot encode, such as a lone surrogate.
    return Response(
        json.dumps(content, separators=(",", ":")), status_code=status, headers=headers, media_type="application/json"
    )


async def respond_to_error(request: Request, error: ForewarnError) -> Response:
    """Return the response for an error of ours; refused calls are noted for the audit log."""
    headers = {"www-authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if "retry_after_s" in error.details:
        headers["retry-after"] = str(math.ceil(error.details["retry_after_s"]))
    if error.status in REFUSED or isinstance(error, TooManyFailures):
        request.app.state.context.refusal_log.record_refusal(request, error)
    return make_error_response(error.status, error.code, error.message, error.details, **headers)
