"""Run the benchmark, and draw its pictures: `python -m bench [--quick] [--only PART] [--write]`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from bench import (
    agent,
    commits,
    dashboards,
    due,
    failover,
    get,
    held,
    history,
    honest,
    inventory,
    isolation,
    kit,
    million,
    mutants,
    notify,
    paper,
    picture,
    report,
    sight,
    through,
    watches,
)
from bench.machine import describe, load_average
from bench.process import LOAD_CORE, ROOT, BenchError, missing_packages
from bench.result import QUICK, Effort, Result
from bench.summary import find_missing

_PARTS = {
    "get": get.measure,
    "sight": sight.measure,
    "held": held.measure,
    "due": due.measure,
    "inventory": inventory.measure,
    "agent": agent.measure,
    "kit": kit.measure,
    "watches": watches.measure,
    "through": through.measure,
    "commits": commits.measure,
    "failover": failover.measure,
    "million": million.measure,
    "dashboards": dashboards.measure,
    "history": history.measure,
    "notify": notify.measure,
    "isolation": isolation.measure,
    "honest": honest.measure,
    "mutants": mutants.measure,
}
_QUIET_LOAD = 0.5


def main() -> int:
    """Run the selected parts; return exit status 0, 1 if one of them failed, or 130 after Ctrl-C."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    names = arguments.only or list(_PARTS)
    obstacle = _find_obstacle(names)
    if obstacle is not None:
        print(f"bench: {obstacle}", file=sys.stderr)
        return 1
    os.sched_setaffinity(0, {LOAD_CORE})
    machine = describe()
    busy = load_average()
    machine["load average before the run"] = f"{busy:.2f}"
    if busy > _QUIET_LOAD:
        print(f"The machine is busy (load {busy:.2f}): trust the ratios, not the figures.", flush=True)
    began_s = time.monotonic()
    try:
        parts = measure({name: _PARTS[name] for name in names}, QUICK if arguments.quick else Effort())
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    failed = [name for name in names if name not in parts]
    if not parts:
        return 1
    is_whole = not (arguments.quick or arguments.only)
    if arguments.only and arguments.write:
        content = report.merge(parts, machine)
    else:
        content = {"machine": machine, "parts": parts}
    if is_whole and failed:
        content = report.keep_stored(content, failed, names)
    print(f"\n{report.render(content)}\n\n{time.monotonic() - began_s:.0f} s")
    if is_whole or arguments.write:
        _write(content, parts)
    if failed:
        print(f"bench: these parts failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _write(content: dict[str, Any], parts: dict[str, Any]) -> None:
    """Write the pages and pictures: `content` has stored results too, `parts` only those of this run."""
    picture.draw(content)
    report.write(content)
    written = [report.PAGE, report.RESULTS, report.JSON_FILE, picture.PICTURE]
    for pattern in find_missing(content):
        print(f"bench: the short table lacks a row: nothing matches {pattern}", file=sys.stderr)
    if "isolation" in parts:
        isolation.write_page(parts["isolation"])
        written.append(isolation.PAGE)
    if content["parts"].keys() >= paper.NEEDED:
        paper.write(content["parts"])
        written += [paper.PAGE, paper.PICTURE]
    print(f"Written: {', '.join(str(path.relative_to(ROOT)) for path in written)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Forewarn.")
    parser.add_argument("--quick", action="store_true", help="a short run, to check that everything works")
    parser.add_argument("--only", action="append", choices=_PARTS, metavar="PART", help=f"one of {', '.join(_PARTS)}")
    parser.add_argument("--write", action="store_true", help="write to docs/ also after --quick or --only")
    return parser.parse_args()


def _find_obstacle(names: list[str]) -> str | None:
    """Return why these parts cannot run on this machine, or None if they can."""
    packages = missing_packages(names)
    if packages:
        return f"programs are missing; install them: apt-get install {' '.join(packages)}"
    if (os.cpu_count() or 1) < 2:
        return "two cores are needed, one for the server and one for the load"
    return None


def measure(parts: Mapping[str, Callable[[Effort, Path, Path], Result]], effort: Effort) -> dict[str, Any]:
    """Return the results of all parts that succeeded; print the error of each other one."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="forewarn-bench-") as scratch:
        Path(scratch).chmod(0o711)  # started by root, nginx's worker runs as another user
        for name, part in parts.items():
            place = Path(scratch) / name
            place.mkdir()
            print(f"{name}:", flush=True)
            try:
                found[name] = part(effort, place, Path(scratch) / "log").to_json()
            except BenchError as error:
                print(f"bench: {name}: {error}", file=sys.stderr)
            except Exception:  # noqa: BLE001 - the results of the other parts must survive
                print(f"bench: {name}:\n{traceback.format_exc()}", file=sys.stderr)
    return found


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM like Ctrl-C, so that all child processes are stopped too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
