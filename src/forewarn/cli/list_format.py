"""Formats of lists, members of their items by name, and their order; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import typer

from forewarn.cli.output import parse_moment

__all__ = ["FormatKind", "ListFormat", "check_members", "parse_list_format", "read_member", "sort_items"]


class FormatKind(StrEnum):
    """Format of a list, as `--output` names it."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    CSV = "csv"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class ListFormat:
    """Format of a list.

    Attributes:
        members: Members to show, in order; only with `COLUMNS`.
    """

    kind: FormatKind = FormatKind.TABLE
    members: tuple[str, ...] = ()

    @property
    def is_for_all_rows(self) -> bool:
        """True if every row is printed unless a limit is given: in formats that other commands read line by line."""
        return self.kind in {FormatKind.CSV, FormatKind.NAME}


_COLUMNS_MAX = 50
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def parse_list_format(text: str | None, *, is_json: bool = False, is_csv: bool = False) -> ListFormat:
    """Return the format that `--output`, `--json` and `--csv` request together.

    Raises:
        typer.BadParameter: The format is unknown, or they request different ones.
    """
    if is_json and is_csv:
        raise typer.BadParameter("cannot be combined with --json", param_hint="--csv")
    short = FormatKind.JSON if is_json else FormatKind.CSV if is_csv else None
    if text is None:
        return ListFormat(short or FormatKind.TABLE)
    found = _parse_output(text)
    if short not in {None, found.kind}:
        raise typer.BadParameter(f"cannot be combined with --{short}", param_hint="--output")
    return found


def _parse_output(text: str) -> ListFormat:
    word, sign, rest = text.partition("=")
    if word == FormatKind.COLUMNS:
        members = tuple(name.strip() for name in rest.split(",") if name.strip())
        if not members:
            msg = "name the members to show, for example columns=name,host,labels.rack"
            raise typer.BadParameter(msg, param_hint="--output")
        if len(members) > _COLUMNS_MAX:
            raise typer.BadParameter(f"at most {_COLUMNS_MAX} columns can be shown", param_hint="--output")
        return ListFormat(FormatKind.COLUMNS, members)
    if sign or word not in set(FormatKind):
        known = ", ".join([*(kind for kind in FormatKind if kind is not FormatKind.COLUMNS), "columns=MEMBER,..."])
        msg = f"unknown format {text!r}: expected one of {known}"
        raise typer.BadParameter(msg, param_hint="--output")
    return ListFormat(FormatKind(word))


def read_member(item: Any, member: str) -> Any:  # noqa: ANN401 - JSON
    """Return a member of an item, such as ``host`` or ``labels.rack``; None if the item has none.

    Of a list, the member of each of its items is returned. Keys of labels may contain dots themselves.
    """
    if isinstance(item, list):
        return [found for each in item if (found := read_member(each, member)) is not None]
    if not isinstance(item, Mapping):
        return None
    if member in item:
        return item[member]
    first, dot, rest = member.partition(".")
    return read_member(item[first], rest) if dot and first in item else None


def check_members(items: Sequence[Mapping[str, Any]], members: Iterable[str], hint: str) -> None:
    """Check that the items have these members; labels that no item has are allowed.

    Raises:
        typer.BadParameter: There is no such member.
    """
    for member in members:
        if items and member.partition(".")[0] not in items[0]:
            msg = f"unknown member {member!r}: expected one of {', '.join(items[0])}"
            raise typer.BadParameter(msg, param_hint=hint)


def sort_items(items: Sequence[dict[str, Any]], field: str) -> list[dict[str, Any]]:
    """Return the items sorted by a member, in descending order if it begins with ``-``; items without it come last.

    Items with equal values keep their order. Numbers are compared as numbers, times as times, everything else as text.

    Raises:
        typer.BadParameter: The items have no such member.
    """
    member = field.removeprefix("-")
    check_members(items, [member], "--sort")
    keyed = [(_make_sort_key(read_member(item, member)), item) for item in items]
    with_value = [pair for pair in keyed if pair[0] is not None]
    with_value.sort(key=lambda pair: pair[0] or (0, 0, ""), reverse=field.startswith("-"))
    return [item for _, item in with_value] + [item for key, item in keyed if key is None]


def _make_sort_key(value: Any) -> tuple[int, float, str] | None:  # noqa: ANN401 - JSON
    if value is None or value in ([], {}, ""):
        return None
    if isinstance(value, int | float):
        return (0, value, "")
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    # As text, a time with a fraction of a second would come before the full second.
    if _TIME.fullmatch(text):
        return (0, parse_moment(text).timestamp(), "")
    return (1, 0, text)
