"""Statements that write many rows at once, in the terms of the drivers.

SQLAlchemy takes longer to turn the rows of a decision into parameters than SQLite takes to write them, and PostgreSQL
executes one statement for each row. So these statements take tuples, which are converted column by column. On
PostgreSQL all rows are one parameter, a JSON array, which one statement turns into rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from forewarn.store.rows import split_into_pieces

__all__ = ["Row", "RowStatement", "insert_rows", "update_rows", "upsert_rows"]

Row = tuple[Any, ...]
"""Values of the columns of a `RowStatement`, in their order."""

_Encode = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowStatement:
    """A statement for many rows of one table.

    Attributes:
        sql: Text of the statement, in the driver's syntax.
        names: Columns of a row, in order.
        encoders: For each column, the function for its values except None; None if they are stored unchanged.
        is_json: True if all rows are one parameter, a JSON array of objects; False if each row is a list of parameters.
        keys: Positions of the columns that identify a row, if a row may be repeated and the last one counts.
    """

    sql: str
    names: tuple[str, ...]
    encoders: tuple[_Encode | None, ...]
    is_json: bool
    keys: tuple[int, ...] = ()

    # In pieces: while a thousand rows are made into parameters, the database waits, and PostgreSQL ends a transaction
    # that keeps it waiting for too long.
    def execute(self, connection: sa.Connection, rows: Iterable[Row]) -> None:
        """Write rows; none: do nothing."""
        for piece in split_into_pieces(rows):
            encoded = self._encode(piece)
            if self.is_json:
                objects = [dict(zip(self.names, row, strict=True)) for row in self._drop_repeated(encoded)]
                connection.exec_driver_sql(self.sql, (msgspec.json.encode(objects).decode(),))
            else:
                connection.exec_driver_sql(self.sql, encoded)

    def _encode(self, rows: Sequence[Row]) -> list[Row]:
        columns = list(zip(*rows, strict=True))
        for number, encode in enumerate(self.encoders):
            if encode is not None:
                columns[number] = tuple([None if value is None else encode(value) for value in columns[number]])
        return list(zip(*columns, strict=True))

    def _drop_repeated(self, rows: list[Row]) -> Iterable[Row]:
        # A statement of PostgreSQL may change a row only once.
        return {tuple([row[i] for i in self.keys]): row for row in rows}.values() if self.keys else rows


@cache
def insert_rows(table: sa.Table, names: tuple[str, ...], dialect: str) -> RowStatement:
    """Return the statement that inserts rows."""
    return _make_insert(table, names, dialect)


@cache
def upsert_rows(table: sa.Table, names: tuple[str, ...], dialect: str) -> RowStatement:
    """Return the statement that inserts rows, or replaces these columns of those that exist."""
    quote = _make_quote(dialect)
    keys = [column.name for column in table.primary_key]
    changed = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in names if name not in keys)
    clause = f" ON CONFLICT ({', '.join(map(quote, keys))}) DO UPDATE SET {changed}"
    return _make_insert(table, names, dialect, clause, tuple(map(names.index, keys)))


@cache
def update_rows(table: sa.Table, names: tuple[str, ...], dialect: str) -> RowStatement:
    """Return the statement that changes columns of rows; each row has the values of `names`, and then its ``id``."""
    quote = _make_quote(dialect)
    own, columns = quote(table.name), [table.c[name] for name in (*names, "id")]
    if dialect == "sqlite":
        changed = ", ".join(f"{quote(name)} = ?" for name in names)
        sql = f"UPDATE {own} SET {changed} WHERE id = ?"  # noqa: S608 - names of our own tables
    else:
        changed = ", ".join(f"{quote(name)} = found.{quote(name)}" for name in names)
        source = f"{_list_rows(own)} AS found"
        sql = f"UPDATE {own} SET {changed} FROM {source} WHERE {own}.id = found.id"  # noqa: S608 - as above
    return _make_statement(sql, columns, dialect)


def _make_insert(
    table: sa.Table, names: tuple[str, ...], dialect: str, clause: str = "", keys: tuple[int, ...] = ()
) -> RowStatement:
    quote = _make_quote(dialect)
    own, quoted = quote(table.name), ", ".join(map(quote, names))
    source = f"SELECT {quoted} FROM {_list_rows(own)}"  # noqa: S608 - names of our own tables
    if dialect == "sqlite":
        source = f"VALUES ({', '.join('?' * len(names))})"
    sql = f"INSERT INTO {own} ({quoted}) {source}{clause}"
    return _make_statement(sql, [table.c[name] for name in names], dialect, keys)


def _list_rows(quoted: str) -> str:
    # By the types of the table's columns, so none is named here.
    return f"json_populate_recordset(NULL::{quoted}, %s::json)"


def _make_statement(
    sql: str, columns: Sequence[sa.Column[Any]], dialect: str, keys: tuple[int, ...] = ()
) -> RowStatement:
    is_json = dialect != "sqlite"
    return RowStatement(
        sql=sql,
        names=tuple(column.name for column in columns),
        encoders=tuple(_find_encoder(column.type, is_json=is_json) for column in columns),
        is_json=is_json,
        keys=keys,
    )


def _find_encoder(kind: sa.types.TypeEngine[Any], *, is_json: bool) -> _Encode | None:
    """Return the function that makes a value of a column into one for the driver, or for JSON."""
    encode: _Encode | None = getattr(kind, "convert", None)
    stored = kind.impl if isinstance(kind, sa.types.TypeDecorator) else kind
    if isinstance(stored, sa.JSON) and not is_json:
        assert encode is not None  # noqa: S101 - no column is plain JSON
        return _encode_as_text(encode)
    if isinstance(stored, sa.LargeBinary) and is_json:
        return _encode_bytes
    return encode


def _encode_as_text(encode: _Encode) -> _Encode:
    def encode_as_text(value: Any) -> str | None:  # noqa: ANN401 - whatever the column takes
        encoded = encode(value)
        return None if encoded is None else msgspec.json.encode(encoded).decode()

    return encode_as_text


def _encode_bytes(value: bytes) -> str:
    return f"\\x{value.hex()}"


@cache
def _make_quote(dialect: str) -> Callable[[str], str]:
    made: sa.Dialect = (sqlite if dialect == "sqlite" else postgresql).dialect()
    return made.identifier_preparer.quote
