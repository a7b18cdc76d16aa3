"""Rows of Markdown, and values as a reader writes them."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticUndefined

from forewarn.util.duration import format_duration

__all__ = ["default_of", "row", "table"]


def row(*cells: object) -> str:
    """A row of a table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def table(*heads: str) -> str:
    """The head of a table."""
    return row(*heads) + row(*("---" for _ in heads))


def default_of(field: Any) -> str:  # noqa: ANN401 - pydantic's FieldInfo
    """The default of a setting, in words where it is no value."""
    if field.default is PydanticUndefined:
        return "the user's state folder" if field.default_factory is not None else "required"
    value = field.default
    if value is None:
        return "not set"
    shown = format_duration(value) if hasattr(value, "total_seconds") else value
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"
