"""The command of the fault run: prints the seed, runs, and ends with status 1 when something was violated."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
from collections import Counter
from pathlib import Path

import httpx

from forewarn.clock import uptime_s
from tests.faultrun.run import Report, keep, run
from tests.faultrun.world import Base, base
from tests.support.namespaces import missing


def main() -> int:
    """Run one seed or several."""
    parser = argparse.ArgumentParser(prog="python -m tests.faultrun", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="what to draw from; default: another each time")
    parser.add_argument("--seeds", type=int, default=1, help="so many, one after the other, beginning with --seed")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long things go wrong")
    parser.add_argument("--hosts", type=int, default=None, help="default: 4; 10 with --namespaces")
    parser.add_argument("--vms", type=int, default=None, help="at least as many as hosts; default: 40; 200 likewise")
    parser.add_argument("--namespaces", action="store_true", help="each host is a network namespace; needs root")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the records of runs that went wrong")
    parser.add_argument("--quiet", action="store_true", help="do not tell each fault as it happens")
    said = parser.parse_args()
    if said.namespaces and (lack := missing()) is not None:
        parser.error(f"--namespaces needs {lack}")
    said.hosts = said.hosts or (10 if said.namespaces else 4)
    said.vms = said.vms or (200 if said.namespaces else 40)
    # So that nothing stays behind, also when it runs in the background, where Ctrl-C is switched off.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    first = secrets.randbelow(1 << 32) if said.seed is None else said.seed
    try:
        with base() as shared:
            return _run_one(shared, first, said) if said.seeds == 1 else _run_all(shared, first, said)
    except KeyboardInterrupt:
        return 130


def _interrupt(_number: int, _frame: object) -> None:
    """As Ctrl-C; only once, for the end takes a while."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


def _run_one(shared: Base, seed: int, said: argparse.Namespace) -> int:
    _tell(f"seed {seed}")
    report = _run(shared, seed, said)
    for name, count in (*sorted(report.faults.items()), *report.figures.items()):
        _tell(f"{count:7d} {name}")
    for line in report.violations:
        _tell(f"VIOLATED {line}")
    _tell(f"seed {seed}: {len(report.violations)} violations, {report.took_s:.0f} s")
    return 1 if report.violations else 0


def _run_all(shared: Base, first: int, said: argparse.Namespace) -> int:
    """A line for each, and a summary."""
    said.quiet = True
    began_s = uptime_s()
    faults: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    wrong: list[int] = []
    for seed in range(first, first + said.seeds):
        try:
            report = _run(shared, seed, said)
        except (RuntimeError, httpx.HTTPError) as error:  # neither right nor wrong; the others are run nevertheless
            _tell(f"seed {seed}: did not come to its end: {error!r}")
            wrong.append(seed)
            continue
        faults += report.faults
        figures += Counter(report.figures)
        done = f"{sum(report.faults.values())} faults, {report.figures['carried out']} carried out"
        _tell(f"seed {seed}: {len(report.violations)} violations, {done}, {report.took_s:.0f} s")
        for line in report.violations:
            _tell(f"  VIOLATED {line}")
        if report.violations:
            wrong.append(seed)
    for name, count in (*sorted(faults.items()), *figures.items()):
        _tell(f"{count:7d} {name}")
    words = f"look at seeds {', '.join(map(str, wrong))}" if wrong else "no violations"
    _tell(f"{said.seeds} seeds from {first} in {(uptime_s() - began_s) / 60:.0f} min: {words}")
    return 1 if wrong else 0


def _run(shared: Base, seed: int, said: argparse.Namespace) -> Report:
    tell = (lambda _line: None) if said.quiet else _tell
    report = asyncio.run(run(shared, seed, said.seconds, said.hosts, said.vms, namespaces=said.namespaces, tell=tell))
    if report.violations and said.keep is not None:
        keep(report, said.keep / str(seed))
    return report


def _tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is what the command is for


if __name__ == "__main__":
    sys.exit(main())
