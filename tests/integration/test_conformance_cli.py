"""`forewarn conformance`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import typer
from typer.testing import CliRunner

from forewarn.cli import conformance
from forewarn.errors import ServerUnreachable
from forewarn.testing.conformance import SUITE_VERSION
from tests.support.ports import reserve_address
from tests.support.wrong_endpoint import FAULTS, Fault, Told, wrong_endpoint

SILENT = next(fault for fault in FAULTS if fault.check == "etag")
QUICK = ("--only", "R14,R3")


def run(*arguments: str) -> Any:  # noqa: ANN401 - what Click's runner hands back
    app = typer.Typer()
    app.callback()(lambda: None)
    app.add_typer(conformance.app)
    return CliRunner().invoke(app, ["conformance", *arguments])


def test_all_is_well_and_the_table_says_so() -> None:
    with wrong_endpoint() as url:
        done = run(url, *QUICK)
    assert done.exit_code == 0
    assert "R14" in done.output
    assert "6 checks held: R3, R14, R65" in done.output
    assert "Deviations" not in done.output


def test_what_differs_is_told_and_the_exit_status_is_1() -> None:
    with wrong_endpoint(SILENT) as url:
        done = run(url, *QUICK)
    assert done.exit_code == 1
    assert "Deviations" in done.output
    assert "the document has no ETag" in done.output


def test_as_json() -> None:
    with wrong_endpoint(SILENT) as url:
        done = run(url, *QUICK, "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)["breaks"] == ["R14"]


def test_the_junit_file_is_written_also_when_something_is_broken(tmp_path: Path) -> None:
    with wrong_endpoint(SILENT) as url:
        run(url, *QUICK, "--junit", str(tmp_path / "report.xml"))
    suite = ET.fromstring((tmp_path / "report.xml").read_bytes())  # noqa: S314 - we wrote it ourselves
    assert suite.get("failures") == "1"


def test_nothing_is_approved_unless_allowed() -> None:
    with wrong_endpoint() as url:
        done = run(url, "--only", "approve", "--json")
        allowed = run(url, "--only", "approve", "--json", "--allow-approve")
    assert json.loads(done.output)["checks"][0]["seen"] == "needs --allow-approve, because it approves an event"
    assert json.loads(allowed.output)["checks"][0]["outcome"] == "holds"


def test_nobody_there_is_told_like_a_service_that_is_away() -> None:
    assert isinstance(run(f"http://{reserve_address()}").exception, ServerUnreachable)


def test_a_refused_address_is_told_in_one_line() -> None:
    refusing = Fault("", "refuses", tell=lambda _, __, ___: Told(404, b'{ "error": "Not found" }'))
    with wrong_endpoint(refusing) as url:
        error = run(url).exception
    assert isinstance(error, ServerUnreachable)
    assert "with 404, so nothing was checked" in error.message
    assert "--source-address" in error.message


def test_what_is_noted_fails_no_run() -> None:
    """R112."""
    with wrong_endpoint(next(fault for fault in FAULTS if fault.verdict == "note")) as url:
        done = run(url, "--only", "member-order")
    assert done.exit_code == 0
    assert "1 check noted: R26, R112" in done.output
    assert "Deviations" not in done.output


def test_the_version_of_the_suite_stands_above_the_table() -> None:
    with wrong_endpoint() as url:
        done = run(url, *QUICK)
        as_json = run(url, *QUICK, "--json")
    assert done.output.startswith(f"Conformance suite {SUITE_VERSION}, {url}\n")
    assert json.loads(as_json.output)["suite_version"] == SUITE_VERSION


@pytest.mark.parametrize(
    "arguments", [("--only", "R999"), ("--timeout", "0"), ("--timeout", "soon"), ("--timeout", "1h")], ids=" ".join
)
def test_what_cannot_be_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert run("http://127.0.0.1:1", *arguments).exit_code == 2


def test_help_says_what_approving_does() -> None:
    assert "lets their maintenance start" in " ".join(run("--help").output.replace("│", " ").split())
