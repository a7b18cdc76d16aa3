"""An answer as it came in, with what a friendlier client would hide."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Reply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP answer.

    Attributes:
        http_version: For example ``1.1``.
        headers: Names as they were spelled, in order, repeated ones too.
        interim: Status of what came before it, for example 100.
        is_late: Whether the body of the request had to be sent without the 100 that it asked for.
        surplus: Bytes that came after the end of the answer.
        elapsed_s: From the first byte that was sent to the last that was received.
    """

    status: int
    http_version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    interim: tuple[int, ...] = ()
    is_late: bool = False
    surplus: bytes = b""
    elapsed_s: float = 0.0

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    def header(self, name: str) -> str:
        """The value of a header; empty without it."""
        return ", ".join(self.all(name))

    @property
    def says_close(self) -> bool:
        """Whether it says that the connection ends here (W3)."""
        return "close" in {token.strip().lower() for token in self.header("connection").split(",")}

    @property
    def content(self) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The body as JSON; None for what is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None
