"""Results of one part of the benchmark."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["QUICK", "Effort", "Result", "Row", "median", "percentile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much to measure.

    Attributes:
        rounds: Interleaved rounds over the sides of a comparison.
        seconds: Duration for each server in each round.
        changes: Changes for which the time until a client sees them is measured.
        polls: Long polls held at the same time.
        due: Maintenances that are due in the same second.
        sizes: VMs in the inventory, smallest first.
        hosts: Hosts on which a maintenance is scheduled, one after the other.
        idle_s: Time for which idle agents are measured.
        polled: Events for an agent that polls once a second.
        waited: Events for an agent with a long poll.
        fixtures: Fixtures of the testing kit, one after the other.
        events_of_day: Events of a simulated day.
        watches: Hosts that watch one replica; fewer if the limit of open files does not allow so many.
        heard: Changes that are sent to all of these hosts.
        through: Changes for which the time from the control API to a VM is measured.
        commits: Hosts with one maintenance each, for each concurrency; then their VMs approve.
        writes_s: Duration of the small writes of each other server.
        crashes: Number of times that the leader is killed.
        fleet_hosts: Hosts of the largest inventory, with fifty VMs each.
        fleet_watches: Hosts of this inventory that watch.
        shown: Active maintenances that the dashboard shows.
        opened: Number of times that each page of the dashboard is opened.
        dashboards: Browsers that show the dashboard at the same time.
        history: Audit log entries in the queried history.
        questions: Queries of each kind.
        attack_s: Duration of the measurement before each attack, and of that during it.
        attacked_vms: VMs of the inventory that an attack applies.
        mutants: Mutants to try, drawn at random from all possible ones.
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
    watches: int = 20_000
    heard: int = 20
    through: int = 300
    commits: int = 150
    writes_s: float = 10.0
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
    writes_s=2.0,
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
"""A short run that checks whether everything works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        value: Measured value, in `unit`.
        target: Required value; None if there is no requirement.
        is_floor: Whether the target is a minimum; if not, it is a maximum.
        note: Further information about the value.
    """

    what: str
    value: float
    unit: str
    target: float | None = None
    is_floor: bool = False
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.is_floor else self.value <= self.target


@dataclass(slots=True, kw_only=True)
class Result:
    """Rows for the table, and the raw numbers behind them."""

    title: str
    rows: list[Row] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result as stored in the JSON file."""
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
    """Return the smallest of `values` that at least `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))
