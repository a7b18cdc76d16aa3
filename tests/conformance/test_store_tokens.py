"""Tokens are kept, found by their digest, revoked, and forgotten; and replicas of the version before are understood."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from forewarn.core.access import Role, Token
from forewarn.errors import StoreUnavailable
from forewarn.store import SqlStore
from tests.support.databases import Database
from tests.support.world import NOW, minutes

ANN = Token(
    id="a",
    name="ann",
    role=Role.TENANT,
    digest="digest-a",
    created_at=NOW,
    created_by="operator:local",
    scopes=("web",),
    vms=("db", "solo"),
    expires_at=NOW + timedelta(days=90),
)
HOST = Token(id="h", name="host-1", role=Role.HOST, host="host-1", digest="digest-h", created_at=NOW + minutes(1))


def test_a_token_comes_back_as_it_was_kept(store: SqlStore) -> None:
    with store.write() as tx:
        tx.save_token(ANN)
        tx.save_token(HOST)
    with store.read() as reader:
        assert reader.get_token_by_digest("digest-a") == reader.get_token("a") == ANN
        assert reader.get_token_by_digest("digest-h") == reader.get_token("h") == HOST
        assert reader.get_token_by_digest("digest") is reader.get_token("x") is None
        assert reader.list_tokens() == [ANN]
        assert reader.list_tokens("host-1") == [HOST]
        assert reader.list_tokens("host-2") == []


def test_a_token_is_changed_by_keeping_it_again(store: SqlStore) -> None:
    for token in (ANN, HOST):
        with store.write() as tx:
            tx.save_token(token)
        with store.write() as tx:
            tx.save_token(replace(token, revoked_at=NOW))
        with store.read() as reader:
            assert reader.get_token_by_digest(token.digest) == replace(token, revoked_at=NOW)


def test_no_two_tokens_are_the_same_word(store: SqlStore) -> None:
    with store.write() as tx:
        tx.save_token(ANN)
    with pytest.raises(StoreUnavailable), store.write() as tx:
        tx.save_token(replace(ANN, id="b"))
    with store.read() as reader:
        assert reader.list_tokens() == [ANN]


def test_what_is_not_taken_any_more_is_forgotten_with_the_history(store: SqlStore) -> None:
    with store.write() as tx:
        tx.save_token(ANN)
        tx.save_token(replace(ANN, id="b", digest="b", revoked_at=NOW))
        tx.save_token(replace(HOST, revoked_at=NOW))
        tx.save_token(replace(HOST, id="i", digest="i"))
        tx.prune_history(NOW + minutes(1), NOW, 10)
    with store.read() as reader:
        assert [each.id for each in (*reader.list_tokens(), *reader.list_tokens("host-1"))] == ["a", "i"]
        assert reader.get_token_by_digest("digest-h") is None
    with store.write() as tx:
        tx.prune_history(NOW + timedelta(days=91), NOW, 10)
    with store.read() as reader:
        assert reader.list_tokens() == []


# Replicas of the version before know one table of tokens, that of hosts


def test_what_an_older_replica_makes_and_revokes_holds_here(shared_database: Database) -> None:
    store = shared_database.open()
    with store.write() as tx:
        tx.save_token(HOST)
    made = "INSERT INTO host_token (id, host, digest, created_at) VALUES ('old', 'host-1', 'digest-old', 0)"
    with shared_database.engine().begin() as older:
        older.execute(sa.text(made))
        older.execute(sa.text("UPDATE host_token SET revoked_at = 1 WHERE id = 'h'"))
    with store.read() as reader:
        found = reader.get_token_by_digest("digest-old")
        assert found is not None
        assert (found.id, found.role, found.host, found.revoked_at) == ("old", Role.HOST, "host-1", None)
        assert reader.get_token("old") == found
        revoked = reader.get_token_by_digest("digest-h")
        assert revoked is not None
        assert revoked.revoked_at is not None
        assert {each.id for each in reader.list_tokens("host-1")} == {"old", "h"}
        assert reader.list_tokens() == []
    store.close()


def test_what_is_made_and_revoked_here_holds_for_an_older_replica(shared_database: Database) -> None:
    store = shared_database.open()
    with store.write() as tx:
        tx.save_token(ANN)
        tx.save_token(HOST)
    query = sa.text("SELECT id, host, digest, revoked_at IS NULL FROM host_token")
    with shared_database.engine().connect() as older:
        assert [(row[0], row[1], row[2], bool(row[3])) for row in older.execute(query)] == [
            ("h", "host-1", "digest-h", True)
        ]
    with store.write() as tx:
        tx.save_token(replace(HOST, revoked_at=NOW))
    with shared_database.engine().connect() as older:
        assert [bool(row[3]) for row in older.execute(query)] == [False]
    store.close()


def test_the_migration_carries_tokens_of_hosts_over(shared_database: Database) -> None:
    shared_database.open().close()
    with shared_database.engine().begin() as connection:
        made = "INSERT INTO host_token (id, host, digest, created_at) VALUES ('old', 'h', 'digest-old', 0)"
        connection.execute(sa.text(made))
        _go(connection, "0002")
        _go(connection, "head")
        rows = connection.execute(sa.text("SELECT id, name, role, host, digest FROM token")).all()
    assert [tuple(row) for row in rows] == [("old", "h", "host", "h", "digest-old")]


def _go(connection: sa.Connection, revision: str) -> None:
    from alembic import command  # noqa: PLC0415 - a fifth of a second
    from alembic.config import Config  # noqa: PLC0415 - as above

    from tests.conformance.test_store_schema import MIGRATIONS  # noqa: PLC0415 - as above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    (command.upgrade if revision == "head" else command.downgrade)(config, revision)
