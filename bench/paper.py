"""Results for many hosts: the tables and the picture of `docs/explanation/scale.md`.

`python -m bench.paper` and `make bench` compute them from `docs/benchmarks.json`, so no figure is typed by hand.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")  # before the import of pyplot, because there may be no screen

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.cells import count_cells, merge_pages, roll_out
from bench.process import ROOT
from bench.report import JSON_FILE
from bench.result import median, percentile
from bench.scale import Costs, Loss, Return, announce, approve_all, come_back, tell_all

__all__ = ["NEEDED", "PAGE", "PICTURE", "costs_of", "render", "write"]

PAGE = ROOT / "docs/explanation/scale.md"
PICTURE = ROOT / "docs/images/scale.svg"
NEEDED = frozenset({"inventory", "watches", "through", "commits", "failover", "million", "history"})
"""Parts of the benchmark that the tables need."""

_BEGIN = "<!-- {name}: begin; written by `python -m bench.paper` -->"
_END = "<!-- {name}: end -->"
_FLEETS = (1000, 5000, 20_000)
_REPLICAS = (2, 3, 4, 5, 8)
_LARGEST = _FLEETS[-1]
_CELL_HOSTS = 5000
_CELL_FLEETS = (20_000, 200_000, 2_000_000)
_PAGES = 2000
_ROLLOUT_HOSTS = 20_000
_ROLLOUT_AT_ONCE = 200
_ROLLOUT_CELLS = (4, 20, 100, 200)
# Half of the hosts take less than ten minutes, and one in a hundred more than half an hour.
_HOST_MEDIAN_S = 600.0
_HOST_SIGMA = 0.5
_VMS_PER_HOST = 50
_VMS_PER_STORED_HOST = 20  # `bench.fleet.VMS_PER_HOST`, which part `commits` uses
_THINK_S = 600.0
_LIMIT_S = 300.0
_SEED = 1
_WINDOW = 64
_COLOURS = ("#d1603d", "#c99b2f", "#6b8f3a", "#1f6f8b", "#5b4b8a")


def costs_of(parts: dict[str, Any]) -> Costs:
    """Compute the parameters of the simulation from the measurements."""
    watches, through = parts["watches"]["raw"], parts["through"]["raw"]
    same_ms, other_ms = (percentile(through[way]["from_commit_ms"], 50) for way in ("same", "other"))
    schedule, approve = _busiest(parts["commits"]["raw"]["postgresql"])
    return Costs(
        join_s=parts["million"]["raw"]["join_cpu_ms"] / 1000,
        tell_s=median(watches["all_cpu_ms"]) / watches["watches"] / 1000,
        alive_s=watches["idle_percent"] / 100 / watches["idle_lines_per_s"],
        commit_s=1 / schedule,
        approval_s=1 / approve,
        follow_s=max(0.0, other_ms - same_ms) / 1000,
        host_s=max(0.0, same_ms - percentile(watches["one_ms"], 50)) / 1000,
    )


def _busiest(store: dict[str, Any]) -> tuple[float, float]:
    """Return maintenances and approvals per second, at the highest measured concurrency."""
    kinds = {kind: [one for name, one in store.items() if name.startswith(kind)] for kind in ("maint", "approvals")}
    schedule, approve = (max(ones, key=lambda one: one["concurrency"])["per_s"] for ones in kinds.values())
    return float(schedule), float(approve)


def render(parts: dict[str, Any]) -> dict[str, str]:
    """Return the tables by name, as Markdown."""
    costs = costs_of(parts)
    return {
        "parameters": _parameters(parts, costs),
        "returns": _returns(costs),
        "changes": _changes(parts, costs),
        "choice": _choice(parts, costs),
        "cells": _cells(parts, costs),
        "shares": _shares(),
    }


def _parameters(parts: dict[str, Any], costs: Costs) -> str:
    watches, million = parts["watches"]["raw"], parts["million"]["raw"]
    kill_s = max(parts["failover"]["raw"]["late_s"])
    # The simulation serves one host after the other, so this time is the sum over all hosts that connect at once.
    foreseen_s = watches["watches"] * watches["join_cpu_ms"] / 1000
    rows = [
        ("replica, CPU time to send a host its state", _ms(costs.join_s)),
        ("replica, CPU time to send a host one change", _ms(costs.tell_s)),
        ("replica, CPU time to send a host one keep-alive message", _ms(costs.alive_s)),
        (
            f"writer, time to decide and store a new maintenance of one host with {_VMS_PER_STORED_HOST} VMs",
            _ms(costs.commit_s),
        ),
        ("writer, time for an approval", _ms(costs.approval_s)),
        ("from a commit until another replica knows the change", _ms(costs.follow_s)),
        ("from a replica's message to a host until a VM sees the change", _ms(costs.host_s)),
        ("replica, memory for one watch", f"{million['kib_each']:.0f} KiB"),
        (f"replica, memory with {million['vms']:,} VMs", f"{million['rss_mib']:,.0f} MiB"),
        (f"replica, time to start with {million['vms']:,} VMs", f"{million['ready_s']:.0f} s"),
        (
            f"replica, pause while it applies a changed inventory of {million['vms']:,} VMs",
            f"{million['halted_s']:.1f} s",
        ),
        ("leader killed: longest time until the next maintenance starts", f"{kill_s:.1f} s"),
        ("replica, connections to PostgreSQL", f"{million['connections']}"),
        ("idle replica, transactions in PostgreSQL", f"{million['idle_per_s']:.0f} a second"),
    ]
    words = (
        "A host's state is the events of all its VMs. The inventory is the list of all hosts and VMs. The leader is "
        "the replica that starts maintenance when it is due."
    )
    check = (
        f"In a test, {watches['watches']:,} hosts, each with one VM, connected to one replica, up to 5,000 at the "
        f"same time. All had their state after {watches['storm_s']:.1f} s. "
        f"The simulation predicts {foreseen_s:.1f} s. For the prediction, we measured separately, with {_WINDOW} hosts "
        f"at a time, how much CPU time a replica needs to send a host with one VM the host's state: "
        f"{watches['join_cpu_ms']:.2f} ms. The {_ms(costs.join_s)} in the "
        f"table are for a host with {_VMS_PER_HOST} VMs."
    )
    return f"{_table(('measured', 'value'), rows)}\n\n{words}\n\n{check}"


@lru_cache(maxsize=1024)
def _return(costs: Costs, hosts: int, replicas: int, dead: int) -> Return:
    return come_back(costs, Loss(hosts=hosts, replicas=replicas, dead=dead, limit_s=_LIMIT_S), random.Random(_SEED))


def _returns(costs: Costs) -> str:
    rows = []
    for replicas in _REPLICAS:
        one = _return(costs, _LARGEST, replicas, 1)
        everyone = _return(costs, _LARGEST, replicas, replicas)
        rows.append(
            (
                f"{replicas}",
                f"{_LARGEST // replicas:,}",
                _back(one, _LARGEST // replicas),
                f"{one.vain:,}",
                _back(everyone, _LARGEST),
                f"{everyone.vain:,}",
            )
        )
    head = (
        "replicas",
        "watches per replica",
        "one is killed: all hosts back",
        "wasted requests",
        "all restart: all hosts back",
        "wasted requests",
    )
    return _table(head, rows)


def _named_s(watches: dict[str, Any]) -> float:
    """Return the time from the request for one maintenance of many hosts to its answer, for each of the hosts."""
    hosts: int = watches.get("everywhere_hosts", watches["watches"])  # earlier results name all hosts
    return median(watches["everywhere_answer_ms"]) / hosts / 1000


def _back(found: Return, expected: int) -> str:
    if len(found.back_s) < expected:
        return f"{len(found.back_s):,} of {expected:,} after {_LIMIT_S / 60:.0f} min"
    return _span(found.back_s[-1])


def _changes(parts: dict[str, Any], costs: Costs) -> str:
    watches = parts["watches"]["raw"]
    wide_s = _named_s(watches)
    first_s = percentile(parts["through"]["raw"]["other"]["from_request_ms"], 99) / 1000
    rows = []
    for hosts in _FLEETS:
        replicas = _advised(costs, hosts)
        vms = hosts * _VMS_PER_HOST
        one_by_one = announce(costs, hosts, replicas)
        approved_s = approve_all(costs, vms, _THINK_S, random.Random(_SEED))
        rows.append(
            (
                f"{hosts:,} hosts, {vms:,} VMs",
                _ms(first_s),
                _span(tell_all(costs, hosts, replicas, costs.commit_s).seen_s[-1]),
                _span(tell_all(costs, hosts, replicas, wide_s * hosts).seen_s[-1]),
                _span(one_by_one.seen_s[-1]),
                _span(approved_s[-1]),
            )
        )
    head = (
        "fleet",
        "one host, p99",
        "one scope on all hosts",
        "one maintenance of all hosts",
        "a maintenance for each host",
        "approvals of all VMs",
    )
    return _table(head, rows)


def _choice(parts: dict[str, Any], costs: Costs) -> str:
    million = parts["million"]["raw"]
    base_mib = min(median(found["rss_mib"]) for found in parts["inventory"]["raw"]["sizes"].values())
    vm_mib = (million["rss_mib"] - base_mib) / million["vms"]
    rows = []
    for hosts in _FLEETS:
        replicas = _advised(costs, hosts)
        after = hosts / (replicas - 1)
        memory_mib = base_mib + vm_mib * hosts * _VMS_PER_HOST + million["kib_each"] / 1024 * after
        back = _return(costs, hosts, replicas, 1)
        rows.append(
            (
                f"{hosts:,} hosts, {hosts * _VMS_PER_HOST:,} VMs",
                f"{replicas}",
                f"{hosts // replicas:,}, or {after:,.0f} after a loss",
                f"{memory_mib / 1024:.1f} GiB",
                f"{costs.share_idle(hosts / replicas) * 100:.0f} % of a core",
                f"{replicas * million['connections']}",
                f"{replicas * million['idle_per_s']:.0f} a second",
                _span(back.back_s[-1]),
            )
        )
    head = (
        "fleet",
        "replicas",
        "watches per replica",
        "memory per replica",
        "CPU time per idle replica",
        "connections to PostgreSQL, total",
        "transactions of idle replicas, total",
        "one is killed: all hosts back",
    )
    return _table(head, rows)


def _cells(parts: dict[str, Any], costs: Costs) -> str:
    page_ms = parts["history"]["raw"]["postgresql"]["took_ms"]["newest page of maintenances"]
    replicas = _advised(costs, _CELL_HOSTS)
    approved_s = approve_all(costs, _CELL_HOSTS * _VMS_PER_HOST, _THINK_S, random.Random(_SEED))[-1]
    rows = []
    for hosts in _CELL_FLEETS:
        cells = count_cells(hosts, _CELL_HOSTS)
        pages_ms = merge_pages(page_ms, cells, _PAGES, random.Random(_SEED))
        rows.append(
            (
                f"{hosts:,} hosts, {hosts * _VMS_PER_HOST:,} VMs",
                f"{cells:,}",
                f"{cells * replicas:,}",
                _span(approved_s),
                f"{percentile(pages_ms, 50):.0f} ms",
                f"{percentile(pages_ms, 99):.0f} ms",
                f"{100 / cells:.2f} % of the VMs",
            )
        )
    head = (
        "fleet",
        "cells",
        "replicas",
        "approvals of all VMs",
        "page of all cells, p50",
        "page of all cells, p99",
        "one cell is down",
    )
    return _table(head, rows)


def _shares() -> str:
    rng = random.Random(_SEED)
    log_median = math.log(_HOST_MEDIAN_S)
    durations_s = [rng.lognormvariate(log_median, _HOST_SIGMA) for _ in range(_ROLLOUT_HOSTS)]
    shared_s = roll_out([durations_s], _ROLLOUT_AT_ONCE, has_shares=False)
    rows = []
    for cells in _ROLLOUT_CELLS:
        size = _ROLLOUT_HOSTS // cells
        pieces = [durations_s[begin : begin + size] for begin in range(0, _ROLLOUT_HOSTS, size)]
        took_s = roll_out(pieces, _ROLLOUT_AT_ONCE, has_shares=True)
        rows.append(
            (
                f"{cells}",
                f"{_ROLLOUT_AT_ONCE // cells}",
                _span(shared_s),
                _span(took_s),
                f"{(took_s / shared_s - 1) * 100:.0f} % longer",
            )
        )
    head = ("cells", "share of each cell", "one budget for all", "a share for each cell", "difference")
    return _table(head, rows)


@lru_cache(maxsize=64)
def _advised(costs: Costs, hosts: int) -> int:
    """Return the fewest replicas with which hosts reconnect soon after one replica dies or all restart."""
    for replicas in range(2, 100):
        for dead in (1, replicas):
            found = _return(costs, hosts, replicas, dead)
            if len(found.back_s) < hosts * dead // replicas or found.vain > hosts / 10:
                break
        else:
            return replicas
    raise ValueError(f"no number of replicas carries {hosts} hosts")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *(["---:"] * (len(head) - 1))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# The picture


def draw(parts: dict[str, Any], path: Path = PICTURE) -> None:
    """Draw how hosts reconnect, and how long a change takes."""
    costs = costs_of(parts)
    mpl.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "scale"}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    _draw_returns(left, costs)
    _draw_changes(right, parts, costs)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _draw_returns(axes: Axes, costs: Costs) -> None:
    longest_s = 0.0
    for replicas, colour in zip(_REPLICAS, _COLOURS, strict=True):
        found = _return(costs, _LARGEST, replicas, replicas)
        shares = [(number + 1) / _LARGEST * 100 for number in range(len(found.back_s))]
        axes.plot(found.back_s, shares, color=colour, label=f"{replicas} replicas", linewidth=1.8)
        if len(found.back_s) == _LARGEST:
            longest_s = max(longest_s, found.back_s[-1])
    axes.set_xlim(0, min(longest_s * 1.1, 180.0) or 60.0)
    axes.set_ylim(0, 102)
    axes.set_xlabel("seconds after all replicas are back")
    axes.set_ylabel("hosts that have their state, %")
    axes.set_title(f"{_LARGEST:,} hosts ask at once (simulated)", loc="left", fontsize=11)
    axes.legend(loc="lower right", frameon=False)


def _draw_changes(axes: Axes, parts: dict[str, Any], costs: Costs) -> None:
    watches = parts["watches"]["raw"]
    wide_s = _named_s(watches)
    fleets = (200, 500, 1000, 2000, 5000, 10_000, 20_000)
    advised = {hosts: _advised(costs, hosts) for hosts in fleets}
    curves = {
        "one scope on all hosts": [tell_all(costs, n, advised[n], costs.commit_s).seen_s[-1] for n in fleets],
        "one maintenance of all hosts": [tell_all(costs, n, advised[n], wide_s * n).seen_s[-1] for n in fleets],
        "a maintenance for each host": [announce(costs, n, advised[n]).seen_s[-1] for n in fleets],
        "approvals of all their VMs": [costs.approval_s * n * _VMS_PER_HOST for n in fleets],
    }
    for (words, values), colour in zip(curves.items(), _COLOURS[::-1], strict=False):
        axes.plot(fleets, values, color=colour, label=words, linewidth=1.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([200, 1000, 5000, 20_000], ["200", "1,000", "5,000", "20,000"])
    axes.set_yticks([0.1, 1, 10, 60, 600, 3600, 36000], ["0.1 s", "1 s", "10 s", "1 min", "10 min", "1 h", "10 h"])
    axes.minorticks_off()
    axes.set_xlabel(f"hosts, with {_VMS_PER_HOST} VMs each")
    axes.set_title("From the request to the last of them (simulated)", loc="left", fontsize=11)
    axes.legend(loc="upper left", frameon=False, fontsize=9)


def write(parts: dict[str, Any]) -> None:
    """Write the tables between their markers in the page, and draw the picture."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table in render(parts).items():
        begin, end = _BEGIN.format(name=name), _END.format(name=name)
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        assert found, name
        assert ended, name
        page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    PAGE.write_text(page, encoding="utf-8")
    draw(parts)


def main() -> int:
    """Write the page from the stored results; return exit status 1 if parts are missing."""
    parts = json.loads(JSON_FILE.read_text(encoding="utf-8"))["parts"]
    missing = NEEDED - parts.keys()
    if missing:
        print(
            f"bench.paper: run first: make bench ARGS='--only {' --only '.join(sorted(missing))} --write'",
            file=sys.stderr,
        )
        return 1
    write(parts)
    print(f"Written: {PAGE.relative_to(ROOT)}, {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
