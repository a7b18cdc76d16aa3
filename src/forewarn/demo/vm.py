"""A VM of the demo: the real `forewarn agent`, as a process with its own source address.

Its observations and actions are read from its log, which is JSON on stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from forewarn.demo.cast import Vm
from forewarn.demo.lanes import LaneState, Mark
from forewarn.demo.narration import tell_sighting
from forewarn.demo.process import child_environment
from forewarn.demo.record import Approved, DemoFailed, Record, SeenEvent, Sighting
from forewarn.demo.timeline import Line

__all__ = ["Handler"]

_STOP_S = 15.0
_LINE_BYTES_MAX = 1 << 20


class Handler:
    """Runs the agent of a VM and reports its actions.

    Args:
        vm: The VM and its behaviour.
        metadata_url: URL of the service's metadata endpoint.
        folder: Folder for its configuration and state.
        tell: Callback that puts a line on the timeline.
        record: Callback that returns the record to write to; a new one for each act.
    """

    def __init__(
        self, vm: Vm, metadata_url: str, folder: Path, tell: Callable[[Line], None], record: Callable[[], Record]
    ) -> None:
        self._vm = vm
        self._url = metadata_url
        self._folder = folder
        self._tell = tell
        self._record = record
        self._seen: Sighting | None = None
        self._state = LaneState.QUIET
        self._said = ""

    async def run(self) -> None:
        """Run the agent until cancelled.

        Raises:
            DemoFailed: The agent ended on its own.
        """
        config = self._folder / f"{self._vm.name}.toml"
        config.write_text(
            f'endpoint = "{self._url}"\nsource_address = "{self._vm.address}"\nlisten = ""\nlog_level = "debug"\n'
            f'state_file = "{self._folder}/{self._vm.name}.json"\n{self._vm.configuration}'
        )
        await asyncio.sleep(self._vm.first_request_s)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "forewarn.agent", "--config", str(config)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(os.environ),
            process_group=0,  # Ctrl-C reaches only the demo, which then stops the agent in order
            limit=_LINE_BYTES_MAX,
        )
        try:
            assert process.stderr is not None  # noqa: S101 - it was asked for
            async for row in process.stderr:
                self._hear(row)
            status = await process.wait()
            msg = f"the agent of {self._vm.name} ended by itself with status {status}: {self._said}"
            raise DemoFailed(msg)
        finally:
            await _stop(process)

    def _hear(self, row: bytes) -> None:
        """Process a line of the agent's log."""
        self._said = row.decode(errors="replace").strip()
        try:
            told: dict[str, Any] = json.loads(self._said)
        except ValueError:
            return  # plain text on stderr; reported when the agent ends
        at = datetime.fromisoformat(told["timestamp"])
        if "document" in told:
            self._see(at, told["document"])
        elif told.get("action") == "approve":
            self._state = LaneState.APPROVED
            self._record().add(Approved(at=at, vm=self._vm, event_id=told["event_id"]))
            self._say(at, "is ready and approves" if self._vm.preparation_s else self._vm.plan, Mark.APPROVES)

    def _see(self, at: datetime, document: dict[str, Any]) -> None:
        events = tuple(_event(event) for event in document["events"])
        sighting = Sighting(
            at=at, vm=self._vm, incarnation=document["incarnation"], events=events, body=json.dumps(document)
        )
        previous, self._seen = self._seen, sighting
        event = sighting.own
        if event is None:
            self._state = LaneState.QUIET
        elif event.status == "Started":
            self._state = LaneState.STARTED
        elif previous is None or previous.own is None:
            self._state = LaneState.PREPARING
        self._say(at, tell_sighting(sighting, previous))
        self._record().add(sighting)

    def _say(self, at: datetime, text: str, mark: Mark = Mark.ACTS) -> None:
        self._tell(Line(at=at, lane=self._vm.name, state=self._state, text=text, mark=mark))


def _event(told: dict[str, Any]) -> SeenEvent:
    """Convert an event of the agent's log to the terms of the wire."""
    not_before = told["not_before"]
    return SeenEvent(
        id=told["id"],
        type=told["type"],
        status=told["status"],
        resources=tuple(told["resources"]),
        not_before=format_datetime(datetime.fromisoformat(not_before), usegmt=True) if not_before else "",
    )


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Terminate the agent, and kill it after a grace period."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
