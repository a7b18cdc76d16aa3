"""The agent's files: its state, which no crash may damage, and its configuration."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.agent.codec import decode_json
from forewarn.agent.configuration import Configuration, default_state_file, load_configuration
from forewarn.agent.state import AgentState, StateFile
from forewarn.errors import ConfigError
from tests.support.documents import ROOT
from tests.support.nobody import as_nobody
from tests.support.records import a_record

KILLS = 30

SAVING = r"""
import os, sys
from pathlib import Path
from forewarn.agent.state import AgentState, StateFile
from tests.support.records import a_record

RECORDS = tuple(a_record(event={"id": str(n), "description": "x" * 2000}) for n in range(50))

def say(line):
    os.write(1, f"{line}\n".encode())  # all of it, or nothing

def save_for_ever():
    file = StateFile(Path(sys.argv[1]))
    file.acquire()
    number = int(file.load().vm or 0)
    assert not Path(f"{sys.argv[1]}.unreadable").exists()
    while True:
        say(number)
        number += 1
        file.save(AgentState(vm=str(number), records=RECORDS))

while sys.stdin.readline():
    pid = os.fork()
    if pid == 0:
        save_for_ever()
    say(f"pid {pid}")
    os.waitpid(pid, 0)
    say("dead")
"""
"""For each line that it reads it saves in a process of its own, and says what is on disk, until that is killed."""

STATE = AgentState(vm="db", records=(a_record(),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "agent.json"


def refusal(file: StateFile) -> str:
    try:
        with pytest.raises(ConfigError) as caught:
            file.load() if is_acquired(file) else None
    finally:
        file.release()
    assert "\n" not in caught.value.message
    return caught.value.message


def is_acquired(file: StateFile) -> bool:
    file.acquire()
    return True


# The state


def test_what_was_saved_is_loaded(path: Path) -> None:
    file = StateFile(path)
    file.acquire()
    assert file.load() == AgentState()
    file.save(STATE)
    assert file.load() == STATE
    assert sorted(each.name for each in path.parent.iterdir()) == ["agent.json", "agent.json.lock"]
    file.release()


def test_nobody_else_can_read_the_state(path: Path) -> None:
    """Handlers keep in it what they have found."""
    file = StateFile(path)
    for _ in range(2):
        file.save(STATE)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "agent.json"
    file = StateFile(path)
    file.acquire()
    file.save(STATE)
    for each in path.parent.iterdir():
        each.unlink()
    path.parent.rmdir()
    file.save(STATE)
    assert file.load() == STATE
    file.release()


class Saver:
    """A process that saves."""

    def __init__(self, path: Path) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", SAVING, str(path)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, cwd=ROOT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._pid = 0
        self._last = -1

    def begin(self, saves: int = 0) -> int:
        """Begin to save, and wait for so many saves; return what was found."""
        self._stdin.write("go\n")
        self._pid = 0
        numbers: list[int] = []
        # It may have saved several times before its parent says who it is.
        while not (self._pid and len(numbers) > saves):
            name, _, number = self._stdout.readline().rpartition(" ")
            if name == "pid":
                self._pid = int(number)
            else:
                numbers.append(int(number))
        self._last = numbers[-1]
        return numbers[0]

    def kill(self) -> int:
        """Kill it; return the last that it said to be on disk."""
        os.kill(self._pid, signal.SIGKILL)
        while (line := self._stdout.readline()) != "dead\n":
            self._last = int(line)
        return self._last


@pytest.fixture
def saver(path: Path) -> Iterator[Saver]:
    saver = Saver(path)
    with saver.process:
        yield saver
        saver.process.kill()


def test_no_kill_damages_the_state(path: Path, saver: Saver) -> None:
    """Killed again and again while it saves: what was saved last is there, or what was being saved."""
    seed = random.randrange(1 << 32)
    randomly = random.Random(seed)
    last = 0
    for kill in range(KILLS):
        # A slow machine may need longer for one save than for any sleep, so some rounds wait for saves.
        found = saver.begin(saves=randomly.randrange(3))
        assert found in {last, last + 1}, f"kill {kill}, seed {seed}"
        time.sleep(randomly.random() * 0.02)
        last = max(found, saver.kill())
        if path.exists():
            state = decode_json(path.read_bytes(), AgentState)
            assert int(state.vm) in {last, last + 1}, f"kill {kill}, seed {seed}"
            assert len(state.records) == 50
    assert last > 0
    assert {each.name for each in path.parent.iterdir()} <= {"agent.json", "agent.json.lock", ".agent.json.forewarn"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b'{"version": 1, "records": [{}]}',
        b'{"version": 2}',
        b'{"version": 0, "vm": "db"}',
        b"\xff\xfe{}",
        b"\0" * 4096,
        b'{"vm": "\xff"}',
        b'{"version": 1, "x": ' + b"[" * 100_000,
        os.urandom(1000),
    ],
)
def test_a_state_that_cannot_be_read_is_moved_aside_and_not_lost(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    file = StateFile(path)
    assert file.load() == AgentState()
    aside = path.parent / "agent.json.unreadable"
    assert aside.read_bytes() == content
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"cannot read the state file {path}: starting without it, and keeping it as {aside}"
    file.save(STATE)
    assert StateFile(path).load() == STATE


def test_a_state_that_lacks_what_was_added_later_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"version": 1, "vm": "db", "unknown": 3}')
    assert StateFile(path).load() == AgentState(vm="db")


def test_what_could_not_be_saved_leaves_what_was(path: Path) -> None:
    """A disk that is full, as far as a process can make one for itself."""
    file = StateFile(path)
    file.save(STATE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            file.save(AgentState(vm="x" * 10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert file.load() == STATE
    assert [each.name for each in path.parent.iterdir()] == ["agent.json"]
    file.save(AgentState(vm="x" * 10_000))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_leaves_what_was(path: Path) -> None:
    path.parent.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(path.parent)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        file = StateFile(path)
        file.save(STATE)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.save(AgentState(vm="x" * 100_000))
        assert file.load() == STATE
        file.save(AgentState(vm="web"))
        assert file.load() == AgentState(vm="web")
    finally:
        subprocess.run(["umount", str(path.parent)], check=True)


def test_a_second_agent_is_refused(path: Path) -> None:
    first, second = StateFile(path), StateFile(path)
    first.acquire()
    assert refusal(second) == f"another agent uses the state file {path}"
    first.save(STATE)
    assert refusal(second) == f"another agent uses the state file {path}"
    first.release()
    first.release()
    second.acquire()
    assert second.load() == STATE
    second.release()


def test_the_end_of_a_process_lets_go_of_the_state(path: Path, saver: Saver) -> None:
    saver.begin()
    assert refusal(StateFile(path)) == f"another agent uses the state file {path}"
    saver.kill()
    file = StateFile(path)
    file.acquire()
    file.release()


def test_agents_whose_states_have_similar_names_do_not_meet(tmp_path: Path) -> None:
    files = [StateFile(tmp_path / name) for name in ("agent.a", "agent.b", "agent", "agent.new", "agent.lock")]
    for file in files:
        file.acquire()
    for number, file in enumerate(files):
        file.save(AgentState(vm=str(number)))
    assert [file.load().vm for file in files] == list("01234")
    for file in files:
        file.release()


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "agent.json"
    assert refusal(StateFile(path)) == f"cannot write next to the state file {path}: its directory is a file"


def test_a_read_only_folder_is_told_at_once() -> None:
    path = Path("/proc/agent.json")
    said = refusal(StateFile(path))
    assert said.startswith(f"cannot write next to the state file {path}: ")
    with as_nobody():
        said = refusal(StateFile(Path("/etc/forewarn-of-nobody.json")))
    assert said.endswith("Permission denied")


def test_a_folder_in_place_of_the_state_is_told(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.mkdir()
    assert refusal(StateFile(path)) == f"cannot read the state file {path}: Is a directory"


def test_a_damaged_state_that_cannot_be_moved_aside_is_told(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text("{")
    (tmp_path / "agent.json.unreadable").mkdir()
    said = refusal(StateFile(path))
    assert said == f"the state file {path} is damaged and cannot be moved aside: Is a directory"
    assert path.read_text() == "{"


def test_who_may_not_write_to_the_system_s_folder_has_one_of_their_own() -> None:
    with as_nobody():
        assert default_state_file() != Path("/var/lib/forewarn/agent.json")
    if os.geteuid() == 0:
        assert default_state_file() == Path("/var/lib/forewarn/agent.json")


# The configuration


def told(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_configuration(path)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    "content",
    [b"", b"\xef\xbb\xbf", b'\xef\xbb\xbfname = "f\xc3\xbcr"\r\n', b"# \xe2\x98\x83\n"],
    ids=["empty", "a byte order mark", "written on Windows", "a comment"],
)
def test_a_configuration_is_read_as_it_is_written(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(content)
    expected = Configuration(name="f\u00fcr") if b"name" in content else Configuration()
    assert load_configuration(path) == expected


def test_a_missing_configuration_is_told_with_the_option_that_names_another(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    assert told(path) == f"configuration file {path} does not exist: create it, or name another file with --config"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'a = 1\nb = "\xff"\n', ": not valid UTF-8, which TOML requires (at line 2)"),
        ('name = "db"\n'.encode("utf-16"), ": not valid UTF-8, which TOML requires (at line 1)"),
        (b"name = 3\n", ": name: expected a string, got 3"),
        (b"\xef\xbb\xbf\nname = 3\n", ": name: expected a string, got 3"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_told_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(content)
    assert told(path) == f"{path}{said}"


def test_a_configuration_that_is_no_file_is_told(tmp_path: Path) -> None:
    assert told(tmp_path) == f"cannot read the configuration {tmp_path}: Is a directory"
    below = tmp_path / "file" / "agent.toml"
    (tmp_path / "file").write_text("")
    assert told(below) == f"cannot read the configuration {below}: Not a directory"
    large = tmp_path / "large.toml"
    large.write_bytes(b"# " + "\u96ea".encode() * (1 << 19))
    assert told(large) == f"cannot read the configuration {large}: larger than 1048576 bytes"
    long = tmp_path / ("x" * 300)
    assert told(long) == f"cannot read the configuration {long}: File name too long"


def test_a_configuration_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("")
    path.chmod(0)
    with as_nobody():
        assert told(path) == f"cannot read the configuration {path}: Permission denied"
