"""What a run leaves behind: who saw and did what, and what the service says of it. The checker reads nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

__all__ = ["CLOSING", "Account", "Command", "Place", "Reading", "Run", "Showing", "Sight", "Step", "Try", "Vote"]

CLOSING = "closing"
"""The reason of the maintenance that is scheduled at the end, so that there is something for documents to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a VM is in the inventory.

    Attributes:
        label: Its scope's name, or its own when it has none: as the control API names an audience.
        is_spread: Whether its scope keeps fault domains apart.
    """

    host: str
    label: str
    fault_domain: int = 0
    is_spread: bool = False


@dataclass(slots=True, kw_only=True)
class Sight:
    """A document that a VM saw, in as many answers of that version in a row as held the same bytes."""

    vm: str
    version: str
    first_at: datetime
    last_at: datetime
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One request; its status is None when no answer came."""

    sent_at: datetime
    answered_at: datetime
    status: int | None


@dataclass(slots=True, kw_only=True)
class Vote:
    """A VM's approval of an event, tried until it got 200."""

    vm: str
    event_id: str
    tries: list[Try] = field(default_factory=list)

    @property
    def acknowledged_at(self) -> datetime | None:
        """When a 200 came; None: none did."""
        return next((each.answered_at for each in self.tries if each.status == 200), None)


@dataclass(slots=True, kw_only=True)
class Command:
    """What an operator wanted under one Idempotency-Key.

    Attributes:
        key: Stands in the audit log as the reason, too.
        verb: ``schedule``, ``restart``, ``fail``, ``cancel``, ``complete`` or ``start``.
        target: The maintenance, of the last three.
        answer: The body that came with a status below 500; None: none came.
    """

    key: str
    verb: str
    path: str
    body: dict[str, Any]
    target: str = ""
    tries: list[Try] = field(default_factory=list)
    answer: dict[str, Any] | None = None

    @property
    def status(self) -> int | None:
        """The answer's status; None while there is none."""
        return self.tries[-1].status if self.answer is not None else None

    @property
    def is_acknowledged(self) -> bool:
        """Whether it was said to be done."""
        return self.status in {200, 201}

    @property
    def made(self) -> set[str]:
        """Ids of the maintenances that the answer names."""
        answer = self.answer or {}
        items = answer.get("items", [answer] if "id" in answer else [])
        return {item["id"] for item in items}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One time that an actuator carried a maintenance out; `ended_at` is None when it never did to the end."""

    maintenance_id: str
    started_at: datetime
    ended_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Step:
    """A step of an agent; `ended_at` is None if it was killed before its end."""

    vm: str
    name: str
    event_id: str
    begun_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """What a VM is answered at the end, by whom."""

    vm: str
    by: str
    version: str
    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a replica says while its clock is off.

    Attributes:
        ahead_s: How far it is ahead.
        status: Of its `/readyz`.
        text: What that says.
        is_leader: Whether it says that it carries out what is due.
    """

    replica: str
    ahead_s: float
    status: int
    text: str
    is_leader: bool


@dataclass(slots=True, kw_only=True)
class Account:
    """Everything.

    Attributes:
        places: Of every VM that ever was, where it was last.
        passing: VMs that were added, moved or removed while others asked for them.
        gone: VMs that were removed.
        wanted: Host of each VM, by the last inventory that was acknowledged.
        declared: The same as the control API says at the end.
        maintenances: As the control API shows them, by id.
        entries: The audit log.
        incarnations: By VM, as the control API says at the end.
        showings: What VMs are answered at the end.
        strangers: What VMs are answered at the end on hosts where they are not.
        readings: Of clocks that were off.
        agent_starts: By VM with an agent, how often the agent was started.
        steps: Steps of all agents.
        statuses: How often VMs got which status from GET.
    """

    places: dict[str, Place] = field(default_factory=dict)
    passing: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    wanted: dict[str, str] = field(default_factory=dict)
    declared: dict[str, str] = field(default_factory=dict)
    maintenances: dict[str, dict[str, Any]] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)
    incarnations: dict[str, int | None] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)
    votes: list[Vote] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    showings: list[Showing] = field(default_factory=list)
    strangers: list[Showing] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    agent_starts: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
