"""Part 18: mutants of the correct handlers in Python: how many of the harmful ones does `forewarn try --all` fail?

mutmut creates the mutants. Mutants that only print something different are left out. A mutant that passes is either
harmless, which ``mutants.toml`` lists with the reason, or it was missed.
"""

from __future__ import annotations

import ast
import asyncio
import difflib
import os
import random
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import cast

from libcst import MetadataWrapper, Module
from libcst.metadata import WhitespaceInclusivePositionProvider
from mutmut.mutation.file_mutation import Mutation, create_mutations

from bench.process import ROOT, BenchError
from bench.result import Effort, Result, Row
from forewarn.testing.scenario.scenario_loader import Scenario, load_scenario, shipped_scenarios
from forewarn.testing.trial.report import TrialReport
from forewarn.testing.trial.trial import try_handler

__all__ = ["HANDLERS", "Mutant", "harmless_mutants", "make_mutations", "measure", "mutants_of"]

HANDLERS = ("handlers/handler.py", "handler.py", "watch.py")
"""Correct handlers in examples/: one that polls, one with a long poll, and one that uses `forewarn.client`."""
_HARMLESS = Path(__file__).with_suffix(".toml")
_FOUND_MIN = 95.0
_AT_A_TIME = 40
_PATIENCE_S = 10.0
_FIRST, _LAST = "live-migration", ("a-bad-day", "slow-endpoint", "trouble-under-way")
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A correct handler with one change.

    Attributes:
        handler: Path of the correct handler, below examples/.
        was: Lines before the change.
        now: Lines after the change.
        source: Complete source of the mutant.
    """

    handler: str
    was: str
    now: str
    source: str


def measure(effort: Effort, folder: Path, log: Path) -> Result:  # noqa: ARG001 - all parts have the same arguments
    """Create the mutants, try each one until it fails a scenario, and count the failures."""
    made = [mutant for handler in HANDLERS for mutant in mutants_of(handler)]
    drawn = random.Random(_SEED).sample(made, min(effort.mutants, len(made)))
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # this part measures no times, so it may use all cores
    try:
        reports = asyncio.run(_try_each(drawn, folder))
    finally:
        os.sched_setaffinity(0, affinity)
    why = harmless_mutants()
    passed = [mutant for mutant, report in zip(drawn, reports, strict=True) if report is None]
    missed = [mutant for mutant in passed if (mutant.handler, mutant.now) not in why]
    changed = len(drawn) - len(passed) + len(missed)
    result = Result(title="Mutants of the correct handlers in Python, and `forewarn try --all`")
    result.raw["mutants"] = {
        "made": len(made),
        "failed": [
            {"handler": m.handler, "was": m.was, "now": m.now, "by": r.scenario, "because": _because(r)}
            for m, r in zip(drawn, reports, strict=True)
            if r is not None
        ],
        "missed": [{"handler": m.handler, "was": m.was, "now": m.now} for m in missed],
        "harmless": [
            {"handler": m.handler, "now": m.now, "why": why[m.handler, m.now]} for m in passed if m not in missed
        ],
    }
    result.rows += [
        Row(what="mutants tried", value=len(drawn), unit="", note=f"of {len(made)} that mutmut makes"),
        Row(
            what="harmless mutants that pass",
            value=len(passed) - len(missed),
            unit="",
            note="each listed with its reason",
        ),
        Row(
            what="share of the harmful mutants that `forewarn try` fails",
            value=100 * (changed - len(missed)) / changed,
            unit="%",
            target=_FOUND_MIN,
            is_floor=True,
        ),
    ]
    return result


def mutants_of(handler: str) -> Iterator[Mutant]:
    """Yield the mutants of a handler, without duplicates and without those that only print something different."""
    source = (ROOT / "examples" / handler).read_text(encoding="utf-8")
    for _, changed in make_mutations({handler: source}, _without_prints):
        yield Mutant(handler=handler, source=changed, **_difference(source, changed))


def make_mutations(
    sources: Mapping[str, str], normalize: Callable[[str], str], rng: random.Random | None = None
) -> Iterator[tuple[str, str]]:
    """Yield names of files and their sources with one change each, made by mutmut.

    Args:
        sources: Python sources without changes, by the names of their files.
        normalize: Returns the part of a source that matters; sources of a file with equal parts are yielded once.
        rng: Source of the order; None for the order of the files and lines.
    """
    seen = {name: {normalize(source)} for name, source in sources.items()}
    # A mutant is made only when it is its turn: to make all of those of a package takes many minutes.
    made = [(name, make) for name, source in sources.items() for make in _list_mutations(name, source)]
    if rng is not None:
        rng.shuffle(made)
    for name, make in made:
        changed = make()
        tree = normalize(changed)
        if tree not in seen[name]:
            seen[name].add(tree)
            yield name, changed


def _list_mutations(name: str, source: str) -> Sequence[Callable[[], str]]:
    """Return functions, each of which makes the source of one mutant; some mutants are equal."""
    module, mutations, _, _ = create_mutations(name, source)
    places = MetadataWrapper(module, unsafe_skip_copy=True).resolve(WhitespaceInclusivePositionProvider)
    line_starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]

    def make(mutation: Mutation) -> str:
        changed = module.code_for_node(mutation.mutated_node)
        if "\n" in changed:
            # Its further lines need the indentation of their place. This takes a hundred times as long.
            return cast("Module", module.deep_replace(mutation.original_node, mutation.mutated_node)).code
        place = places[mutation.original_node]
        begin, end = (line_starts[each.line - 1] + each.column for each in (place.start, place.end))
        return f"{source[:begin]}{changed}{source[end:]}"

    return [partial(make, mutation) for mutation in mutations]


class _Quiet(ast.NodeTransformer):
    """Removes the arguments of all calls of `print`."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "print":
            return ast.Call(node.func, [], [])
        return node


def _without_prints(source: str) -> str:
    return ast.dump(_Quiet().visit(ast.parse(source)))


def _difference(before: str, after: str) -> dict[str, str]:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[3:]
    was, now = ("\n".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return {"was": was, "now": now}


async def _try_each(mutants: list[Mutant], folder: Path) -> list[TrialReport | None]:
    """Return for each mutant the report of a failed trial; None if it passes all scenarios."""
    scenarios = [scenario for scenario in map(load_scenario, shipped_scenarios()) if scenario.only is None]
    scenarios.sort(key=lambda scenario: scenario.name != _FIRST)
    room = asyncio.Semaphore(_AT_A_TIME)
    found: dict[int, TrialReport] = {}

    async def try_one(scenario: Scenario, number: int, mutant: Mutant) -> None:
        async with room:
            if number not in found:
                report = await _try(mutant, scenario, folder / str(number))
                if not report.has_passed:
                    found[number] = report

    quick, slow = ([each for each in scenarios if (each.name in _LAST) is wanted] for wanted in (False, True))
    for some in (quick[:1], quick[1:], slow):  # most fail early, so few run the scenarios that take minutes
        async with asyncio.TaskGroup() as group:
            for scenario in some:
                for number, mutant in enumerate(mutants):
                    group.create_task(try_one(scenario, number, mutant))
        print(f"  {len(found)} of {len(mutants)} fail in {len(some)} scenarios, from {some[0].name} on", flush=True)
    return [found.get(number) for number in range(len(mutants))]


async def _try(mutant: Mutant, scenario: Scenario, folder: Path) -> TrialReport:
    place = folder / scenario.name
    place.mkdir(parents=True)
    file = folder / "handler.py"
    file.write_text(mutant.source, encoding="utf-8")
    report = await try_handler(
        scenario,
        [sys.executable, str(file)],
        patience_s=_PATIENCE_S,
        prepared="test -e drained",
        recovered="test ! -e drained",
        folder=place,
    )
    if not report.has_own_network:
        msg = "handlers are tried in networks of their own: run as root, where network namespaces can be made"
        raise BenchError(msg)
    return report


def _because(report: TrialReport) -> str:
    """Return the codes of the findings that failed the trial."""
    codes = sorted({finding.code for finding in report.findings if finding.is_failure})
    return ", ".join(codes) or "a step"


def harmless_mutants() -> dict[tuple[str, str], str]:
    """Return why mutants are harmless, by handler and changed lines."""
    rows = tomllib.loads(_HARMLESS.read_text(encoding="utf-8")).get("harmless", [])
    return {(row["handler"], now): row["why"] for row in rows for now in row["now"]}
