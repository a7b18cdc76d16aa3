"""Runs seeds of the simulation: `python -m forewarn.testing.simulation --seeds 100`.

Prints each seed whose run broke a property, and what was broken. The first such run is then made smaller, as far as the
same property is still broken, and printed as a story. At the end come the numbers of what the runs had in them.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from forewarn.auth.authenticator import load_operator_token
from forewarn.testing.simulation.explanation import explain, run_with_story
from forewarn.testing.simulation.run import Run, run_seed
from forewarn.testing.simulation.workers import run_in_worker, run_in_workers
from forewarn.testing.simulation.world import Size
from forewarn.util.failpoint import FailPoint

_INTERRUPTED = 130
_BROKEN_PIPE = 141  # as if SIGPIPE had ended the process
_USAGE = 2
_SIZES = ("replicas", "hosts", "vms", "operations", "kinds")


def main() -> int:
    """Run the seeds that the command line names; return the exit status, 1 if a property was broken."""
    arguments = _parse_arguments()
    try:
        size = Size(**{name: getattr(arguments, name) for name in _SIZES}, span_s=arguments.span)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return _USAGE
    with tempfile.TemporaryDirectory(prefix="forewarn-simulation-") as folder:
        load_operator_token(Path(folder))
        try:
            status = _simulate(arguments, size, partial(run_seed, folder=Path(folder)))
            sys.stdout.flush()
        except KeyboardInterrupt:
            return _INTERRUPTED
        except BrokenPipeError:
            # The reader of the output has gone, as in `| head`. At the end, Python flushes once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _BROKEN_PIPE
    return status


def _simulate(arguments: argparse.Namespace, size: Size, simulation: partial[Run]) -> int:
    if arguments.seed is not None:
        return _replay(simulation, arguments.seed, size, is_traced=arguments.trace)
    first = random.SystemRandom().randrange(1_000_000_000) if arguments.first is None else arguments.first
    seeds = range(first, first + arguments.seeds)
    failed = _run_seeds(simulation, seeds, size, jobs=arguments.jobs, stops=arguments.stop)
    if failed is not None and arguments.explains:
        _explain(simulation, failed, size)
    return int(failed is not None)


def _parse_arguments() -> argparse.Namespace:
    size = Size()
    parser = argparse.ArgumentParser(
        prog="python -m forewarn.testing.simulation",
        description="Simulate whole clusters with faults: everything in a run follows from its seed.",
        epilog="Example: --seeds 100 --from 1, then --seed 17 to see what happened in that one.",
    )
    parser.add_argument("--seeds", type=_parse_count, default=20, help="number of seeds (default: %(default)s)")
    parser.add_argument("--from", dest="first", type=int, help="first seed (default: drawn, and printed)")
    parser.add_argument("--seed", type=int, help="run only this seed, and print what happened")
    parser.add_argument(
        "--stop", action="store_true", help="with --seeds: stop at the first one that breaks a property"
    )
    parser.add_argument(
        "--no-story", dest="explains", action="store_false", help="with --seeds: do not explain the first that fails"
    )
    parser.add_argument("--trace", action="store_true", help="with --seed: print the facts as lines of JSON instead")
    parser.add_argument("--jobs", type=_parse_count, default=os.cpu_count(), help="processes (default: one for a core)")
    parser.add_argument("--faults", dest="kinds", type=_parse_kinds, help="kinds of faults, as in kill-replica,isolate")
    parser.add_argument("--replicas", type=_parse_count, default=size.replicas)
    parser.add_argument("--hosts", type=_parse_count, default=size.hosts)
    parser.add_argument("--vms", type=_parse_count, default=size.vms)
    parser.add_argument("--operations", type=_parse_count, default=size.operations, help="requests of operators")
    parser.add_argument("--span", type=float, default=size.span_s, help="seconds with faults (default: %(default)s)")
    return parser.parse_args()


def _parse_count(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, not {text}")
    return number


def _parse_kinds(text: str) -> tuple[str, ...]:
    """Split kinds of faults at commas; no text means no faults."""
    return tuple(kind for kind in text.split(",") if kind)


def _replay(simulation: partial[Run], seed: int, size: Size, *, is_traced: bool) -> int:
    read = _run_with_trace if is_traced else run_with_story
    run, lines = run_in_worker(lambda each: read(simulation, each, size), seed)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return _report(run)


def _run_with_trace(simulation: Callable[[int, Size], Run], seed: int, size: Size) -> tuple[Run, Sequence[str]]:
    run = simulation(seed, size)
    return run.without_outcome(), [] if run.outcome is None else [fact.encode() for fact in run.outcome.facts]


def _run_seeds(simulation: partial[Run], seeds: range, size: Size, *, jobs: int, stops: bool) -> Run | None:
    """Run all seeds, and return the first run that broke a property."""
    kinds, facts, failed = Counter[str](), Counter[str](), list[Run]()
    reached, struck = Counter[FailPoint](), Counter[FailPoint]()
    console = Console(stderr=True)
    # At once: a run that is ended from outside can still be repeated.
    sys.stdout.write(f"simulating {len(seeds)} seeds, from {seeds.start}\n")
    sys.stdout.flush()
    runs = run_in_workers(lambda seed: simulation(seed, size).without_outcome(), seeds, jobs)
    for run in track(runs, "simulating", len(seeds), console=console, transient=True):
        kinds.update(run.kinds)
        facts.update(run.facts)
        reached.update(run.reached)
        struck.update(run.struck)
        if _report(run):
            failed.append(run)
            if stops:
                runs.close()
                sys.stdout.write(f"stopped after {run.seed - seeds.start + 1} seeds\n")
                return run
    sys.stdout.write(f"{len(seeds)} seeds, from {seeds.start}; {len(failed)} of them broke a property\n")
    for title, counts in (("Runs with each kind of fault:", kinds), ("Facts in all traces:", facts)):
        sys.stdout.write(f"{title}\n")
        sys.stdout.writelines(f"  {name:20} {number}\n" for name, number in sorted(counts.items()))
    sys.stdout.write("Failpoints, how often they were reached, and how often a process was struck there:\n")
    sys.stdout.writelines(f"  {point:20} {reached[point]:<8} {struck[point]}\n" for point in FailPoint)
    return failed[0] if failed else None


def _report(run: Run) -> int:
    for complaint in run.complaints:
        sys.stdout.write(f"seed {run.seed}: {complaint}\n")
    return int(bool(run.complaints))


def _explain(simulation: partial[Run], run: Run, size: Size) -> None:
    """Make a run that failed smaller, and tell what happened in it."""
    with Console(stderr=True).status(f"searching for a smaller world that breaks {', '.join(sorted(run.broken))}"):
        found = explain(simulation, run, size)
    sys.stdout.write(
        f'\nA small world in which it happens: make simulate ARGS="{_format_options(run.seed, found.size)}"\n'
    )
    sys.stdout.writelines(f"{line}\n" for line in found.story)
    sys.stdout.writelines(f"seed {run.seed}: {complaint}\n" for complaint in found.complaints)


def _format_options(seed: int, size: Size) -> str:
    """Return the options of this command that run such a world."""
    numbers = {name: getattr(size, name) for name in ("replicas", "hosts", "vms", "operations")}
    numbers |= {"seed": seed, "span": size.span_s, "faults": ",".join(size.kinds or ())}
    return " ".join(f"--{name}={value}" for name, value in numbers.items())


if __name__ == "__main__":
    sys.exit(main())
