"""`forewarn record`, `replay` and `scenario from-transcript` as processes."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.cli.main import run_command_line
from forewarn.client import Client
from forewarn.testing.transcript.transcript import EndReason, load_transcript
from tests.support.faulty import Faulty, document, event, faulty, says
from tests.support.parsed_scenario import parse_scenario
from tests.support.processes import wait_for
from tests.support.service import Running
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "forewarn")
_STOP_S = GUARD_S


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    """Exit status and what it printed, of a process that was stopped."""
    process.send_signal(number)
    output, errors = process.communicate(timeout=_STOP_S)
    return process.returncode, output, errors


@pytest.fixture
def endpoint() -> Iterator[Faulty]:
    with faulty(says(document(1)), says(document(2, event()))) as made:
        yield made


@pytest.fixture
def recorded(endpoint: Faulty, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "vm.jsonl"
    assert run_command_line(["record", endpoint.url, "--out", str(path), "--for", "300ms", "--interval", "50ms"]) == 0
    output, errors = capfd.readouterr()
    assert output == ""
    assert "recorded 2 different answers to" in errors
    return path


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_recording_ends_when_told_to(endpoint: Faulty, tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "vm.jsonl"
    with running("record", endpoint.url, "--out", str(path), "--interval", "20ms") as process:
        wait_for(lambda: lines_of(path) == 3)
        status, output, errors = ended(process, number)
    assert (status, output) == (0, "")
    assert re.search(r"200, incarnation 1: no events\n.*200, incarnation 2: Freeze Scheduled\n", errors)
    assert errors.endswith("stopped\n")
    assert load_transcript(path).end_reason is EndReason.SIGNAL


def test_a_recording_that_is_killed_has_lost_nothing(
    endpoint: Faulty, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vm.jsonl"
    with running("record", endpoint.url, "--out", str(path), "--interval", "20ms") as process:
        wait_for(lambda: lines_of(path) == 3)
        process.kill()
        process.wait(_STOP_S)
    transcript = load_transcript(path)
    assert (len(transcript.entries), transcript.end_reason) == (2, None)
    assert run_command_line(["scenario", "from-transcript", str(path)]) == 0
    assert "its recorder was interrupted" in capfd.readouterr().err


def test_a_recording_goes_to_stdout_without_a_file(endpoint: Faulty, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["record", endpoint.url, "--for", "100ms"]) == 0
    first, *_, last = capfd.readouterr().out.splitlines()
    assert first.startswith('{"forewarn_transcript":1,"api_version":"2020-07-01"')
    assert '"reason":"time"' in last


def test_a_recording_asks_from_the_source_address(service: Running, capfd: pytest.CaptureFixture[str]) -> None:
    """The address says which VM asks, so an address of no VM is answered with 404."""

    def find_statuses(source_address: str) -> set[str]:
        command = ["record", service.url, "--for", "300ms", "--interval", "20ms", "--source-address", source_address]
        assert run_command_line(command) == 0
        return set(re.findall(r'"status":(\d+)', capfd.readouterr().out))

    known = service.vm().address
    # On a busy machine, the recording may end before the first answer.
    assert wait_for(lambda: find_statuses(known)) == {"200"}
    assert wait_for(lambda: find_statuses("127.0.255.254")) == {"404"}


def test_a_recording_that_is_full_says_so(endpoint: Faulty, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    endpoint.script(*(says(document(n, event(Description="x" * 900_000))) for n in range(3)))
    arguments = ["record", endpoint.url, "--out", str(tmp_path / "t.jsonl"), "--size-mb", "1", "--interval", "20ms"]
    assert run_command_line(arguments) == 1
    assert "the limit is 1048576 bytes" in capfd.readouterr().err.splitlines()[-1]
    assert load_transcript(tmp_path / "t.jsonl").end_reason is EndReason.SIZE


def test_a_transcript_is_replayed_until_told_to_stop(recorded: Path) -> None:
    with running("replay", str(recorded), "--speed", "10", "--listen", "127.0.0.1:0") as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        match = re.fullmatch(r"replay is ready: (http://127\.0\.0\.1:\d+), 2020-07-01, 2 answers over .*\n", ready)
        assert match is not None, ready
        with Client(match[1]) as client:
            wait_for(lambda: client.fetch().incarnation == 2)
            client.approve(client.fetch().events[0].id)
        told = sorted([process.stdout.readline(), process.stdout.readline()], key=len)
        assert re.fullmatch(r" +\d\.\d s  approved: C7061BAC-AFDC-4513-B24B-AA5F13A16123\n", told[0])
        assert "end of the transcript: serving the last answer until Ctrl-C" in told[1]
        assert ended(process, signal.SIGTERM) == (0, "", "")


def test_a_held_connection_does_not_keep_a_replay_from_ending(tmp_path: Path) -> None:
    path = tmp_path / "held.jsonl"
    path.write_text(
        '{"forewarn_transcript":1,"api_version":"2020-07-01","began":"2030-01-01T00:00:00Z"}\n'
        '{"at_s":0,"failure":"time-out"}\n'
    )
    with running("replay", str(path), "--listen", "127.0.0.1:0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "the transcript is incomplete" in process.stderr.readline()
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].partition(",")[0])
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: a\r\n\r\n")
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            assert ended(process, signal.SIGTERM)[0] == 0


def test_a_transcript_becomes_a_scenario(recorded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["scenario", "from-transcript", str(recorded)]) == 0
    output, errors = capfd.readouterr()
    assert errors == ""
    assert [step.action_name for step in parse_scenario(output.encode(), "vm").steps].count("schedule") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["record", "ftp://a"], "'ftp://a' is not an endpoint"),
        (["record", "http://127.0.0.1:1", "--for", "long"], "'long' is not a span of time"),
        (["record", "http://127.0.0.1:1", "--interval", "0"], "must be longer than 0 s"),
        (["record", "http://127.0.0.1:1", "--api-version", "1"], "unknown api-version '1'"),
        (["record", "http://127.0.0.1:1", "--out", "README.md"], "README.md already exists: choose another name"),
        (["record", "http://127.0.0.1:1", "--out", "none/t.jsonl"], "cannot write none/t.jsonl: No such file"),
        (["record", "http://127.0.0.1:1", "--source-address", "lo"], "'lo' is not an address of this machine"),
        (["record", "http://127.0.0.1:1", "--source-address", "192.0.2.1"], "'192.0.2.1' is not an address of this"),
        (["replay", "none.jsonl"], "cannot read none.jsonl: No such file"),
        (["replay", "README.md"], "README.md:1: not a transcript"),
        (["scenario", "from-transcript", "README.md"], "README.md:1: not a transcript"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    arguments: list[str], words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert run_command_line(arguments) in {1, 2}
    errors = capfd.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1
