"""The short table has the rows that a reader wants first, and stays short."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from bench.commits import COMPARED, compare
from bench.get import summarise
from bench.report import JSON_FILE, PAGE, RESULTS, keep_stored, render, render_summary
from bench.result import Result
from bench.summary import HEADLINES, LINES_MAX, choose, find_missing
from bench.watches import build_rows
from tests.unit.bench.test_compared_servers import rounds

WATCHES = {
    "watches": 20_000,
    "kib_each": 30.0,
    "idle_percent": 20.0,
    "all_first_ms": [1.0],
    "all_last_ms": [500.0],
    "one_ms": [1.0],
    "everywhere_hosts": 5000,
    "everywhere_last_ms": [900.0],
    "everywhere_answer_ms": [4000.0],
    "join_cpu_ms": 1.5,
    "storm_s": 30.0,
}


@pytest.fixture
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(JSON_FILE.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def content(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the stored results, with rows as the code now builds them."""
    parts = stored["parts"]
    parts["get"] = summarise(rounds(), 383).to_json()
    parts["watches"] = Result(title="20,000 watches", rows=build_rows(WATCHES, 20_000)).to_json()
    raw = {store: {COMPARED: {"per_s": 1000.0}} for store in ("sqlite", "postgresql")}
    small = {"per_s": 4000.0, "p50_ms": 10.0, "p99_ms": 40.0}
    rows = compare(raw | {"small_writes": {"pgbench": small, "etcd": small}})
    own = [row for row in parts["commits"]["rows"] if not row["what"].startswith("for comparison")]
    parts["commits"]["rows"] = own + Result(title="", rows=rows).to_json()["rows"]
    return stored


def test_each_pattern_finds_a_row(content: dict[str, Any]) -> None:
    assert find_missing(content) == []
    rows = list(choose(content))
    assert len(rows) == len(HEADLINES)
    assert [name for name, times in Counter(row["what"] for row in rows).items() if times > 1] == []
    assert not any("{" in row["what"] or "\\" in row["what"] for row in rows)


def test_the_short_table_has_at_most_thirty_lines(content: dict[str, Any]) -> None:
    lines = [line for line in render_summary(content).splitlines() if line.startswith("|")]
    assert len(lines) == len(HEADLINES) + 2
    assert len(lines) <= LINES_MAX == 30


def test_a_title_and_a_number_of_the_row_are_part_of_its_label(content: dict[str, Any]) -> None:
    labels = [row["what"] for row in choose(content)]
    assert "20,000 watches: memory for each" in labels
    assert "all 20,000 hosts connect, up to 5,000 at once, until the last has its state" in labels


def test_small_writes_have_the_ratio_of_approvals_to_them(content: dict[str, Any]) -> None:
    (etcd,) = (row for row in choose(content) if "etcd" in row["what"])
    assert (etcd["value"], etcd["unit"]) == (4000.0, "a second")
    assert "0.25x on SQLite and 0.25x on PostgreSQL" in etcd["note"]


def test_a_row_that_lost_its_name_is_missing_but_a_part_that_did_not_run_is_not(content: dict[str, Any]) -> None:
    (row,) = (row for row in content["parts"]["failover"]["rows"] if row["what"].endswith("worst"))
    row["what"] = "another name"
    del content["parts"]["agent"]
    assert [pattern.partition(":")[0] for pattern in find_missing(content)] == ["failover"]


def test_fewer_watches_than_wanted_are_explained() -> None:
    memory, *_ = build_rows(WATCHES | {"watches": 19_400}, 20_000)
    assert memory.note == "of 19,400 watches; the limit of open files did not allow 20,000"


def test_a_part_of_a_separate_run_is_named_below_the_short_table(content: dict[str, Any]) -> None:
    for part in content["parts"].values():
        part.pop("machine", None)
    assert "separate runs" not in render_summary(content)
    content["parts"]["watches"]["machine"] = {"date": "2026-11-28 21:00 UTC"}
    assert "Parts measured in separate runs: watches." in render_summary(content)


def test_a_part_that_failed_keeps_its_stored_results_and_says_where_they_are_from(stored: dict[str, Any]) -> None:
    fresh = {"title": "fresh", "rows": []}
    machine = stored["machine"] | {"date": "2030-01-01 00:00 UTC"}
    content = keep_stored({"machine": machine, "parts": {"get": fresh}}, ["watches"], ["watches", "get"])
    assert list(content["parts"]) == ["watches", "get"]
    assert content["parts"]["get"] == fresh
    kept = content["parts"]["watches"]
    assert kept["rows"] == stored["parts"]["watches"]["rows"]
    assert kept["machine"]["date"] != machine["date"]


def test_the_pages_are_those_of_the_stored_results(stored: dict[str, Any]) -> None:
    assert render_summary(stored) in PAGE.read_text(encoding="utf-8")
    assert render(stored) in RESULTS.read_text(encoding="utf-8")
