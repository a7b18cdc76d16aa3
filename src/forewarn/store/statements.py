"""Statements of the SQL store that a decision executes, built once.

SQLAlchemy needs three to four times as long to build a statement, and to find its compiled form, as to execute it. The
writer executes about ten for each transaction, so these are built when they are first used, and take their values as
parameters.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from forewarn.store import tables as t

__all__ = [
    "ADDRESSED_VMS",
    "CLOCK",
    "EVENT_AUDIENCES",
    "HELD_SCOPES",
    "HELD_VMS",
    "KEYS",
    "LEASE",
    "LISTED_EVENTS",
    "LISTED_IDS",
    "META_VALUE",
    "META_VALUES",
    "UNAPPROVED_COUNTS",
    "VMS_OF_HOSTS",
    "VMS_WITH_POLICY",
    "VM_COUNTS_OF_SCOPES",
    "delete_by_key",
    "match_keys",
    "select_by_key",
]

KEYS = "keys"
"""Parameter of the statements that take keys: a list."""


class _KeyMatch(FunctionElement[Any]):
    """Condition that the value of a column is one of the keys."""

    # On PostgreSQL one parameter for all keys: with one for each, each number of keys would be a statement to plan.
    inherit_cache = True
    # Not boolean: SQLAlchemy would append "= 1" on SQLite, and SQLite would scan the table.
    type = sa.types.NULLTYPE
    name = "key_match"


@compiles(_KeyMatch, "sqlite")
def _compile_for_sqlite(element: _KeyMatch, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    # A parameter for each key. `json_each` would need only one, but SQLite 3.40 crashes in a DELETE with it.
    column, _ = element.clauses
    return compiler.process(column.in_(sa.bindparam(KEYS, expanding=True)), **options)


@compiles(_KeyMatch, "postgresql")
def _compile_for_postgresql(element: _KeyMatch, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    column, keys = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} = ANY ({keys})"


def match_keys(column: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that the value of a column, which is text, is one of the parameter `KEYS`."""
    return cast("sa.ColumnElement[bool]", _KeyMatch(column, sa.bindparam(KEYS)))


@cache
def select_by_key(column: sa.Column[Any]) -> sa.Select[Any]:
    """Return the query for whole rows by the values of a column."""
    return sa.select(column.table).where(match_keys(column))


@cache
def delete_by_key(column: sa.Column[Any]) -> sa.Delete:
    """Return the statement that deletes rows by the values of a column."""
    return sa.delete(column.table).where(match_keys(column))


def _select_held(column: sa.Column[Any]) -> sa.Select[Any]:
    c = t.claim.c
    return sa.select(c.maintenance_id).where(c.is_active, match_keys(column)).distinct()


_EVENT, _VM, _META = t.event.c, t.vm.c, t.meta.c

HELD_VMS = _select_held(t.claim.c.vm)
"""Ids of the active maintenances that hold one of these VMs."""

HELD_SCOPES = _select_held(t.claim.c.scope)
"""Ids of the active maintenances that hold one of these scopes."""

LISTED_EVENTS = sa.select(t.event).where(_EVENT.is_listed, match_keys(_EVENT.audience))
"""Listed events of these audiences."""

LISTED_IDS = sa.select(_EVENT.id, _EVENT.maintenance_id).where(_EVENT.is_listed, match_keys(_EVENT.audience))
"""Ids of the listed events of these audiences, each with the id of its maintenance."""

UNAPPROVED_COUNTS = (
    sa.select(_EVENT.maintenance_id, sa.func.count().label("number"))
    .where(_EVENT.is_listed, _EVENT.approved_at.is_(None), match_keys(_EVENT.maintenance_id))
    .group_by(_EVENT.maintenance_id)
)
"""Number of listed events of these maintenances that are not approved."""

EVENT_AUDIENCES = sa.select(_EVENT.id, _EVENT.audience).where(match_keys(_EVENT.id))
"""Audience of each of these events."""

VMS_WITH_POLICY = sa.select(t.vm).where(sa.or_(_VM.policy.is_not(None), _VM.scope.is_not(None)), match_keys(_VM.name))
"""Those of these VMs that have a policy, or a scope that may have one."""

VMS_OF_HOSTS = sa.select(_VM.host, _VM.name).where(match_keys(_VM.host))
"""Names of the VMs of these hosts."""

VM_COUNTS_OF_SCOPES = (
    sa.select(_VM.scope, sa.func.count().label("number")).where(match_keys(_VM.scope)).group_by(_VM.scope)
)
"""Number of VMs of each of these scopes."""

ADDRESSED_VMS = sa.select(t.address.c.vm).where(match_keys(t.address.c.address))
"""Names of the VMs that have one of these addresses."""

CLOCK = sa.select(sa.func.clock_timestamp())
"""The database's time. Not now(), which is the beginning of the transaction, before it waited for the writers' lock."""

LEASE = sa.select(t.lease).where(t.lease.c.name == sa.bindparam("the_name"))
"""One lease."""

META_VALUE = sa.select(_META.value).where(_META.key == sa.bindparam("the_key"))
"""One value of `meta`."""

META_VALUES = sa.select(_META.key, _META.value).where(match_keys(_META.key)).with_for_update()
"""Several values of `meta`, locked until the transaction ends."""
