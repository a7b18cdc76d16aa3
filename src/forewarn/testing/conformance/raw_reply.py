"""An answer as received, with details that other clients hide."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["RawReply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReply:
    """One HTTP answer.

    Attributes:
        http_version: HTTP version, for example ``1.1``.
        headers: Headers in their original spelling and order, including repeated ones.
        interim: Statuses of interim responses, for example 100.
        is_late: True if the body of the request had to be sent without the 100 it asked for.
        surplus: Bytes received after the end of the answer.
        elapsed_s: Seconds from the first byte sent to the last received.
    """

    status: int
    http_version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    interim: tuple[int, ...] = ()
    is_late: bool = False
    surplus: bytes = b""
    elapsed_s: float = 0.0

    def get_all(self, name: str) -> list[str]:
        """Return every value of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    def get_header(self, name: str) -> str:
        """Return the value of a header; empty without it."""
        return ", ".join(self.get_all(name))

    @property
    def announces_close(self) -> bool:
        """True if it announces that the connection is closed (W3)."""
        return "close" in {token.strip().lower() for token in self.get_header("connection").split(",")}

    @property
    def content(self) -> Any:  # noqa: ANN401 - any JSON value
        """Body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None
