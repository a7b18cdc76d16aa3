"""A VM of the demo: asks for its document over real HTTP from an address of its own, prepares, approves, recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httpx

from forewarn.clock import Clock
from forewarn.demo.cast import Vm
from forewarn.demo.connection import connect, describe
from forewarn.demo.lanes import LaneState, Mark
from forewarn.demo.narration import tell_sighting
from forewarn.demo.record import Approved, DemoFailed, Record, SeenEvent, Sighting
from forewarn.demo.timeline import Line

__all__ = ["Handler"]

_PATH = "/metadata/scheduledevents"
_API_VERSION = "2020-07-01"
_POLL_INTERVAL_S = 1.0
_WAIT_S = 20


class Handler:
    """Reacts to scheduled events as a VM's handler would.

    Args:
        vm: Which VM, and how it behaves.
        metadata_url: Where the service answers VMs.
        clock: For the times of what it saw.
        tell: Puts a line on the timeline.
        record: Where it writes down what it saw; a new one for each act.
    """

    def __init__(
        self, vm: Vm, metadata_url: str, clock: Clock, tell: Callable[[Line], None], record: Callable[[], Record]
    ) -> None:
        self._vm = vm
        self._url = metadata_url
        self._clock = clock
        self._tell = tell
        self._record = record
        self._seen: Sighting | None = None
        self._state = LaneState.QUIET

    async def run(self) -> None:
        """Ask and react, until cancelled.

        Raises:
            DemoFailed: The endpoint does not answer as it should.
        """
        client = connect(self._url, {"Metadata": "true"}, self._vm.address)
        try:
            async with client, asyncio.TaskGroup() as preparations:
                await asyncio.sleep(self._vm.first_request_s)
                await self._follow(client, preparations)
        except* httpx.HTTPError as group:
            error = group.exceptions[0]
            msg = f"{self._vm.name} gets no answer from the metadata endpoint: {describe(error)}"
            raise DemoFailed(msg) from error

    async def _follow(self, client: httpx.AsyncClient, preparations: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while True:
            document = await self._ask(client)
            if document is not None and (self._seen is None or document.incarnation != self._seen.incarnation):
                self._react(document, client, preparations)
            if not self._vm.is_waiting:
                next_at += _POLL_INTERVAL_S
                await asyncio.sleep(next_at - loop.time())

    async def _ask(self, client: httpx.AsyncClient) -> Sighting | None:
        """The document; None when a long poll ended without a change (X1)."""
        headers = {}
        if self._vm.is_waiting and self._seen is not None:
            headers = {"If-None-Match": f'"{self._seen.incarnation}"', "Prefer": f"wait={_WAIT_S}"}
        answer = await client.get(_PATH, params={"api-version": _API_VERSION}, headers=headers)
        if answer.status_code == HTTPStatus.NOT_MODIFIED:
            return None
        self._expect_ok(answer, "its document")
        content: dict[str, Any] = answer.json()
        return Sighting(
            at=self._clock.now(),
            vm=self._vm,
            incarnation=content["DocumentIncarnation"],
            events=tuple(SeenEvent.from_wire(event) for event in content["Events"]),
            body=answer.text,
        )

    def _react(self, sighting: Sighting, client: httpx.AsyncClient, preparations: asyncio.TaskGroup) -> None:
        previous, self._seen = self._seen, sighting
        event = sighting.own
        if event is None:
            self._state = LaneState.QUIET
        elif event.status == "Started":
            self._state = LaneState.STARTED
        elif previous is None or previous.own is None:
            self._state = LaneState.PREPARING
            preparations.create_task(self._prepare(event, client))
        self._say(tell_sighting(sighting, previous))
        self._record().add(sighting)

    async def _prepare(self, event: SeenEvent, client: httpx.AsyncClient) -> None:
        """Get ready, then tell the platform that it need not wait for this VM any longer."""
        await asyncio.sleep(self._vm.preparation_s)
        self._state = LaneState.APPROVED
        self._record().add(Approved(at=self._clock.now(), vm=self._vm, event_id=event.id))
        self._say("is ready and approves" if self._vm.preparation_s else self._vm.plan, Mark.APPROVES)
        answer = await client.post(
            _PATH, params={"api-version": _API_VERSION}, json={"StartRequests": [{"EventId": event.id}]}
        )
        self._expect_ok(answer, "its approval")

    def _say(self, text: str, mark: Mark = Mark.ACTS) -> None:
        self._tell(Line(at=self._clock.now(), lane=self._vm.name, state=self._state, text=text, mark=mark))

    def _expect_ok(self, answer: httpx.Response, what: str) -> None:
        if answer.status_code != HTTPStatus.OK:
            msg = f"{self._vm.name} got {answer.status_code} for {what}"
            raise DemoFailed(msg)
