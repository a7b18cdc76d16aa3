"""VMs: each asks its endpoint, approves some of what it is shown, and writes down everything."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime

from forewarn.clock import RealClock
from forewarn.wire.imds import VERSIONS
from tests.faultrun.records import Showing, Sight, Try, Vote
from tests.support.wire import approval, get, post

__all__ = ["NAMES", "Client", "ask_once"]

NAMES = [version.name for version in VERSIONS]
_PATIENCE_S = 2.0
_CLOCK = RealClock()
_OK = 200


class Client:
    """One VM, as long as it is on one host.

    Args:
        name: Of the VM.
        source: Its address.
        endpoint: Whom it asks.
        rng: Decides when it asks, in which versions, and what it approves.
        pause_s: Between two requests, on average.

    Attributes:
        sights: What it was shown, in order.
        votes: What it approves, by event.
        known: Events of which it has decided whether to approve them.
        statuses: How often its GETs got which status.
    """

    def __init__(self, name: str, source: str, endpoint: tuple[str, int], rng: random.Random, pause_s: float) -> None:
        self.name = name
        self.sights: list[Sight] = []
        self.votes: dict[str, Vote] = {}
        self.known: set[str] = set()
        self.statuses: Counter[int] = Counter()
        self._source = source
        self._endpoint = endpoint
        self._rng = rng
        self._pause_s = pause_s
        self._eagerness = rng.choice([0.0, 0.3, 0.6, 1.0])
        self._stays = rng.random() < 0.5
        self._versions = [NAMES[-1]] if rng.random() < 0.4 else rng.sample(NAMES, rng.randint(1, 3))
        self._last: dict[str, Sight] = {}
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self.poll()
                await asyncio.sleep(self._rng.uniform(0.4, 1.6) * self._pause_s)
        finally:
            self._hang_up()

    async def poll(self) -> None:
        """Ask once, and approve what is wanted."""
        version = self._rng.choice(self._versions)
        answered = await self._ask(get(version, metadata=self._metadata(version)))
        if answered is not None:
            at, status, body = answered
            self.statuses[status] += 1
            if status == _OK:
                self._see(at, version, body)
        for vote in list(self.votes.values()):
            if vote.acknowledged_at is None:
                await self._approve(vote, version)

    def _metadata(self, version: str) -> str | None:
        """The header, which the oldest version does without."""
        return None if version == NAMES[0] and self._rng.random() < 0.5 else "true"

    def take_over(self, known: Iterable[str], open_votes: Iterable[str]) -> None:
        """Go on with what this VM wanted on the host that it came from."""
        self.known = set(known)
        self.votes = {id_: Vote(vm=self.name, event_id=id_) for id_ in open_votes}

    @property
    def open_votes(self) -> list[str]:
        """Events whose approval has yet to get 200."""
        return [id_ for id_, vote in self.votes.items() if vote.acknowledged_at is None]

    def _see(self, at: datetime, version: str, body: bytes) -> None:
        last = self._last.get(version)
        if last is not None and last.body == body:
            last.last_at = at
            return
        self._last[version] = Sight(vm=self.name, version=version, first_at=at, last_at=at, body=body)
        self.sights.append(self._last[version])
        for event in json.loads(body)["Events"]:
            id_ = event["EventId"]
            if event["EventStatus"] == "Scheduled" and id_ not in self.known:
                self.known.add(id_)
                if self._rng.random() < self._eagerness:
                    self.votes[id_] = Vote(vm=self.name, event_id=id_)

    async def _approve(self, vote: Vote, version: str) -> None:
        sent_at = _CLOCK.now()
        answered = await self._ask(post(approval(vote.event_id), version))
        status = None if answered is None else answered[1]
        vote.tries.append(Try(sent_at=sent_at, answered_at=_CLOCK.now(), status=status))

    async def _ask(self, request: bytes) -> tuple[datetime, int, bytes] | None:
        """When the answer came, its status and body; None: none came."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if self._line is None:
                    self._line = await asyncio.open_connection(*self._endpoint, local_addr=(self._source, 0))
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


async def ask_once(by: str, address: tuple[str, int], vm: str, source: str, version: str) -> Showing:
    """What a VM is answered now, by whoever is at that address; status 0: nothing."""
    status, body = 0, b""
    with suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
            try:
                writer.write(get(version))
                status, body, _ = await _read(reader)
            finally:
                writer.transport.abort()
    return Showing(vm=vm, by=by, version=version, status=status, body=body)
