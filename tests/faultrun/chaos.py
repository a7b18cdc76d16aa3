"""What goes wrong: drawn from the seed, three faults at a time, each over and healed before its place is free."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus

import httpx

from forewarn.clock import uptime_s
from tests.faultrun.networks import Way
from tests.faultrun.nursery import set_ahead
from tests.faultrun.records import Reading
from tests.faultrun.world import LEASE_S, World

__all__ = ["Chaos"]

_AT_ONCE = 3
_CLOCK_NOTICED_S = 10.0
"""A replica looks at its clock when it renews its lease, each second; that may wait for what others write slowly."""

_DATABASE = "the database"
_DATABASE_RESTS_S = 1.5
"""Between two faults of it, so that something is done meanwhile."""

_REPLICAS_DOWN_MAX = 2
"""One answers at any time; otherwise little would be done that could go wrong."""


class Chaos:
    """The faults of a run.

    Args:
        world: What they happen to.
        rng: Where they are drawn from.
        tell: Called with a line about each.

    Attributes:
        counts: How often each kind happened.
        readings: What replicas said while their clocks were off.
    """

    def __init__(self, world: World, rng: random.Random, tell: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        self.readings: list[Reading] = []
        self._world = world
        self._tell = tell
        self._rng = random.Random(rng.random())
        self._lucks = [random.Random(rng.random()) for _ in range(_AT_ONCE)]
        self._busy: set[str] = set()
        self._database_rests_until_s = 0.0
        self._deck: list[Callable[[random.Random], Awaitable[None]]] = []
        self._kinds: tuple[tuple[int, Callable[[random.Random], Awaitable[None]]], ...] = (
            (4, self._kill_replica),
            (2, self._kill_endpoint),
            (2, self._kill_agent),
            (2, self._halt_replica),
            (1, self._halt_endpoint),
            (3, self._cut_endpoint),
            (3, self._cut_replica),
            (1, self._slow),
            (1, self._end_connections),
            (1, self._away),
            (2, self._restart_database),
            (2, self._fail_over),
            (1, self._hold_standby),
            (2, self._put_clock_off),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and until the last fault is healed."""
        await asyncio.gather(*(self._run_one(rng, stop) for rng in self._lucks))

    async def _run_one(self, rng: random.Random, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._next()(rng)
            await asyncio.sleep(rng.uniform(0.05, 0.4))

    def _next(self) -> Callable[[random.Random], Awaitable[None]]:
        """The next card of a shuffled deck: so none is missing for long."""
        if not self._deck:
            self._deck = [kind for count, kind in self._kinds for _ in range(count)]
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    @contextmanager
    def _taken(self, kind: str, *names: str, detail: str = "") -> Iterator[bool]:
        """Whether nothing else is being done to these; they are ours until the block ends."""
        if not self._is_free(names):
            yield False
            return
        self._busy.update(names)
        self.counts[kind] += 1
        self._tell(f"{kind}: {detail or ', '.join(names)}")
        try:
            yield True
        finally:
            self._busy.difference_update(names)
            if _DATABASE in names:
                self._database_rests_until_s = uptime_s() + _DATABASE_RESTS_S
            self._tell(f"  healed: {kind}: {detail or ', '.join(names)}")

    def _is_free(self, names: Sequence[str]) -> bool:
        if self._busy.intersection(names):
            return False
        if _DATABASE in names and uptime_s() < self._database_rests_until_s:
            return False
        parts = zip(self._world.replicas, self._world.to_database, strict=True)
        down = [bool({part.name, link.name} & {*self._busy, *names}) for part, link in parts]
        return sum(down) <= _REPLICAS_DOWN_MAX

    async def _kill_replica(self, rng: random.Random) -> None:
        part = rng.choice(self._world.replicas)
        with self._taken("replica killed", part.name) as is_ours:
            if is_ours:
                part.kill()
                await asyncio.sleep(rng.uniform(0.1, 2))
                await part.start()

    async def _kill_endpoint(self, rng: random.Random) -> None:
        part = self._world.endpoints[rng.choice(self._world.hosts)]
        with self._taken("endpoint killed", part.name) as is_ours:
            if is_ours:
                part.kill()
                await asyncio.sleep(rng.uniform(0, 1.5))
                await part.start()

    async def _kill_agent(self, rng: random.Random) -> None:
        part = rng.choice(self._world.agents).part
        with self._taken("agent killed", part.name) as is_ours:
            if is_ours:
                part.kill()
                await asyncio.sleep(rng.uniform(0, 1.5))
                await part.start()

    async def _halt_replica(self, rng: random.Random) -> None:
        part = rng.choice(self._world.replicas)
        with self._taken("replica halted", part.name) as is_ours:
            if is_ours:
                part.halt()
                await asyncio.sleep(LEASE_S + rng.uniform(0.2, 2))
                part.go_on()

    async def _halt_endpoint(self, rng: random.Random) -> None:
        part = self._world.endpoints[rng.choice(self._world.hosts)]
        with self._taken("endpoint halted", part.name) as is_ours:
            if is_ours:
                part.halt()
                await asyncio.sleep(rng.uniform(0.5, 3))
                part.go_on()

    async def _cut_endpoint(self, rng: random.Random) -> None:
        host = rng.choice(self._world.hosts)
        ways = [way for (of, _), way in self._world.to_replica.items() if of == host]
        chosen = self._world.to_host[host] if rng.random() < 0.5 else [rng.choice(ways)]
        await self._cut("endpoint cut off", rng, chosen)

    async def _cut_replica(self, rng: random.Random) -> None:
        await self._cut("replica cut off", rng, [rng.choice(self._world.to_database)])

    async def _cut(self, kind: str, rng: random.Random, ways: Sequence[Way]) -> None:
        how = rng.choice(ways[0].cuts)
        with self._taken(f"{kind}, {how}", *(way.name for way in ways)) as is_ours:
            if is_ours:
                for way in ways:
                    await way.cut(how)
                await asyncio.sleep(rng.uniform(0.3, 5))
                for way in ways:
                    await way.heal()

    async def _slow(self, rng: random.Random) -> None:
        hosts = [way for ways in self._world.to_host.values() for way in ways]
        ways = rng.sample([*self._world.to_database, *hosts], 3)
        with self._taken("slow links", *(way.name for way in ways)) as is_ours:
            if is_ours:
                for way in ways:
                    await way.slow(rng.uniform(0.02, 0.3))
                await asyncio.sleep(rng.uniform(1, 4))
                for way in ways:
                    await way.heal()

    async def _end_connections(self, rng: random.Random) -> None:
        with self._taken("connections ended", _DATABASE) as is_ours:
            if is_ours:
                await asyncio.to_thread(self._world.cluster.end_connections)

    async def _away(self, rng: random.Random) -> None:
        with self._taken("database away", _DATABASE) as is_ours:
            if is_ours:
                gone = self._world.database.away()
                await asyncio.to_thread(gone.__enter__)
                try:
                    await asyncio.sleep(rng.uniform(0.5, 4))
                finally:
                    await asyncio.to_thread(gone.__exit__, None, None, None)

    async def _restart_database(self, rng: random.Random) -> None:
        with self._taken("database restarted", _DATABASE) as is_ours:
            if is_ours:
                await self._world.cluster.restart()

    async def _fail_over(self, rng: random.Random) -> None:
        with self._taken("database failed over", _DATABASE) as is_ours:
            if is_ours:
                await self._world.cluster.fail_over(rng.uniform(0, 2))

    async def _hold_standby(self, rng: random.Random) -> None:
        with self._taken("standby halted", _DATABASE) as is_ours:
            if is_ours:
                go_on = await asyncio.to_thread(self._world.cluster.hold)
                await asyncio.sleep(rng.uniform(0.5, 4))
                go_on()
                await self._world.cluster.wait_synchronous()

    async def _put_clock_off(self, rng: random.Random) -> None:
        """Of a replica that runs; its database is left alone, since it cannot tell the time while that is away."""
        number = rng.randrange(len(self._world.replicas))
        part, link = self._world.replicas[number], self._world.to_database[number]
        ahead_s = rng.choice([-1, 1]) * rng.uniform(1.5, 20)
        detail = f"{part.name} by {ahead_s:+.1f} s"
        with self._taken("clock off", "a clock", part.name, link.name, _DATABASE, detail=detail) as is_ours:
            if is_ours:
                set_ahead(self._world.clocks[number], ahead_s)
                self.readings.append(await self._until_told(number, ahead_s))
                await asyncio.sleep(rng.uniform(0.2, 2))
                self.readings.append(await self._read(number, ahead_s))
                set_ahead(self._world.clocks[number], 0.0)

    async def _until_told(self, number: int, ahead_s: float) -> Reading:
        """What that replica says when it has noticed, or has had the time to."""
        deadline_s = uptime_s() + _CLOCK_NOTICED_S
        while True:
            asked_s = uptime_s()  # an answer may be long under way, and says what was so when it was given
            reading = await self._read(number, ahead_s)
            if reading.status not in (0, HTTPStatus.OK) or asked_s > deadline_s:
                return reading
            await asyncio.sleep(0.1)

    async def _read(self, number: int, ahead_s: float) -> Reading:
        """What that replica says of itself."""
        name = self._world.replicas[number].name
        try:
            async with self._world.operator(number) as client:
                ready = await client.get("/readyz")
                metrics = await client.get("/metrics")
        except httpx.HTTPError as error:
            return Reading(replica=name, ahead_s=ahead_s, status=0, text=repr(error), is_leader=False)
        is_leader = "forewarn_leader 1.0" in metrics.text
        return Reading(replica=name, ahead_s=ahead_s, status=ready.status_code, text=ready.text, is_leader=is_leader)
