"""Plants each bug in a copy of the package, and counts the seeds until the simulation complains.

`make simulate-bugs` runs all of them; ``ARGS="lost-wake-up"`` only those that are named.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.simulation.bugs.bugs import BUGS, SOURCE, Bug

__all__ = ["find_bug"]


def find_bug(bug: Bug, seeds: int, jobs: int | None = None) -> tuple[int, str] | None:
    """Return how many seeds it took to find the bug, and the property that it broke; None if no seed found it.

    Args:
        bug: The bug.
        seeds: Maximum number of seeds.
        jobs: Number of processes; None for one for each core.
    """
    with tempfile.TemporaryDirectory(prefix="forewarn-bug-") as folder:
        package = Path(folder) / SOURCE.name
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        bug.apply(package)
        command = [
            sys.executable,
            "-m",
            "forewarn.testing.simulation",
            "--from=1",
            f"--seeds={seeds}",
            "--stop",
            "--no-story",
            *([] if jobs is None else [f"--jobs={jobs}"]),
        ]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": folder}
        )
    if done.returncode == 0:
        return None
    complaint = re.search(r"^seed \d+: (\w+): (.*)", done.stdout, re.MULTILINE)
    count = re.search(r"^stopped after (\d+) seeds", done.stdout, re.MULTILINE)
    if complaint is None or count is None:
        raise RuntimeError(f"{bug.name}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return int(count[1]), complaint[1]


def _format_line(bug: Bug, found: tuple[int, str] | None, seeds: int) -> str:
    result = f"not found by {seeds} seeds" if found is None else f"{found[0]:4} seeds  {found[1]}"
    return f"{bug.name:34} {result}"


def _format_row(bug: Bug, found: tuple[int, str] | None, seeds: int) -> str:
    """Return a row of the table in docs/explanation/testing.md."""
    result = f"not found by {seeds:,} | " if found is None else f"{found[0]} | `{found[1]}`"
    return f"| `{bug.name}`: {bug.what} | {result} |"


def main() -> int:
    """Look for the bugs that the command line names, or for all; return 1 if one was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.bugs", description="Look for planted bugs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all. {', '.join(bug.name for bug in BUGS)}")
    parser.add_argument("--seeds", type=int, default=1000, help="seeds for each bug (default: %(default)s)")
    parser.add_argument("--rows", action="store_true", help="print rows for docs/explanation/testing.md")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - {bug.name for bug in BUGS}):
        parser.error(f"unknown: {', '.join(unknown)}")
    chosen = [bug for bug in BUGS if not arguments.names or bug.name in arguments.names]
    missed = 0
    for bug in chosen:
        found = find_bug(bug, arguments.seeds)
        missed += found is None
        write = _format_row if arguments.rows else _format_line
        sys.stdout.write(f"{write(bug, found, arguments.seeds)}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} were found\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
