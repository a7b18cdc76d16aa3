"""The page of all planted faults: each fault, in which languages, in which scenario, and what finds it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.handlers.planted import CORRECT, PlantedFault, planted_faults

__all__ = ["PAGE", "planted_faults_page"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "planted-faults.md"

_HEAD = """\
<!-- Made by `python -m tests.handlers`; changes belong in `tests/handlers/*/fault.toml`. -->

# Planted faults

Does `forewarn try` find what is wrong with a handler? Each row is a fault that was planted in the correct handlers of
[`examples/handlers`](../../examples/handlers), in the languages that the row names. `make test-slow` runs every faulty
handler, and fails if `forewarn try` does not report the finding or the failed step that the row names. `make test-slow`
also runs each correct handler ({names}) in every scenario that `forewarn try` can run: each must pass.

These handlers create the file `drained` when they prepare the VM, and delete it when they recover. So the trials run
with `--prepared 'test -e drained'` and `--recovered 'test ! -e drained'`. Without these options, `forewarn try` cannot
find the faults marked *. The last column shows part of the text that `forewarn try` reports. In this text, `migration`,
`own`, `repair` and `known` are names of maintenances in the scenarios.

"""
_HARMLESS = """
## Harmless differences

These handlers differ from the correct handlers in a way that does no harm, and must pass.

| difference | languages | scenario |
|---|---|---|
"""
_NEEDS_STATE = frozenset(
    {"unprepared", "unprepared-at-start", "returned-early", "prepared-for-another", "always-prepared", "unrecovered"}
)


def planted_faults_page(faults: Iterable[PlantedFault] | None = None) -> str:
    """The whole page, as Markdown."""
    everything = planted_faults() if faults is None else list(faults)
    found = [fault for fault in everything if not fault.is_harmless]
    lines = [
        "| fault of the handler | languages | scenario | found by | text of the finding |",
        "|---|---|---|---|---|",
    ]
    for fault in found:
        mark = "\\*" if fault.finding in _NEEDS_STATE else ""
        by = f"finding `{fault.finding}`{mark}" if fault.finding else "failed step"
        says = fault.says if fault.finding else f"the handler {fault.step}"
        lines.append(f"| {fault.what} | {_languages(fault)} | {_scenario(fault)} | {by} | `{says}` |")
    count = sum(len(fault.edits) for fault in found)
    foot = f"\n{len(found)} faults in {count} handlers: one handler for each fault and language.\n{_HARMLESS}"
    for fault in everything:
        if fault.is_harmless:
            foot += f"| {fault.what} | {_languages(fault)} | `{fault.scenario}` |\n"
    return _HEAD.format(names=", ".join(CORRECT)) + "\n".join(lines) + "\n" + foot


def _scenario(fault: PlantedFault) -> str:
    if fault.scenario_file == fault.scenario:
        return f"`{fault.scenario}`"
    return f"[`{fault.scenario}`](../../tests/handlers/{fault.name}/{fault.scenario})"


def _languages(fault: PlantedFault) -> str:
    return ", ".join(language for language in CORRECT if language in fault.edits)
