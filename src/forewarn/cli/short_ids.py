"""Ids that are given by their beginning, as git takes those of commits."""

from __future__ import annotations

from typing import Literal

from forewarn.cli.connection import ControlConnection
from forewarn.errors import Conflict, NotFound

__all__ = ["PREFIX_LENGTH_MIN", "resolve_id"]

PREFIX_LENGTH_MIN = 3
"""Minimum length of the beginning of an id."""

_WHOLE_LENGTHS = {"maintenance": 10, "rollout": 10, "token": 10, "event": 36}
_FOUND_MAX = 10


def resolve_id(
    connection: ControlConnection, kind: Literal["maintenance", "event", "rollout", "token"], text: str
) -> str:
    """Return the only id that begins with a text; the text itself if it is a whole id, or the beginning of none.

    For a whole id, nothing is sent.

    Raises:
        Conflict: Several ids begin with the text.
    """
    is_prefix = PREFIX_LENGTH_MIN <= len(text) < _WHOLE_LENGTHS[kind]
    if not (is_prefix and text.isascii() and text.replace("-", "").isalnum()):
        return text
    try:
        found: list[str] = connection.get("/v1/ids", kind=kind, prefix=text)["ids"]
    except NotFound:
        # A service of an earlier version, which takes whole ids only.
        return text
    if len(found) > 1 and text not in found:
        more = " and others" if len(found) == _FOUND_MAX else ""
        raise Conflict(
            f"several {kind}s have an id that begins with {text!r}: {', '.join(found)}{more}; type more of it"
        )
    return text if len(found) != 1 else found[0]
