"""Errors of an HTTP request that got no response."""

from __future__ import annotations

import httpx

__all__ = ["UNANSWERED", "describe_error"]

UNANSWERED: tuple[type[Exception], ...] = (httpx.HTTPError, AttributeError)
"""Exceptions that httpx raises when there is no response.

If a connection is reset just after it was made, uvloop no longer knows the peer's address, and anyio, which httpx
uses, reads it from None: an AttributeError.
"""


def describe_error(error: Exception) -> str:
    """Return the reason in words, for people."""
    if isinstance(error, AttributeError):
        return "the connection was reset right after it was made"
    return str(error) or type(error).__name__
