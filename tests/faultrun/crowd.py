"""All VMs of one host: a process in the host's namespace, told by lines of JSON who has come and who has gone."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from tests.faultrun.clients import Client, ask_once
from tests.faultrun.nursery import Child, Nursery
from tests.faultrun.records import Showing, Sight, Vote

__all__ = ["Crowd", "live"]

_LINE_BYTES_MAX = 1 << 22
_ASKED_AT_ONCE = 8


class Crowd:
    """How a run talks to that process."""

    def __init__(self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()

    @classmethod
    async def begin(cls, nursery: Nursery, log: Path, namespace: str | None) -> Crowd:
        """Start it, with nobody there yet."""
        ours, theirs = socket.socketpair()
        with log.open("a") as opened, theirs:
            child = await nursery.fork(["crowd"], [opened, opened, theirs], namespace=namespace)
        return cls(child, *await asyncio.open_unix_connection(sock=ours, limit=_LINE_BYTES_MAX))

    async def arrive(self, vm: str, source: str, endpoint: tuple[str, int], **more: Any) -> None:  # noqa: ANN401 - as `_arrive` has it
        """A VM begins to ask; `more` is ``seed``, ``pause_s``, and what `leave` handed back."""
        await self._ask("arrive", vm=vm, source=source, endpoint=endpoint, **more)

    async def leave(self, vm: str) -> dict[str, Any]:
        """A VM asks no more; what it had wanted so far."""
        left: dict[str, Any] = await self._ask("leave", vm=vm)
        return left

    async def state(self) -> tuple[bool, int]:
        """Whether all have seen a document, and how many approvals have yet to get 200."""
        said = await self._ask("state")
        return said["have_seen"], said["open"]

    async def show(self, by: str, vms: Mapping[str, tuple[str, tuple[str, int], str]], file: Path) -> list[Showing]:
        """What VMs are answered now.

        Args:
            by: Whose answers these are.
            vms: Address, whom to ask, and version, by VM.
            file: To hand over what they are.
        """
        await self._ask("show", by=by, vms=dict(vms), file=str(file))
        shown: list[Showing] = _unpacked(file)
        return shown

    async def end(self, file: Path) -> tuple[list[Sight], list[Vote], Counter[int]]:
        """Everybody asks no more; what they saw and approved, and the statuses of their GETs."""
        await self._ask("end", file=str(file))
        records: tuple[list[Sight], list[Vote], Counter[int]] = _unpacked(file)
        return records

    def kill(self) -> None:
        """End it."""
        self._writer.transport.abort()
        self._child.kill()

    async def _ask(self, verb: str, **more: Any) -> Any:  # noqa: ANN401 - JSON
        async with self._lock:
            self._writer.write(json.dumps({"do": verb} | more).encode() + b"\n")
            answer = json.loads(await self._reader.readline())
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer


class _Host:
    """The VMs of a host."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._polling: dict[str, asyncio.Task[None]] = {}
        self._gone: list[Client] = []

    async def do(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """What a line says."""
        answer: dict[str, Any] = await getattr(self, f"_{wanted.pop('do')}")(**wanted)
        return answer

    async def _arrive(
        self, vm: str, source: str, endpoint: list[Any], seed: int, pause_s: float, known: list[str], votes: list[str]
    ) -> dict[str, Any]:
        client = Client(vm, source, (endpoint[0], endpoint[1]), random.Random(seed), pause_s)
        client.take_over(known, votes)
        self._clients[vm] = client
        self._polling[vm] = asyncio.create_task(client.run())
        return {}

    async def _leave(self, vm: str) -> dict[str, Any]:
        client, task = self._clients.pop(vm), self._polling.pop(vm)
        self._gone.append(client)
        task.cancel()
        await asyncio.wait([task])
        open_votes = client.open_votes
        for id_ in open_votes:
            if not client.votes[id_].tries:
                del client.votes[id_]
        return {"known": sorted(client.known), "votes": open_votes}

    async def _state(self) -> dict[str, Any]:
        for task in self._polling.values():
            if task.done():
                task.result()
        clients = self._clients.values()
        return {"have_seen": all(c.sights for c in clients), "open": sum(len(c.open_votes) for c in clients)}

    async def _show(self, by: str, vms: dict[str, Any], file: str) -> dict[str, Any]:
        gate = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(vm: str, source: str, endpoint: list[Any], version: str) -> Showing:
            async with gate:
                return await ask_once(by, (endpoint[0], endpoint[1]), vm, source, version)

        shown = await asyncio.gather(*(ask(vm, *words) for vm, words in vms.items()))
        _pack(shown, Path(file))
        return {}

    async def _end(self, file: str) -> dict[str, Any]:
        for task in self._polling.values():
            task.cancel()
        if self._polling:
            await asyncio.wait(self._polling.values())
        clients = [*self._gone, *self._clients.values()]
        sights = [sight for client in clients for sight in client.sights]
        votes = [vote for client in clients for vote in client.votes.values()]
        statuses = sum((client.statuses for client in clients), Counter[int]())
        _pack((sights, votes, statuses), Path(file))
        return {}


def _pack(records: object, file: Path) -> None:
    file.write_bytes(pickle.dumps(records))


def _unpacked(file: Path) -> Any:  # noqa: ANN401 - what was packed
    return pickle.loads(file.read_bytes())  # noqa: S301 - a process and its child, on their own folder


def live(line: socket.socket) -> None:
    """Be that process, until the other end is closed."""
    uvloop.run(_live(line))


async def _live(line: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=line, limit=_LINE_BYTES_MAX)
    host = _Host()
    while text := await reader.readline():
        try:
            answer = await host.do(json.loads(text))
        except Exception as error:  # noqa: BLE001 - the other side is told
            answer = {"failed": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
