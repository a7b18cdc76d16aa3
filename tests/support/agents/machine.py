"""One VM: its disk, its clock, and the agents that run on it one after the other."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from forewarn.agent.agent import Agent
from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.configuration import Configuration
from forewarn.agent.rule import Rule
from forewarn.agent.state import AgentState
from forewarn.client import Pace
from forewarn.wire.document import Document
from tests.support.agents.history import (
    Accepted,
    Began,
    Died,
    Fact,
    Health,
    Heard,
    Leaving,
    Posted,
    Saved,
    Told,
)
from tests.support.agents.provider import Answered
from tests.support.agents.weather import CALM, Weather
from tests.support.faults import ProcessDied
from tests.support.warp import WarpClock

__all__ = ["Disk", "Machine"]


@dataclass(slots=True)
class Disk:
    """What outlives every agent.

    Attributes:
        content: The state, as written.
        is_full: It takes nothing.
        behind: When it had refused the last that it was given; from and to, in seconds.
        behind_since_s: Since when that is so; None: it is not.
        dies: The power goes ``before`` or ``after`` the next write; empty: it does not.
    """

    content: bytes = b""
    is_full: bool = False
    behind: list[tuple[float, float]] = field(default_factory=list)
    behind_since_s: float | None = None
    dies: str = ""

    @property
    def is_behind(self) -> bool:
        return self.behind_since_s is not None

    def refuse(self, at_s: float) -> None:
        if self.behind_since_s is None:
            self.behind_since_s = at_s

    def catch_up(self, at_s: float) -> None:
        if self.behind_since_s is not None:
            self.behind.append((self.behind_since_s, at_s))
            self.behind_since_s = None

    def read(self) -> AgentState:
        return decode_json(self.content, AgentState) if self.content else AgentState()


class Machine:
    """A VM.

    Attributes:
        nameless_until_s: Until then the endpoint does not say its name.
        process: The number of the agent that runs now, or ran last.
        agent: The one that runs; None while there is none.
        is_out: A handler has taken it out of service.
        is_cut: Nothing comes through in either direction.
        stale_until_s: Until then it is shown an older document.
        stale: Which.
        history: All that was seen of it.
        broken: What should never have happened.
    """

    def __init__(
        self,
        name: str,
        address: str,
        configuration: Configuration,
        pace: Pace,
        rng: random.Random,
        *,
        fallback_name: str,
        nameless_until_s: float = 0.0,
    ) -> None:
        self.name = name
        self.address = address
        self.configuration = configuration
        self.pace = pace
        self.rng = rng
        self.fallback_name = fallback_name
        self.nameless_until_s = nameless_until_s
        self.weather: Weather = CALM
        self.disk = Disk()
        self.health = Health()
        self.history: list[Fact] = []
        self.broken: list[str] = []
        self.process = 0
        self.agent: Agent | None = None
        self.is_cut = False
        self.is_out = False
        self.stale_until_s = 0.0
        self.stale: Answered | None = None
        self.crashes = 0
        self.make: Callable[[Machine], Agent] = _no_agent
        self._loop = asyncio.get_running_loop()
        self.clock = WarpClock(self._loop)
        self.clock.on_step = lambda: self.health.strike(self.now_s)
        self._task: asyncio.Task[None] | None = None
        self._kept: dict[asyncio.Task[None], None] = {}
        self._return: asyncio.TimerHandle | None = None
        self._unheard: Document | None = None
        self._heard: Document | None = None

    @property
    def now_s(self) -> float:
        return self._loop.time()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.configuration.rules

    # Its agents

    def is_alive(self, process: int) -> bool:
        """Whether that agent still runs."""
        return self.agent is not None and self.process == process

    def start(self) -> None:
        """Start an agent, unless there is one."""
        if self._return is not None:
            self._return.cancel()
            self._return = None
        if self.agent is not None:
            return
        self.process += 1
        self._heard = self._unheard = None
        self.disk.catch_up(self.now_s)  # what it does not hold is known to nobody
        self.history.append(Began(at_s=self.now_s, process=self.process, state=self.disk.read()))
        self.agent = self.make(self)
        self.agent.listeners.append(self._take_note)
        self._task = self._loop.create_task(self._live(self.agent, self.process))
        self.keep(self._task)

    async def _live(self, agent: Agent, process: int) -> None:
        try:
            await agent.run()
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - nothing may ever end an agent but its end
            if self.is_alive(process):
                self.broken.append(f"{self.name}: the agent ended by itself at {self.now_s:.3f} s: {_told(error)}")
        if self.is_alive(process):
            self._note_end()
            self.return_after(5.0)

    def kill(self, back_after_s: float | None, *, is_cancelled: bool = True) -> None:
        """The power goes; perhaps it comes back."""
        if self.agent is not None:
            self.crashes += 1
            self._note_end()
            if self._task is not None and is_cancelled:
                self._task.cancel()
        self.return_after(back_after_s)

    def _note_end(self) -> None:
        assert self.agent is not None
        reported = frozenset(record.event.id for record in self.agent.records if record.is_reported_unprepared)
        self.history.append(Died(at_s=self.now_s, process=self.process, reported=reported))
        self.health.strike(self.now_s)
        self.agent = None

    def return_after(self, seconds: float | None) -> None:
        """Start an agent then; the later of two wishes holds."""
        if seconds is None:
            return
        at_s = self.now_s + seconds
        if self._return is not None:
            if self._return.when() >= at_s:
                return
            self._return.cancel()
        self._return = self._loop.call_at(at_s, self.start)

    def leave(self, back_after_s: float) -> None:
        """Ask the agent to end, as `systemctl stop` does."""
        if self.agent is None or self._task is None:
            return
        self.history.append(Leaving(at_s=self.now_s, process=self.process))
        self.health.strike(self.now_s)
        self._task.cancel()
        self.return_after(back_after_s)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Wait for that task at the end."""
        self._kept[task] = None
        task.add_done_callback(lambda done: self._kept.pop(done, None))

    async def stop(self) -> None:
        """The end."""
        if self._return is not None:
            self._return.cancel()
        self.health.strike(self.now_s)
        self.kill(None)
        tasks = list(self._kept)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Its clock and network

    def set_clock(self, by: timedelta, after_looks: int) -> None:
        """Set it by that much, soon: the agent knows better only after the next answer."""
        self.clock.step(by, after_looks)

    def cut(self, *, is_cut: bool) -> None:
        """Let nothing through, or everything again."""
        if is_cut and not self.is_cut:
            self.health.begin_fault(self.now_s)
        elif self.is_cut and not is_cut:
            self.health.end_fault()
        self.is_cut = is_cut

    # What is taken down of it

    def note_posted(self, process: int, event_id: str) -> None:
        if self.is_alive(process):
            self.history.append(Posted(at_s=self.now_s, process=process, event_id=event_id))

    def note_accepted(self, process: int, event_id: str) -> None:
        self.history.append(Accepted(at_s=self.now_s, process=process, event_id=event_id))

    def note_heard(self, document: Document) -> None:
        if self.agent is not None and not self.agent.vm:
            self._unheard = document  # It cannot tell what concerns it before it knows its name.
        elif document is not self._heard:
            self._heard = document
            self.history.append(Heard(at_s=self.now_s, process=self.process, document=document))

    def note_clean(self) -> None:
        if self.agent is not None and self.agent.vm == self.name:
            self.health.recover(self.now_s)

    def note_told(self, event_id: str, word: str) -> None:
        self.history.append(Told(at_s=self.now_s, process=self.process, event_id=event_id, word=word))

    def _take_note(self) -> None:
        if self._unheard is not None and self.agent is not None and self.agent.vm:
            unheard, self._unheard = self._unheard, None
            self.note_heard(unheard)

    # What its agents ask of the disk

    def save(self, process: int, state: AgentState) -> None:
        """Write the state of that agent; see `StateStorage.save`."""
        if not self.is_alive(process):
            raise ProcessDied
        self._take_note()
        disk = self.disk
        dies, disk.dies = disk.dies, ""
        if dies == "before":
            self.kill(self.rng.choice([1.0, 20.0, 100.0]), is_cancelled=False)
            raise ProcessDied
        if disk.is_full:
            disk.refuse(self.now_s)
            raise OSError(errno.ENOSPC, "No space left on device")
        disk.content = encode_json(state)
        disk.catch_up(self.now_s)
        self.history.append(Saved(at_s=self.now_s, process=process, state=state))
        if self.rng.random() < 0.05 and disk.read() != state:
            self.broken.append(f"{self.name}: the state reads otherwise than it was written")
        if dies:
            self.kill(self.rng.choice([1.0, 20.0, 100.0]), is_cancelled=False)
            raise ProcessDied


@dataclass(frozen=True, slots=True)
class DiskOf:
    """The `StateStorage` of one agent."""

    machine: Machine
    process: int = field(default=0)

    def load(self) -> AgentState:
        return self.machine.disk.read()

    def save(self, state: AgentState) -> None:
        self.machine.save(self.process, state)


def _told(error: BaseException) -> str:
    """All that is in a group, in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_told(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _no_agent(machine: Machine) -> Agent:
    raise NotImplementedError(machine.name)
