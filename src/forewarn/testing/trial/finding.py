"""Findings about a handler under trial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = ["Finding", "Findings"]


@dataclass(frozen=True, slots=True)
class Finding:
    """An observation about a handler.

    Attributes:
        code: Stable code, for programs.
        text: Text for people: the behaviour, and its remedy.
        is_failure: True if it fails the trial.
        count: Number of times it was seen.
    """

    code: str
    text: str
    is_failure: bool
    count: int = 1


class Findings:
    """Findings of a trial: one for each code, with the text of its first occurrence, in order of appearance."""

    def __init__(self) -> None:
        self._by_code: dict[str, Finding] = {}

    def add(self, code: str, text: str, *, is_failure: bool = True) -> None:
        """Record a finding, or count it once more."""
        known = self._by_code.get(code)
        self._by_code[code] = (
            Finding(code, text, is_failure) if known is None else replace(known, count=known.count + 1)
        )

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._by_code.values())
