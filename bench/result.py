"""What a part of the benchmark found."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["QUICK", "Effort", "Result", "Row", "median", "percentile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: Interleaved rounds over the sides of a comparison.
        seconds: Of each side in each round.
        changes: Changes whose way to the clients is timed.
        polls: Long polls held at the same time.
        due: Maintenances that fall due in the same second.
        sizes: VMs in the inventory, smallest first.
        hosts: Hosts on which a maintenance is scheduled, one after the other.
        idle_s: How long idle agents are watched.
        polled: Events that a polling agent is told of, one a second.
        waited: Events that an agent with a held poll is told of.
        fixtures: Fixtures of the testing kit, one after the other.
        events_of_day: Events of a simulated day.
        watches: Watches of hosts that one replica holds.
        heard: Changes that all of them hear of.
        through: Changes whose way from the control API to a VM is timed.
        commits: Hosts whose maintenances are committed at each concurrency, and their VMs' approvals after that.
        crashes: Times that the replica that carries out is killed.
        fleet_hosts: Hosts of the largest inventory, with fifty VMs each.
        fleet_watches: Watches of them.
        shown: Active maintenances that the dashboard shows.
        opened: Times that each of its pages is opened.
        dashboards: Browsers that look at it at once.
        history: Entries of the audit log that is asked.
        questions: Of each kind.
        attack_s: How long each attack lasts, and the calm before it.
        attacked_vms: VMs of the inventory that is applied as an attack.
        mutants: Handlers with one change each that are tried, drawn from all that can be made.
    """

    rounds: int = 5
    seconds: float = 3.0
    changes: int = 300
    polls: int = 10_000
    due: int = 1000
    sizes: tuple[int, ...] = (1000, 10_000, 100_000)
    hosts: int = 15
    idle_s: float = 90.0
    polled: int = 60
    waited: int = 200
    fixtures: int = 200
    events_of_day: int = 1000
    watches: int = 5000
    heard: int = 20
    through: int = 300
    commits: int = 150
    crashes: int = 6
    fleet_hosts: int = 20_000
    fleet_watches: int = 2000
    shown: int = 1000
    opened: int = 200
    dashboards: int = 1000
    history: int = 10_000_000
    questions: int = 100
    attack_s: float = 10.0
    attacked_vms: int = 100_000
    mutants: int = 200


QUICK = Effort(
    rounds=2,
    seconds=1.0,
    changes=60,
    polls=1000,
    due=200,
    sizes=(1000, 10_000),
    hosts=5,
    idle_s=15.0,
    polled=5,
    waited=20,
    fixtures=30,
    events_of_day=200,
    watches=500,
    heard=4,
    through=40,
    commits=30,
    crashes=2,
    fleet_hosts=200,
    fleet_watches=100,
    shown=100,
    opened=20,
    dashboards=50,
    history=120_000,
    questions=20,
    attack_s=3.0,
    attacked_vms=10_000,
    mutants=12,
)
"""Enough to see that everything works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        value: The figure, in `unit`.
        target: What it is compared with; None where nothing was promised.
        is_floor: Whether the target is the least, rather than the most, that is wanted.
        note: What else is to be known of the figure.
    """

    what: str
    value: float
    unit: str
    target: float | None = None
    is_floor: bool = False
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.is_floor else self.value <= self.target


@dataclass(slots=True, kw_only=True)
class Result:
    """Rows for the table, and the raw numbers that they come from."""

    title: str
    rows: list[Row] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it is kept beside the table."""
        rows = [asdict(row) | {"is_met": row.is_met} for row in self.rows]
        kept: dict[str, Any] = _rounded({"title": self.title, "rows": rows, "raw": self.raw})
        return kept


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values` that `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return float(statistics.median(values))
