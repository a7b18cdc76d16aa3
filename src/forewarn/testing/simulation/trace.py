"""Trace of a simulation: everything that was observed, in order."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Fact", "Trace"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One observation.

    Attributes:
        at_s: Virtual seconds since the start.
        subject: Machine or service that it is about.
        kind: What happened, in a word.
        details: More about it; values are JSON.
    """

    at_s: float
    subject: str
    kind: str
    details: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps([round(self.at_s, 6), self.subject, self.kind, self.details], sort_keys=True)


class Trace:
    """Facts of a run.

    Attributes:
        facts: All facts, in order.
    """

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._waiting: dict[asyncio.Future[None], Container[str]] = {}

    def note(self, subject: str, kind: str, **details: Any) -> None:  # noqa: ANN401 - JSON
        """Add a fact that happens now."""
        self.facts.append(Fact(asyncio.get_running_loop().time(), subject, kind, details))
        for future, kinds in self._waiting.items():
            if kind in kinds and not future.done():
                future.set_result(None)

    async def wait_for(self, kinds: Container[str], timeout_s: float) -> None:
        """Wait for the next fact of these kinds; not longer than `timeout_s`, in virtual seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = kinds
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return
        finally:
            del self._waiting[future]

    def digest(self) -> str:
        """Return a hash of the whole trace: two runs with one digest were the same."""
        text = "\n".join(fact.encode() for fact in self.facts)
        return hashlib.sha256(text.encode()).hexdigest()
