"""What lies between one agent and the endpoint: an `AsyncTransport` in memory that loses, repeats and garbles."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from forewarn.client.exchange import HttpAnswer, HttpRequest
from forewarn.errors import EndpointUnreachable
from forewarn.wire.document import Document, decode_document
from tests.support.agents.machine import Machine
from tests.support.agents.provider import Answered, Provider, Reset
from tests.support.agents.weather import Fault

__all__ = ["Wire"]

_STATUS = {Fault.GONE: 410, Fault.BUSY: 429, Fault.BROKEN: 500, Fault.AWAY: 503}
_CONNECT_TIMEOUT_S = 5.0
_LATE_S_MAX = 120.0
_ANY = [
    Fault.REFUSED,
    Fault.LOST,
    Fault.LOST,
    Fault.UNHEARD,
    Fault.UNHEARD,
    Fault.REPEATED,
    Fault.LATE,
    Fault.LATE,
    Fault.GONE,
    Fault.BUSY,
    Fault.BROKEN,
    Fault.AWAY,
]
_OF_DOCUMENT = [*_ANY, Fault.EMPTY, Fault.EMPTY, Fault.HALF, Fault.HALF, Fault.STALE, Fault.STALE]
_OF_APPROVAL = [*_ANY, Fault.DENIED, Fault.DENIED, Fault.DELAYED, Fault.DELAYED, Fault.REPEATED]


class _Silence(Exception):
    """Nothing will come back any more."""


class Wire:
    """The way from one process of an agent to the service.

    Args:
        machine: The VM.
        provider: The service.
        process: Which of its agents.
        faults: Counts what went wrong.
    """

    def __init__(self, machine: Machine, provider: Provider, process: int, faults: Counter[str]) -> None:
        self._machine = machine
        self._provider = provider
        self._process = process
        self._faults = faults
        self._loop = asyncio.get_running_loop()

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Carry out one request, as well as the weather lets it."""
        began_s = self._loop.time()
        if not self._machine.is_alive(self._process):
            raise self._unreachable("the process is dead", began_s)
        is_document = request.method == "GET" and "scheduledevents" in request.path
        event_ids = _approved(request)
        for event_id in event_ids:
            self._machine.note_posted(self._process, event_id)
        fault = self._draw(is_document=is_document, is_approval=bool(event_ids))
        if fault is not None:
            self._faults[fault.value] += 1
            self._machine.health.begin_fault(began_s)
        try:
            try:
                answered = await self._carry(request, fault, began_s)
            except _Silence:
                if fault is None:
                    fault = Fault.UNHEARD
                    self._machine.health.begin_fault(began_s)
                left_s = began_s + request.timeout_s - self._loop.time()
                await asyncio.sleep(left_s)
                raise self._unreachable("no answer", began_s, timed_out=True) from None
            except Reset:
                self._machine.health.strike(self._loop.time())
                raise self._unreachable("connection reset", began_s) from None
        finally:
            if fault is not None:
                self._machine.health.end_fault()
        self._deliver(answered, event_ids, fault if is_document else None, is_document=is_document)
        return HttpAnswer(
            status=answered.status,
            headers=answered.headers,
            body=answered.body,
            elapsed_s=self._loop.time() - began_s,
        )

    async def close(self) -> None:
        """Nothing is open."""

    def _draw(self, *, is_document: bool, is_approval: bool) -> Fault | None:
        machine = self._machine
        if is_document and machine.stale_until_s > self._loop.time():
            return Fault.STALE
        if machine.rng.random() >= machine.weather.request:
            return None
        return machine.rng.choice(_OF_DOCUMENT if is_document else _OF_APPROVAL if is_approval else _ANY)

    async def _carry(self, request: HttpRequest, fault: Fault | None, began_s: float) -> Answered:  # noqa: C901 - one branch for each fault
        machine, rng = self._machine, self._machine.rng
        if fault is Fault.REFUSED:
            await asyncio.sleep(rng.random() * 0.01)
            raise self._unreachable("connection refused", began_s)
        if fault is Fault.LOST or machine.is_cut:
            if rng.random() < 0.5:
                await asyncio.sleep(min(_CONNECT_TIMEOUT_S, request.timeout_s))
                raise self._unreachable("no connection", began_s, timed_out=True)
            raise _Silence
        if fault in _STATUS:
            await asyncio.sleep(rng.random() * 0.01)
            return _status(_STATUS[fault], rng.choice(["", "", "1", "7", "30"]))
        if fault is Fault.DELAYED:
            self._again(request, rng.uniform(request.timeout_s, request.timeout_s + 100))
            raise _Silence
        if fault is Fault.STALE:
            await asyncio.sleep(rng.uniform(0.001, 0.02))
            stale = self._machine.stale or self._provider.past(machine.address, rng)
            if stale is not None:
                if machine.stale_until_s > self._loop.time():
                    machine.stale = stale
                return stale
        if request.method == "POST":
            await asyncio.sleep(rng.uniform(0.001, 0.02))
        answered = await self._ask(request)
        if "compute/name" in request.path and self._loop.time() < machine.nameless_until_s:
            answered = _status(404, "")
        if fault is Fault.REPEATED:
            self._again(request, rng.uniform(0, 60))
        if fault is Fault.UNHEARD or machine.is_cut:
            raise _Silence
        await asyncio.sleep(self._lateness_s(fault, began_s + request.timeout_s))
        return _garbled(answered, fault)

    async def _ask(self, request: HttpRequest) -> Answered:
        return await self._provider.answer(
            self._machine.address, request.method, request.path, request.headers, request.body
        )

    def _lateness_s(self, fault: Fault | None, deadline_s: float) -> float:
        """How long the answer takes.

        Raises:
            _Silence: Too long.
        """
        if fault is not Fault.LATE:
            return self._machine.rng.uniform(0.001, 0.02)
        late_s = self._machine.rng.choice([2.5, 8.0, self._machine.rng.uniform(2, _LATE_S_MAX)])
        if self._loop.time() + late_s >= deadline_s:
            raise _Silence
        return late_s

    def _again(self, request: HttpRequest, after_s: float) -> None:
        """The same request arrives once more, or at last, whether anybody still waits for its answer or not."""

        async def arrive() -> None:
            await asyncio.sleep(after_s)
            with contextlib.suppress(Reset):
                await self._ask(request)

        self._machine.keep(self._loop.create_task(arrive()))

    def _deliver(self, answered: Answered, event_ids: list[str], fault: Fault | None, *, is_document: bool) -> None:
        """Take down what the agent is about to be told."""
        machine = self._machine
        if not machine.is_alive(self._process):
            return
        if event_ids and answered.status == 200:
            for event_id in event_ids:
                machine.note_accepted(self._process, event_id)
        if is_document and answered.status in {200, 304}:
            # What says nothing must not be taken for a document, whatever the agent takes it for.
            if answered.status == 200 and fault not in {Fault.EMPTY, Fault.HALF}:
                machine.note_heard(_read(answered.body))
            if fault is None:
                machine.note_clean()

    def _unreachable(self, reason: str, began_s: float, *, timed_out: bool = False) -> EndpointUnreachable:
        return EndpointUnreachable(reason, elapsed_s=self._loop.time() - began_s, timed_out=timed_out)


@lru_cache(maxsize=4096)
def _read(body: bytes) -> Document:
    """Many VMs are sent the same bytes."""
    return decode_document(body)


def _approved(request: HttpRequest) -> list[str]:
    if request.method != "POST":
        return []
    return [each["EventId"] for each in json.loads(request.body)["StartRequests"]]


def _status(status: int, retry_after: str) -> Answered:
    headers: Mapping[str, str] = {"retry-after": retry_after} if retry_after else {}
    return Answered(status, headers, b'{ "error": "Something" }')


def _garbled(answered: Answered, fault: Fault | None) -> Answered:
    if fault is Fault.DENIED:
        return Answered(500, answered.headers, b"")
    if fault is Fault.EMPTY:
        return Answered(200, answered.headers, b"")
    if fault is Fault.HALF:
        return Answered(200, answered.headers, answered.body[: len(answered.body) // 2])
    return answered
