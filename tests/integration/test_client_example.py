"""The examples that are built on the client."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.faulty import Act, Faulty, Heard, document, event, faulty, says
from tests.support.processes import served, wait_for
from tests.support.service import eventually
from tests.support.spans import GUARD_S

FREEZE = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
REBOOT = "F1A2E3B4-0000-4000-8000-AA5F13A16123"
OTHERS = "0A2B3C4D-0000-4000-8000-AA5F13A16123"


class Endpoint:
    """An endpoint whose document a test sets; it takes every approval, and knows the VM's name."""

    def __init__(self, faulty: Faulty) -> None:
        self._faulty = faulty
        self._incarnation = 1
        self._answer: Act = says(document(1))
        self.failures: list[Act] = []
        faulty.script(self._act)

    @property
    def url(self) -> str:
        return self._faulty.url

    @property
    def approved(self) -> list[str]:
        """The ids in the approvals, in their order."""
        bodies = [json.loads(heard.body) for heard in self._faulty.asked("POST")]
        return [item["EventId"] for body in bodies for item in body["StartRequests"]]

    def show(self, *events: dict[str, object]) -> None:
        """Have this document answered from now on."""
        self._incarnation += 1
        self._answer = says(document(self._incarnation, *events))

    def _act(self, turn: object) -> bool:
        heard: Heard = turn.heard  # type: ignore[attr-defined] # a turn
        if self.failures:
            return self.failures.pop(0)(turn)  # type: ignore[arg-type] # as above
        if heard.method == "POST":
            return says()(turn)  # type: ignore[arg-type] # as above
        is_name = heard.target.startswith("/metadata/instance")
        return (says(b"vm-1") if is_name else self._answer)(turn)  # type: ignore[arg-type] # as above


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with faulty() as made:
        yield Endpoint(made)


def freeze(status: str = "Scheduled") -> dict[str, object]:
    return event(FREEZE, EventStatus=status)


def reboot(status: str = "Scheduled") -> dict[str, object]:
    return event(REBOOT, EventStatus=status, EventType="Reboot")


def others() -> dict[str, object]:
    """An event of another VM of the scope."""
    return event(OTHERS, EventType="Redeploy", Resources=["vm-2"])


# A whole handler


@contextmanager
def watching(endpoint: Endpoint, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], list[str]]]]:
    """`watch.py`, and what it has printed so far."""
    with log.open("wb") as output:
        command = [sys.executable, str(ROOT / "examples/watch.py"), endpoint.url]
        with subprocess.Popen(command, stdout=output, cwd=log.parent) as handler:
            try:
                yield handler, lambda: log.read_text().splitlines()
            finally:
                handler.kill()


def has_printed(lines: Callable[[], list[str]], count: int) -> bool:
    return len(lines()) >= count


@pytest.mark.slow
def test_the_example_goes_through_a_whole_event(tmp_path: Path) -> None:
    """R100, R103, R104."""
    quick = ("--set", "simulate_impact_after=0s", "--set", "simulate_complete_after=1s")
    with served(tmp_path, *quick) as service:
        command = [sys.executable, str(ROOT / "examples/watch.py"), service.metadata_url, "--once"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as handler:
            try:
                wait_for(lambda: service.forewarn("vm", "show", "vm-1")["enabled"])
                service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
                output, _ = handler.communicate(timeout=GUARD_S)
            finally:
                handler.kill()
    lines = ["this is vm-1", "prepare: Freeze of vm-1", "approved", "started", "recover"]
    assert output.splitlines() == lines


def test_work_is_taken_up_again_when_the_last_event_is_gone(endpoint: Endpoint, tmp_path: Path) -> None:
    """R100: not while another one is still scheduled or started; events of other VMs are in nobody's way."""
    steps: list[tuple[list[dict[str, object]], list[str]]] = [
        ([freeze()], ["prepare: Freeze of vm-1", "approved"]),
        ([freeze("Started"), reboot(), others()], ["started", "prepare: Reboot of vm-1", "approved"]),
        ([reboot("Started"), others()], ["started"]),
        ([others()], ["recover"]),
        ([reboot("Started"), others()], ["started without notice", "prepare: Reboot of vm-1"]),
        ([freeze()], ["prepare: Freeze of vm-1", "approved"]),
        ([], ["recover"]),
    ]
    expected = ["this is vm-1"]
    with watching(endpoint, tmp_path / "log") as (handler, lines):
        assert eventually(lambda: lines() == expected)
        for events, said in steps:
            endpoint.show(*events)
            expected += said
            assert eventually(partial(has_printed, lines, len(expected)))
            assert lines() == expected
        handler.send_signal(signal.SIGTERM)
        assert handler.wait(GUARD_S) == 0
    assert endpoint.approved == [FREEZE, REBOOT, FREEZE]


def test_the_example_waits_for_an_endpoint_that_is_not_there_yet(endpoint: Endpoint, tmp_path: Path) -> None:
    """R66, R106: nor is a failure taken for an endpoint that does not know the name."""
    not_yet = says(b'{ "error": "Not found" }', 404)
    endpoint.failures += [not_yet, not_yet, says(document(1)), says(b"", 503)]
    with watching(endpoint, tmp_path / "log") as (_handler, lines):
        assert eventually(lambda: "this is vm-1" in lines())
        endpoint.show(freeze())
        assert eventually(lambda: lines()[-2:] == ["prepare: Freeze of vm-1", "approved"])


# A handler for a timer


def once(endpoint: Endpoint, folder: Path) -> tuple[int, list[str], str]:
    """Run `once.py`; its exit status, what it printed, and what went wrong."""
    command = [sys.executable, str(ROOT / "examples/once.py"), endpoint.url, "--state", str(folder / "prepared.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * GUARD_S)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_runs_of_a_timer_carry_an_event_from_one_to_the_next(endpoint: Endpoint, tmp_path: Path) -> None:
    """R100, R103: each run knows what those before have prepared for."""
    assert once(endpoint, tmp_path) == (0, [], "")
    endpoint.show(freeze(), others())
    assert once(endpoint, tmp_path) == (0, ["prepare: Freeze of vm-1"], "")
    assert once(endpoint, tmp_path) == (0, [], "")
    assert endpoint.approved == [FREEZE, FREEZE]
    endpoint.show(freeze("Started"), reboot())
    assert once(endpoint, tmp_path) == (0, ["prepare: Reboot of vm-1"], "")
    endpoint.show(reboot("Started"), others())
    assert once(endpoint, tmp_path) == (0, [], "")
    endpoint.show(others())
    assert once(endpoint, tmp_path) == (0, ["recover"], "")
    assert once(endpoint, tmp_path) == (0, [], "")
    assert endpoint.approved == [FREEZE, FREEZE, REBOOT]


def test_a_run_of_a_timer_asks_again_after_failures(endpoint: Endpoint, tmp_path: Path) -> None:
    """R66, R104, R105: an empty answer is no empty document."""
    endpoint.show(freeze())
    endpoint.failures += [says(b"", 503), says(b""), says(b"", 410)]
    assert once(endpoint, tmp_path) == (0, ["prepare: Freeze of vm-1"], "")
    assert endpoint.failures == []


def test_a_run_of_a_timer_that_gets_no_answer_does_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    """R105: it neither prepares nor takes up work, and says so by its exit status."""
    endpoint.show(freeze())
    assert once(endpoint, tmp_path)[1] == ["prepare: Freeze of vm-1"]
    endpoint.failures.append(says(b'{ "error": "Not found" }', 404))
    status, lines, error = once(endpoint, tmp_path)
    assert (status, lines) == (75, [])
    assert error == "the metadata endpoint answered 404 for its document: Not found\n"
    assert json.loads((tmp_path / "prepared.json").read_text()) == [FREEZE]
