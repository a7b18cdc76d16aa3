"""A VM of the demo: the real `forewarn agent`, as a process with its own source address.

Its observations and actions are read from its log, which is JSON on stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from forewarn.demo.act_record import ActRecord, DemoFailed, SentApproval, Sighting
from forewarn.demo.lanes import LaneState, Mark
from forewarn.demo.sentences import describe_sighting
from forewarn.demo.service_process import make_child_environment, stop_process
from forewarn.demo.timeline import TimelineLine
from forewarn.demo.vms import DemoVm
from forewarn.wire.document import Event

__all__ = ["DemoAgent"]

_LINE_BYTES_MAX = 1 << 20


class DemoAgent:
    """Runs the agent of a VM and reports its actions.

    Args:
        vm: The VM and its behaviour.
        metadata_url: URL of the service's metadata endpoint.
        folder: Folder for its configuration and state.
        queue_line: Callback that puts a line on the timeline.
        record: Callback that returns the record to write to; a new one for each act.
    """

    def __init__(
        self,
        vm: DemoVm,
        metadata_url: str,
        folder: Path,
        queue_line: Callable[[TimelineLine], None],
        record: Callable[[], ActRecord],
    ) -> None:
        self._vm = vm
        self._url = metadata_url
        self._folder = folder
        self._queue_line = queue_line
        self._record = record
        self._last_sighting: Sighting | None = None
        self._state = LaneState.QUIET
        self._last_log_line = ""

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
            env=make_child_environment(os.environ),
            process_group=0,  # Ctrl-C reaches only the demo, which then stops the agent in order
            limit=_LINE_BYTES_MAX,
        )
        try:
            assert process.stderr is not None  # noqa: S101 - it was asked for
            async for row in process.stderr:
                self._process_log_line(row)
            status = await process.wait()
            msg = f"the agent of {self._vm.name} ended unexpectedly with status {status}: {self._last_log_line}"
            raise DemoFailed(msg)
        finally:
            await stop_process(process)

    def _process_log_line(self, row: bytes) -> None:
        """Process a line of the agent's log."""
        self._last_log_line = row.decode(errors="replace").strip()
        try:
            entry: dict[str, Any] = json.loads(self._last_log_line)
        except ValueError:
            return  # plain text on stderr; reported when the agent ends
        at = datetime.fromisoformat(entry["timestamp"])
        if "document" in entry:
            self._record_document(at, entry["document"])
        elif entry.get("action") == "approve":
            self._state = LaneState.APPROVED
            self._record().add_observation(SentApproval(at=at, vm=self._vm))
            self._add_line(at, "is ready and approves" if self._vm.preparation_s else self._vm.reaction, Mark.APPROVES)

    def _record_document(self, at: datetime, document: dict[str, Any]) -> None:
        events = msgspec.convert(document["events"], tuple[Event, ...])
        sighting = Sighting(
            at=at, vm=self._vm, incarnation=document["incarnation"], events=events, body=json.dumps(document)
        )
        previous, self._last_sighting = self._last_sighting, sighting
        event = sighting.own_event
        if event is None:
            self._state = LaneState.QUIET
        elif event.status == "Started":
            self._state = LaneState.STARTED
        # Otherwise the state stays: an event that this VM has approved is still Scheduled in the next document.
        elif previous is None or previous.own_event is None:
            self._state = LaneState.PREPARING
        # Shown before it is checked, so that a broken claim is reported below the line that broke it.
        self._add_line(at, describe_sighting(sighting, previous))
        self._record().add_observation(sighting)

    def _add_line(self, at: datetime, text: str, mark: Mark = Mark.ACTS) -> None:
        self._queue_line(TimelineLine(at=at, lane=self._vm.name, state=self._state, text=text, mark=mark))
