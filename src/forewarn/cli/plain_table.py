"""Layout of tables that fit, without Rich: importing it and rendering a hundred rows takes as long as all the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

__all__ = ["can_style", "format_row", "measure_columns"]

_GAP = "  "
_CODES = {
    "bold": "1",
    "dim": "2",
    "yellow": "33",
    "cyan": "36",
    "green": "32",
    "bold red": "1;31",
    "bold magenta": "1;35",
}


def can_style(environment: Mapping[str, str]) -> bool:
    """Return True if the terminal has all styles: not one without colours, and not a console of Windows."""
    return os.name == "posix" and not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"


def measure_columns(rows: Sequence[Sequence[str]], width_max: int | None) -> list[int] | None:
    """Return the widths of columns; None if they do not fit, or a character may be wider or narrower than others.

    Args:
        rows: Texts of the cells of each row, at least one row.
        width_max: Width of the terminal; None if there is no limit.
    """
    if not all(text.isascii() for row in rows for text in row):
        return None
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    total = sum(widths) + len(_GAP) * (len(widths) - 1)
    return None if width_max is not None and total > width_max else widths


def format_row(texts: Sequence[str], styles: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row; a style is empty or one of Rich's names."""
    cells = [
        f"\x1b[{_CODES[style]}m{text}\x1b[0m{' ' * (width - len(text))}" if style else text.ljust(width)
        for text, style, width in zip(texts, styles, widths, strict=True)
    ]
    return _GAP.join(cells).rstrip()
