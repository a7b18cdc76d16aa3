"""What a request that was not answered ends with."""

from __future__ import annotations

import httpx

__all__ = ["UNANSWERED", "why"]

UNANSWERED: tuple[type[Exception], ...] = (httpx.HTTPError, AttributeError)
"""What httpx raises when nobody answers.

Where a connection is reset at the moment it was made, uvloop knows no address of the other side any more, and anyio
under httpx asks for it all the same: of nothing, which is an AttributeError.
"""


def why(error: Exception) -> str:
    """The reason, for people."""
    if isinstance(error, AttributeError):
        return "the connection was reset when it was made"
    return str(error) or type(error).__name__
