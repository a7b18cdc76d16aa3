"""Chooses the rows that a reader wants first, for the short table in `docs/benchmarks.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["HEADLINES", "LINES_MAX", "Headline", "choose", "find_missing"]

LINES_MAX = 30
"""Maximum number of lines of the short table, with the two of its head."""


@dataclass(frozen=True, slots=True)
class Headline:
    r"""A row of the short table.

    Attributes:
        part: Part of the benchmark.
        pattern: Regular expression for the name of the row in that part; the first row that it matches is shown.
        label: Name in the short table, which has no titles of parts. ``\\1`` stands for the first group of the pattern,
            ``{title}`` for the title of the part.
        is_noted: Whether the note is shown, too.
    """

    part: str
    pattern: str
    label: str
    is_noted: bool = False


_GET = "GET of a current document"
_WRITES = "on disk before the answer"

HEADLINES = (
    Headline("get", r"keep-alive, Forewarn", rf"{_GET}, keep-alive, Forewarn", is_noted=True),
    Headline("get", r"keep-alive, (Forewarn to nginx)", rf"{_GET}, keep-alive, \1", is_noted=True),
    Headline("get", r"keep-alive, (Forewarn to nginx tuned)", rf"{_GET}, keep-alive, \1", is_noted=True),
    Headline("get", r"keep-alive, (Forewarn to HAProxy)", rf"{_GET}, keep-alive, \1", is_noted=True),
    Headline("get", r"keep-alive, (Forewarn to Go net/http)", rf"{_GET}, keep-alive, \1", is_noted=True),
    Headline("get", r"new connection, Forewarn", rf"{_GET}, new connection each time, Forewarn", is_noted=True),
    Headline("get", r"new connection, (Forewarn to nginx)", rf"{_GET}, new connection, \1", is_noted=True),
    Headline("get", r"new connection, (Forewarn to nginx tuned)", rf"{_GET}, new connection, \1", is_noted=True),
    Headline("get", r"new connection, (Forewarn to HAProxy)", rf"{_GET}, new connection, \1", is_noted=True),
    Headline("get", r"new connection, (Forewarn to Go net/http)", rf"{_GET}, new connection, \1", is_noted=True),
    Headline("sight", r"held long poll, commit until seen, p99", "a change, commit until a VM's long poll has it, p99"),
    Headline(
        "through",
        r"the host watches another replica, request until seen, p99",
        "a change, request until a VM sees it through PostgreSQL, another replica and the host endpoint, p99",
    ),
    Headline("held", r"commit to last answer", "{title}: commit until the last answer"),
    Headline("due", r"lateness of the Started document, p99", "{title}: lateness, p99"),
    Headline(
        "commits",
        r"SQLite, approvals, (\d+) VMs at a time(?:, each on another host)?",
        rf"approvals, {_WRITES}, \1 VMs at a time, SQLite",
    ),
    Headline(
        "commits",
        r"PostgreSQL, approvals, (\d+) VMs at a time(?:, each on another host)?",
        rf"approvals, {_WRITES}, \1 VMs at a time, PostgreSQL",
    ),
    Headline("commits", r"(for comparison: PostgreSQL alone, .*)", r"\1", is_noted=True),
    Headline("commits", r"(for comparison: etcd .*)", r"\1", is_noted=True),
    Headline(
        "commits", r"PostgreSQL, (maintenances of a host with \d+ VMs, 16 at a time)", rf"\1, {_WRITES}, PostgreSQL"
    ),
    Headline("inventory", r"(100,000 VMs, schedule for one host of \d+)", r"\1, request to answer"),
    Headline("watches", r"memory for each watch, with its connection", "{title}: memory for each"),
    Headline(
        "watches",
        r"the same change, commit until the last host has it, p99",
        "{title}: a change for all of them, commit until the last host has it, p99",
    ),
    Headline("watches", r"(all [\d,]+ hosts connect.*, until the last has its state)", r"\1"),
    Headline("million", r"start of the process until it answers", "{title}: start until it answers"),
    Headline("million", r"resident memory after the start", "{title}: resident memory"),
    Headline(
        "failover",
        r"from kill -9 until the next start in the audit log, worst",
        "the leader is killed: time until the next maintenance starts, worst",
    ),
    Headline(
        "agent",
        r"held long poll, commit until the first hook runs, p99",
        "agent in a VM: commit until its first hook runs, p99",
    ),
    Headline("agent", r"held long poll, idle, resident memory", "agent in a VM: resident memory"),
)
"""Rows of the short table, in order. At most `LINES_MAX`, with its head."""


def choose(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the rows of the short table that were measured, under their names in that table."""
    for headline in HEADLINES:
        row = _find(headline, content)
        if row is not None:
            yield row


def find_missing(content: dict[str, Any]) -> list[str]:
    """Return the patterns of `HEADLINES` that match no row of a part that was measured."""
    return [
        f"{headline.part}: {headline.pattern}"
        for headline in HEADLINES
        if headline.part in content["parts"] and _find(headline, content) is None
    ]


def _find(headline: Headline, content: dict[str, Any]) -> dict[str, Any] | None:
    part = content["parts"].get(headline.part, {"title": "", "rows": ()})
    for row in part["rows"]:
        match = re.fullmatch(headline.pattern, row["what"])
        if match is not None:
            label = match.expand(headline.label).replace("{title}", part["title"])
            return {**row, "what": label, "note": row["note"] if headline.is_noted else ""}
    return None
