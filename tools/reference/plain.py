"""Rows of Markdown tables, and values as users write them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from forewarn.util.duration import format_duration

__all__ = ["default_of", "row", "table"]


def row(*cells: object) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def table(*heads: str) -> str:
    """Return the head of a table."""
    return row(*heads) + row(*("---" for _ in heads))


def default_of(field: Any) -> str:  # noqa: ANN401 - pydantic's FieldInfo
    """Return the default of a setting, described in words if it is not a fixed value."""
    if field.default is PydanticUndefined:
        return "the user's state folder" if field.default_factory is not None else "required"
    value = field.default
    if value is None or value == "":
        return "not set"
    if isinstance(value, BaseModel):
        return "one value for each role"
    shown = format_duration(value) if hasattr(value, "total_seconds") else value
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"
