"""The action for GitHub: linters read it, and its steps run with the variables that GitHub gives."""

from __future__ import annotations

import hashlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.support.documents import ROOT
from tests.support.spans import GUARD_S

FOLDER = ROOT / "packaging" / "github"
ACTION = FOLDER / "action.yml"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
HANDLER = ROOT / "examples" / "handlers" / "handler.py"

_YAMLLINT = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, truthy: {check-keys: false}}}"
_STEP_S = 10 * GUARD_S
_EXPRESSION = re.compile(r"\$\{\{ (?:inputs\.(\w+)|steps\.(\w+)\.outputs\.(\w+)) \}\}")


# Linters


def _lint(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is missing: make libraries installs it")
    return subprocess.run([found, *words], check=False, capture_output=True, text=True, timeout=GUARD_S)


_SCHEMA = ("check-jsonschema", "--builtin-schema", "vendor.github-actions")
_CHECKS = [
    (ACTION, _SCHEMA),
    (ACTION, ("yamllint", "--strict", "--config-data", _YAMLLINT)),
    *((path, ("shellcheck",)) for path in SCRIPTS),
]


@pytest.mark.parametrize(("path", "check"), _CHECKS, ids=lambda v: v.name if isinstance(v, Path) else v[0])
def test_a_linter_finds_nothing(path: Path, check: tuple[str, ...]) -> None:
    done = _lint(*check, str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "check", "good", "bad"),
    [
        (ACTION, _SCHEMA, "shell: bash", "name: bash"),
        (FOLDER / "get.sh", ("shellcheck",), 'cp -- "$INPUT_ZIPAPP"', "cp -- $INPUT_ZIPAPP"),
    ],
    ids=["check-jsonschema", "shellcheck"],
)
def test_a_linter_finds_what_is_wrong(tmp_path: Path, path: Path, check: tuple[str, ...], good: str, bad: str) -> None:
    text = path.read_text()
    assert good in text
    spoiled = tmp_path / path.name
    spoiled.write_text(text.replace(good, bad, 1))
    assert _lint(*check, str(spoiled)).returncode == 1


def _action() -> dict[str, Any]:
    return dict(yaml.safe_load(ACTION.read_text()))


def test_it_has_what_github_asks_of_a_composite_action() -> None:
    action = _action()
    assert action["name"]
    assert action["description"]
    assert action["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])
    assert all(each["description"] for each in [*action["inputs"].values(), *action["outputs"].values()])


def test_no_input_is_pasted_into_a_script() -> None:
    assert all("${{" not in step["run"] for step in _action()["runs"]["steps"])


def test_the_page_names_every_input_and_output() -> None:
    page = (ROOT / "docs" / "how-to" / "try-a-handler-on-github.md").read_text()
    action = _action()
    assert [name for name in [*action["inputs"], *action["outputs"]] if f"`{name}`" not in page] == []


# Its steps, run as GitHub runs them


@dataclass
class Job:
    """One that uses the action.

    Attributes:
        folder: Holds its workspace and the files that GitHub gives it.
        outputs: Of each step, by its id.
        log: What its steps printed.
    """

    folder: Path
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""

    def __post_init__(self) -> None:
        for name in ("workspace", "temp"):
            (self.folder / name).mkdir(parents=True)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def summary(self) -> str:
        return (self.folder / "GITHUB_STEP_SUMMARY").read_text()

    def use(self, **inputs: str) -> tuple[int, dict[str, str]]:
        """Run the steps until one fails; hands back its exit status, and the outputs of the action."""
        action = _action()
        given = {name: each.get("default", "") for name, each in action["inputs"].items()} | inputs
        status = 0
        for step in action["runs"]["steps"]:
            status = self._run(step, given)
            if status:
                break
        return status, {name: self._resolve(each["value"], given) for name, each in action["outputs"].items()}

    def _run(self, step: dict[str, Any], given: dict[str, str]) -> int:
        files = {name: self.folder / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
        for path in files.values():
            path.touch()
        found = [*reversed(files["GITHUB_PATH"].read_text().split()), os.environ["PATH"]]
        files["GITHUB_OUTPUT"].write_text("")
        environment = os.environ | {name: str(path) for name, path in files.items()}
        environment |= {name: self._resolve(text, given) for name, text in step.get("env", {}).items()}
        environment |= {
            "PATH": os.pathsep.join(found),
            "HOME": str(self.folder),
            "GITHUB_ACTION_PATH": str(FOLDER),
            "RUNNER_TEMP": str(self.folder / "temp"),
            "MAKEFLAGS": "--old-file=.venv/.dev",  # installing libraries is not for a test
        }
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            env=environment, cwd=self.workspace, check=False, text=True, timeout=_STEP_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.log += done.stdout
        written = (line.partition("=") for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        self.outputs[step.get("id", "")] = {name: value for name, _, value in written}
        return done.returncode

    def _resolve(self, text: str, given: dict[str, str]) -> str:
        """The text with the values of its expressions."""

        def value(match: re.Match[str]) -> str:
            name, step, output = match.groups()
            return given[name] if name else self.outputs.get(step, {}).get(output, "")

        return _EXPRESSION.sub(value, text)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


_TELLS = """#!/bin/sh
[ "$1" = version ] && exit
for word in "$@"; do echo "<$word>"; done
echo "::error::as a handler could print it"
exit 1
"""


@pytest.fixture
def teller(tmp_path: Path) -> Path:
    """In the place of forewarn.pyz: it prints its arguments and fails."""
    path = tmp_path / "teller"
    path.write_text(_TELLS)
    return path


def told(job: Job) -> list[str]:
    """What the command was called with."""
    return re.findall(r"^<(.*)>$", job.log, re.MULTILINE)


def test_every_scenario_is_tried_unless_one_is_named(job: Job, teller: Path) -> None:
    status, outputs = job.use(handler="python3 handler.py", zipapp=str(teller))
    report = job.workspace / "forewarn-junit.xml"
    assert (status, outputs) == (1, {"passed": "false", "junit": str(report)})
    assert told(job) == ["try", "--junit", "forewarn-junit.xml", "--all", "--", "python3", "handler.py"]


def test_inputs_reach_the_command_as_bash_reads_them(job: Job, teller: Path) -> None:
    job.use(
        handler="./handler 'two words' $((1 + 1))",
        scenario="spot-eviction",
        prepared="test -e 'a file'",
        recovered="! test -e 'a file'",
        options="--patience 10s --show-output",
        junit="out/report.xml",
        zipapp=str(teller),
    )
    assert told(job) == [
        *("try", "--junit", "out/report.xml", "--scenario", "spot-eviction"),
        *("--prepared", "test -e 'a file'", "--recovered", "! test -e 'a file'"),
        *("--patience", "10s", "--show-output", "--", "./handler", "two words", "2"),
    ]
    assert (job.workspace / "out").is_dir()


def test_github_takes_nothing_that_is_printed_for_a_command(job: Job, teller: Path) -> None:
    job.use(handler="true", zipapp=str(teller))
    before, token, printed, after = re.split(
        r"^::(?:stop-commands::)?([-0-9a-f]{36})(?:::)?$", job.log, flags=re.MULTILINE
    )[:4]
    assert "::error::as a handler" not in before + after
    assert token
    assert printed


@pytest.mark.parametrize("status", [0, 1])
def test_it_warns_where_the_handler_shares_the_network(
    job: Job, teller: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    (job.folder / "unshare").write_text(f"#!/bin/sh\nexit {status}\n")
    (job.folder / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(job.folder), prepend=os.pathsep)
    job.use(handler="true", zipapp=str(teller))
    assert ("::warning title=forewarn try::no separate network" in job.log) == bool(status)


def test_the_summary_shows_what_was_printed_as_a_block_that_nothing_ends(job: Job, teller: Path) -> None:
    job.use(handler="true", zipapp=str(teller))
    assert all(line.startswith("    ") for line in job.summary.splitlines()[2:])
    assert "    ::error::as a handler could print it\n" in job.summary


@pytest.fixture
def served(teller: Path) -> Iterator[str]:
    """The URL of the same file on a web server of this machine."""

    def handler(*given: Any) -> http.server.SimpleHTTPRequestHandler:  # noqa: ANN401 - the server's
        return http.server.SimpleHTTPRequestHandler(*given, directory=str(teller.parent))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{teller.name}"
        server.shutdown()
        thread.join()


def test_a_download_is_run_only_if_its_checksum_is_right(
    job: Job, served: str, teller: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for wrong, message in (("", "the input sha256 is missing"), ("0" * 64, "is not 0000")):
        status, outputs = job.use(handler="true", zipapp=served, sha256=wrong)
        assert (status, outputs["passed"]) == (1, "")
        assert message in job.log
        assert told(job) == []
    job.use(handler="true", zipapp=served, sha256=hashlib.sha256(teller.read_bytes()).hexdigest())
    assert told(job)


@pytest.mark.slow
def test_a_handler_is_tried_with_a_file_that_the_action_builds(job: Job) -> None:
    (job.workspace / "handler.py").write_text(HANDLER.read_text())
    inputs = {"handler": "python3 handler.py", "scenario": "live-migration", "prepared": "test -e drained"}
    status, outputs = job.use(**inputs)
    assert (status, outputs["passed"]) == (0, "true"), job.log
    assert ET.parse(outputs["junit"]).getroot().findall(".//testcase")  # noqa: S314 - written by the action
    assert "approved" in job.summary
    again = Job(job.folder / "again")
    status, outputs = again.use(**inputs | {"handler": "true", "zipapp": str(job.folder / "temp/forewarn/forewarn")})
    assert (status, outputs["passed"]) == (1, "false")
    assert ET.parse(outputs["junit"]).getroot().findall(".//failure")  # noqa: S314 - as above
    assert "it sent no request to the endpoint" in again.summary
    assert "::error title=forewarn try::" in again.log
