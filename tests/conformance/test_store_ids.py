"""Ids are found by their beginning."""

from __future__ import annotations

from dataclasses import replace

from forewarn.core.access import Role, Token
from forewarn.core.model import Event, Maintenance
from forewarn.store.contract import Store
from tests.support.world import NOW

TOKEN = Token(
    id="", name="ann", role=Role.READ_ONLY, digest="", created_at=NOW, created_by="operator:local", expires_at=NOW
)


def test_ids_are_found_by_their_beginning_in_order(store: Store) -> None:
    ids = ["k3v9xq2mab", "k3v0000000", "k3vzzzzzzz", "k3wzzzzzzz", "k3u9999999", "0123456789", "K3V0000000"]
    with store.write() as tx:
        for each in ids:
            tx.save_token(replace(TOKEN, id=each, digest=f"digest-{each}"))
    with store.read() as reader:
        assert reader.find_ids(Token, "k3v", 9) == ["k3v0000000", "k3v9xq2mab", "k3vzzzzzzz"]
        assert reader.find_ids(Token, "k3v", 2) == ["k3v0000000", "k3v9xq2mab"]
        assert reader.find_ids(Token, "k3v9xq2mab", 9) == ["k3v9xq2mab"]
        assert reader.find_ids(Token, "012", 9) == ["0123456789"]
        assert reader.find_ids(Token, "9", 9) == []
        assert reader.find_ids(Maintenance, "k3v", 9) == reader.find_ids(Event, "k3v", 9) == []
