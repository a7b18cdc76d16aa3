"""`Steps` on virtual time: they take as long as they like, fail, hang, break, and are slow to end when told to."""

from __future__ import annotations

import asyncio

from forewarn.agent.record import Record, RunState
from forewarn.agent.rule import Step
from forewarn.agent.steps import Remember
from forewarn.errors import HookFailed
from tests.support.agents.history import Remembered, StepBegan, StepEnded
from tests.support.agents.machine import Machine

__all__ = ["FakeSteps"]

_UNDOING = {Step.RECOVER, Step.CANCELED}
_HANGS_S = 900.0


class FakeSteps:
    """What one agent's hooks and handlers do."""

    def __init__(self, machine: Machine, process: int) -> None:
        self._machine = machine
        self._process = process
        self._count = 0
        self._loop = asyncio.get_running_loop()

    async def run(self, record: Record, step: Step, vm: str, remember: Remember, reason: str = "") -> str:
        """One step, as it happens to go."""
        event_id = record.event.id
        self._note_begin(record, step)
        try:
            await self._work(record, step, remember)
        except asyncio.CancelledError:
            if await self._ends_well_all_the_same(step):
                self._note_end(event_id, step, "done")
                return "done in the last moment"
            self._note_end(event_id, step, "stopped")
            raise
        except (HookFailed, RuntimeError):
            self._note_end(event_id, step, "failed")
            raise
        self._note_end(event_id, step, "done")
        return "done"

    async def _work(self, record: Record, step: Step, remember: Remember) -> None:
        luck = self._machine.luck
        span_s = luck.choice([0.0, 0.3, 2.0, 2.0, 8.0, 30.0] if step in _UNDOING else [0.0, 0.3, 2.0, 8.0, 40.0, 150.0])
        if step is Step.PREPARE and record.rule.handlers:
            self._count += 1
            mark = f"{self._process}/{self._count}"
            await asyncio.sleep(span_s / 2)
            self._note_mark(record.event.id, mark, is_sure=False)
            await remember("0", {"mark": mark})
            self._note_mark(record.event.id, mark, is_sure=True)
        fate = luck.random() / self._machine.weather.step if self._machine.weather.step else 1.0
        if fate < 0.2:
            await asyncio.sleep(_HANGS_S)
        else:
            await asyncio.sleep(span_s)
        if fate < 0.7:
            msg = "it did not work"
            raise HookFailed(msg)
        if fate < 0.8 and step is not Step.ALERT:
            msg = "a handler is broken"
            raise RuntimeError(msg)

    async def _ends_well_all_the_same(self, step: Step) -> bool:
        """What was told to end may take its time, and may have succeeded meanwhile."""
        machine = self._machine
        if machine.is_alive(self._process):
            await asyncio.sleep(machine.luck.choice([0.0, 0.0, 0.5, 4.0, 10.0]))
        return machine.is_alive(self._process) and step is Step.PREPARE and machine.luck.random() < 0.1

    def _note_begin(self, record: Record, step: Step) -> None:
        machine, event_id = self._machine, record.event.id
        if not machine.is_alive(self._process):
            return
        saved = next((each for each in machine.disk.read().records if each.event.id == event_id), None)
        run = saved.run(step) if saved is not None else None
        machine.history.append(
            StepBegan(
                at_s=self._loop.time(),
                process=self._process,
                event_id=event_id,
                step=step,
                is_saved=step is Step.ALERT or (run is not None and run.state in {RunState.RUNNING, RunState.STOPPING}),
                is_disk_behind=machine.disk.is_behind,
                mark=record.memory.get("0", {}).get("mark"),
            )
        )

    def _note_mark(self, event_id: str, mark: str, *, is_sure: bool) -> None:
        if self._machine.is_alive(self._process):
            self._machine.history.append(
                Remembered(at_s=self._loop.time(), process=self._process, event_id=event_id, mark=mark, is_sure=is_sure)
            )

    def _note_end(self, event_id: str, step: Step, how: str) -> None:
        if self._machine.is_alive(self._process):
            self._machine.history.append(
                StepEnded(at_s=self._loop.time(), process=self._process, event_id=event_id, step=step, how=how)
            )
