"""Which part of a list a page shows: the beginning of a name, labels, and the number of the first row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.core.label import ANY_LABELS, LabelSelector, parse_selector
from forewarn.errors import InvalidRequest

__all__ = ["ListFilter", "read_list_filter", "read_offset"]

_NAME_LENGTH_MAX = 128
_NUMBER_LENGTH_MAX = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilter:
    """Filter of a list, as the caller typed it and as it was understood.

    Attributes:
        given: Text of each field, by name: ``prefix`` and ``selector``.
        prefix: Beginning of the names.
        selector: Labels that the items must have.
        wrong: What is wrong with it; empty: nothing. Then no item is listed.
    """

    given: Mapping[str, str]
    prefix: str = ""
    selector: LabelSelector = ANY_LABELS
    wrong: str = ""

    @property
    def asked(self) -> dict[str, str]:
        """The fields that are not empty, for links to further pages."""
        return {name: text for name, text in self.given.items() if text}


def read_list_filter(query_params: Mapping[str, str]) -> ListFilter:
    """Read the filter from the query of a page."""
    given = {name: query_params.get(name, "").strip() for name in ("prefix", "selector")}
    prefix = given["prefix"]
    if len(prefix) > _NAME_LENGTH_MAX or "\x00" in prefix:
        return ListFilter(given=given, wrong=f"name: longer than {_NAME_LENGTH_MAX} characters or contains NUL")
    try:
        return ListFilter(given=given, prefix=prefix, selector=parse_selector(given["selector"]))
    except InvalidRequest as error:
        return ListFilter(given=given, wrong=error.message)


def read_offset(query_params: Mapping[str, str]) -> int:
    """Return the number of rows before a page, from the query; 0 if there is none or it is not a number."""
    text = query_params.get("from", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _NUMBER_LENGTH_MAX else 0
