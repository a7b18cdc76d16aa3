"""What there is to say about a handler that was tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = ["Finding", "Findings"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about a handler.

    Attributes:
        code: Stable, for programs.
        text: For people: what it did, and what to do about it.
        is_wrong: Whether it fails the trial.
        count: How often it was seen.
    """

    code: str
    text: str
    is_wrong: bool
    count: int = 1


class Findings:
    """Findings as they are made: one for each code, with the words of the first, in the order in which they came."""

    def __init__(self) -> None:
        self._by_code: dict[str, Finding] = {}

    def add(self, code: str, text: str, *, is_wrong: bool = True) -> None:
        """Take a finding down, or count it once more."""
        known = self._by_code.get(code)
        self._by_code[code] = Finding(code, text, is_wrong) if known is None else replace(known, count=known.count + 1)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._by_code.values())

    def __contains__(self, code: str) -> bool:
        return code in self._by_code
