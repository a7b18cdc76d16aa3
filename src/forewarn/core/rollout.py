"""A rollout: one maintenance carried over many hosts, in order. The nouns, all frozen values.

`core.rollout_plan` makes batches of a specification, `core.rollout_lifecycle` holds the arrows,
`core.rollout_commands` what an operator may ask, and `core.rollout_steps` what is to be done next.

A host is *open* while one of its maintenances may still change. Open hosts are what is in flight: the rules of the
specification are about them, whether their maintenance is announced only or has started, since an approval may start it
at any moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.core.model import EventType

__all__ = [
    "ENDED_STATES",
    "HOSTS_MAX",
    "LENGTH_MAX",
    "OVER_STATES",
    "Health",
    "HealthCheck",
    "HostState",
    "Order",
    "Rollout",
    "RolloutHost",
    "RolloutSpec",
    "RolloutState",
]

HOSTS_MAX = 20_000
"""Most hosts in one rollout."""

LENGTH_MAX = timedelta(days=3660)
"""Longest that a rollout may take by its own estimate."""


class Order(StrEnum):
    """In which order the hosts have their turn."""

    LISTED = "listed"
    NAME = "name"
    """By name, numbers in it by value: ``host-2`` before ``host-10``."""
    SMALLEST_FIRST = "smallest-first"
    """Those with the fewest running VMs first; equal ones as listed."""


class RolloutState(StrEnum):
    """Where a rollout stands. `core.rollout_lifecycle` holds the arrows."""

    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    ABORTING = "aborting"
    ABORTED = "aborted"
    COMPLETED = "completed"
    FAILED = "failed"


ENDED_STATES = frozenset({RolloutState.ABORTED, RolloutState.COMPLETED, RolloutState.FAILED})
"""States that nothing leads out of."""


class HostState(StrEnum):
    """What became of one host of a rollout."""

    PENDING = "pending"
    WAITING = "waiting"
    """Announced, or queued behind another maintenance: it waits for notice and approvals."""
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


OVER_STATES = frozenset({HostState.DONE, HostState.FAILED, HostState.SKIPPED})
"""States of a host that has had its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """A command that says whether the fleet is well enough to go on: exit status 0. Somebody else runs it.

    Attributes:
        command: Program and arguments; no shell.
        timeout: After so long it counts as failed.
    """

    command: tuple[str, ...]
    timeout: timedelta = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """What is to be done, and how carefully.

    Attributes:
        name: What people call it.
        cause: Name of a row of `CAUSES`.
        type: None: that of the cause.
        description: None: that of the cause.
        duration_s: Expected seconds of impact; 0 no interruption, -1 unknown, None as the cause has it.
        notice: From the announcement for a host to its NotBefore; None: the least that the type allows.
        hosts: Names; None: every host of the inventory, as it is when the rollout is planned.
        batch_size: Hosts of a batch, at least 1. The next batch begins when all of them have had their turn.
        hosts_at_once: Most hosts in flight, 1 to `batch_size`.
        canary: Hosts that go first, each alone.
        canary_pause: Pause after the last of them.
        pause: Pause between two batches.
        one_fault_domain: Never two fault domains of a scope in flight.
        one_update_domain: Never two update domains of a scope in flight.
        failures_max: So many failed hosts, counted anew from each resumption, pause the rollout; at least 1.
        health: Asked between two batches, after the pause; None: nobody is asked.
        deadline: A host that is not over so long after it was announced has failed; None: no deadline.
    """

    name: str
    cause: str
    type: EventType | None = None
    description: str | None = None
    duration_s: int | None = None
    notice: timedelta | None = None
    hosts: tuple[str, ...] | None = None
    order: Order = Order.LISTED
    batch_size: int = 1
    hosts_at_once: int = 1
    canary: tuple[str, ...] = ()
    canary_pause: timedelta = timedelta(0)
    pause: timedelta = timedelta(0)
    one_fault_domain: bool = True
    one_update_domain: bool = True
    failures_max: int = 1
    health: HealthCheck | None = None
    deadline: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What came of one health check.

    Attributes:
        number: Which check of the rollout it was, from 1.
        batch: After which batch it was made, from 0.
        detail: What the command said, for a person; may be empty.
    """

    number: int
    batch: int
    is_healthy: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHost:
    """One host of a rollout.

    Attributes:
        batch: Its batch, from 0.
        maintenance_ids: Its maintenances: one, or several where its VMs may not be hit together.
        is_open: Whether one of its maintenances may still change. A host that has failed may be open for a while.
        scheduled_at: When its maintenance was asked for; None while it was not.
        ended_at: When it had had its turn; None before.
        reason: Why it failed or was skipped.
    """

    name: str
    batch: int
    state: HostState = HostState.PENDING
    maintenance_ids: tuple[str, ...] = ()
    is_open: bool = False
    scheduled_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has had its turn."""
        return self.state in OVER_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A rollout as it stands. Everything that must survive a restart is in here.

    Attributes:
        hosts: In the order of their batches.
        reason: Why it is paused, is being aborted, or was aborted.
        failures_accepted: Failures that were there when it was resumed last.
        checks: Health checks whose outcome is known.
        health: The last outcome that counts; None: none, or the operator has gone on in spite of it.
    """

    id: str
    spec: RolloutSpec
    state: RolloutState
    created_at: datetime
    hosts: tuple[RolloutHost, ...]
    started_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None
    failures_accepted: int = 0
    checks: int = 0
    health: Health | None = None

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in ENDED_STATES

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return self.hosts[-1].batch + 1 if self.hosts else 0

    @property
    def canaries(self) -> int:
        """How many of the first batches are one canary each."""
        return len(self.spec.canary)

    @property
    def batch(self) -> int | None:
        """The batch whose turn it is, from 0; None when every host has had its turn."""
        return next((host.batch for host in self.hosts if not host.is_over), None)

    @property
    def counts(self) -> Mapping[HostState, int]:
        """How many hosts are in each state, also those that none is in."""
        found = Counter(host.state for host in self.hosts)
        return {state: found[state] for state in HostState}

    @property
    def failures(self) -> int:
        """How many hosts have failed."""
        return sum(host.state is HostState.FAILED for host in self.hosts)

    @property
    def open_hosts(self) -> tuple[RolloutHost, ...]:
        """What is in flight."""
        return tuple(host for host in self.hosts if host.is_open)

    @property
    def watched(self) -> tuple[str, ...]:
        """Ids of the maintenances that a decision has to know about."""
        return tuple(i for host in self.hosts if host.is_open for i in host.maintenance_ids)
