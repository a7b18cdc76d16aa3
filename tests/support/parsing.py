"""How much TOML is parsed: a measure of work that is the same on every machine."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

__all__ = ["parsed_lengths"]


def parsed_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the length of every text that is parsed from now on; the list grows."""
    lengths: list[int] = []
    loads = tomllib.loads

    def counting(text: str) -> dict[str, Any]:
        lengths.append(len(text))
        return loads(text)

    monkeypatch.setattr(tomllib, "loads", counting)
    return lengths
