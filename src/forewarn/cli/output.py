"""Output of commands: tables for people, JSON for programs, times and spans in words."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from forewarn.util.escape import escape_controls, escape_json, has_controls

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Column",
    "Output",
    "as_json",
    "as_yaml",
    "format_count",
    "format_moment",
    "format_names",
    "format_relative",
    "format_seconds",
    "parse_moment",
    "show_moment",
]

_UNLIMITED = 100_000
_GAP = 2
"""Columns between two columns of a table."""

_INDENT = 4
"""Indentation of the second and further lines of a line that is wrapped."""

_STATE_STYLES = {
    "queued": "dim",
    "scheduled": "yellow",
    "approved": "cyan",
    "started": "bold red",
    "completed": "green",
    "canceled": "dim",
    "failed": "bold magenta",
    "withdrawn": "dim",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        cell: Member of an item to show, or a function from an item to the value; None for the title's member.
        is_whole: True if never wrapped: ids and words that people copy.
        is_state: True if coloured by the state it holds.
        is_wide: True if shown only with `--output wide`.
    """

    title: str
    cell: str | Callable[[Any], object] | None = None
    is_whole: bool = True
    is_state: bool = False
    is_wide: bool = False

    def read_cell(self, item: Any) -> object:  # noqa: ANN401 - an item of any list
        """Return the value of an item in this column."""
        if callable(self.cell):
            return self.cell(item)
        name = self.cell or self.title.replace(" ", "_")
        return item[name] if isinstance(item, dict) else getattr(item, name)

    def format_cell(self, item: Any) -> str:  # noqa: ANN401 - as above
        """Return the value of an item in this column as text without control characters; empty for None."""
        return escape_controls(_format_value(self.read_cell(item)))


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a command.

    Attributes:
        is_json: True to print JSON rather than words.
    """

    is_json: bool = False

    def print_if_json(self, value: object) -> bool:
        """Print the value if JSON is requested; return True if so."""
        if self.is_json:
            self.print_json(value)
        return self.is_json

    def print_result(self, value: object, *lines: str) -> None:
        """Print a result: the value if JSON is requested, otherwise the lines."""
        if not self.print_if_json(value):
            self.print_lines(lines)

    def print_json(self, value: object) -> None:
        """Print a value as JSON, indented only on a terminal."""
        sys.stdout.write(as_json(value, is_indented=sys.stdout.isatty()) + "\n")

    def print_json_line(self, value: object) -> None:
        """Print a value as one line of JSON and flush: for streams."""
        sys.stdout.write(as_json(value) + "\n")
        sys.stdout.flush()

    def print_line(self, text: str = "") -> None:
        """Print a line; a terminal gets several if it is too narrow, each but the first indented."""
        shown = escape_controls(text)
        indent = len(shown) - len(shown.lstrip()) + _INDENT
        sys.stdout.write(f"{_wrap(shown, _get_width(), indent)}\n")
        sys.stdout.flush()

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print lines."""
        for line in lines:
            self.print_line(line)

    def print_notice(self, text: str) -> None:
        """Print a notice on stderr, beside the output."""
        sys.stderr.write(f"{escape_controls(text)}\n")
        sys.stderr.flush()

    def show_progress(self, text: str = "") -> None:
        """Show progress in a terminal line that the next output replaces; empty to clear it."""
        if not self.is_json and sys.stderr.isatty():
            # A line that fills the terminal would wrap, and the carriage return would no longer reach its start.
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{escape_controls(text)[:width]}")
            sys.stderr.flush()

    def print_list(self, items: Sequence[Any], columns: Sequence[Column], *, empty: str = "") -> None:
        """Print a list: as JSON if that is requested, otherwise as a table."""
        if not self.print_if_json(items):
            self.print_table(items, columns, empty=empty)

    def print_table(self, items: Iterable[Any], columns: Sequence[Column], *, empty: str = "") -> None:
        """Print a row for each item; wrapped to the width of a terminal, one line each elsewhere.

        No word is broken. If the columns do not fit into the terminal with their longest words, each item is printed as
        names and values instead.
        """
        from rich.table import Table
        from rich.text import Text

        rows = [[column.format_cell(item) or "-" for column in columns] for item in items]
        if not rows:
            self.print_notice(empty)
            return
        widths = _fit_columns(columns, rows, _get_width())
        if widths is None:
            for number, row in enumerate(rows):
                if number:
                    self.print_line()
                self.print_fields(zip((column.title for column in columns), row, strict=True))
            return
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)
        for column in columns:
            table.add_column(column.title.upper(), no_wrap=True, overflow="ignore")
        for row in rows:
            styles = [
                _STATE_STYLES.get(text.lower(), "") if c.is_state else "" for c, text in zip(columns, row, strict=True)
            ]
            cells = [_wrap(text, width) for text, width in zip(row, widths, strict=True)]
            table.add_row(*(Text(text, style=style) for text, style in zip(cells, styles, strict=True)))
        self._print_renderable(table)

    def print_record(self, value: object, pairs: Iterable[tuple[str, object]]) -> None:
        """Print one object: as JSON if that is requested, otherwise as names and values."""
        if not self.print_if_json(value):
            self.print_fields(pairs)

    def print_fields(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print names and values, one below the other; pairs without a value are left out."""
        from rich.table import Table
        from rich.text import Text

        shown = [(name, text) for name, value in pairs if (text := _format_value(value))]
        width = _get_width() - max((len(name) for name, _ in shown), default=0) - _GAP
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ignore")
        for name, text in shown:
            value_text = _wrap(escape_controls(text), width)
            grid.add_row(Text(name), Text(value_text, style=_STATE_STYLES.get(text, "")))
        self._print_renderable(grid)

    def print_heading(self, text: str) -> None:
        """Print a heading, with a blank line above it."""
        from rich.text import Text

        self._print_renderable(Text(f"\n{text}", style="bold"))

    def _print_renderable(self, renderable: Any) -> None:  # noqa: ANN401 - what Rich prints
        console = _make_console()
        if console.is_terminal:
            console.print(renderable, soft_wrap=False, crop=False)
            return
        # Rich pads every cell to the width of its column; redirected output should have no trailing blanks.
        with console.capture() as capture:
            console.print(renderable, crop=False)
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def _format_value(value: object) -> str:
    """Return a value as text, the members of a list separated by commas; empty for None."""
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _get_width() -> int:
    """Return the width of the output in columns."""
    # Redirected output is not wrapped, so that each row stays one line for grep; COLUMNS overrides that.
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else _UNLIMITED


def _measure(text: str) -> int:
    """Return the number of columns that a terminal needs for the text."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _wrap(text: str, width: int, indent: int = 0) -> str:
    """Break the text into lines between words; a word that is too long for a line gets a line that is too long.

    Each line but the first is indented by `indent` columns.
    """
    if len(text) * 2 <= width or _measure(text) <= width:
        return text
    lines, line = [], ""
    for word in re.findall(r"\s*\S+", text):
        if line.strip() and _measure(line + word) > width:
            lines.append(line)
            line = " " * indent + word.lstrip()
        else:
            line += word
    return "\n".join([*lines, line])


def _fit_columns(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column; None if the table is too wide even if every column that may wrap does."""
    least, most = [], []
    for number, column in enumerate(columns):
        texts = [row[number] for row in rows]
        title = _measure(column.title)
        most.append(max(title, *map(_measure, texts)))
        words = (word for text in texts for word in text.split())
        least.append(most[-1] if column.is_whole else max(title, *map(_measure, words)))
    left = width - sum(least) - _GAP * (len(columns) - 1)
    if left < 0:
        return None
    wanted = [high - low for low, high in zip(least, most, strict=True)]
    # What is left is shared in proportion to what each column lacks.
    share = min(1.0, left / max(1, sum(wanted)))
    return [low + int(lacking * share) for low, lacking in zip(least, wanted, strict=True)]


def _make_console() -> Console:
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        # Texts are wrapped already. What is still too wide must not be cut off.
        width=_UNLIMITED,
        force_terminal=is_terminal,
        no_color=bool(os.environ.get("NO_COLOR")) or not is_terminal,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def as_json(value: object, *, is_indented: bool = False) -> str:
    """Return the value as readable JSON without characters that control a terminal."""
    return escape_json(json.dumps(value, ensure_ascii=False, indent=2 if is_indented else None))


def as_yaml(value: object) -> str:
    """Return the value as readable YAML without characters that control a terminal."""
    import yaml

    # libyaml is seven times as fast, but not every build of PyYAML has it.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    def dumped(*, allow_unicode: bool) -> str:
        text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=allow_unicode, width=120)
        return text

    # PyYAML escapes some control characters only when it writes plain ASCII.
    text = dumped(allow_unicode=True)
    return dumped(allow_unicode=False) if has_controls(text) else text


def format_count(count: int, noun: str) -> str:
    """Format as ``1 host`` or ``3 hosts``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_names(names: Sequence[str], count_max: int, count: int | None = None) -> str:
    """Join the first names with commas, and add the number of the others.

    Args:
        names: Names.
        count_max: Number of names to show.
        count: Number of all names; None if `names` holds them all.
    """
    more = (len(names) if count is None else count) - count_max
    return ", ".join(names[:count_max]) + (f" and {more} more" if more > 0 else "")


# Times


def parse_moment(text: str) -> datetime:
    """Parse a time as the API writes it."""
    return datetime.fromisoformat(text).astimezone(UTC)


def show_moment(member: str) -> Callable[[dict[str, Any]], str | None]:
    """Return a function for a `Column` that formats the time in a member."""
    return lambda item: format_moment(item[member])


def format_moment(text: str | None) -> str | None:
    """Format as ``2026-11-21 10:15:00Z``, with milliseconds if they are not 0."""
    if text is None:
        return None
    moment = parse_moment(text)
    thousandths = f".{moment.microsecond // 1000:03d}" if moment.microsecond // 1000 else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{thousandths}Z"


def format_relative(text: str | None, now: datetime) -> str | None:
    """Format as ``in 14m 52s`` or ``3h 5m ago``."""
    if text is None:
        return None
    distance = parse_moment(text) - now
    if abs(distance) < timedelta(seconds=1):
        return "now"
    span = format_seconds(abs(distance).total_seconds())
    return f"in {span}" if distance > timedelta(0) else f"{span} ago"


def format_seconds(seconds: float) -> str:
    """Format with the two largest units: ``6d 23h``, ``14m 52s``, ``9s``, ``0.25s``."""
    if seconds < 1:
        return f"{seconds:.3g}s"
    parts: list[str] = []
    left = round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)
