"""Conditions on rows by labels: what `LabelSelector.matches` defines, in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from forewarn.core.label import LabelRequirement, LabelSelector
from forewarn.store import tables as t

__all__ = ["match_host_labels", "match_scope_labels", "match_vm_labels"]


def match_host_labels(selector: LabelSelector) -> Iterator[sa.ColumnElement[bool]]:
    """Yield a condition on hosts for each requirement."""
    return _match_own_labels(t.host, selector)


def match_scope_labels(selector: LabelSelector) -> Iterator[sa.ColumnElement[bool]]:
    """Yield a condition on scopes for each requirement."""
    return _match_own_labels(t.scope, selector)


def _match_own_labels(table: sa.Table, selector: LabelSelector) -> Iterator[sa.ColumnElement[bool]]:
    for each in selector.requirements:
        yield _negate(_has(_get_label(table, each.key), each.values), each)


def match_vm_labels(selector: LabelSelector, *, ignores_hosts: bool) -> Iterator[sa.ColumnElement[bool]]:
    """Yield a condition on VMs for each requirement; a label of the VM overrides its scope's, and that its host's."""
    inherited = [(t.vm.c.scope, t.scope)] if ignores_hosts else [(t.vm.c.scope, t.scope), (t.vm.c.host, t.host)]
    for each in selector.requirements:
        own = _get_label(t.vm, each.key)
        found = _has(own, each.values)
        is_absent: sa.ColumnElement[bool] = own.is_(None)
        # The database makes a set of each SELECT once, since hosts and scopes are few. Joins would take a look-up of
        # both for each VM.
        for column, table in inherited:
            label = _get_label(table, each.key)
            found |= is_absent & column.in_(sa.select(table.c.name).where(_has(label, each.values)))
            has_key = sa.func.coalesce(column.in_(sa.select(table.c.name).where(label.is_not(None))), sa.false())
            is_absent &= ~has_key
        yield _negate(found, each)


def _get_label(table: sa.Table, key: str) -> sa.ColumnElement[str | None]:
    labels: sa.ColumnElement[Any] = sa.type_coerce(table.c.labels, sa.JSON)
    label: sa.ColumnElement[str | None] = labels[key].as_string()
    return label


def _has(label: sa.ColumnElement[str | None], values: Sequence[str] | None) -> sa.ColumnElement[bool]:
    return label.is_not(None) if values is None else label.in_(values)


def _negate(found: sa.ColumnElement[bool], requirement: LabelRequirement) -> sa.ColumnElement[bool]:
    # An absent label compares as NULL, which NOT would leave as it is.
    return ~sa.func.coalesce(found, sa.false()) if requirement.is_negated else found
