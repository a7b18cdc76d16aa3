"""Writes the results into the documentation: a short table, a page of all results, and a file of raw numbers.

`make bench` does this after a run; `python -m bench.report` writes both pages again from the stored results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from bench.process import LOAD_CORE, ROOT, SERVER_CORE
from bench.summary import HEADLINES, choose

__all__ = ["JSON_FILE", "PAGE", "RESULTS", "keep_stored", "merge", "render", "render_summary", "write", "write_pages"]

PAGE = ROOT / "docs/benchmarks.md"
RESULTS = ROOT / "docs/benchmark-results.md"
JSON_FILE = ROOT / "docs/benchmarks.json"

_BEGIN = "<!-- benchmarks: begin; written by `make bench` -->"
_END = "<!-- benchmarks: end -->"
_HEAD = ("| measured | result | target | |", "|---|---:|---:|---|")
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


def keep_stored(content: dict[str, Any], names: Iterable[str], order: Sequence[str]) -> dict[str, Any]:
    """Take parts that a run did not measure from the stored results; each lists how the machine differed then.

    Args:
        content: Results of the run.
        names: Parts to take, if they are stored.
        order: Names of all parts, in the order of the page.
    """
    if not JSON_FILE.is_file():
        return content
    stored: dict[str, Any] = json.loads(JSON_FILE.read_text(encoding="utf-8"))
    parts = dict(content["parts"])
    for name in names:
        if name in stored["parts"]:
            part = stored["parts"][name]
            facts = stored["machine"] | part.get("machine", {})
            others = {key: fact for key, fact in facts.items() if content["machine"].get(key) != fact}
            parts[name] = part | {"machine": others}
    return content | {"parts": {name: parts[name] for name in order if name in parts}}


def render(content: dict[str, Any]) -> str:
    """Return all results: a table for each part, the machine and the commands, as Markdown."""
    lines: list[str] = []
    for part in content["parts"].values():
        lines += [f"### {part['title']}", "", *_HEAD, *map(_line, part["rows"]), ""]
        if part.get("machine"):
            facts = ", ".join(f"{name} {fact}" for name, fact in part["machine"].items())
            lines += [f"Measured in a separate run: {facts}.", ""]
    lines += ["### Machine", ""]
    lines += [f"- {name}: {fact}" for name, fact in content["machine"].items()]
    lines += ["", "### Commands", "", "```sh", "make bench        # or: .venv/bin/python -m bench"]
    lines += [f"# servers run as: taskset -c {SERVER_CORE} …; the load as:"]
    wrk = f"taskset -c {LOAD_CORE} wrk -t 1 -c 64 -d 3s -s bench/sides/wrk.lua -H 'Metadata: true'"
    url = "'http://127.0.0.1:PORT/metadata/scheduledevents?api-version=2020-07-01'"
    lines += [f"{wrk} {url}", f"{wrk} -H 'Connection: close' {url}"]
    lines += [f"taskset -c {LOAD_CORE} pgbench --no-vacuum --client 64 --time 10 --file update.sql URL"]
    grpc = "-H 'content-type: application/grpc' -H 'te: trailers'"
    lines += [
        f"taskset -c {LOAD_CORE} h2load -t 1 -c 64 -m 1 -D 10 -d put {grpc} http://127.0.0.1:PORT/etcdserverpb.KV/Put"
    ]
    lines += ["```"]
    return "\n".join(lines)


def render_summary(content: dict[str, Any]) -> str:
    """Return the short table, and when and where it was measured, as Markdown."""
    machine = content["machine"]
    facts = [machine[name] for name in ("processor", "memory") if name in machine]
    measured = f"Measured on {machine.get('date', 'an unknown date')}: {', '.join(facts)}."
    apart = {headline.part for headline in HEADLINES if content["parts"].get(headline.part, {}).get("machine")}
    if apart:
        measured += f" Parts measured in separate runs: {', '.join(sorted(apart))}."
    measured += f" [All results]({RESULTS.name}) has the versions of the other programs."
    return "\n".join([*_HEAD, *map(_line, choose(content)), "", measured])


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


def write(content: dict[str, Any]) -> None:
    """Write the results into both pages, between their markers, and the numbers into the JSON file."""
    JSON_FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_pages(content)


def write_pages(content: dict[str, Any]) -> None:
    """Write the results into both pages, between their markers."""
    for path, text in ((PAGE, render_summary(content)), (RESULTS, render(content))):
        page = path.read_text(encoding="utf-8")
        before, begun, rest = page.partition(_BEGIN)
        _, ended, after = rest.partition(_END)
        assert begun, path
        assert ended, path
        path.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}", encoding="utf-8")


def main() -> None:
    """Write both pages again, from the stored results."""
    write_pages(json.loads(JSON_FILE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
