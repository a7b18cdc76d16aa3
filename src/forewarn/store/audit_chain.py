"""The audit log's hash chains in SQL: reading them, appending to them, and forgetting entries without breaking them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from forewarn.core.audit_chain import Chain, ChainHead, ChainLink, ChainPage
from forewarn.core.model import AuditEntry
from forewarn.store import tables as t
from forewarn.store.rows import split_into_pieces

__all__ = [
    "HEADS",
    "encode_heads",
    "find_nth_newest_event_at",
    "forget_audit",
    "forget_events",
    "parse_heads",
    "read_link_page",
]

HEADS = "audit_log_heads"
"""Key in `meta` of the heads of both chains."""


def parse_heads(text: str | None) -> dict[Chain, ChainHead]:
    """Parse the stored heads of both chains; None: there are none yet."""
    content = {} if text is None else json.loads(text)
    return {chain: ChainHead() if text is None else ChainHead.parse(content[chain]) for chain in Chain}


def encode_heads(heads: Mapping[Chain, ChainHead]) -> str:
    """Return the heads of both chains as the text to store."""
    return json.dumps({chain.value: str(heads[chain]) for chain in Chain})


# Reading


def read_link_page(connection: sa.Connection, after: int | None, limit: int) -> ChainPage:
    """Return at most `limit` links with larger numbers, in order; None: from the beginning."""
    # One more of each than requested: a link left over after merging shows that there is a next page.
    links = sorted(
        [*_read_kept_links(connection, after, limit + 1), *_read_forgotten_links(connection, after, limit + 1)],
        key=attrgetter("sequence"),
    )
    meta = sa.select(t.meta.c.value).where(t.meta.c.key == HEADS)
    oldest = connection.execute(sa.select(sa.func.min(t.audit_log.c.sequence)).where(t.IS_AUDIT)).scalar()
    return ChainPage(
        links=tuple(links[:limit]),
        heads=parse_heads(connection.execute(meta).scalar()),
        oldest={} if oldest is None else {Chain.AUDIT: oldest},
        next=links[limit - 1].sequence if len(links) > limit else None,
    )


def _read_kept_links(connection: sa.Connection, after: int | None, limit: int) -> Iterator[ChainLink]:
    c = t.audit_log.c
    query = sa.select(*t.ENTRY_COLUMNS, c.chain, c.hash).order_by(c.sequence).limit(limit)
    query = query if after is None else query.where(c.sequence > after)
    for row in connection.execute(query).mappings():
        values = dict(row)
        chain, digest = values.pop("chain"), values.pop("hash")
        yield ChainLink(sequence=values["sequence"], chain=chain, hash=digest, entry=AuditEntry(**values))


def _read_forgotten_links(connection: sa.Connection, after: int | None, limit: int) -> Iterator[ChainLink]:
    c = t.audit_log_forgotten.c
    for chain in Chain:
        # The primary key begins with the chain, so a query for each chain reads no more than `limit` rows.
        query = sa.select(c.sequence, c.hash).where(c.chain == chain).order_by(c.sequence)
        query = query if after is None else query.where(c.sequence > after)
        for row in connection.execute(query.limit(limit)):
            yield ChainLink(sequence=row.sequence, chain=chain, hash=row.hash, entry=None)


def find_nth_newest_event_at(connection: sa.Connection, count: int) -> datetime | None:
    """Return the moment of the `count`-th newest entry of `Chain.EVENTS`; None if there are fewer.

    Skipping that many rows of the audit log is quick because it uses only the index, and so is counting the few entries
    of the other chain among them. That count is added to the offset until it no longer grows.
    """
    column = t.audit_log.c.sequence
    audit = 0
    while True:
        query = sa.select(column).order_by(column.desc()).offset(count - 1 + audit).limit(1)
        candidate = connection.execute(query).scalar()
        if candidate is None:
            return None
        newer = sa.select(sa.func.count()).select_from(t.audit_log).where(t.IS_AUDIT, column >= candidate)
        found = connection.execute(newer).scalar_one()
        if found == audit:
            return connection.execute(sa.select(t.audit_log.c.at).where(column == candidate)).scalar()
        audit = found


# Forgetting


def forget_events(connection: sa.Connection, *terms: sa.ColumnElement[bool], limit: int | None = None) -> int:
    """Forget entries of `Chain.EVENTS`, the oldest first, and keep what the chain needs; return how many."""
    c = t.audit_log.c
    query = sa.select(c.sequence, c.hash).where(c.chain == Chain.EVENTS, *terms)
    if limit is not None:
        query = query.order_by(c.at, c.sequence).limit(limit)
    rows = connection.execute(query).all()
    _delete_entries(connection, rows)
    if rows:
        content = [{"chain": Chain.EVENTS, "sequence": row.sequence, "hash": row.hash} for row in rows]
        connection.execute(sa.insert(t.audit_log_forgotten), content)
    # Only now: whether a link is needed depends on what is left on both sides of it.
    for piece in split_into_pieces(sorted(row.sequence for row in rows)):
        _drop_unneeded_links(connection, piece)
    return len(rows)


def _drop_unneeded_links(connection: sa.Connection, numbers: Sequence[int]) -> None:
    """Keep only the last entry of each run: a forgotten entry right before another forgotten one is not needed.

    A run that begins or ends with one of these numbers may now continue an older run.
    """
    found = {*_find_followed(connection, numbers, is_newer=True), *_find_followed(connection, numbers, is_newer=False)}
    c = t.audit_log_forgotten.c
    for piece in split_into_pieces(sorted(found)):
        connection.execute(sa.delete(t.audit_log_forgotten).where(c.chain == Chain.EVENTS, c.sequence.in_(piece)))


def _find_followed(connection: sa.Connection, numbers: Sequence[int], *, is_newer: bool) -> Iterable[int]:
    """Find forgotten entries right before another one, where `numbers` are the newer or the older of each pair."""
    this, other, kept = t.audit_log_forgotten.alias("this"), t.audit_log_forgotten.alias("other"), t.audit_log.c
    column, mine = other.c.sequence, this.c.sequence
    order, is_beside = (column.desc(), column < mine) if is_newer else (column, column > mine)
    nearest = sa.select(column).where(other.c.chain == this.c.chain, is_beside).order_by(order).limit(1)
    is_asked = (this.c.chain == Chain.EVENTS) & mine.in_(numbers)
    pair = sa.select(mine.label("mine"), nearest.scalar_subquery().label("nearest")).where(is_asked).subquery()
    old, new = (pair.c.nearest, pair.c.mine) if is_newer else (pair.c.mine, pair.c.nearest)
    # Entries of the other chain may lie between the two. They do not need the hash: each chain is followed separately.
    is_between = (kept.sequence > old) & (kept.sequence < new) & (kept.chain == Chain.EVENTS)
    query = sa.select(old).where(pair.c.nearest.is_not(None), ~sa.exists().where(is_between))
    return connection.execute(query).scalars().all()


def forget_audit(connection: sa.Connection, before: datetime, limit: int) -> int:
    """Forget the oldest entries of `Chain.AUDIT`, stopping at the first one not before `before`; return how many."""
    c, f = t.audit_log.c, t.audit_log_forgotten.c
    # Only from the beginning, which needs a single anchor. After a clock was set back, later entries may have earlier
    # times; forgetting these would leave gaps.
    first_kept = sa.select(c.sequence).where(t.IS_AUDIT, c.at >= before).order_by(c.sequence).limit(1)
    end = connection.execute(first_kept).scalar()
    query = sa.select(c.sequence, c.hash).where(t.IS_AUDIT).order_by(c.sequence).limit(limit)
    rows = connection.execute(query if end is None else query.where(c.sequence < end)).all()
    if not rows:
        return 0
    _delete_entries(connection, rows)
    # Only the last forgotten entry stays noted: the chain continues from its hash.
    connection.execute(sa.delete(t.audit_log_forgotten).where(f.chain == Chain.AUDIT, f.sequence < rows[-1].sequence))
    anchor = {"chain": Chain.AUDIT, "sequence": rows[-1].sequence, "hash": rows[-1].hash}
    connection.execute(sa.insert(t.audit_log_forgotten), [anchor])
    return len(rows)


def _delete_entries(connection: sa.Connection, rows: Sequence[sa.Row[Any, Any]]) -> None:
    for piece in split_into_pieces(row.sequence for row in rows):
        connection.execute(sa.delete(t.audit_log).where(t.audit_log.c.sequence.in_(piece)))
