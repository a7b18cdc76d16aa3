"""The command of the fault run: prints the seed, runs, and ends with status 1 when something was violated."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path

from tests.faultrun.run import keep, run
from tests.faultrun.world import is_exec


def main() -> int:
    """Run once."""
    parser = argparse.ArgumentParser(prog="python -m tests.faultrun", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="what to draw from; default: another each time")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long things go wrong")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--vms", type=int, default=40, help="at least as many as hosts")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the records of a run that went wrong")
    parser.add_argument("--quiet", action="store_true", help="do not tell each fault as it happens")
    said = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if said.seed is None else said.seed
    _tell(f"seed {seed}")
    report = asyncio.run(run(seed, said.seconds, said.hosts, said.vms, (lambda _line: None) if said.quiet else _tell))
    _tell(f"actuator: {'exec' if is_exec() else 'simulate'}")
    for name, count in (*sorted(report.faults.items()), *report.figures.items()):
        _tell(f"{count:7d} {name}")
    for line in report.violations:
        _tell(f"VIOLATED {line}")
    _tell(f"seed {seed}: {len(report.violations)} violations")
    if report.violations and said.keep is not None:
        keep(report, said.keep)
    return 1 if report.violations else 0


def _tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is what the command is for


if __name__ == "__main__":
    sys.exit(main())
