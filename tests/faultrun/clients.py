"""VMs: each asks its endpoint, approves some of what it is shown, and writes down everything."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from datetime import datetime

from forewarn.clock import RealClock
from tests.faultrun.records import Showing, Sight, Try, Vote
from tests.faultrun.world import REPLICAS, World
from tests.support.wire import approval, get, post

__all__ = ["Client", "ask_all"]

_PATIENCE_S = 2.0
_CLOCK = RealClock()
_OK = 200


class Client:
    """One VM.

    Args:
        world: Tells where its endpoint is.
        name: Of the VM.
        luck: Decides when it asks and what it approves.
        statuses: Where the statuses of its GETs are counted.

    Attributes:
        sights: What it was shown, in order.
        votes: What it approves, by event.
    """

    def __init__(self, world: World, name: str, luck: random.Random, statuses: Counter[int]) -> None:
        self.name = name
        self.sights: list[Sight] = []
        self.votes: dict[str, Vote] = {}
        self._world = world
        self._luck = luck
        self._statuses = statuses
        self._wants: dict[str, bool] = {}
        self._eagerness = luck.choice([0.0, 0.3, 0.6, 1.0])
        self._stays = luck.random() < 0.5
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self.poll()
                await asyncio.sleep(self._luck.uniform(0.15, 0.5))
        finally:
            self._hang_up()

    async def poll(self) -> None:
        """Ask once, and approve what is wanted."""
        answered = await self._ask(get())
        if answered is not None and answered[1] == _OK:
            self._see(*answered)
        for vote in list(self.votes.values()):
            if vote.acknowledged_at is None:
                await self._approve(vote)

    @property
    def has_open_votes(self) -> bool:
        """Whether an approval has yet to get 200."""
        return any(vote.acknowledged_at is None for vote in self.votes.values())

    def _see(self, at: datetime, _status: int, body: bytes) -> None:
        if self.sights and self.sights[-1].body == body:
            self.sights[-1].last_at = at
            return
        self.sights.append(Sight(vm=self.name, first_at=at, last_at=at, body=body))
        for event in json.loads(body)["Events"]:
            id_ = event["EventId"]
            if event["EventStatus"] == "Scheduled" and id_ not in self._wants:
                self._wants[id_] = self._luck.random() < self._eagerness
                if self._wants[id_]:
                    self.votes[id_] = Vote(vm=self.name, event_id=id_)

    async def _approve(self, vote: Vote) -> None:
        sent_at = _CLOCK.now()
        answered = await self._ask(post(approval(vote.event_id)), is_counted=False)
        status = None if answered is None else answered[1]
        vote.tries.append(Try(sent_at=sent_at, answered_at=_CLOCK.now(), status=status))

    async def _ask(self, request: bytes, *, is_counted: bool = True) -> tuple[datetime, int, bytes] | None:
        """When the answer came, its status and body; None: none came."""
        address = self._world.endpoints[self._world.places[self.name].host].address(0)
        if address is None:
            self._hang_up()
            return None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if self._line is None:
                    source = (self._world.addresses[self.name], 0)
                    self._line = await asyncio.open_connection(*address, local_addr=source)
                reader, writer = self._line
                writer.write(request)
                status, body, is_over = await _read(reader)
        except (OSError, EOFError, TimeoutError):
            self._hang_up()
            return None
        except asyncio.CancelledError:
            self._hang_up()
            raise
        if is_over or not self._stays:
            self._hang_up()
        if is_counted:
            self._statuses[status] += 1
        return _CLOCK.now(), status, body

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line[1].transport.abort()
            self._line = None


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    lines = head.split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if line)
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    return int(lines[0].split(" ")[1]), body, fields.get("connection") == "close"


async def ask_all(world: World) -> list[Showing]:
    """What every VM is answered now: by its endpoint, and by each replica."""
    shown = []
    for name in world.places:
        parts = [world.endpoints[world.places[name].host], *world.replicas]
        assert len(parts) == REPLICAS + 1
        for part in parts:
            status, body = 0, b""
            address = part.address(0)
            if address is not None:
                with suppress(OSError, EOFError, TimeoutError):
                    status, body = await _ask_once(address, world.addresses[name])
            shown.append(Showing(vm=name, by=part.name, status=status, body=body))
    return shown


async def _ask_once(address: tuple[str, int], source: str) -> tuple[int, bytes]:
    async with asyncio.timeout(_PATIENCE_S):
        reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
        try:
            writer.write(get())
            status, body, _ = await _read(reader)
        finally:
            writer.transport.abort()
    return status, body
