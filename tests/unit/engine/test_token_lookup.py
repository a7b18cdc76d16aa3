"""Tokens that are asked for at the same time are read together, and each caller gets its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from forewarn.core.access import Role, Token
from forewarn.engine.token_lookup import _BATCH_MAX, TokenLookup
from forewarn.errors import StoreUnavailable
from tests.support.spans import GUARD_S
from tests.support.world import NOW

pytestmark = pytest.mark.anyio


def a_token(digest: str) -> Token:
    return Token(id=f"t-{digest}", name=digest, role=Role.HOST, digest=digest, created_at=NOW, created_by="test")


class Store:
    """A committer whose reads wait until they are let go on."""

    def __init__(self, *digests: str) -> None:
        self.tokens = {digest: a_token(digest) for digest in digests}
        self.reads: list[set[str]] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.error: BaseException | None = None

    async def read(self, function: Callable[[Any], dict[str, Token]]) -> dict[str, Token]:
        await self.may_read.wait()
        if self.error is not None:
            raise self.error
        return function(self)

    def find_tokens_by_digest(self, digests: set[str]) -> dict[str, Token]:
        self.reads.append(digests)
        return {digest: token for digest, token in self.tokens.items() if digest in digests}

    def lookup(self) -> TokenLookup:
        return TokenLookup(cast("Any", self))


async def all_of(lookup: TokenLookup, *digests: str) -> list[Any]:
    found = (lookup.find(digest) for digest in digests)
    return await asyncio.wait_for(asyncio.gather(*found, return_exceptions=True), GUARD_S)


async def test_tokens_asked_for_together_are_read_together() -> None:
    store = Store("a", "b")
    found = await all_of(store.lookup(), "b", "none", "a", "b")
    assert found == [store.tokens["b"], None, store.tokens["a"], store.tokens["b"]]
    assert store.reads == [{"a", "b", "none"}]


async def test_a_read_begins_after_each_request_for_its_tokens() -> None:
    store = Store("a")
    lookup = store.lookup()
    store.may_read.clear()
    first = asyncio.create_task(lookup.find("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the first read has begun
    second = asyncio.create_task(lookup.find("a"))
    await asyncio.sleep(0)
    store.may_read.set()
    await asyncio.wait_for(asyncio.gather(first, second), GUARD_S)
    assert store.reads == [{"a"}, {"a"}]


async def test_many_tokens_take_several_reads() -> None:
    store = Store("last")
    found = await all_of(store.lookup(), *(f"{number}" for number in range(_BATCH_MAX)), "last")
    assert found[-1] == store.tokens["last"]
    assert [len(each) for each in store.reads] == [_BATCH_MAX, 1]


async def test_an_error_reaches_all_who_wait_and_the_next_read_works() -> None:
    store = Store("a")
    lookup = store.lookup()
    store.error = StoreUnavailable("the database is down")
    assert await all_of(lookup, "a", "b") == [store.error, store.error]
    store.error = None
    assert await all_of(lookup, "a") == [store.tokens["a"]]


async def test_a_caller_who_gives_up_leaves_the_others_theirs() -> None:
    store = Store("a", "b")
    lookup = store.lookup()
    store.may_read.clear()
    gone, waiting = asyncio.create_task(lookup.find("a")), asyncio.create_task(lookup.find("b"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    store.may_read.set()
    assert await asyncio.wait_for(waiting, GUARD_S) == store.tokens["b"]
    assert gone.cancelled()


async def test_a_read_that_breaks_leaves_no_caller_waiting() -> None:
    store = Store("a")
    lookup = store.lookup()
    store.error = asyncio.CancelledError()
    [found] = await all_of(lookup, "a")
    assert isinstance(found, asyncio.CancelledError)
    store.error = None
    assert await all_of(lookup, "a") == [store.tokens["a"]]
