"""Conversion between rows and values. Columns have the names of fields, so there is no list of columns to maintain."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypeVar

import sqlalchemy as sa

from forewarn.core.fast_replace import find_setters

__all__ = ["from_rows", "iter_from_rows", "split_into_pieces", "to_row"]

T = TypeVar("T")

_PIECE = 1000
_KEYS = 500


def split_into_pieces(items: Iterable[T]) -> Iterator[list[T]]:
    """Cut a list into pieces that fit into one statement."""
    iterator = iter(items)
    while piece := list(islice(iterator, _KEYS)):
        yield piece


@lru_cache
def _list_field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def from_rows(kind: type[T], rows: sa.Result[Any]) -> list[T]:
    """Return the values of rows of their table."""
    return list(chain.from_iterable(iter_from_rows(kind, rows)))


def iter_from_rows(kind: type[T], rows: sa.Result[Any]) -> Iterator[list[T]]:
    """Yield the values of rows of their table, up to a thousand at a time."""
    setters = find_setters(kind, tuple(rows.keys()))  # type: ignore[arg-type] # a class is hashable
    for piece in rows.partitions(_PIECE):
        values = [object.__new__(kind) for _ in piece]
        # Column by column, which takes a third of the time of calling `kind` for each row.
        for write, column in zip(setters, zip(*piece, strict=True), strict=True):
            deque(map(write, values, column), maxlen=0)
        yield values


def to_row(value: object) -> dict[str, Any]:
    """Return the row for a value, which is one of the model's."""
    return {name: getattr(value, name) for name in _list_field_names(type(value))}  # type: ignore[arg-type] # a class is hashable
