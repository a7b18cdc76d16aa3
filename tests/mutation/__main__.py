"""Plants mutants in a copy of the package, one at a time, and prints those that no test finds.

`make mutants` tries a sample of the core, the engine, the scheduler, the host endpoint and the agent. First all quick
tests run once without a mutant, to learn which of them run which line. Then each mutant meets the type checker, because
what it rejects never gets to a user; the tests that run its line; and at last whole simulated clusters.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import cache_from_source
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import track

from tests.mutation.line_coverage import LineCoverage
from tests.mutation.mutants import SOURCE, Mutant, make_mutants

ROOT = SOURCE.parents[1]
PARTS = ("core", "engine", "scheduling", "host", "agent")
"""Folders of the package whose mutants are tried by default."""

_TIMEOUT_S = 900.0
"""Time limit of all tests of one mutant; the slowest take a few minutes."""

_TEST_TIMEOUT_S = 120.0
"""Time limit of one test, because a mutant may never end; the slowest test takes some ten seconds."""

_MEASURE_TIMEOUT_S = 4 * _TIMEOUT_S
"""Time limit of the run that notes which tests run which line."""

_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
_QUICK = ("-m", "not slow and not namespaces and not browser")
# These compare the source with pages or with lists. A mutant meets the first by way of `_BROAD`.
_LEFT_OUT = ("--ignore=tests/unit/test_reference.py", "--ignore=tests/unit/tools", "--ignore=tests/unit/bench")
_FOLDERS = ("tests/unit", "tests/conformance", "tests/simulation", "tests/integration")
"""Folders of the tests, the quickest first."""

_TYPE_CHECKER = "type checker"
_BROAD = ("tests/unit/test_log_names.py", "tests/unit/test_reference.py", "tests/conformance/", "tests/simulation/")
"""Tests of most of the package, the quickest first. `test_reference.py` compares it with the pages about its API."""

_CLUSTERS = "simulated clusters"
_ENDLESS = "tests that do not end"
_CLUSTER_COMMAND = (
    *(sys.executable, "-m", "forewarn.testing.simulation"),
    *("--seeds=20", "--from=1", "--stop", "--no-story", "--jobs=1"),
)


def find_test(mutant: Mutant, package: Path, coverage: LineCoverage) -> str:
    """Return what finds a mutant: the type checker, a file of tests, or simulated clusters; ``""`` if nothing does.

    Args:
        mutant: The mutant.
        package: Copy of the package, which is the same again afterwards.
        coverage: The tests that run each line.
    """
    file = package / mutant.file
    original = file.read_text(encoding="utf-8")
    # If the mutant had the same size and second as the original, the original's bytecode would be taken for it.
    Path(cache_from_source(file)).unlink(missing_ok=True)
    file.write_text(mutant.source, encoding="utf-8")
    try:
        if check_types(package):
            return _TYPE_CHECKER
        return _run_tests(_list_tests(mutant, coverage), package) or _run_clusters(package)
    finally:
        file.write_text(original, encoding="utf-8")


def check_types(package: Path) -> str:
    """Return what is wrong with the types of a copy of the package; ``""`` if nothing is."""
    # There, the names in the cache do not depend on where the copy is, so that a copy of the cache is as good.
    folder = package.parent
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--config-file={ROOT}/pyproject.toml", "--package", package.name],
        check=False, capture_output=True, text=True, cwd=folder, env=os.environ | {"MYPYPATH": str(folder)},
    )  # fmt: skip
    return f"{done.stdout}{done.stderr}" if done.returncode else ""


def _list_tests(mutant: Mutant, coverage: LineCoverage) -> list[str]:
    """Return the tests that a mutant meets, sorted by how soon they are likely to find it."""
    file, own = SOURCE / mutant.file, f"tests/unit/{Path(mutant.file).parts[0]}/"
    tests = coverage.find_tests(file, mutant.line)
    if tests is None:
        # Any test may depend on the line, but all of them take too long.
        broad = [each for each in (own, *_BROAD) if (ROOT / each).exists()]
        tests = [*broad, *(each for each in coverage.find_users(file) if not each.startswith(tuple(broad)))]
    return sorted(
        tests, key=lambda name: (not name.startswith(own), [name.startswith(each) for each in _FOLDERS].index(True))
    )


def _run_tests(tests: Sequence[str], package: Path) -> str:
    """Return the file of the first test that fails; ``""`` if none does.

    Raises:
        RuntimeError: The tests cannot be run.
    """
    if not tests:
        return ""
    # There may be more than fit into a command line.
    names = package.with_suffix(".tests")
    names.write_text("\n".join(tests), encoding="utf-8")
    done = _run((*_PYTEST, "-x", f"--timeout={_TEST_TIMEOUT_S:.0f}", *_QUICK, *_LEFT_OUT, f"@{names}"), package)
    if done is None:
        return _ENDLESS
    failed = re.search(r"^(?:FAILED|ERROR) ([^: ]+)", done.stdout, re.MULTILINE)
    if failed:
        return failed[1]
    if "no tests ran" in done.stdout:
        raise RuntimeError(f"{names}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return "tests that cannot start" if done.returncode else ""


def _run_clusters(package: Path) -> str:
    done = _run(_CLUSTER_COMMAND, package)
    return _CLUSTERS if done is None or done.returncode else ""


def _run(
    command: Sequence[str], package: Path, timeout_s: float = _TIMEOUT_S
) -> subprocess.CompletedProcess[str] | None:
    """Run a command with this copy of the package; return None if it does not end."""
    environment = os.environ | {
        "PYTHONPATH": str(package.parent),
        # All tests before the mutants leave bytecode, so that only mutants have to be compiled.
        "PYTHONDONTWRITEBYTECODE": "" if package == SOURCE else "1",
        "FOREWARN_HYPOTHESIS_PROFILE": "ci",
    }
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=timeout_s
        )
    return None


def _measure(data: Path, jobs: int) -> str:
    """Run everything without a mutant, and note in a data file which tests run which line; return what fails."""
    # Renamed at the end: a run that fails leaves a file, too, which would lack the tests that were not run.
    measured = data.with_name(f"{data.name}.unfinished")
    os.environ["COVERAGE_FILE"] = str(measured)
    # Tests wait for processes and time-outs: one more worker than cores keeps these busy.
    measuring = ("-x", f"-n{jobs + 1}", "--cov=forewarn", "--cov-context=test", "--cov-report=")
    commands: list[tuple[str, ...]] = [_CLUSTER_COMMAND]
    if not data.exists():
        commands.append((*_PYTEST, *_QUICK, *_LEFT_OUT, *measuring, *_FOLDERS))
    for command in commands:
        done = _run(command, SOURCE, _MEASURE_TIMEOUT_S)
        if done is None or done.returncode:
            return f"{' '.join(command)}\n{'it does not end' if done is None else done.stdout + done.stderr}"
    if not data.exists():
        measured.replace(data)
    return ""


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Look for mutants that live.")
    parser.add_argument(
        "parts", nargs="*", default=PARTS, help=f"folders or files below src/forewarn (default: {', '.join(PARTS)})"
    )
    parser.add_argument("--count", type=int, default=300, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first SKIP mutants of the sample")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time (default: one for each core)"
    )
    parser.add_argument(
        "--coverage", type=Path, help="file for the lines that each test runs; if it exists, it is not measured again"
    )
    return parser.parse_args()


def main() -> int:
    """Try a sample of mutants; return 1 if some were not found, 2 if the tests fail without them."""
    arguments = _parse_arguments()
    places = [SOURCE / part for part in arguments.parts]
    files = sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="forewarn-mutants-") as folder:
        data = (arguments.coverage or Path(folder) / "coverage").absolute()
        copies = [Path(folder) / str(number) / SOURCE.name for number in range(arguments.jobs)]
        with console.status("running all tests once, to learn which of them run which line"):
            failing = _measure(data, arguments.jobs) or _copy_package(copies)
        if failing:
            _print(f"{failing}\nThis fails without a mutant, so it would seem to find every one.")
            return 2
        mutants = make_mutants(files, random.Random(arguments.seed))
        drawn = list(islice(mutants, arguments.skip, arguments.skip + arguments.count))
        _print(f"{len(drawn)} mutants of {len(files)} files")
        found = _try_all(drawn, copies, LineCoverage(data), console)
    for place, count in found.most_common():
        _print(f"{count:5} {place or 'not found'}")
    return int(found[""] > 0)


def _copy_package(copies: Sequence[Path]) -> str:
    """Copy the package, with its bytecode and the type checker's cache, so that both are quick; return what fails."""
    first, *others = copies
    shutil.copytree(SOURCE, first)
    failing = check_types(first)
    for package in others:
        shutil.copytree(first.parent, package.parent)
    return failing


def _try_all(
    mutants: Sequence[Mutant], copies: Sequence[Path], coverage: LineCoverage, console: Console
) -> Counter[str]:
    """Print the mutants that nothing finds; return how many were found by each folder of tests."""
    packages: SimpleQueue[Path] = SimpleQueue()
    for package in copies:
        packages.put(package)

    def try_one(mutant: Mutant) -> str:
        package = packages.get()
        try:
            return find_test(mutant, package, coverage)
        finally:
            packages.put(package)

    found = Counter[str]()
    with ThreadPoolExecutor(len(copies)) as pool:
        tried = track(pool.map(try_one, mutants), "trying", len(mutants), console=console, transient=True)
        for number, (mutant, place) in enumerate(zip(mutants, tried, strict=True), 1):
            found["/".join(Path(place).parts[:2])] += 1
            if not place:
                _print(str(mutant))
            if not console.is_terminal and number % 10 == 0:  # without a terminal, there is no progress bar
                console.print(f"{number} of {len(mutants)} tried, {found['']} not found")
    return found


if __name__ == "__main__":
    sys.exit(main())
