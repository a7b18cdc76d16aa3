"""Part 17: the maximum load of well-behaved callers, with the default limits: the service refuses no request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.fleet import VMS_PER_HOST, fill, host_name, write_fleet
from bench.isolation import Service, serve
from bench.process import LOAD_CORE, python_child
from bench.result import Effort, Result, Row

__all__ = ["measure"]

_HOST_VMS = 200
_AT_ONCE = 200
_PATIENCE_S = 600.0


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """In turn, let all VMs of a host approve, all VMs poll, all hosts reconnect and many dashboards open at once."""
    result = Result(title="Honest load, with the default limits")
    small, large = folder / "small", folder / "large"
    small.mkdir()
    large.mkdir()
    url = f"sqlite:///{small}/fleet.db"
    fill(url, 2, per_host=_HOST_VMS)
    with serve(small, log, url) as service:
        service.ask("POST", "/v1/maintenance", {"hosts": [host_name(1)], "type": "Reboot", "notice_s": 3600})
        found = _behave(service, "approve", _HOST_VMS, _HOST_VMS, log)
        _note(result, f"{_HOST_VMS} VMs of a host approve at once", found, _HOST_VMS)
    with serve(large, log, write_fleet(large, effort.attacked_vms)) as service:
        found = _behave(service, "poll", 0, effort.attacked_vms, log)
        _note(result, f"{effort.attacked_vms:,} VMs poll, each over a new connection", found, effort.attacked_vms)
        hosts = effort.attacked_vms // VMS_PER_HOST
        with python_child("bench.watchers", str(service.control_port), str(hosts), core=LOAD_CORE, log=log) as crowd:
            joined = crowd.ask(do="join", window=hosts, timeout_s=_PATIENCE_S)
        statuses = {"200": len(joined["took_s"])}
        _note(result, f"{hosts:,} hosts come back at once", {"statuses": statuses, "took_s": joined["joined_s"]}, hosts)
        cookie = service.cookie(service.operator["Authorization"].removeprefix("Bearer "))["Cookie"]
        port, count = str(service.control_port), effort.dashboards
        with python_child("bench.lookers", port, cookie, str(count), core=LOAD_CORE, log=log) as crowd:
            seen = crowd.ask(do="join", timeout_s=_PATIENCE_S)
        statuses = {"200": seen["seen"]}
        _note(result, f"{count:,} dashboards open at once", {"statuses": statuses, "took_s": seen["joined_s"]}, count)
    return result


def _behave(service: Service, act: str, first: int, count: int, log: Path) -> dict[str, Any]:
    work = json.dumps({"port": service.metadata_port, "first": first, "count": count, "at_once": _AT_ONCE})
    with python_child("bench.behave", act, work, core=LOAD_CORE, log=log) as child:
        return child.hear(_PATIENCE_S)


def _note(result: Result, what: str, found: dict[str, Any], count: int) -> None:
    """Add a row with the number of requests that were not answered with 200."""
    refused = count - found["statuses"].get("200", 0)
    note = ", ".join(f"{number} answers with {status}" for status, number in sorted(found["statuses"].items()))
    note = f"{note}; {found['took_s']:.1f} s"
    result.rows.append(Row(what=f"{what}: answers other than 200", value=refused, unit="", target=0, note=note))
    result.raw[what] = found
    print(f"  {what}: {note}", flush=True)
