"""Part 11: the leader is killed: the time until another replica starts maintenance.

A maintenance is due every tenth of a second. Each kill happens at a different point of the lease's renewal interval, so
that the measurement includes the worst case.
"""

from __future__ import annotations

import time
from pathlib import Path

import sqlalchemy as sa

from bench.document import service_child
from bench.fleet import fill, vm_name
from bench.postgresql import databases, open_engine
from bench.process import BenchError, Child
from bench.result import Effort, Result, Row, median

__all__ = ["measure"]

_TARGET_S = 5.0
_APART_S = 0.1
_DUE = 150
_LEAD_S = 10.0
_RENEWAL_S = 1.0
_PATIENCE_S = 30.0
_SCHEDULED_S = 60.0


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Kill the leader of two replicas several times, each time with a new database."""
    result = Result(title="The leader, which starts due maintenance, is killed")
    late_s: list[float] = []
    for number in range(effort.crashes):
        place = folder / str(number)
        place.mkdir()
        late_s.append(_once(place, log, number / effort.crashes * _RENEWAL_S))
        print(f"  kill {number + 1}: the next start after {late_s[-1]:.2f} s", flush=True)
    result.raw = {"late_s": late_s, "apart_s": _APART_S}
    result.rows = [
        Row(what="from kill -9 until the next start in the audit log, median", value=median(late_s), unit="s"),
        Row(
            what="from kill -9 until the next start in the audit log, worst",
            value=max(late_s),
            unit="s",
            target=_TARGET_S,
            note=f"of {len(late_s)}; something was due every {_APART_S:.1f} s",
        ),
    ]
    return result


def _once(place: Path, log: Path, phase_s: float) -> float:
    with databases(place) as url:
        fill(url, _DUE, per_host=1)
        with service_child(place, log, database_url=url, inventory=None) as one:
            one.hear()
            with service_child(place, log, database_url=url, inventory=None) as other:
                other.hear()
                leader = _leader(one, other)
                vms = [vm_name(number) for number in range(_DUE)]
                told = leader.ask(do="schedule", vms=vms, lead_s=_LEAD_S, apart_s=_APART_S, timeout_s=_SCHEDULED_S)
                audit_log = _AuditLog(url)
                time.sleep(max(0.0, told["first_s"] - time.time()))
                audit_log.wait_for_start(since_s=0.0)  # the leader has started maintenance
                time.sleep(2 * _RENEWAL_S + phase_s)
                killed_s = time.time()
                leader.kill()
                return audit_log.wait_for_start(since_s=killed_s) - killed_s


def _leader(*replicas: Child) -> Child:
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        leaders = [replica for replica in replicas if replica.ask(do="leads")["leads"]]
        if len(leaders) == 1:
            return leaders[0]
        time.sleep(0.1)
    raise BenchError("no replica carries out what is due")


class _AuditLog:
    """Reads the audit log from the database every few milliseconds."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
        self._query = sa.text("SELECT count(*) FROM audit_log WHERE kind = 'started' AND at > :since")

    def wait_for_start(self, *, since_s: float) -> float:
        """Wait for the entry of a start after `since_s`; return when it was found. Both in seconds since 1970."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            with self._engine.connect() as connection:
                if connection.execute(self._query, {"since": int(since_s * 1e6)}).scalar_one():
                    return time.time()
            time.sleep(0.005)
        raise BenchError(f"nothing was started within {_PATIENCE_S:.0f} s")
