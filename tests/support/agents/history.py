"""What was seen from outside of one VM's agents, in order. The checks read nothing else but this and the audit log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from forewarn.agent.rule import EventStep
from forewarn.agent.state import AgentState
from forewarn.wire.document import Document

__all__ = [
    "Accepted",
    "Began",
    "Died",
    "Fact",
    "Health",
    "Heard",
    "Leaving",
    "Posted",
    "Remembered",
    "Saved",
    "StepBegan",
    "StepEnded",
    "Told",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """When, in seconds of virtual time, and which process of the agent: the first is 1."""

    at_s: float
    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Began(_At):
    """An agent was started, and found that on disk."""

    state: AgentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving(_At):
    """It was asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Died(_At):
    """It is no more.

    Attributes:
        reported: The events that it had reported as started before the VM was prepared.
    """

    reported: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard(_At):
    """A document reached it."""

    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegan(_At):
    """A step was begun.

    Attributes:
        is_saved: Whether the disk knew of it.
        is_disk_behind: Whether the disk had refused what the agent knew last.
    """

    event_id: str
    step: EventStep
    is_saved: bool
    is_disk_behind: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(_At):
    """A step came to its end.

    Attributes:
        how: ``done``, ``failed`` or ``stopped``.
        is_out: Whether the VM was out of service then.
    """

    event_id: str
    step: EventStep
    how: str
    is_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered(_At):
    """The agent said that it will remember what a handler has found.

    Attributes:
        is_saved: Whether the disk knew of it.
    """

    event_id: str
    is_saved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted(_At):
    """An approval went out onto the wire."""

    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(_At):
    """The 200 that answers an approval reached the agent."""

    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(_At):
    """The disk took a state."""

    state: AgentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(_At):
    """An operator said ``approve`` or ``recover``."""

    event_id: str
    word: str


Fact: TypeAlias = Began | Leaving | Died | Heard | StepBegan | StepEnded | Remembered | Posted | Accepted | Saved | Told


@dataclass(slots=True)
class Health:
    """When nothing at all was wrong with an agent and its way to the endpoint.

    It is sound from a clean answer on: only then can it know what there is, and what time it is.

    Attributes:
        spans: From and to, in seconds.
    """

    spans: list[tuple[float, float]] = field(default_factory=list)
    _since_s: float | None = None
    _faults: int = 0

    def begin_fault(self, now_s: float) -> None:
        """Something is wrong until `end_fault`."""
        self._faults += 1
        self.strike(now_s)

    def end_fault(self) -> None:
        """That is over."""
        self._faults -= 1

    def strike(self, now_s: float) -> None:
        """Something went wrong now."""
        if self._since_s is not None:
            self.spans.append((self._since_s, now_s))
            self._since_s = None

    def recover(self, now_s: float) -> None:
        """A clean answer came."""
        if self._since_s is None and not self._faults:
            self._since_s = now_s

    def is_sound(self, begin_s: float, end_s: float) -> bool:
        """Whether it was so all that time."""
        return any(a <= begin_s and end_s < b for a, b in self.spans)
