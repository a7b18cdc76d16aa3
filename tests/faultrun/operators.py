"""Operators: random commands through random replicas, each repeated under its key until it is answered."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import httpx

from forewarn.clock import RealClock
from tests.faultrun.records import Command, Try
from tests.faultrun.world import REPLICAS, World

__all__ = ["Operator"]

_CLOCK = RealClock()
_SERVER_ERROR = 500
_VERBS = {"schedule": 10, "restart": 8, "cancel": 4, "complete": 3, "start": 2, "fail": 1}


class Operator:
    """One of them.

    Args:
        world: Where the replicas are.
        luck: Decides everything.
        number: Makes its keys its own.

    Attributes:
        commands: All that it ever wanted.
    """

    def __init__(self, world: World, luck: random.Random, number: int) -> None:
        self.commands: list[Command] = []
        self._world = world
        self._luck = luck
        self._keys = (f"key-{number}-{count}" for count in itertools.count())
        self._made: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """New commands until `stop`; then only until the last one is answered."""
        while not stop.is_set():
            command = self._next()
            self.commands.append(command)
            await self._carry(command)
            await asyncio.sleep(self._luck.uniform(0.2, 0.8))

    def _next(self) -> Command:
        luck, key = self._luck, next(self._keys)
        verb = luck.choices(list(_VERBS), list(_VERBS.values()))[0]
        if verb in {"cancel", "complete", "start"} and self._made:
            target = luck.choice(self._made[-6:])
            body: dict[str, Any] = {} if verb == "complete" else {"reason": key}
            path = f"/v1/maintenance/{target}/{verb}"
            return Command(key=key, verb=verb, path=path, body=body, target=target)
        forced = {"notice_s": luck.choice([0.5, 1, 2]), "force": True, "reason": key}
        if verb == "restart":
            vm = luck.choice(list(self._world.places))
            return Command(key=key, verb=verb, path=f"/v1/vms/{vm}/restart", body=forced)
        if verb == "fail":
            path = f"/v1/hosts/{luck.choice(self._world.hosts)}/fail"
            return Command(key=key, verb=verb, path=path, body={"reason": key})
        return Command(key=key, verb="schedule", path="/v1/maintenance", body=forced | self._wanted())

    def _wanted(self) -> dict[str, Any]:
        """Maintenance of one or two hosts, or of some VMs."""
        luck = self._luck
        kind = {"type": luck.choice(["Freeze", "Reboot"])}
        if luck.random() < 0.25:
            return kind | {"hosts": luck.sample(self._world.hosts, luck.randint(1, min(2, len(self._world.hosts))))}
        return kind | {"vms": luck.sample(list(self._world.places), luck.randint(1, min(5, len(self._world.places))))}

    async def _carry(self, command: Command) -> None:
        """Ask one replica after another, until one answers otherwise than that it cannot."""
        while command.answer is None:
            sent_at = _CLOCK.now()
            status, answer = await self._ask(self._luck.randrange(REPLICAS), command)
            command.tries.append(Try(sent_at=sent_at, answered_at=_CLOCK.now(), status=status))
            if status is None or status >= _SERVER_ERROR:
                await asyncio.sleep(self._luck.uniform(0.1, 0.4))
                continue
            command.answer = answer
            if command.verb in {"schedule", "restart", "fail"} and command.is_acknowledged:
                self._made += [item["id"] for item in command.answer["items"]]

    async def _ask(self, number: int, command: Command) -> tuple[int | None, dict[str, Any]]:
        try:
            async with self._world.operator(number) as client:
                answer = await client.post(command.path, json=command.body, headers={"idempotency-key": command.key})
                return answer.status_code, answer.json()
        except (httpx.HTTPError, ValueError):
            return None, {}
