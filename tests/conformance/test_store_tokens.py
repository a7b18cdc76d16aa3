"""Tokens are kept, found by their digest, revoked, and forgotten."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.access import Role, Token
from forewarn.errors import StoreUnavailable
from forewarn.store import SqlStore
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
HOST = Token(
    id="h",
    name="host-1",
    role=Role.HOST,
    host="host-1",
    digest="digest-h",
    created_at=NOW + minutes(1),
    created_by="operator:local",
)


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


def test_tokens_are_found_together(store: SqlStore) -> None:
    with store.write() as tx:
        tx.save_token(ANN)
        tx.save_token(HOST)
    with store.read() as reader:
        assert reader.find_tokens_by_digest(["digest-a", "digest-h", "digest"]) == {"digest-a": ANN, "digest-h": HOST}
        assert reader.find_tokens_by_digest([]) == {}
        assert reader.find_tokens(["a", "h", "x"]) == {"a": ANN, "h": HOST}


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
