"""`StepExecutor` on virtual time: its steps take any time, fail, hang, break, and are slow to end."""

from __future__ import annotations

import asyncio
import random

from forewarn.agent.record import EventRecord, StepRunState
from forewarn.agent.rule import EventStep
from forewarn.agent.steps import Remember
from forewarn.errors import HookFailed
from tests.support.agents.history import Remembered, StepBegan, StepEnded
from tests.support.agents.machine import Machine

__all__ = ["FakeSteps"]

_UNDOING = {EventStep.RECOVER, EventStep.CANCELED}
_HANGS_S = 900.0


class FakeSteps:
    """What one agent's hooks and handlers do."""

    def __init__(self, machine: Machine, process: int) -> None:
        self._machine = machine
        self._process = process
        self._loop = asyncio.get_running_loop()

    async def run(self, record: EventRecord, step: EventStep, vm: str, save_memory: Remember, reason: str = "") -> str:
        """One step, as it happens to go."""
        event_id = record.event.id
        self._note_begin(record, step)
        try:
            await self._work(record, step, save_memory)
        except asyncio.CancelledError:
            if await self._ends_well_all_the_same(record, step):
                self._note_end(event_id, step, "done")
                return "done in the last moment"
            self._note_end(event_id, step, "stopped")
            raise
        except (HookFailed, RuntimeError):
            self._note_end(event_id, step, "failed")
            raise
        self._note_end(event_id, step, "done")
        return "done"

    async def _work(self, record: EventRecord, step: EventStep, remember: Remember) -> None:
        rng = self._machine.rng
        span_s = rng.choice([0.0, 0.3, 2.0, 2.0, 8.0, 30.0] if step in _UNDOING else [0.0, 0.3, 2.0, 8.0, 40.0, 150.0])
        if step is EventStep.PREPARE and record.rule.handlers:
            await asyncio.sleep(span_s / 2)
            await self._take_out(record, remember)
        elif step in _UNDOING and record.rule.handlers:
            await asyncio.sleep(span_s / 2)
            self._put_back(record)
        fate = rng.random() / self._machine.weather.step if self._machine.weather.step else 1.0
        if fate < 0.2:
            await asyncio.sleep(_HANGS_S)
        else:
            await asyncio.sleep(span_s)
        if fate < 0.7:
            raise HookFailed("it did not work")
        if fate < 0.8 and step is not EventStep.ALERT:
            raise RuntimeError("a handler is broken")

    async def _take_out(self, record: EventRecord, remember: Remember) -> None:
        """As the handler `FileHandler` does: look, remember what was found, and then act."""
        machine = self._machine
        if "existed" not in record.memory.get("0", {}):
            await remember("0", {"existed": machine.is_out})
            self._note_remembered(record.event.id)
            await asyncio.sleep(machine.rng.choice([0.0, 0.1, 3.0]))
        machine.is_out = True

    def _put_back(self, record: EventRecord) -> None:
        if record.memory.get("0", {}).get("existed") is False:
            self._machine.is_out = False

    async def _ends_well_all_the_same(self, record: EventRecord, step: EventStep) -> bool:
        """What was told to end may take its time, and may have succeeded meanwhile."""
        machine = self._machine
        # Its own, for nobody knows in which order steps are told to end that end at the same moment.
        rng = random.Random(f"{machine.name} {record.event.id} {step} {self._loop.time()}")
        if machine.is_alive(self._process):
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.5, 4.0, 10.0]))
        has_acted = step is EventStep.PREPARE and not record.rule.handlers
        return machine.is_alive(self._process) and has_acted and rng.random() < 0.1

    def _note_begin(self, record: EventRecord, step: EventStep) -> None:
        machine, event_id = self._machine, record.event.id
        if not machine.is_alive(self._process):
            return
        saved = next((each for each in machine.disk.read().records if each.event.id == event_id), None)
        run = saved.runs.get(step) if saved is not None else None
        machine.history.append(
            StepBegan(
                at_s=self._loop.time(),
                process=self._process,
                event_id=event_id,
                step=step,
                is_saved=step is EventStep.ALERT
                or (run is not None and run.state in {StepRunState.RUNNING, StepRunState.STOPPING}),
                is_disk_behind=machine.disk.is_behind,
            )
        )

    def _note_remembered(self, event_id: str) -> None:
        machine = self._machine
        if machine.is_alive(self._process):
            is_saved = any(each.event.id == event_id and each.memory for each in machine.disk.read().records)
            machine.history.append(
                Remembered(at_s=self._loop.time(), process=self._process, event_id=event_id, is_saved=is_saved)
            )

    def _note_end(self, event_id: str, step: EventStep, how: str) -> None:
        machine = self._machine
        if machine.is_alive(self._process):
            machine.history.append(
                StepEnded(
                    at_s=self._loop.time(),
                    process=self._process,
                    event_id=event_id,
                    step=step,
                    how=how,
                    is_out=machine.is_out,
                )
            )
