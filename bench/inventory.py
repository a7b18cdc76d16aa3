"""Part 5: how the start time, memory and the time to schedule grow with the number of VMs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.document import service_child
from bench.fleet import VMS_PER_HOST, host_name, write_fleet
from bench.operator import Operator
from bench.result import Effort, Result, Row, median

__all__ = ["measure"]

_STARTS = 3
_START_TARGET_S = 5.0


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Start the service several times on a database of each size, then schedule maintenance for several hosts."""
    result = Result(title="VMs in the inventory, all of them enabled")
    sizes: dict[str, dict[str, Any]] = {}
    for size in effort.sizes:
        place = folder / str(size)
        place.mkdir()
        found = sizes[str(size)] = _one_size(place, size, effort.hosts, log)
        ready_s, rss_mib = median(found["ready_s"]), median(found["rss_mib"])
        schedule_ms = median(found["schedule_ms"])
        print(
            f"  {size:,} VMs: ready after {ready_s:.2f} s, {rss_mib:.0f} MiB, schedule {schedule_ms:.1f} ms", flush=True
        )
        target = _START_TARGET_S if size == effort.sizes[-1] else None
        result.rows += [
            Row(what=f"{size:,} VMs, start of the process until it answers", value=ready_s, unit="s", target=target),
            Row(what=f"{size:,} VMs, resident memory", value=rss_mib, unit="MiB"),
            Row(what=f"{size:,} VMs, schedule for one host of {VMS_PER_HOST}", value=schedule_ms, unit="ms"),
        ]
    result.raw = {"sizes": sizes}
    return result


def _one_size(place: Path, size: int, hosts: int, log: Path) -> dict[str, Any]:
    url = write_fleet(place, size)
    found: dict[str, Any] = {"ready_s": [], "load_s": [], "rss_mib": [], "schedule_ms": []}
    for _ in range(_STARTS):
        with service_child(place, log, database_url=url, inventory=None) as service:
            told = service.hear(120)
            found["ready_s"].append(told["ready_s"] - service.started_s)
            found["load_s"].append(told["ready_s"] - told["began_s"])
            found["rss_mib"].append(told["rss_bytes"] / (1 << 20))
            if len(found["ready_s"]) == _STARTS:
                found["schedule_ms"] = _schedule(Operator(told["control"], place), size // VMS_PER_HOST, hosts)
    return found


def _schedule(operator: Operator, of: int, hosts: int) -> list[float]:
    """Return milliseconds from request to answer, for hosts across the inventory; the first request only warms up."""
    took_ms = []
    for number in range(hosts + 1):
        name = host_name(number * (of - 1) // hosts)
        before_s = time.monotonic()
        operator.post("/v1/maintenance", {"hosts": [name], "type": "Freeze"})
        took_ms.append((time.monotonic() - before_s) * 1000)
    return took_ms[1:]
