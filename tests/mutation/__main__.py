"""Plants mutants in a copy of the package, one at a time, and prints those that no test finds.

`make mutants` tries a sample of the core, the engine, the scheduler, the host endpoint and the agent. Each one meets
the unit tests of its folder first, or the simulations if it has none; then all unit tests and quick simulations, and
at last whole simulated clusters.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import track

from tests.mutation.mutants import SOURCE, Mutant, make_mutants

ROOT = SOURCE.parents[1]
PARTS = ("core", "engine", "scheduling", "host", "agent")
"""Folders of the package whose mutants are tried by default."""

_TIMEOUT_S = 900.0
"""A mutant may never end; the slowest stage takes a minute or two."""

_SEEDS = 20
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider")
_QUICK = ("-m", "not slow and not namespaces and not browser")
# These compare the source with pages or with lists, so every mutant would break them.
_LEFT_OUT = ("--ignore=tests/unit/test_reference.py", "--ignore=tests/unit/tools", "--ignore=tests/unit/bench")


def _list_stages(mutant: Mutant) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the names and commands of the stages, the quickest first."""
    unit = ROOT / "tests" / "unit" / Path(mutant.file).parts[0]
    own = unit if unit.is_dir() else ROOT / "tests" / "simulation"
    yield f"tests/{own.relative_to(ROOT / 'tests')}", (*_PYTEST, *_QUICK, str(own))
    yield (
        "unit, conformance and simulation tests",
        (*_PYTEST, *_QUICK, *_LEFT_OUT, "tests/unit", "tests/simulation", "tests/conformance"),
    )
    yield (
        "simulated clusters",
        (
            sys.executable,
            "-m",
            "forewarn.testing.simulation",
            f"--seeds={_SEEDS}",
            "--from=1",
            "--stop",
            "--no-story",
            "--jobs=1",
        ),
    )


def find_stage(mutant: Mutant, package: Path) -> str:
    """Return the stage that finds a mutant; ``""`` if none does.

    Args:
        mutant: The mutant.
        package: Copy of the package, which is the same again afterwards.
    """
    file = package / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    try:
        return next((name for name, command in _list_stages(mutant) if _fails(command, package)), "")
    finally:
        file.write_text(original, encoding="utf-8")


def _fails(command: Sequence[str], package: Path) -> bool:
    """Return whether a stage fails with this copy of the package, or does not end."""
    environment = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, check=False, capture_output=True, cwd=ROOT, env=environment, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def find_failing_stage(mutants: Sequence[Mutant], package: Path) -> str:
    """Return a stage that fails without a mutant, so that it would find each of these; ``""`` if none does."""
    stages = {tuple(command): name for mutant in mutants for name, command in _list_stages(mutant)}
    return next((name for command, name in stages.items() if _fails(command, package)), "")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Try a sample of mutants; return 1 if some were not found, 2 if the tests fail without them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Look for mutants that live.")
    parser.add_argument(
        "parts", nargs="*", default=PARTS, help=f"folders or files below src/forewarn (default: {', '.join(PARTS)})"
    )
    parser.add_argument("--count", type=int, default=300, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time (default: one for each core)"
    )
    arguments = parser.parse_args()
    places = [SOURCE / part for part in arguments.parts]
    files = sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))
    drawn = list(islice(make_mutants(files, random.Random(arguments.seed)), arguments.count))
    _print(f"{len(drawn)} mutants of {len(files)} files")
    found = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="forewarn-mutants-") as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        packages: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.jobs):
            package = Path(folder) / str(number) / SOURCE.name
            shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
            packages.put(package)
        if failing := find_failing_stage(drawn, Path(folder) / "0" / SOURCE.name):
            _print(f"{failing} fail without a mutant, so they would find every one")
            return 2

        def try_one(mutant: Mutant) -> str:
            package = packages.get()
            try:
                return find_stage(mutant, package)
            finally:
                packages.put(package)

        stages = track(pool.map(try_one, drawn), "trying", len(drawn), console=Console(stderr=True), transient=True)
        for mutant, stage in zip(drawn, stages, strict=True):
            found[stage] += 1
            if not stage:
                _print(str(mutant))
    for stage, count in found.most_common():
        _print(f"{count:5} {stage or 'not found'}")
    return int(found[""] > 0)


if __name__ == "__main__":
    sys.exit(main())
