"""Conversion between rows and values. Columns have the names of fields, so there is no list of columns to maintain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

__all__ = ["from_rows", "split_into_pieces", "to_row"]

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
    names = tuple(rows.keys())
    return [kind(**dict(zip(names, row, strict=True))) for piece in rows.partitions(_PIECE) for row in piece]


def to_row(value: object) -> dict[str, Any]:
    """Return the row for a value, which is one of the model's."""
    return {name: getattr(value, name) for name in _list_field_names(type(value))}  # type: ignore[arg-type] # a class is hashable
