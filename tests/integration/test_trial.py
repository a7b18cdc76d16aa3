"""`forewarn try`: handlers that do well, handlers that do not, and those that cannot be had to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.support.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(220)]  # whole processes, for seconds

POLL = """
import json, os, sys, time, urllib.request as u
url = os.environ["FOREWARN_ENDPOINT"] + "/metadata/scheduledevents?api-version=2020-07-01"
opener = u.build_opener(u.ProxyHandler({}))

def ask(data=None):
    return opener.open(u.Request(url, data=data, headers={"Metadata": "true"}), timeout=60).read()

while True:
    try:
        for event in json.loads(ask())["Events"]:
            if event["EventStatus"] == "Scheduled":
                BEFORE
                ask(json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
    except OSError as error:
        print(error, flush=True)
    time.sleep(0.3)
"""
SCENARIO = """\
title: A test
inventory: {hosts: [{name: host-1}], vms: [{name: web-0, host: host-1}]}
timeline:
  - poll: web-0
  - schedule: {as: it, vms: web-0, type: Freeze}
  - expect: {event: it, status: Scheduled}
  - approve: {operation: it, by: web-0}
  - after: completed it
    within: 1h
    expect: {event: it, status: gone}
"""


def tried(
    tmp_path: Path,
    code: str,
    *options: str,
    scenario: str = SCENARIO,
    status: int = 0,
    network: str = "--shared-network",
) -> dict[str, Any]:
    """Try a handler in Python; hands back the report."""
    handler, file = tmp_path / "handler.py", tmp_path / "scenario.yaml"
    handler.write_text(code)
    file.write_text(scenario)
    command = [sys.executable, "-m", "forewarn", "try", "--scenario", str(file), "--json", "--patience", "2s"]
    networks = [network] if network else []
    ran = subprocess.run(
        [*command, *networks, *options, "--", sys.executable, str(handler)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    assert report["passed"] == (status == 0)
    return report


def codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


def test_a_handler_that_does_well_passes(tmp_path: Path) -> None:
    report = tried(tmp_path, POLL.replace("BEFORE", "pass"), "--junit", str(tmp_path / "report.xml"))
    assert codes(report) == set()
    [approval] = report["approvals"]
    assert approval["after_s"] >= 0
    assert report["first_look_s"] > 0
    assert report["requests"] > 2
    assert [step["fault"] for step in report["steps"]] == [None] * 5
    suite = ET.parse(tmp_path / "report.xml").getroot()  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures")) == ("5", "0")


def test_how_many_at_a_time_is_for_all(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forewarn", "try", "--jobs", "3", "--", "true"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert ran.returncode == 1
    assert "--jobs requires --all" in ran.stderr


def test_what_it_printed_is_shown_also_where_it_passed_if_asked_for(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(POLL.replace("BEFORE", "print('ready now')"))
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    command = [sys.executable, "-m", "forewarn", "try", "--scenario", "scenario.yaml", "--shared-network"]
    for option in ([], ["--show-output"]):
        ran = subprocess.run(
            [*command, *option, "--", sys.executable, "handler.py"],
            capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert ("ready now" in ran.stdout) == bool(option)


LATE = SCENARIO.replace("timeline:", "settings: {first_answer_delay: 2s}\ntimeline:")
ASK_ITS_NAME = """
for path in ("instance?api-version=2021-02-01", "scheduledevents?api-version=1999-01-01"):
    try:
        opener.open(u.Request(url.partition("scheduledevents")[0] + path, headers={"Metadata": "true"}))
    except OSError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize("before", ["", ASK_ITS_NAME], ids=["asks for events", "asks for other things before"])
def test_a_first_answer_that_is_late_has_to_be_waited_for(tmp_path: Path, before: str) -> None:
    """R67, R104: only the first request for events is held, so only its time-out matters."""
    patient = POLL.replace("BEFORE", "pass").replace("\nwhile True:", f"{before}\nwhile True:")
    report = tried(tmp_path, patient, "--patience", "5s", scenario=LATE, status=1 if before else 0)
    assert "time-out-short" not in codes(report)
    hasty = patient.replace("timeout=60", "timeout=0.5")
    assert "time-out-short" in codes(tried(tmp_path, hasty, scenario=LATE, status=1))


def test_another_request_while_the_first_is_held_is_not_taken_for_it(tmp_path: Path) -> None:
    beside = "import threading\nthreading.Thread(target=ask).start()\ntime.sleep(1)\n"
    patient = POLL.replace("BEFORE", "pass").replace("\nwhile True:", f"{beside}\nwhile True:")
    assert "time-out-short" not in codes(tried(tmp_path, patient, "--patience", "5s", scenario=LATE))


CANCELED = """\
title: A test
inventory: {hosts: [{name: host-1}], vms: [{name: web-0, host: host-1}]}
timeline:
  - poll: web-0
  - schedule: {as: it, vms: web-0, type: Freeze}
  - expect: {event: it, status: Scheduled, within: 8m, always: true}
  - cancel: it
  - expect: {event: it, status: gone}
"""


def test_an_approval_counts_when_the_timeline_says_so(tmp_path: Path) -> None:
    report = tried(tmp_path, POLL.replace("BEFORE", "pass"), scenario=CANCELED)
    assert len(report["approvals"]) == 1
    waited_for = CANCELED.replace(
        "  - expect: {event: it, status: Scheduled, within: 8m, always: true}",
        "  - after: approved it\n    expect: {event: it, status: Started}",
    )
    report = tried(tmp_path, POLL.replace("BEFORE", "pass"), scenario=waited_for.replace("cancel", "complete"))
    assert [step["fault"] for step in report["steps"]] == [None] * 5


def test_what_is_prepared_has_to_be_undone(tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    prepare = POLL.replace("BEFORE", f"open({str(drained)!r}, 'w').close()")
    test = ["--recovered", f"test ! -e {drained}"]
    looks = ["--recovered", f"echo >> {tmp_path}/looks; test ! -e {drained}"]
    assert codes(tried(tmp_path, prepare, *looks, scenario=CANCELED, status=1)) == {"unrecovered"}
    # Each look starts a process. A patience of 2 s may take twice as long on a busy machine.
    assert 1 < len((tmp_path / "looks").read_text().splitlines()) < 50
    undo = f'["Events"] or (os.path.exists({str(drained)!r}) and os.remove({str(drained)!r})) or []:'
    assert codes(tried(tmp_path, prepare.replace('["Events"]:', undo), *test, scenario=CANCELED)) == set()


def test_a_trial_is_over_when_the_handler_is(tmp_path: Path) -> None:
    code = POLL.replace("BEFORE", "sys.exit(3)")
    report = tried(tmp_path, code, status=1)
    assert codes(report) == {"ended"}
    assert report["status"] == 3
    assert [step["fault"] for step in report["steps"] if step["fault"]][-1] == "the handler has ended"
    assert len(report["steps"]) < 6


def test_a_scenario_may_be_for_playing_only(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(f"only: play\n{SCENARIO}")
    command = [sys.executable, "-m", "forewarn", "try", "--scenario", str(file), "--", "true"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert "scenario has 'only: play'" in ran.stderr


def test_approving_before_being_prepared_is_found(tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    test = f"test -e {drained}"
    report = tried(tmp_path, POLL.replace("BEFORE", "pass"), "--prepared", test, status=1)
    assert codes(report) == {"unprepared", "unprepared-at-start"}
    well = POLL.replace("BEFORE", f"open({str(drained)!r}, 'w').close()").replace(
        '["Events"]:', f'["Events"] or (os.path.exists({str(drained)!r}) and os.remove({str(drained)!r})) or []:'
    )
    assert tried(tmp_path, well, "--prepared", test)["findings"] == []


def test_a_marker_of_an_earlier_run_hides_nothing(tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    drained.touch()
    test = f"test -e {drained}"
    report = tried(tmp_path, POLL.replace("BEFORE", "pass"), "--prepared", test, status=1)
    assert codes(report) == {"always-prepared", "unrecovered"}
    undo = f'["Events"] or (os.path.exists({str(drained)!r}) and os.remove({str(drained)!r})) or []:'
    well = POLL.replace("BEFORE", f"open({str(drained)!r}, 'w').close()").replace('["Events"]:', undo)
    assert tried(tmp_path, well, "--prepared", test)["findings"] == []  # it removes the marker before any event


def test_what_real_endpoints_refuse_is_found(tmp_path: Path) -> None:
    code = POLL.replace("BEFORE", "pass").replace("2020-07-01", "2017-03-01").replace('{"Metadata": "true"}', "{}")
    report = tried(tmp_path, code, status=1)
    assert codes(report) == {"metadata-missing", "version-preview"}


def test_a_handler_that_never_approves_is_found(tmp_path: Path) -> None:
    report = tried(tmp_path, POLL.replace("BEFORE", "continue"), status=1)
    assert [step["fault"] for step in report["steps"] if step["fault"]] == [
        "the handler did not approve it within 2 s",
    ]


@pytest.mark.parametrize("fault", ["503", "empty", "truncated", "reset"])
def test_a_handler_has_to_outlive_faults(tmp_path: Path, fault: str) -> None:
    scenario = SCENARIO.replace("  - schedule", f"  - fault: {{kind: {fault}, count: 1}}\n  - schedule")
    careless = POLL.replace("BEFORE", "pass").replace("except OSError", "except ZeroDivisionError")
    assert "ended" in codes(tried(tmp_path, careless, scenario=scenario, status=1))
    careful = POLL.replace("BEFORE", "pass").replace("except OSError", "except (OSError, ValueError)")
    assert codes(tried(tmp_path, careful, scenario=scenario)) == set()


def test_a_handler_has_as_much_longer_as_a_fault_delays_it_by_default(tmp_path: Path) -> None:
    """The body arrives over five seconds; its patience alone is two."""
    slow = SCENARIO.replace("  - schedule", "  - fault: {kind: slow-body, count: 1}\n  - schedule")
    assert codes(tried(tmp_path, POLL.replace("BEFORE", "pass"), scenario=slow)) == set()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise SystemExit(3)", {"never-asked", "ended"}),
        ("import time; time.sleep(1000)", {"never-asked"}),
        (
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)",
            {"never-asked", "ignored-sigterm"},
        ),
        (
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\ntime.sleep(1000)",
            {"never-asked", "left-behind"},
        ),
        ("import sys\nwhile True:\n    sys.stdout.write('x' * 65536)", {"never-asked", "output"}),
    ],
)
def test_a_handler_that_misbehaves_is_reported_and_nothing_is_left(tmp_path: Path, code: str, found: set[str]) -> None:
    report = tried(tmp_path, code, "--patience", "0.5s", status=1)
    assert codes(report) == found
    assert len(report["output"]) <= 4000
    assert _running(str(tmp_path / "handler.py")) == []


def _running(name: str) -> list[str]:
    """Processes whose command line has that name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if name.encode() in line and int(folder.name) != os.getpid():
            found.append(folder.name)
    return found


def test_a_command_that_is_not_there_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    ran = subprocess.run(
        [sys.executable, "-m", "forewarn", "try", "--scenario", str(file), "--patience", "60s", "--", "/no/such"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert "cannot run /no/such: No such file or directory" in ran.stdout


@pytest.mark.namespaces
def test_an_unmodified_handler_finds_the_endpoint_where_it_always_is(tmp_path: Path) -> None:
    """R1: the handler knows 169.254.169.254, and nothing of us."""
    code = POLL.replace("BEFORE", "pass").replace('os.environ["FOREWARN_ENDPOINT"]', '"http://169.254.169.254"')
    report = tried(tmp_path, code, network="")
    assert report["own_network"]


@pytest.mark.namespaces
@pytest.mark.parametrize(
    "code",
    [
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\ntime.sleep(1000)",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)",
    ],
)
def test_nothing_outlives_the_network_that_it_was_given(tmp_path: Path, code: str) -> None:
    tried(tmp_path, code, "--patience", "0.5s", network="", status=1)
    assert wait_for(lambda: not _running(str(tmp_path / "handler.py")))
