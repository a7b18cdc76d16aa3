"""Responses to VMs: JSON with the common content type, errors and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from forewarn.wire import imds

__all__ = [
    "build_payload_refusal",
    "build_size_refusal",
    "build_too_many_response",
    "build_unavailable_response",
    "encode_error_response",
    "encode_json_response",
]

_RETRY_AFTER_S = 1


def build_payload_refusal(error: imds.BadPayload) -> Response:
    """Return the response to an approval that cannot be decoded."""
    text = str(error)
    return encode_error_response(HTTPStatus.BAD_REQUEST, f"Bad request: . {text[:1].upper()}{text[1:]}")


def build_size_refusal(size_bytes_max: int) -> Response:
    """Return the response to a body that is too large; it closes the connection."""
    text = f"Request body is larger than {size_bytes_max} bytes"
    response = encode_error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
    # The rest of the body may not have been read, and would be parsed as the next request.
    response.headers["connection"] = "close"
    return response


def encode_json_response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with the common content type (R8)."""
    return Response(body, status_code=status, headers={"content-type": imds.CONTENT_TYPE, **(headers or {})})


def encode_error_response(status: int, text: str) -> Response:
    """Return an error response with this text (R64)."""
    return encode_json_response(status, imds.encode_error(text))


def build_unavailable_response() -> Response:
    """Return 503 with a short ``Retry-After``."""
    response = encode_error_response(HTTPStatus.SERVICE_UNAVAILABLE, "Service unavailable")
    response.headers["retry-after"] = str(_RETRY_AFTER_S)
    return response


def build_too_many_response(retry_after_s: int = _RETRY_AFTER_S) -> Response:
    """Return 429: this VM exceeds its share (R65)."""
    response = encode_error_response(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests")
    response.headers["retry-after"] = str(retry_after_s)
    return response
