"""What was revoked stays so until it would have expired; what is kept for one actor is bounded."""

from __future__ import annotations

from forewarn.core.access import Revocation
from forewarn.store import Store
from tests.support.databases import Database
from tests.support.world import NOW, minutes


def revocation(nonce: str, actor: str = "operator:local", *, after: int = 10) -> Revocation:
    return Revocation(nonce=nonce, actor=actor, expires_at=NOW + minutes(after))


def test_a_link_is_revoked_once(store: Store) -> None:
    with store.write() as tx:
        assert not tx.is_revoked("a")
        assert tx.add_revocation(revocation("a"), NOW, 10)
        assert tx.is_revoked("a")
    with store.write() as tx:
        assert not tx.add_revocation(revocation("a"), NOW, 10)
    with store.read() as reader:
        assert reader.is_revoked("a")
        assert not reader.is_revoked("b")


def test_it_is_forgotten_once_it_has_expired_and_not_before(store: Store) -> None:
    with store.write() as tx:
        tx.add_revocation(revocation("a", after=1), NOW, 10)
        tx.add_revocation(revocation("b", after=2), NOW, 10)
        tx.add_revocation(revocation("c"), NOW + minutes(1), 10)
    with store.read() as reader:
        assert [reader.is_revoked(each) for each in "abc"] == [False, True, True]


def test_one_actor_forgets_its_own_beyond_the_limit_and_nobody_else_s(store: Store) -> None:
    with store.write() as tx:
        tx.add_revocation(revocation("theirs", "tenant:shop", after=1), NOW, 3)
    for number in range(6):
        with store.write() as tx:
            assert tx.add_revocation(revocation(str(number), after=10 + number), NOW, 3)
    with store.read() as reader:
        assert [reader.is_revoked(str(each)) for each in range(6)] == [False] * 3 + [True] * 3
        assert reader.is_revoked("theirs")


def test_it_outlives_a_restart(shared_database: Database) -> None:
    store = shared_database.open()
    with store.write() as tx:
        tx.add_revocation(revocation("a"), NOW, 10)
    store.close()
    store = shared_database.open()
    with store.read() as reader:
        assert reader.is_revoked("a")
    store.close()
