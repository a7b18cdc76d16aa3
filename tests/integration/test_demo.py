"""`forewarn demo` as somebody who has just installed it runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.documents import ROOT
from tests.support.processes import FOREWARN, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(160)]  # whole processes, for seconds

LONGEST_S = 120
STORY = (
    "WestNO_0 asks for the first time: incarnation 1, no events",
    "Act 1: a live migration is announced",
    "operator announces a live migration of host-1",
    "platform creates one event per VM, waits for approvals",
    "db       sees incarnation 2 at once: its own event",
    "Freeze of db Scheduled, NotBefore",
    "WestNO_0 approves at once",
    "WestNO_1 is ready and approves",
    "platform WestNO_1 has approved; waits for db",
    "db       is ready and approves",
    "platform db has approved; all VMs have approved",
    "platform starts: all three events together",
    'db       sees incarnation 3 at once: Started, NotBefore ""',
    "platform impact: the VMs are paused (simulated)",
    "platform completes, and removes the events",
    "db       sees incarnation 4 at once: event gone, resumes",
    "Act 2: host-1 fails",
    "operator reports that host-1 has failed",
    "platform creates one event per VM, already Started",
    'Reboot of db Started, NotBefore ""',
    "there is nothing to approve",
    "platform impact: the VMs are restarted (simulated)",
    "db       sees incarnation 6 at once: event gone, resumes",
    "Summary",
    "Nothing started before db approved, as the last VM.",
    "From the last approval to the start:",
    "Try it yourself",
    "forewarn maintenance schedule --host host-1 --type Freeze",
)


@contextmanager
def _demo(folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The demo, with its temporary files in `folder`. Nothing of it is left at the end."""
    process = subprocess.Popen(
        [*FOREWARN, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder), "COLUMNS": "100"} | environment,
    )
    family = [psutil.Process(process.pid)]
    try:
        yield process
        family += _served_in(folder)
    finally:
        with suppress(psutil.NoSuchProcess):
            family += family[0].children(recursive=True)
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        process.communicate()


def _served_in(folder: Path, what: str = "") -> list[psutil.Process]:
    """Services and agents whose files are in `folder`; those that have that word in their command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in part for part in process.info["cmdline"] or ())
        and (not what or what in process.info["cmdline"])
    ]


def _is_left(folder: Path) -> list[str]:
    return [str(p) for p in _served_in(folder)] + [path.name for path in folder.iterdir()]


def _read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for row in process.stdout:
        if words in row:
            return
    pytest.fail(f"it never said {words!r}")


def _check_story(printed: str) -> None:
    place = 0
    for sentence in STORY:
        found = printed.find(sentence, place)
        assert found >= 0, f"{sentence!r} does not come in its turn:\n{printed}"
        place = found + len(sentence)


def _check_tenants(printed: str) -> None:
    """What db tells of its documents names no VM of the other tenant."""
    lines = re.split(r"(?m)^(?=[ \d]\d\.\d s)", printed)
    seen_by_db = [line.partition("──")[0] for line in lines if re.search(r" db +sees", line)]
    assert len(seen_by_db) == 5
    assert [line for line in seen_by_db if "WestNO" in line] == []


def test_two_demos_at_the_same_time_tell_the_whole_story_and_leave_nothing_behind(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with _demo(folders[0]) as one, _demo(folders[1], FOREWARN_CLOCK="virtual", http_proxy="http://127.0.0.1:9") as two:
        outputs = [process.communicate(timeout=LONGEST_S) for process in (one, two)]
        statuses = [process.returncode for process in (one, two)]
    assert statuses == [0, 0], outputs
    for (printed, complaints), folder in zip(outputs, folders, strict=True):
        assert complaints == ""
        assert "\x1b" not in printed
        _check_story(printed)
        _check_tenants(printed)
        assert _is_left(folder) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_stopped_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with _demo(tmp_path, PYTHONUNBUFFERED="1") as demo:
        _read_until(demo, "sees incarnation 2")
        demo.send_signal(number)
        _, complaints = demo.communicate(timeout=LONGEST_S)
        assert demo.returncode == status
    assert complaints.strip() == "forewarn demo: stopped"
    assert _is_left(tmp_path) == []


def test_a_demo_whose_service_dies_says_so_and_fails(tmp_path: Path) -> None:
    with _demo(tmp_path, PYTHONUNBUFFERED="1") as demo:
        _read_until(demo, "sees incarnation 2")
        for process in _served_in(tmp_path, "serve"):
            process.kill()
        _, complaints = demo.communicate(timeout=LONGEST_S)
        assert demo.returncode == 1
    # The last line of the service's log follows, if there is one: a VM may just have been approving.
    assert complaints.startswith("forewarn demo: the service ended unexpectedly with status -9")
    assert complaints.count("\n") == 1
    # The process that answers VMs follows its killed service, and nobody waits for it.
    assert wait_for(lambda: not _is_left(tmp_path))


def test_a_demo_whose_agent_dies_says_so_and_fails(tmp_path: Path) -> None:
    with _demo(tmp_path, PYTHONUNBUFFERED="1") as demo:
        _read_until(demo, "sees incarnation 2")
        _served_in(tmp_path, "forewarn.agent")[0].kill()
        _, complaints = demo.communicate(timeout=LONGEST_S)
        assert demo.returncode == 1
    assert re.match(r"forewarn demo: the agent of \w+ ended unexpectedly with status -9: ", complaints)
    assert complaints.count("\n") == 1
    assert _is_left(tmp_path) == []


def test_a_demo_whose_service_hangs_says_what_it_waited_for(tmp_path: Path) -> None:
    with _demo(tmp_path, PYTHONUNBUFFERED="1") as demo:
        _read_until(demo, "sees incarnation 2")
        (service,) = _served_in(tmp_path, "serve")
        service.suspend()
        _, complaints = demo.communicate(timeout=LONGEST_S)
        assert demo.returncode == 1
    assert complaints.startswith("forewarn demo: not seen within")
    assert complaints.count("\n") == 1
    assert _is_left(tmp_path) == []


def test_the_picture_needs_nothing_from_elsewhere() -> None:
    picture = (ROOT / "docs" / "images" / "demo.svg").read_text()
    assert picture.startswith("<svg")
    assert set(re.findall(r"https?://[^/:]+", picture)) == {"http://www.w3.org", "http://127.0.0.1"}
    assert not re.search(r"@font-face|@import|<image|<script|href|url\((?!#)", picture)


def test_a_reader_that_has_seen_enough_ends_the_demo(tmp_path: Path) -> None:
    with _demo(tmp_path, PYTHONUNBUFFERED="1") as demo:
        _read_until(demo, "Act 1")
        assert demo.stdout is not None
        demo.stdout.close()
        assert demo.wait(LONGEST_S) == 141
        assert demo.stderr is not None
        assert demo.stderr.read() == ""
        wait_for(lambda: not _is_left(tmp_path))


def test_a_service_that_does_not_start_is_told_in_one_line(tmp_path: Path) -> None:
    script = "import sys; sys.executable = '/bin/false'; from forewarn.demo import run_demo; sys.exit(run_demo())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stdout.count("\n") == 2
    assert done.stderr == "forewarn demo: the service ended unexpectedly with status 1\n"
    assert _is_left(tmp_path) == []
