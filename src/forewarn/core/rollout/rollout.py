"""Model of a rollout: one maintenance carried out on many hosts, in order. All are frozen values.

`core.rollout.rollout_plan` makes batches from a specification, `core.rollout.rollout_lifecycle` holds the transitions,
`core.rollout.rollout_commands` the operator commands, and `core.rollout.rollout_decision` decides what to do next.

A host is *open* while one of its maintenances may still change. Open hosts are in flight: the rules of the
specification apply to them, whether their maintenance is only announced or has started, because an approval may start
it at any moment.
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
    "HealthCheck",
    "HealthResult",
    "HostOrder",
    "Rollout",
    "RolloutHost",
    "RolloutHostState",
    "RolloutSpec",
    "RolloutState",
]

HOSTS_MAX = 20_000
"""Maximum number of hosts in one rollout."""

LENGTH_MAX = timedelta(days=3660)
"""Maximum estimated duration of a rollout."""


class HostOrder(StrEnum):
    """Order in which the hosts are processed."""

    LISTED = "listed"
    NAME = "name"
    """By name, with numbers compared by value: ``host-2`` before ``host-10``."""
    SMALLEST_FIRST = "smallest-first"
    """Hosts with the fewest running VMs first; equal ones as listed."""


class RolloutState(StrEnum):
    """State of a rollout."""

    # `core.rollout.rollout_lifecycle` holds the transitions. Not in the docstring, which the API publishes.

    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    ABORTING = "aborting"
    ABORTED = "aborted"
    COMPLETED = "completed"
    FAILED = "failed"


ENDED_STATES = frozenset({RolloutState.ABORTED, RolloutState.COMPLETED, RolloutState.FAILED})
"""Final states."""


class RolloutHostState(StrEnum):
    """State of one host of a rollout."""

    PENDING = "pending"
    WAITING = "waiting"
    """Announced, or queued behind another maintenance: it waits for notice and approvals."""
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


OVER_STATES = frozenset({RolloutHostState.DONE, RolloutHostState.FAILED, RolloutHostState.SKIPPED})
"""States of a host that is finished with, whatever the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """A command that checks the health of the fleet; exit status 0 means healthy. It is run outside of the core.

    Attributes:
        command: Program and arguments; no shell.
        timeout: Time after which the check counts as failed.
    """

    command: tuple[str, ...]
    timeout: timedelta = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """Specification of a rollout.

    Attributes:
        cause: Name of a row of `CAUSES`.
        type: Event type; None for that of the cause.
        description: None for that of the cause.
        duration_s: Expected seconds of impact; 0 for no interruption, -1 if unknown, None for the value of the cause.
        notice: Time from the announcement for a host to its NotBefore; None for the minimum of the type.
        hosts: Names of hosts; None for every host in the inventory when the rollout is planned.
        selector: Selector of the hosts by their labels, in the grammar of `core.label`; None for no condition. Only if
            `hosts` is None.
        batch_size: Hosts of a batch, at least 1. The next batch begins when all of them are over.
        hosts_at_once: Maximum number of hosts in flight, 1 to `batch_size`.
        canary: Hosts that go first, each alone.
        canary_pause: Pause after the last canary.
        pause: Pause between two batches.
        one_fault_domain: Never two fault domains of a scope in flight.
        one_update_domain: Never two update domains of a scope in flight.
        failures_max: Number of failed hosts, counted from each resumption, that pauses the rollout; at least 1.
        health: Health check between two batches, after the pause; None for no check.
        deadline: Maximum time from a host's announcement until it is over; then it has failed. None for no deadline.
    """

    name: str
    cause: str
    type: EventType | None = None
    description: str | None = None
    duration_s: int | None = None
    notice: timedelta | None = None
    hosts: tuple[str, ...] | None = None
    selector: str | None = None
    order: HostOrder = HostOrder.LISTED
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
class HealthResult:
    """Result of one health check.

    Attributes:
        number: Number of the check in the rollout, from 1.
        batch: Batch after which it was made, from 0.
        detail: Output of the command, for a person; may be empty.
    """

    number: int
    batch: int
    is_healthy: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHost:
    """One host of a rollout.

    Attributes:
        batch: Batch of the host, from 0.
        maintenance_ids: Maintenances of the host: one, or several if its VMs may not be hit together.
        is_open: True if one of its maintenances may still change. A failed host may stay open for a while.
        scheduled_at: Time at which its maintenance was requested; None until then.
        ended_at: Time at which the host was over; None until then.
        reason: Reason why it failed or was skipped.
    """

    name: str
    batch: int
    state: RolloutHostState = RolloutHostState.PENDING
    maintenance_ids: tuple[str, ...] = ()
    is_open: bool = False
    scheduled_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None

    @property
    def is_over(self) -> bool:
        """True if the host is done, failed or skipped."""
        return self.state in OVER_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Current state of a rollout, with everything that must survive a restart.

    Attributes:
        hosts: Hosts in the order of their batches.
        reason: Reason why it is paused, is being aborted, or was aborted.
        failures_accepted: Number of failures when it was last resumed.
        checks: Number of health checks whose result is known.
        health: Last result that counts; None if there is none, or the operator resumed in spite of it.
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
    health: HealthResult | None = None

    @property
    def is_ended(self) -> bool:
        """True if nothing more will happen."""
        return self.state in ENDED_STATES

    @property
    def batch_count(self) -> int:
        """Number of batches."""
        return self.hosts[-1].batch + 1 if self.hosts else 0

    @property
    def canary_count(self) -> int:
        """Number of canaries; each is a batch at the beginning."""
        return len(self.spec.canary)

    @property
    def current_batch(self) -> int | None:
        """Current batch, from 0; None if every host is over."""
        return next((host.batch for host in self.hosts if not host.is_over), None)

    @property
    def host_counts(self) -> Mapping[RolloutHostState, int]:
        """Number of hosts in each state, states without hosts included."""
        found = Counter(host.state for host in self.hosts)
        return {state: found[state] for state in RolloutHostState}

    @property
    def failure_count(self) -> int:
        """Number of failed hosts."""
        return sum(host.state is RolloutHostState.FAILED for host in self.hosts)

    @property
    def open_hosts(self) -> tuple[RolloutHost, ...]:
        """Hosts in flight."""
        return tuple(host for host in self.hosts if host.is_open)

    @property
    def watched_maintenance_ids(self) -> tuple[str, ...]:
        """Ids of the maintenances that a decision needs."""
        return tuple(i for host in self.hosts if host.is_open for i in host.maintenance_ids)
