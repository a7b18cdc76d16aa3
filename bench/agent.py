"""Part 6: the agent in a VM: its cost while idle, and the delay until its first hook runs after an event.

A hook records the wall-clock time at which it runs, and the service records when the commit has returned. Both run on
this machine. The delay includes publication, the poll, the choice of a rule, writing the state file to disk, and the
start of two processes: a shell and `date`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.document import service_child
from bench.operator import Operator
from bench.process import LOAD_CORE, BenchError, Child
from bench.result import Effort, Result, Row, percentile

__all__ = ["measure"]

_RSS_MAX_MIB = 32.0
_CPU_MAX_PERCENT = 0.3
_KINDS = {"poll": ("0s", "polling once a second", 1100.0), "hold": ("20s", "held long poll", 30.0)}
_SETTLE_S = 5.0
_HOOK_S = 10.0


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Measure an idle agent of each kind, then create events for it."""
    result = Result(title="The agent in a VM")
    for kind, (wait, words, target_ms) in _KINDS.items():
        place = folder / kind
        place.mkdir()
        with service_child(place, log) as service:
            told = service.hear()
            with _agent(told["metadata"][0], wait, place, log) as child:
                time.sleep(_SETTLE_S)
                idle = _watch(child, effort.idle_s)
                operator = Operator(told["control"], place)
                count = effort.polled if kind == "poll" else effort.waited
                delays_ms = _announce(service, operator, place / "hooks", kind, count)
                idle["rss_after_mib"] = _rss_mib(child.pid)
        result.raw[kind] = idle | {"to_hook_ms": delays_ms}
        print(f"  {words}: {idle['rss_mib']:.1f} MiB, {idle['cpu_percent']:.2f} %", flush=True)
        result.rows += [
            Row(what=f"{words}, idle, resident memory", value=idle["rss_mib"], unit="MiB", target=_RSS_MAX_MIB),
            Row(
                what=f"{words}, idle, CPU time",
                value=idle["cpu_percent"],
                unit="% of a core",
                target=_CPU_MAX_PERCENT,
                note=f"over {idle['seconds']:.0f} s",
            ),
            Row(what=f"{words}, commit until the first hook runs, p50", value=percentile(delays_ms, 50), unit="ms"),
            Row(
                what=f"{words}, commit until the first hook runs, p99",
                value=percentile(delays_ms, 99),
                unit="ms",
                target=target_ms,
                note=f"of {len(delays_ms)} events",
            ),
            Row(what=f"{words}, resident memory after these events", value=idle["rss_after_mib"], unit="MiB"),
        ]
    return result


@contextmanager
def _agent(url: str, wait: str, folder: Path, log: Path) -> Iterator[Child]:
    """Return an agent that runs as with `forewarn agent run`."""
    config = folder / "agent.toml"
    config.write_text(
        f'endpoint = "{url}"\nwait = "{wait}"\nstate_file = "{folder}/agent.json"\nlisten = "127.0.0.1:0"\n'
        f"[[rule]]\nprepare = [{{shell = 'date +%s.%N >> {folder}/hooks'}}]\napprove = \"never\"\n",
        encoding="utf-8",
    )
    with Child([sys.executable, "-m", "forewarn.agent", "--config", str(config)], core=LOAD_CORE, log=log) as child:
        yield child


def _watch(child: Child, seconds: float) -> dict[str, Any]:
    """Measure memory and CPU time of an idle agent."""
    began_s, began_cpu_s = time.monotonic(), child.cpu_s()
    time.sleep(seconds)
    passed_s = time.monotonic() - began_s
    cpu_percent = 100 * (child.cpu_s() - began_cpu_s) / passed_s
    return {"rss_mib": _rss_mib(child.pid), "cpu_percent": cpu_percent, "seconds": passed_s}


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _announce(service: Child, operator: Operator, hooks: Path, kind: str, count: int) -> list[float]:
    """Announce and cancel events; return the times from each commit until the first hook ran, in ms."""
    pause = random.Random(1)
    for number in range(count):
        # For a polling agent, commits must fall at random points between two polls.
        time.sleep(pause.uniform(0.2, 1.2) if kind == "poll" else pause.uniform(0.25, 0.5))
        made = operator.post("/v1/maintenance", {"vms": ["vm-1"], "type": "Freeze"})
        _wait_for_hook(hooks, number + 1)
        operator.post(f"/v1/maintenance/{made['items'][0]['id']}/cancel", {})
    changes = service.ask(do="changes_seen")["changes"]
    committed = [change["committed_at_s"] for change in changes][-2 * count :: 2]
    ran = [float(line) for line in hooks.read_text(encoding="ascii").split()]
    return [(hook - commit) * 1000 for hook, commit in zip(ran, committed, strict=True)]


def _wait_for_hook(hooks: Path, count: int) -> None:
    """Wait until `count` hooks have run.

    Raises:
        BenchError: They did not run in time.
    """
    deadline_s = time.monotonic() + _HOOK_S
    while not hooks.exists() or hooks.read_bytes().count(b"\n") < count:
        if time.monotonic() > deadline_s:
            raise BenchError(f"hook {count} did not run within {_HOOK_S:g} s")
        time.sleep(0.002)
