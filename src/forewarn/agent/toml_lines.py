"""Line numbers of values in a TOML text. tomllib reports no positions, so it is asked statement by statement.

This module knows no TOML syntax: every question is a text that the parser accepts or rejects. The work is bounded by
the length of the text, with one exception that has its own limit (`_find_element_line`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

__all__ = ["Keys", "find_line", "find_unfinished_line"]

Keys: TypeAlias = Sequence[str | int]
"""A path: names of keys, and indexes in arrays, from 0."""

_AT = re.compile(r"\(at line (\d+), column \d+\)")
_TAKEN = "Cannot overwrite a value"
# Limits for texts made to be slow: each try parses a text, and locating an element takes a quadratic number of tries.
_KEY_TRIES_MAX = 100
_ELEMENT_LINES_MAX = 200
_ELEMENT_LENGTH_MAX = 16 << 10


def find_line(text: str, keys: Keys) -> int:
    """Return the line, from 1, at which the value of that path begins, or the deepest part of it that exists.

    Args:
        text: Valid TOML.
        keys: The path.
    """
    lines = _split_lines(text)
    headers = _TableHeaders()
    best, found = 0, 1
    for begin, end, content in _iterate_statements(lines):
        is_header = lines[begin].lstrip().startswith("[")
        if is_header:
            headers.enter_table(content)
        # A later statement may match a longer part of the path, so the search goes on after a partial match.
        depth = _count_matching_keys(headers.path, content, keys, is_header=is_header)
        if depth > best:
            best = depth
            inside = 0 if is_header else _find_element_line(lines[begin:end], keys[len(headers.path) : depth])
            found = begin + inside + 1
        if best == len(keys):
            break
    return found


def find_unfinished_line(text: str) -> int:
    """Return the line, from 1, at which the unfinished statement begins, or the last statement if all are finished."""
    lines = _split_lines(text)
    return max((begin + 1 for begin, _, _ in _iterate_statements(lines)), default=1)


def _split_lines(text: str) -> list[str]:
    # Only these end a line in TOML; `str.splitlines` also splits at U+2028 and others.
    return text.replace("\r\n", "\n").split("\n")


def _iterate_statements(lines: list[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield each statement: its first line, the line after its last, and its content, parsed alone.

    A statement without an end is the last, and has no content.
    """
    begin = 0
    while begin < len(lines):
        said = lines[begin].strip()
        if not said or said.startswith("#"):
            begin += 1
            continue
        end = begin + 1
        content = _try_parse(lines[begin])
        if content is None:
            end = _find_statement_end(lines, begin)
            content = _try_parse("\n".join(lines[begin:end])) or {}
        yield begin, end, content
        begin = end


def _find_statement_end(lines: list[str], begin: int) -> int:
    """Return the end of a statement of several lines; the end of the text if it has none.

    With a value already assigned to its key, the parser rejects the statement once it has read all of it, and reports
    the position.
    """
    taken = _extract_key(lines[begin]) + "= 0\n"
    size = 2
    while True:
        try:
            tomllib.loads(taken + "\n".join(lines[begin : begin + size]))
        except (ValueError, RecursionError) as error:
            at = _AT.search(str(error))
            if at is not None and str(error).startswith(_TAKEN):
                return begin + int(at[1]) - 1
        if begin + size >= len(lines):
            return len(lines)
        # Doubling keeps the total work proportional to the length of the statement.
        size *= 2


def _extract_key(line: str) -> str:
    """Return the key with which a statement begins."""
    # A quoted key may contain =, so the first one that leaves a valid key is the right one.
    places = (place for place, character in enumerate(line) if character == "=")
    return next((line[:at] for at in islice(places, _KEY_TRIES_MAX) if _try_parse(line[:at] + "= 0")), "")


def _try_parse(text: str) -> dict[str, Any] | None:
    """Parse TOML; None if it is invalid."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass(slots=True)
class _TableHeaders:
    """The table to which the statements after a header belong.

    Attributes:
        path: Path of the table.
        counts: Index of the last element of each array of tables, by the array's path.
    """

    path: tuple[str | int, ...] = ()
    counts: dict[tuple[str | int, ...], int] = field(default_factory=dict)

    def enter_table(self, content: dict[str, Any]) -> None:
        """Enter the table of a header, given the content of the header alone: ``{"rule": [{}]}``."""
        self.path = ()
        while content:
            (name, inner), *_ = content.items()
            self.path = (*self.path, name)
            if isinstance(inner, list):
                self.counts[self.path] = self.counts.get(self.path, -1) + 1
            # A header below an array of tables belongs to the array's last element.
            if self.path in self.counts:
                self.path = (*self.path, self.counts[self.path])
            content = inner[0] if isinstance(inner, list) else inner


def _count_matching_keys(path: tuple[str | int, ...], content: Any, keys: Keys, *, is_header: bool) -> int:  # noqa: ANN401 - parsed TOML
    """Return the number of keys, counted from the first, that a statement below that path sets."""
    common = next((n for n, (a, b) in enumerate(zip(path, keys, strict=False)) if a != b), min(len(path), len(keys)))
    if is_header or common < len(path):
        return common if is_header else 0
    depth = common
    for key in keys[common:]:
        try:
            content = content[key]
        except (LookupError, TypeError):
            break
        depth += 1
    return depth


def _find_element_line(lines: list[str], keys: Keys) -> int:
    """Return the line, from 0, within a statement at which an element of its arrays begins.

    Every beginning of the statement is closed in the ways that the path allows, until one is TOML and holds the path.
    """
    if len(lines) == 1 or len(lines) > _ELEMENT_LINES_MAX or sum(map(len, lines)) > _ELEMENT_LENGTH_MAX:
        return 0
    closings = _list_closings(_try_parse("\n".join(lines)), keys)
    for end in range(1, len(lines)):
        for closing in closings:
            content = _try_parse("\n".join([*lines[:end], closing]))
            if content is not None and _count_matching_keys((), content, keys, is_header=False) == len(keys):
                return end - 1
    return len(lines) - 1 if closings else 0


def _list_closings(content: Any, keys: Keys) -> list[str]:  # noqa: ANN401 - parsed TOML
    """Return the texts that close the arrays and inline tables along a path, from the outermost inwards."""
    closings: list[str] = []
    for key in keys:
        content = content[key]
        if isinstance(content, list):
            closings.append("]" + "".join(closings[-1:]))
        elif isinstance(content, dict) and closings:
            closings.append("}" + closings[-1])
    return [*closings, *("]" + closing for closing in closings[-1:])]
