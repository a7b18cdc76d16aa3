"""Part 8: one replica on PostgreSQL that holds the watches of twenty thousand hosts, or of as many as it can open.

Each watch is a real stream on a socket. Each host has a standalone VM, and a VM of a scope that has VMs on all hosts.
An event of this scope is sent to all hosts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.document import service_child
from bench.fleet import fill, vm_name, wide_name
from bench.hosts import Hosts, count_allowed
from bench.operator import Operator
from bench.postgresql import databases
from bench.process import Child
from bench.result import Effort, Result, Row, median, percentile

__all__ = ["build_rows", "measure"]

_PATIENCE_S = 1000.0
_WINDOW = 64
_IDLE_S = 15.0
_SETTLE_S = 0.5
_EVERYWHERE = 3
_NAMED_MAX = 5000
"""Most VMs that one maintenance names; `request_vms_max` limits them to 10,000."""

_AT_ONCE_MAX = 5000
"""Most hosts that connect at the same time: a replica closes the oldest of more than 8,192 connections without a valid
token (`control_unknown_connections_max`).
"""

_SETTINGS = {
    # Few VMs connect here, so that nearly all open files are left for the watches.
    "connections_max": 64,
    # The hosts of this machine share a few addresses, which the hosts of a cloud do not.
    "control_proxies": "127.0.0.0/8",
}


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Hold the watches, change documents, and let all hosts reconnect."""
    count = count_allowed(effort.watches)
    if count < effort.watches:
        print(f"  the limit of open files (ulimit -Hn) allows {count:,} of {effort.watches:,} watches", flush=True)
    with databases(folder) as url:
        fill(url, count, per_host=1, has_wide=True)
        with service_child(folder, log, database_url=url, inventory=None, **_SETTINGS) as replica:
            told = replica.hear(_PATIENCE_S)
            port = urlsplit(told["control"]).port
            assert port is not None
            with Hosts(port, count, log, patience_s=_PATIENCE_S) as hosts:
                found = _Crowd(replica, hosts, Operator(told["control"], folder), count).measure(effort.heard)
    result = Result(title=f"{count:,} watches of hosts, held by one replica on PostgreSQL", raw=found)
    result.rows = build_rows(found, effort.watches)
    return result


def build_rows(found: dict[str, Any], wanted: int) -> list[Row]:
    """Return the rows for what was measured, when so many watches were wanted."""
    count, last_ms = found["watches"], found["all_last_ms"]
    limit = "" if count == wanted else f"; the limit of open files did not allow {wanted:,}"
    return [
        Row(
            what="memory for each watch, with its connection",
            value=found["kib_each"],
            unit="KiB",
            note=f"of {count:,} watches{limit}",
        ),
        Row(what="CPU time of the replica while nothing changes", value=found["idle_percent"], unit="% of a core"),
        Row(
            what=f"a change in a scope with VMs on all {count:,} hosts, commit until the first host has it, p50",
            value=percentile(found["all_first_ms"], 50),
            unit="ms",
        ),
        Row(what="the same change, commit until the last host has it, p50", value=percentile(last_ms, 50), unit="ms"),
        Row(
            what="the same change, commit until the last host has it, p99",
            value=percentile(last_ms, 99),
            unit="ms",
            note=f"of {len(last_ms)} changes",
        ),
        Row(
            what="a change for one host, commit until the host has it, p50",
            value=percentile(found["one_ms"], 50),
            unit="ms",
        ),
        Row(
            what="a change for one host, commit until the host has it, p99",
            value=percentile(found["one_ms"], 99),
            unit="ms",
        ),
        Row(
            what=f"one maintenance of {found['everywhere_hosts']:,} hosts, a document for each, "
            "commit until the last of them has it",
            value=median(found["everywhere_last_ms"]),
            unit="ms",
            note=f"request to answer {median(found['everywhere_answer_ms']):,.0f} ms",
        ),
        Row(what="CPU time of the replica for one host that connects", value=found["join_cpu_ms"], unit="ms"),
        Row(
            what=f"all {count:,} hosts connect, up to {_AT_ONCE_MAX:,} at once, until the last has its state",
            value=found["storm_s"],
            unit="s",
        ),
    ]


class _Crowd:
    """The replica, the hosts that watch it, and the operator who changes documents."""

    def __init__(self, replica: Child, hosts: Hosts, operator: Operator, count: int) -> None:
        self._replica = replica
        self._hosts = hosts
        self._operator = operator
        self._count = count

    def measure(self, changes: int) -> dict[str, Any]:
        found = self._join() | self._idle()
        print(f"  held: {found['kib_each']:.1f} KiB and {found['join_cpu_ms']:.2f} ms of processor each", flush=True)
        all_hosts = range(self._count)
        one = self._changes([vm_name(self._count // 2)], [self._count // 2], changes)
        everyone = self._changes([wide_name(0)], all_hosts, changes)
        found |= {
            "one_ms": one["last_ms"],
            "all_first_ms": everyone["first_ms"],
            "all_last_ms": everyone["last_ms"],
            "all_answer_ms": everyone["answer_ms"],
            "all_cpu_ms": everyone["cpu_ms"],
        }
        print(f"  all of them hear of a change: last after {median(found['all_last_ms']):.0f} ms", flush=True)
        named = all_hosts[:_NAMED_MAX]
        everywhere = self._changes([vm_name(number) for number in named], named, _EVERYWHERE)
        found |= {f"everywhere_{name}": values for name, values in everywhere.items()} | {
            "everywhere_hosts": len(named)
        }
        self._leave()
        storm = self._hosts.join(window=min(self._count, _AT_ONCE_MAX))
        print(f"  all of them ask at once: last after {storm['joined_s']:.1f} s", flush=True)
        return found | {"storm_s": storm["joined_s"], "storm_took_s": storm["took_s"][:: max(1, self._count // 100)]}

    def _join(self) -> dict[str, Any]:
        before_bytes, before_s = self._rss_bytes(), self._replica.cpu_s()
        joined = self._hosts.join(window=_WINDOW)
        spent_s = self._replica.cpu_s() - before_s
        return {
            "watches": self._count,
            "kib_each": (self._rss_bytes() - before_bytes) / self._count / 1024,
            "join_cpu_ms": spent_s / self._count * 1000,
            "join_ms": joined["joined_s"] / self._count * 1000,
            "state_bytes": joined["state_bytes"],
        }

    def _leave(self) -> None:
        """End all watches, and wait until the replica has closed them: each takes one of its open files until then."""
        self._hosts.leave()
        while self._replica.count_open_files() > self._count // 2:
            self._hosts.rest(_SETTLE_S)

    def _idle(self) -> dict[str, Any]:
        self._hosts.rest(_SETTLE_S)
        before_s, began_s = self._replica.cpu_s(), time.monotonic()
        lines = self._hosts.rest(_IDLE_S)
        took_s = time.monotonic() - began_s
        spent_s = self._replica.cpu_s() - before_s
        return {"idle_percent": spent_s / took_s * 100, "idle_lines_per_s": lines / took_s}

    def _changes(self, vms: list[str], hosts: Sequence[int], times: int) -> dict[str, list[float]]:
        """Announce events to these VMs and cancel them, repeatedly; these hosts receive each change."""
        found: dict[str, list[float]] = {"first_ms": [], "last_ms": [], "answer_ms": [], "cpu_ms": []}
        for _ in range(times // 2 + times % 2):
            made = self._change("/v1/maintenance", {"vms": vms, "type": "Freeze"}, hosts, found)
            self._change(f"/v1/maintenance/{made['items'][0]['id']}/cancel", {}, hosts, found)
        return found

    def _change(
        self, path: str, content: dict[str, Any], hosts: Sequence[int], found: dict[str, list[float]]
    ) -> dict[str, Any]:
        self._hosts.expect(hosts)
        before_s, asked_s = self._replica.cpu_s(), time.monotonic()
        answer = self._operator.post(path, content)
        answered_s = time.monotonic()
        moments_s = self._hosts.hear()
        committed_s = self._replica.ask(do="changes_seen", timeout_s=_PATIENCE_S)["changes"][-1]["committed_s"]
        found["first_ms"].append((moments_s[0] - committed_s) * 1000)
        found["last_ms"].append((moments_s[-1] - committed_s) * 1000)
        found["answer_ms"].append((answered_s - asked_s) * 1000)
        found["cpu_ms"].append((self._replica.cpu_s() - before_s) * 1000)
        self._hosts.rest(_SETTLE_S)
        return answer

    def _rss_bytes(self) -> int:
        return int(self._replica.ask(do="rss")["rss_bytes"])
