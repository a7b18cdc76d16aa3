"""A selection as SQL: the decisions of `forewarn.core.selection` in a form that indexes can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from forewarn.core.selection import Selection, to_ascii_lower
from forewarn.store import tables as t

__all__ = [
    "SequenceRange",
    "build_entry_conditions",
    "build_maintenance_conditions",
    "find_sequence_range",
    "match_place",
    "match_subquery",
]

_STEP_BACK_MAX = timedelta(hours=1)
"""Maximum backward step of a clock that loses no entry. Entries are numbered in the order of their commits, so a later
number nearly always has a later moment.
"""

_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)

Term = sa.ColumnElement[bool]


def build_entry_conditions(selection: Selection, dialect: str, within: Sequence[Term]) -> list[Term]:
    """Return the conditions on a row of the audit log, including `within`, the known conditions on its number."""
    s, c = selection, t.audit_log.c
    terms = [*within, *_build_period_conditions(s, c.at)]
    if s.maintenance_id is not None:
        terms.append(c.maintenance_id == s.maintenance_id)
    terms += _build_entry_kind_conditions(s)
    if s.text is not None:
        terms.append(_build_text_condition(c.reason, s.text, dialect))
    kind = _build_maintenance_kind_conditions(s)
    if kind:
        # Not EXISTS: PostgreSQL would turn it into a join that begins with every maintenance.
        is_of_kind = sa.select(sa.case((sa.and_(*kind), 1), else_=0)).where(t.maintenance.c.id == c.maintenance_id)
        terms.append(is_of_kind.scalar_subquery() == 1)
    if s.has_place:
        terms.append(match_subquery(c.sequence, _select_sequences_at_place(s, within), dialect))
    return terms


def match_subquery(column: sa.ColumnElement[Any], found: sa.SelectBase, dialect: str) -> Term:
    """Return the condition that the column is in `found`, evaluating `found` first.

    PostgreSQL would often rather go through all rows, newest first, and check each until a page is full. If few rows
    match, or only old ones, that takes many seconds.
    """
    if dialect != "postgresql":
        return column.in_(found)
    return column == sa.any_(sa.func.array(found.scalar_subquery(), type_=sa.ARRAY(column.type)))


def build_maintenance_conditions(selection: Selection, dialect: str) -> list[Term]:
    """Return the conditions on a row of the maintenances."""
    s, c = selection, t.maintenance.c
    terms = _build_period_conditions(s, c.created_at) + _build_maintenance_kind_conditions(s)
    if s.maintenance_id is not None:
        terms.append(c.id == s.maintenance_id)
    if s.has_place:
        terms.append(c.id.in_(_select_claiming_ids(s)))
    if s.text is not None:
        terms.append(
            sa.or_(*(_build_text_condition(column, s.text, dialect) for column in (c.description, c.force_reason)))
        )
    of_entry = [_hide_from_index(term) for term in _build_entry_kind_conditions(s)]
    if of_entry:
        terms.append(sa.exists().where(t.audit_log.c.maintenance_id == c.id, *of_entry))
    return terms


def _build_period_conditions(selection: Selection, column: sa.Column[Any]) -> list[Term]:
    terms: list[Term] = [] if selection.since is None else [column >= selection.since]
    return terms if selection.until is None else [*terms, column < selection.until]


def _build_entry_kind_conditions(selection: Selection) -> list[Term]:
    c = t.audit_log.c
    terms: list[Term] = []
    if len(selection.kinds) == 1:
        terms.append(c.kind == selection.kinds[0])  # keeps the order of the index, which a list would not
    elif selection.kinds:
        terms.append(c.kind.in_(selection.kinds))
    if selection.actor is not None:
        terms.append(c.actor == selection.actor)
    return terms


def _hide_from_index(term: Term) -> Term:
    """Return the same term in a form that no index answers.

    The few entries of one maintenance are to be examined, not all entries that an actor has ever made.
    """
    return sa.case((term, 1), else_=0) == 1


def _build_maintenance_kind_conditions(selection: Selection) -> list[Term]:
    c = t.maintenance.c
    terms: list[Term] = []
    if len(selection.states) == 1:
        terms.append(c.state == selection.states[0])
    elif selection.states:
        terms.append(c.state.in_(selection.states))
    if selection.type is not None:
        terms.append(c.type == selection.type)
    if selection.source is not None:
        terms.append(c.source == selection.source)
    return terms


def _select_claiming_ids(selection: Selection) -> sa.Select[tuple[str]]:
    """Return the ids of the maintenances that claim a VM at that place."""
    return sa.select(t.claim.c.maintenance_id).where(*match_place(selection))


def match_place(selection: Selection) -> list[Term]:
    """Return the conditions on a row of the claims for the selected place."""
    c, s = t.claim.c, selection
    return [column == name for column, name in ((c.vm, s.vm), (c.scope, s.scope), (c.host, s.host)) if name is not None]


def _select_sequences_at_place(selection: Selection, within: Sequence[Term]) -> sa.SelectBase:
    """Return the numbers of the entries related to that place; an index finds each part."""
    s, c = selection, t.audit_log.c
    number = sa.select(c.sequence).where(*within)
    parts = [number.where(c.maintenance_id.in_(_select_claiming_ids(s)))]
    if s.host is None:
        in_scope = [] if s.scope is None else [c.audience == f"scope:{s.scope}"]
        of_vm = [[]] if s.vm is None else [[c.vm == s.vm], [c.audience == f"vm:{s.vm}"]]
        parts += [number.where(*term, *in_scope) for term in of_vm]
    return sa.union(*parts)


def _build_text_condition(column: sa.Column[Any], text: str, dialect: str) -> Term:
    """Return the condition that the column contains the text, ignoring ASCII case; it has no wildcards."""
    wanted = to_ascii_lower(text)
    if dialect == "sqlite":
        return sa.func.instr(sa.func.lower(column), wanted) > 0
    # In the collation C, lower() changes ASCII letters only, as SQLite's does: both databases find the same rows.
    return sa.func.strpos(sa.func.lower(sa.collate(column, "C")), wanted) > 0


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Range of counter values that a page examines; both ends are exclusive.

    Attributes:
        low: Lower bound.
        high: Upper bound; None: no bound.
        following: Start of the next page if this one is not full; None: there is none.
    """

    low: int
    high: int | None
    following: int | None = None

    def to_conditions(self, column: sa.Column[Any]) -> list[Term]:
        """Return the conditions on the number of a row."""
        terms: list[Term] = [column > self.low] if self.low else []
        return terms if self.high is None else [*terms, column < self.high]

    def limit_to(self, count_max: int, position: int, *, is_backwards: bool) -> SequenceRange:
        """Return the part to examine first, of `count_max` numbers; `position` is the last number in use."""
        # Both ends are exclusive, hence the ones that are added and subtracted.
        low, high = self.low, self.high
        if is_backwards:
            bottom = (position + 1 if high is None else high) - 1 - count_max
            return SequenceRange(bottom, high, bottom + 1) if bottom > low else self
        top = low + count_max
        return SequenceRange(low, top + 1, top) if top < (position if high is None else high - 1) else self


def find_sequence_range(
    connection: sa.Connection, selection: Selection, after: int = 0, before: int | None = None
) -> SequenceRange:
    """Return the range of numbers, between `after` and `before`, given out around the period of a selection.

    Entries and maintenances share one counter, so the audit log gives the range for both.
    """
    low, high = after, before
    has_moment = selection.since is not None or selection.until is not None
    # A narrow selection has few rows, which an index finds without this.
    if selection.is_narrow or not has_moment or _is_virtual(connection):
        return SequenceRange(low, high)
    if selection.since is not None:
        first = _find_entry_beside(connection, _shift_moment(selection.since, -_STEP_BACK_MAX), is_before=True)
        low = max(low, first or 0)
    if selection.until is not None:
        last = _find_entry_beside(connection, _shift_moment(selection.until, _STEP_BACK_MAX), is_before=False)
        high = last if high is None or (last is not None and last < high) else high
    return SequenceRange(low, high)


def _shift_moment(moment: datetime, by: timedelta) -> datetime:
    """Return the moment shifted by `by`, limited to the representable range."""
    try:
        return moment + by
    except OverflowError:
        return _LAST if by > timedelta(0) else _FIRST


def _find_entry_beside(connection: sa.Connection, moment: datetime, *, is_before: bool) -> int | None:
    at = t.audit_log.c.at
    query = sa.select(t.audit_log.c.sequence).limit(1)
    query = query.where(at < moment).order_by(at.desc()) if is_before else query.where(at >= moment).order_by(at)
    return connection.execute(query).scalar()


def _is_virtual(connection: sa.Connection) -> bool:
    """Return True for a virtual clock: it restarts with each service, so its moments are unrelated to numbers."""
    return connection.execute(sa.select(t.meta.c.value).where(t.meta.c.key == "clock")).scalar() == "virtual"
