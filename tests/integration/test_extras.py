"""What is said where a command needs more than the base installation has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.installed import installed_bytes, libraries_of, make_venv
from tests.support.spans import GUARD_S

WITHOUT = """
import sys
for name in ("alembic", "fastapi", "httptools", "sqlalchemy", "starlette", "structlog", "uvicorn", "uvloop"):
    sys.modules[name] = None
from forewarn.cli.main import main
sys.argv = ["forewarn", *{words!r}]
main()
"""


@pytest.mark.parametrize(
    "words",
    [
        ["serve"],
        ["openapi"],
        ["config", "show"],
        ["inventory", "apply", "no-such-file"],
        ["fault", "kinds"],
        ["scenario", "list"],
        ["scenario", "show", "cancellation"],
        ["scenario", "play", "cancellation"],
        ["try", "--", "true"],
        ["replay", "no-such-file"],
        ["scenario", "from-transcript", "no-such-file"],
        ["conformance", "http://127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_it_says_what_to_install_or_does_without(words: list[str]) -> None:
    code = WITHOUT.format(words=words)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    if ran.returncode != 0:
        extra = "testing" if words[0] in {"conformance", "replay", "scenario", "try"} else "server"
        asks = f"pip install 'forewarn[{extra}]'"
        assert asks in ran.stderr or "no-such-file" in ran.stderr or "127.0.0.1:1" in ran.stderr


PLUGIN = """
import sys
for name in ("httptools", "starlette", "structlog", "uvicorn"):
    sys.modules[name] = None
import pytest
sys.exit(pytest.main([sys.argv[1], "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]))
"""


def test_the_pytest_plugin_is_in_nobodys_way(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text("def test_other():\n    pass\n\n\ndef test_it(scheduled_events):\n    pass\n")
    ran = subprocess.run(
        [sys.executable, "-c", PLUGIN, str(file)], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert "1 passed, 1 error" in ran.stdout
    assert "pip install 'forewarn[testing]'" in ran.stdout


# The extra `testing` on its own

KIT = "forewarn[testing]"
_HANDLER = ROOT / "examples" / "handlers" / "handler.py"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the testing kit and nothing else."""
    return make_venv(tmp_path_factory.mktemp("kit") / "venv", KIT)


def ran(python: Path, *words: str, cwd: Path) -> str:
    """Run Python on a machine without time zone files; return what it printed."""
    surroundings = os.environ | {"PYTHONTZPATH": ""}
    done = subprocess.run(
        [str(python), *words], capture_output=True, text=True, timeout=GUARD_S, check=False, cwd=cwd, env=surroundings
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_testing_kit_brings_four_libraries_and_click_besides_the_base() -> None:
    added = libraries_of(KIT).keys() - libraries_of("forewarn").keys()
    assert added == {"click", "httptools", "starlette", "structlog", "uvicorn"}


def test_the_testing_kit_is_at_most_half_as_large_as_the_server() -> None:
    assert 2 * installed_bytes(KIT) <= installed_bytes("forewarn[server]")


@pytest.mark.parametrize(
    "words", [["scenario", "list"], ["scenario", "play", "policies"], ["fault", "kinds", "--json"]], ids=" ".join
)
def test_commands_run_with_the_testing_kit_alone(python: Path, words: list[str], tmp_path: Path) -> None:
    assert ran(python, "-W", "error", "-m", "forewarn", *words, cwd=tmp_path)


@pytest.mark.slow
def test_a_handler_is_tried_with_the_testing_kit_alone(python: Path, tmp_path: Path) -> None:
    words = ["try", "--scenario", "live-migration", "--json", "--", sys.executable, str(_HANDLER)]
    assert json.loads(ran(python, "-m", "forewarn", *words, cwd=tmp_path))["approvals"]


EXCHANGE = """
import pathlib, subprocess, sys, time
from forewarn.testing import ScheduledEvents

def forewarn(*words):
    subprocess.run([sys.executable, "-m", "forewarn", *words], check=True, timeout=60)

with ScheduledEvents(first_answer_delay="0s") as events:
    forewarn("conformance", events.url)
    event = events.schedule("Reboot")
    vm = pathlib.Path("vm.jsonl")
    with subprocess.Popen([sys.executable, "-m", "forewarn", "record", events.url, "--out", vm]) as recorder:
        while recorder.poll() is None and not (vm.exists() and "Reboot" in vm.read_text()):
            time.sleep(0.05)
        recorder.terminate()
    assert recorder.returncode == 0
    forewarn("scenario", "from-transcript", "vm.jsonl")
    assert event.status == "Scheduled"
"""

REPLAY = """
import subprocess, sys, urllib.request
command = [sys.executable, "-m", "forewarn", "replay", "vm.jsonl", "--listen", "127.0.0.1:0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    url = process.stdout.readline().split()[3].rstrip(",") + "/metadata/scheduledevents?api-version=2020-07-01"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    print(opener.open(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=60).read().decode())
    process.terminate()
"""


@pytest.mark.slow
def test_an_endpoint_is_checked_recorded_and_replayed_with_the_testing_kit_alone(python: Path, tmp_path: Path) -> None:
    printed = ran(python, "-c", EXCHANGE, cwd=tmp_path)
    assert "Conformance suite" in printed
    assert "timeline:" in printed
    assert "Reboot" in ran(python, "-c", REPLAY, cwd=tmp_path)


FIXTURE = """
import urllib.request

def test_it(scheduled_events):
    event = scheduled_events.schedule("Reboot")
    scheduled_events.advance("15m")
    assert event.status == "Started"
"""


@pytest.mark.slow
def test_the_pytest_fixture_works_with_the_testing_kit_alone(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "venv", KIT, "pytest")
    (tmp_path / "test_it.py").write_text(FIXTURE)
    options = ["-q", "-p", "no:cacheprovider", "-W", "error"]
    assert "1 passed" in ran(python, "-m", "pytest", *options, "test_it.py", cwd=tmp_path)
