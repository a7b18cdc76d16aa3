"""Live pages are made in turn by viewer, and only when there is something new to see on them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forewarn.control.board import BoardCache
from forewarn.control.broadcast import SharedEntry
from forewarn.control.context import Context
from forewarn.core.access import FILE_OPERATOR, Principal, Role
from forewarn.core.model import AuditEntry, EntryKind
from forewarn.dashboard import live
from forewarn.dashboard.live import LivePage, LivePages, next_page

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ANN, BOB = (
    Principal(actor=f"tenant:{name}", role=Role.TENANT, scopes=frozenset({f"{name}-web"})) for name in ("ann", "bob")
)


class Entries:
    """New audit log entries, as pages ask for them."""

    def __init__(self) -> None:
        self.position = 0
        self.revocation_count = 0
        self._kept: list[SharedEntry] = []

    def tell(self, audience: str) -> None:
        self.position += 1
        entry = AuditEntry(kind=EntryKind.ENABLED, at=NOW, actor="forewarn", audience=audience, sequence=self.position)
        self._kept.append(SharedEntry(entry, None))

    async def read_new_entries(self, changed: asyncio.Event) -> None:
        """Nothing is read: entries come by `tell`."""

    def entries_after(self, position: int) -> Iterator[SharedEntry]:
        return iter([shared for shared in self._kept if shared.entry.sequence > position])

    def find_vm(self, name: str) -> None:
        """No VM is declared."""


class World:
    """Live pages whose content is the number of times that they were made."""

    def __init__(self) -> None:
        self.entries = Entries()
        self.made: list[str] = []
        self.context = SimpleNamespace(
            changed=asyncio.Event(), is_stopping=asyncio.Event(), entry_broadcast=self.entries, notice=None
        )
        boards = SimpleNamespace(get_current=self._board, is_current=True)
        self.live = LivePages(cast("Context", self.context), cast("BoardCache", boards))

    async def _board(self) -> Any:  # noqa: ANN401 - as much of a board as pages look at
        return SimpleNamespace(position=self.entries.position)

    def change(self, audience: str) -> None:
        self.entries.tell(audience)
        changed, self.context.changed = self.context.changed, asyncio.Event()
        changed.set()

    def page(self, name: str) -> Callable[[], Awaitable[bytes]]:
        async def make() -> bytes:
            self.made.append(name)
            return f"{name} {self.made.count(name)}".encode()

        return make

    async def seen(self, count: int) -> list[str]:
        while len(self.made) < count:  # noqa: ASYNC110 - pages are made by the code under test, which signals nothing here
            await asyncio.sleep(0.001)
        return self.made[:count]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages may follow each other closely, and are never made because of their age."""
    monkeypatch.setattr(live, "_LEAST_S", 0.005)
    monkeypatch.setattr(live, "_REFRESH_S", 1e9)


async def follow(world: World, watched: Sequence[tuple[Principal, str]], stack: AsyncExitStack) -> None:
    for caller, address in watched:
        stream = await stack.enter_async_context(aclosing(world.live.watch(caller, address, world.page(address))))
        task = asyncio.create_task(_drain(stream))
        stack.push_async_callback(_end, task)
    await asyncio.sleep(0)


async def _drain(stream: Any) -> None:  # noqa: ANN401 - any stream of pieces
    async for _ in stream:
        pass


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def page(viewer: str, made_s: float | None) -> LivePage:
    async def make() -> bytes:
        return b""

    return LivePage(FILE_OPERATOR, viewer, make, rendered_s=made_s)


def test_the_next_page_is_the_oldest_of_the_viewer_who_has_waited_longest() -> None:
    old, older, other = page("ann", 2.0), page("ann", 1.0), page("bob", 9.0)
    assert next_page([old, older, other], {"ann": 7, "bob": 3}) is other
    assert next_page([old, older, other], {"ann": 3, "bob": 7}) is older
    assert next_page([old, older, page("new", None)], {"ann": 3}).viewer == "new"


@pytest.mark.anyio
@pytest.mark.usefixtures("quick")
async def test_sixty_pages_of_one_tenant_come_in_turn_with_the_page_of_another() -> None:
    world = World()
    async with AsyncExitStack() as stack:
        await follow(world, [(ANN, f"/ann-{n}") for n in range(60)] + [(BOB, "/bob")], stack)
        assert "/bob" in (await world.seen(2))[:2]


@pytest.mark.anyio
@pytest.mark.usefixtures("quick")
async def test_a_page_is_made_again_only_for_what_its_viewer_may_see() -> None:
    world = World()
    async with AsyncExitStack() as stack:
        await follow(world, [(ANN, "/ann"), (BOB, "/bob"), (FILE_OPERATOR, "/operator")], stack)
        await world.seen(3)
        world.change("scope:bob-web")
        await world.seen(5)
        world.change("scope:ann-web")
        await world.seen(7)
    assert Counter(world.made) == {"/operator": 3, "/ann": 2, "/bob": 2}


@pytest.mark.anyio
@pytest.mark.usefixtures("quick")
async def test_operators_share_a_page_and_tenants_do_not() -> None:
    world = World()
    others = [Principal(actor=f"operator:{n}", role=Role.OPERATOR, token_id=str(n)) for n in range(30)]
    async with AsyncExitStack() as stack:
        await follow(world, [(caller, "/") for caller in (*others, ANN, BOB)], stack)
        await world.seen(3)
        world.change("scope:ann-web")
        await world.seen(5)
        assert Counter(world.made[:5]) == {"/": 5}
        assert sorted(page.watchers for page in world.live._pages.values()) == [1, 1, 30]
