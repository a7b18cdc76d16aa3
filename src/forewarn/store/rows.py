"""Conversion between rows and values. Columns have the names of fields, so there is no list of columns to maintain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, TypeVar

import sqlalchemy as sa

from forewarn.core.fast_replace import find_setters

__all__ = ["from_rows", "list_field_names", "split_into_pieces", "stream_rows"]

T = TypeVar("T")

_PIECE = 1000
"""Number of rows that become values together."""

_KEYS = 500
_MEMO_MAX = 5000
"""Maximum number of values that a memo holds: as many as there may be VMs between the first and the last of a host."""


def split_into_pieces(items: Iterable[T]) -> Iterator[list[T]]:
    """Cut a list into pieces that fit into one statement."""
    iterator = iter(items)
    while piece := list(islice(iterator, _KEYS)):
        yield piece


@lru_cache
def list_field_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the columns of a kind of value."""
    return tuple(f.name for f in fields(kind))


def from_rows(kind: type[T], rows: sa.Result[Any]) -> list[T]:
    """Return the values of rows of their table."""
    setters = find_setters(kind, tuple(rows.keys()))  # type: ignore[arg-type] # a class is hashable
    pieces = (_build_values(kind, setters, len(piece), zip(*piece, strict=True)) for piece in rows.partitions(_PIECE))
    return list(chain.from_iterable(pieces))


def stream_rows(
    connection: sa.Connection,
    kind: type[T],
    table: sa.Table,
    *terms: sa.ColumnElement[bool],
    order_by: sa.ColumnElement[Any] | None = None,
) -> Iterator[list[T]]:
    """Yield the values of all rows that match, up to a thousand at a time, without ever having all rows in memory.

    This is for a million rows. The database sends the next rows when these have been taken. The columns are decoded
    here, each as a whole, which takes less than half the time of decoding value by value.
    """
    setters = find_setters(kind, tuple(table.c.keys()))  # type: ignore[arg-type] # a class is hashable
    decoders = [_make_column_decoder(column, connection.dialect) for column in table.c]
    raw = [sa.type_coerce(column, sa.types.NullType()).label(column.name) for column in table.c]
    query = sa.select(*raw).where(*terms).order_by(order_by)
    rows = connection.execute(query, execution_options={"yield_per": _PIECE})
    for piece in rows.partitions():
        columns = (decode(column) for decode, column in zip(decoders, zip(*piece, strict=True), strict=True))
        yield _build_values(kind, setters, len(piece), columns)


def _build_values(
    kind: type[T], setters: Iterable[Callable[[Any, Any], None]], count: int, columns: Iterable[Iterable[Any]]
) -> list[T]:
    values = [object.__new__(kind) for _ in range(count)]
    # Column by column, which takes a third of the time of calling `kind` for each row.
    for write, column in zip(setters, columns, strict=True):
        deque(map(write, values, column), maxlen=0)
    return values


def _make_column_decoder(column: sa.Column[Any], dialect: sa.Dialect) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a function that decodes values of a column, as the database returned them."""
    kind = column.type.dialect_impl(dialect)
    decode = kind.result_processor(dialect, None)
    if decode is None:
        return iter
    if getattr(kind, "is_shared", False):
        # A look-up in a dictionary, which calls no function of Python, unless the value is new.
        return partial(map, _Memo(decode).__getitem__)
    return partial(map, decode)


class _Memo(dict[Any, Any]):
    """Decoded values, of a column in which many rows have the same value."""

    def __init__(self, decode: Callable[[Any], Any]) -> None:
        super().__init__()
        self._decode = decode

    def __missing__(self, value: Any) -> Any:  # noqa: ANN401 - as the column has
        if len(self) >= _MEMO_MAX:
            self.clear()
        decoded = self[value] = self._decode(value)
        return decoded
