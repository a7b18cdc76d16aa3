"""Writes the results into the documentation, as a table and as a file of raw numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.process import LOAD_CORE, ROOT, SERVER_CORE

__all__ = ["JSON_FILE", "PAGE", "merge", "render", "write"]

PAGE = ROOT / "docs/benchmarks.md"
JSON_FILE = ROOT / "docs/benchmarks.json"

_BEGIN = "<!-- benchmarks: begin; written by `make bench` -->"
_END = "<!-- benchmarks: end -->"
_MET = {True: "met", False: "**missed**", None: ""}


def merge(parts: dict[str, Any], machine: dict[str, str]) -> dict[str, Any]:
    """Replace parts of an earlier run with new ones; each new part lists what differs on the machine since then."""
    if not JSON_FILE.is_file():
        return {"machine": machine, "parts": parts}
    content: dict[str, Any] = json.loads(JSON_FILE.read_text(encoding="utf-8"))
    others = {name: fact for name, fact in machine.items() if content["machine"].get(name) != fact}
    for name, part in parts.items():
        content["parts"][name] = part | {"machine": others}
    return content


def render(content: dict[str, Any]) -> str:
    """Return the table, the machine and the commands, as Markdown."""
    lines = ["| measured | result | target | |", "|---|---:|---:|---|"]
    for part in content["parts"].values():
        lines.append(f"| **{part['title']}** | | | |")
        lines += [_line(row) for row in part["rows"]]
    lines += ["", "Measured on:", ""]
    lines += [f"- {name}: {fact}" for name, fact in content["machine"].items()]
    for part in content["parts"].values():
        if part.get("machine"):
            facts = ", ".join(f"{name} {fact}" for name, fact in part["machine"].items())
            lines.append(f"- measured in a separate run, {part['title']}: {facts}")
    lines += ["", "Commands:", "", "```sh", "make bench        # or: .venv/bin/python -m bench"]
    lines += [f"# servers run as: taskset -c {SERVER_CORE} …; the load as:"]
    wrk = f"taskset -c {LOAD_CORE} wrk -t 1 -c 64 -d 3s -s bench/sides/wrk.lua -H 'Metadata: true'"
    url = "'http://127.0.0.1:PORT/metadata/scheduledevents?api-version=2020-07-01'"
    lines += [f"{wrk} {url}", f"{wrk} -H 'Connection: close' {url}", "```"]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    target = ""
    if row["target"] is not None:
        target = f"{'≥' if row['is_floor'] else '≤'} {_figure(row['target'], row['unit'], is_short=True)}"
    result = _figure(row["value"], row["unit"])
    note = f"<br>{row['note']}" if row["note"] else ""
    return f"| {row['what']} | {result}{note} | {target} | {_MET[row['is_met']]} |"


def _figure(value: float, unit: str, *, is_short: bool = False) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 20 else 2
    if is_short:
        words = f"{round(value, 1 if abs(value) >= 20 else 2):g}"
    else:
        words = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
    return f"{words}{'' if unit == 'x' else ' '}{unit}".rstrip()


def write(content: dict[str, Any], picture: Path) -> None:
    """Write the table between its markers in the page, and the numbers into the JSON file."""
    JSON_FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    image = f"![Ratios, and growth with the number of VMs]({picture.relative_to(PAGE.parent).as_posix()})"
    PAGE.write_text(f"{before}{_BEGIN}\n\n{image}\n\n{render(content)}\n\n{_END}{after}", encoding="utf-8")
