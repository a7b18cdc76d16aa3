"""What goes wrong: drawn from the seed, two faults at a time at most, each over and healed before its place is free."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tests.faultrun.links import Link, State
from tests.faultrun.world import LEASE_S, World

__all__ = ["Chaos"]

_AT_ONCE = 2


class Chaos:
    """The faults of a run.

    Args:
        world: What they happen to.
        luck: Where they are drawn from.
        tell: Called with a line about each.

    Attributes:
        counts: How often each kind happened.
    """

    def __init__(self, world: World, luck: random.Random, tell: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._tell = tell
        self._lucks = [random.Random(luck.random()) for _ in range(_AT_ONCE)]
        self._busy: set[str] = set()
        self._kinds: dict[str, tuple[int, Callable[[random.Random], Awaitable[None]]]] = {
            "kill a replica": (4, self._kill_replica),
            "kill an endpoint": (4, self._kill_endpoint),
            "halt a replica": (2, self._halt_replica),
            "halt an endpoint": (1, self._halt_endpoint),
            "cut an endpoint off": (3, self._cut_endpoint),
            "cut a replica off": (4, self._cut_replica),
            "slow links": (1, self._slow),
            "end connections": (3, self._end_connections),
            "database away": (2, self._away),
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and until the last fault is healed."""
        await asyncio.gather(*(self._run_one(luck, stop) for luck in self._lucks))

    async def _run_one(self, luck: random.Random, stop: asyncio.Event) -> None:
        weights = [weight for weight, _ in self._kinds.values()]
        while not stop.is_set():
            kind = luck.choices(list(self._kinds), weights)[0]
            await self._kinds[kind][1](luck)
            await asyncio.sleep(luck.uniform(0.1, 0.8))

    @contextmanager
    def _taken(self, kind: str, *names: str) -> Iterator[bool]:
        """Whether nothing else is being done to these; they are ours until the block ends."""
        if self._busy.intersection(names):
            yield False
            return
        self._busy.update(names)
        self.counts[kind] += 1
        self._tell(f"{kind}: {', '.join(names)}")
        try:
            yield True
        finally:
            self._busy.difference_update(names)

    async def _kill_replica(self, luck: random.Random) -> None:
        part = luck.choice(self._world.replicas)
        with self._taken("replica killed", part.name) as is_ours:
            if is_ours:
                part.kill()
                await asyncio.sleep(luck.uniform(0.1, 3))
                await part.start()

    async def _kill_endpoint(self, luck: random.Random) -> None:
        part = self._world.endpoints[luck.choice(self._world.hosts)]
        with self._taken("endpoint killed", part.name) as is_ours:
            if is_ours:
                part.kill()
                await asyncio.sleep(luck.uniform(0, 1.5))
                await part.start()

    async def _halt_replica(self, luck: random.Random) -> None:
        part = luck.choice(self._world.replicas)
        with self._taken("replica halted", part.name) as is_ours:
            if is_ours:
                part.halt()
                await asyncio.sleep(LEASE_S + luck.uniform(0.2, 2))
                part.go_on()

    async def _halt_endpoint(self, luck: random.Random) -> None:
        part = self._world.endpoints[luck.choice(self._world.hosts)]
        with self._taken("endpoint halted", part.name) as is_ours:
            if is_ours:
                part.halt()
                await asyncio.sleep(luck.uniform(0.5, 3))
                part.go_on()

    async def _cut_endpoint(self, luck: random.Random) -> None:
        host = luck.choice(self._world.hosts)
        links = [link for (of, _), link in self._world.to_replica.items() if of == host]
        chosen = links if luck.random() < 0.5 else [luck.choice(links)]
        await self._cut("endpoint cut off", luck, chosen)

    async def _cut_replica(self, luck: random.Random) -> None:
        await self._cut("replica cut off", luck, [luck.choice(self._world.to_database)])

    async def _cut(self, kind: str, luck: random.Random, links: list[Link]) -> None:
        state = luck.choice([State.RESET, State.SILENT])
        with self._taken(f"{kind}, {state}", *(link.name for link in links)) as is_ours:
            if is_ours:
                for link in links:
                    link.change(state)
                await asyncio.sleep(luck.uniform(0.3, 6))
                for link in links:
                    link.heal()

    async def _slow(self, luck: random.Random) -> None:
        links = luck.sample(self._world.links, 3)
        with self._taken("slow links", *(link.name for link in links)) as is_ours:
            if is_ours:
                for link in links:
                    link.change(State.SLOW, luck.uniform(0.02, 0.3))
                await asyncio.sleep(luck.uniform(1, 4))
                for link in links:
                    link.heal()

    async def _end_connections(self, luck: random.Random) -> None:
        with self._taken("connections ended", "the database") as is_ours:
            if is_ours:
                await self._world.end_connections()

    async def _away(self, luck: random.Random) -> None:
        with self._taken("database away", "the database") as is_ours:
            if is_ours:
                gone = self._world.database.away()
                await asyncio.to_thread(gone.__enter__)
                try:
                    await asyncio.sleep(luck.uniform(0.5, 4))
                finally:
                    await asyncio.to_thread(gone.__exit__, None, None, None)
