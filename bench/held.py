"""Part 3: one process holds ten thousand long polls of two hundred VMs; one change answers all of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.client import POLLS_PER_VM, crowd_address
from bench.document import service_child
from bench.operator import Operator
from bench.process import LOAD_CORE, BenchError, Child, python_child
from bench.result import Effort, Result, Row, median

__all__ = ["measure"]

_ROUNDS = 3
_TARGET_S = 1.0
_PATIENCE_S = 120.0


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Hold the polls, change the document, and wait for the last answer; with a new process in each round."""
    result = Result(title=f"{effort.polls:,} long polls held, and answered by one change")
    last_s, first_s, kib = [], [], []
    for number in range(1, _ROUNDS + 1):
        place = folder / str(number)
        place.mkdir()
        inventory = place / "scope.json"
        inventory.write_text(json.dumps(_inventory(effort.polls)), encoding="utf-8")
        with service_child(place, log, inventory=str(inventory)) as service:
            found = _once(service, place, log, effort.polls)
        last_s.append(found["last_s"])
        first_s.append(found["first_s"])
        kib.append(found["held_bytes"] / effort.polls / 1024)
        print(f"  round {number}: last answer after {last_s[-1]:.3f} s, {kib[-1]:.1f} KiB each", flush=True)
    result.raw = {"polls": effort.polls, "last_s": last_s, "first_s": first_s, "kib_each": kib}
    result.rows = [
        Row(what="commit to first answer", value=median(first_s), unit="s"),
        Row(what="commit to last answer", value=median(last_s), unit="s", target=_TARGET_S),
        Row(what="memory for each held request, with its connection", value=median(kib), unit="KiB"),
    ]
    return result


def _inventory(polls: int) -> dict[str, Any]:
    """Return VMs of one scope, which share a document; each has its own address."""
    vms = [
        {"name": f"vm-{number}", "host": "host-1", "scope": "all", "addresses": [crowd_address(number)]}
        for number in range(polls // POLLS_PER_VM)
    ]
    return {"hosts": [{"name": "host-1"}], "scopes": [{"name": "all", "kind": "availability-set"}], "vms": vms}


def _once(service: Child, place: Path, log: Path, count: int) -> dict[str, float]:
    told = service.hear()
    port = urlsplit(told["metadata"][0]).port
    operator = Operator(told["control"], place)
    with python_child("bench.client", "crowd", str(port), str(count), core=LOAD_CORE, log=log) as crowd:
        empty_bytes = service.ask(do="rss")["rss_bytes"]
        crowd.hear(_PATIENCE_S)
        deadline_s = time.monotonic() + _PATIENCE_S
        while (held := service.ask(do="held", timeout_s=_PATIENCE_S)["held"]) < count:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{held} of {count} long polls are held after {_PATIENCE_S:.0f} s")
            time.sleep(0.2)
        full_bytes = service.ask(do="rss")["rss_bytes"]
        operator.post("/v1/maintenance", {"vms": ["vm-1"], "type": "Freeze"})
        answers = crowd.hear(_PATIENCE_S)
    if answers["answers"] != count or answers["wrong"]:
        raise BenchError(f"{count} good answers were expected: {answers}")
    committed_s = service.ask(do="changes_seen")["changes"][-1]["committed_s"]
    return {
        "first_s": answers["first_s"] - committed_s,
        "last_s": answers["last_s"] - committed_s,
        "held_bytes": full_bytes - empty_bytes,
    }
