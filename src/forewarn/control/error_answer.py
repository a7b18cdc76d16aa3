"""The one shape of errors, and what goes with some of them: headers, and an entry in the ledger."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from forewarn.control.refusal import REFUSED
from forewarn.errors import ForewarnError, TooManyFailures

__all__ = ["answer_error", "error_answer"]


def error_answer(
    status: int, code: str, message: str, details: dict[str, Any] | None = None, **headers: str
) -> Response:
    """An answer in the one shape that errors have."""
    content = {"error": {"code": code, "message": message, "details": details or {}}}
    # Escaped: a message may quote what cannot be said in UTF-8, such as half a surrogate pair.
    return Response(
        json.dumps(content, separators=(",", ":")), status_code=status, headers=headers, media_type="application/json"
    )


async def answer_error(request: Request, error: ForewarnError) -> Response:
    """The answer for an error of ours; refused calls are noted for the ledger."""
    headers = {"www-authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if "retry_after_s" in error.details:
        headers["retry-after"] = str(math.ceil(error.details["retry_after_s"]))
    if error.status in REFUSED or isinstance(error, TooManyFailures):
        request.app.state.context.refused.note(request, error)
    return error_answer(error.status, error.code, error.message, error.details, **headers)
