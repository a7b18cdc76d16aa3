"""Runs seeds of the simulation: `python -m forewarn.testing.simulation --seeds 100`.

Prints each seed whose run broke a property, and what was broken. To replay one with its trace, pass ``--seed N``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import structlog

from forewarn.auth.authenticator import load_operator_token
from forewarn.testing.simulation.properties import find_complaints
from forewarn.testing.simulation.world import simulate

_RUNS_OF_ONE_PROCESS = 20
"""Number of runs after which a worker is replaced: a killed process of the simulation leaves some memory behind."""


def main() -> int:
    """Run the seeds that the command line names; return the exit status, 1 if a property was broken."""
    parser = argparse.ArgumentParser(description="Simulate a whole cluster, with faults, from a seed.")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds to run (default: %(default)s)")
    parser.add_argument("--from", dest="first", type=int, default=1, help="first seed (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="run only this seed, and print its trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="forewarn-simulation-") as folder:
        load_operator_token(Path(folder))
        if arguments.seed is not None:
            return _replay(arguments.seed, Path(folder))
        return _run_seeds(range(arguments.first, arguments.first + arguments.seeds), Path(folder), arguments.jobs)


def _replay(seed: int, folder: Path) -> int:
    outcome, trace = simulate(seed, folder)
    for fact in trace.facts:
        sys.stdout.write(f"{fact.encode()}\n")
    return _report(seed, find_complaints(outcome))


def _run_seeds(seeds: range, folder: Path, jobs: int) -> int:
    status, kinds = 0, Counter[str]()
    with get_context("fork").Pool(jobs, maxtasksperchild=_RUNS_OF_ONE_PROCESS) as pool:
        runs = pool.imap_unordered(_run_seed, [(seed, folder) for seed in seeds])
        for count, (seed, complaints, met) in enumerate(runs, 1):
            kinds.update(met)
            status |= _report(seed, complaints)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{count} of {len(seeds)} seeds")
    sys.stdout.write(f"{len(seeds)} seeds, from {seeds.start}; runs with each kind of fault:\n")
    for kind, number in sorted(kinds.items()):
        sys.stdout.write(f"  {kind:18} {number}\n")
    return status


def _run_seed(job: tuple[int, Path]) -> tuple[int, list[str], list[str]]:
    seed, folder = job
    try:
        outcome, trace = simulate(seed, folder)
    except Exception as error:  # noqa: BLE001 - a run that cannot end is a complaint like any other
        return seed, [f"the run raised {type(error).__name__}: {error}"], []
    kinds: list[str] = next(fact.details["kinds"] for fact in trace.facts if fact.kind == "kinds")
    return seed, find_complaints(outcome), kinds


def _report(seed: int, complaints: list[str]) -> int:
    for complaint in complaints:
        sys.stdout.write(f"seed {seed}: {complaint}\n")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
