"""The tutorial about the agent, followed as a reader would: what it shows is typed, what it promises comes out."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pytest

from tests.support import namespaces
from tests.support.documents import ROOT, files_in

PAGE = ROOT / "docs/tutorial/agent.md"
FILES = ROOT / "examples/tutorial"
PART_2 = {"without an agent", "what that cost"}
_TOOLS = ("haproxy", "curl", "unshare", "start-stop-daemon")
_COME_TO_PASS_S = 60.0
_LOOK_AGAIN_S = 0.3
_ENDED_S = 10.0
_SENT_MIN = 500
_LONGEST_S_MAX = 2.0


def _missing() -> str | None:
    return namespaces.missing() or next((tool for tool in _TOOLS if shutil.which(tool) is None), None)


def needs_machines(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that goes through the tutorial."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.namespaces,
        pytest.mark.skipif(_missing() is not None, reason=f"the tutorial needs {_missing()}"),
        pytest.mark.timeout(240),
    ):
        test = mark(test)
    return test


# The page


@dataclass(frozen=True)
class Block:
    """Commands of the page, and what it says that they print.

    Attributes:
        kind: ``step``: done once; ``look``: done again until it shows what it should.
        prints: What is promised, in order; ``…`` stands for anything, and a number for any number.
    """

    kind: str
    name: str
    script: str
    prints: str


_BLOCK = re.compile(
    r"<!-- (?P<kind>step|look): (?P<name>[^>]+?) -->\n```\n(?P<script>.*?)```\n"
    r"(?:\n<!-- prints -->\n```\n(?P<prints>.*?)```\n)?",
    re.DOTALL,
)
_VARIES = re.compile(r"…|\d+[smhd](?: \d+[smhd])*|\d+|\s+")


def blocks() -> list[Block]:
    """Everything that the page asks a reader to type."""
    return [
        Block(found["kind"], found["name"], found["script"], found["prints"] or "")
        for found in _BLOCK.finditer(PAGE.read_text())
    ]


def is_shown(promised: str, output: str) -> bool:
    """Whether the lines that were promised are there, in order; others may stand between them."""
    lines = iter(output.splitlines())
    return all(any(_as_pattern(wanted).fullmatch(line) for line in lines) for wanted in promised.splitlines())


def _as_pattern(line: str) -> re.Pattern[str]:
    pattern, end = [], 0
    for varying in _VARIES.finditer(line):
        pattern += [re.escape(line[end : varying.start()]), _what_may_stand_for(varying[0])]
        end = varying.end()
    return re.compile("".join([*pattern, re.escape(line[end:]), r"\s*"]))


def _what_may_stand_for(varying: str) -> str:
    if varying == "…":
        return ".*"
    if varying.isspace():
        return r"\s+"
    return r"\d+" if varying.isdigit() else r"\d+[smhd](?: \d+[smhd])*"


# The terminal

_SHELL = """
set -e
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
while read -r -u KEYBOARD script; do
  case $script in
    *.look) ( . "$script" ) > "$script.out" 2>&1 KEYBOARD<&- || true ;;
    *) . "$script" KEYBOARD<&- ;;
  esac
  touch "$script.done"
done
"""


class Terminal:
    """One bash as root on a machine of its own.

    It has its own processes and its own names of network namespaces: nothing of it meets what else runs here, and when
    it ends the kernel ends everything that was started in it, whatever happens.
    """

    def __init__(self, process: subprocess.Popen[bytes], keyboard: IO[str], folder: Path) -> None:
        self._process = process
        self._keyboard = keyboard
        self._folder = folder
        self._typed = 0

    @property
    def home(self) -> Path:
        """The reader's home folder."""
        return self._folder / "home"

    @property
    def screen(self) -> str:
        """All that was printed, also by what runs in the background."""
        return (self._folder / "screen").read_text(errors="replace")

    def do(self, block: Block) -> str:
        """Type it, and wait until what it promises is there; hands back what was printed."""
        if block.kind == "look":
            return self._look(block)
        begin = len(self.screen)
        self._type(block.script, "step")
        self._wait(lambda: is_shown(block.prints, self.screen[begin:]), block, lambda: self.screen[begin:])
        return self.screen[begin:]

    def _look(self, block: Block) -> str:
        seen = ""

        def is_seen() -> bool:
            nonlocal seen
            seen = self._type(block.script, "look").read_text(errors="replace")
            return is_shown(block.prints, seen)

        self._wait(is_seen, block, lambda: seen)
        return seen

    def _type(self, script: str, kind: str) -> Path:
        """Run commands to their end; hands back where a look's output is."""
        self._typed += 1
        file = self._folder / f"{self._typed:03}.{kind}"
        file.write_text(script)
        self._keyboard.write(f"{file}\n")
        self._keyboard.flush()
        deadline = time.monotonic() + _COME_TO_PASS_S
        while not file.with_name(f"{file.name}.done").exists():
            if self._process.poll() is not None:
                pytest.fail(f"a command failed:\n{script}\n{self._report()}", pytrace=False)
            if time.monotonic() > deadline:
                pytest.fail(f"a command does not end:\n{script}\n{self._report()}", pytrace=False)
            time.sleep(0.02)
        return file.with_name(f"{file.name}.out")

    def _wait(self, is_there: Callable[[], bool], block: Block, shown: Callable[[], str]) -> None:
        deadline = time.monotonic() + _COME_TO_PASS_S
        while not is_there():
            if time.monotonic() > deadline:
                parts = [f"{block.name!r} did not show:", block.prints, "but:", shown(), self._report()]
                pytest.fail("\n".join(parts), pytrace=False)
            time.sleep(_LOOK_AGAIN_S)

    def _report(self) -> str:
        """Everything that helps to see what went wrong."""
        logs = sorted(self.home.glob("survive/*.log")) + sorted(self.home.glob("survive/*/disk/agent.log"))
        parts = ["--- screen", self.screen]
        for log in logs:
            parts += [f"--- {log.relative_to(self.home)}", log.read_text(errors="replace")[-20_000:]]
        return "\n".join(parts)


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    """A `Terminal` in the folder of the repository."""
    (folder / "home").mkdir()
    kept = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith("FOREWARN_")}
    environment = kept | {
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    listening, typing = os.pipe()
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    with (folder / "screen").open("wb") as screen, os.fdopen(typing, "w") as keyboard:
        process = subprocess.Popen(
            [*command, "bash", "-c", _SHELL.replace("KEYBOARD", str(listening))],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=subprocess.STDOUT,
            pass_fds=[listening],
        )
        os.close(listening)
        try:
            yield Terminal(process, keyboard, folder)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(_ENDED_S)


# What is promised


@dataclass(frozen=True)
class Outcome:
    """What became of the requests of all clients.

    Attributes:
        counted: By how much both counters went up together.
    """

    sent: int
    answered: int
    counted: int
    lost: int
    longest_s: float

    @property
    def is_without_loss(self) -> bool:
        """Whether every request was answered, soon, and counted."""
        return self.sent == self.answered == self.counted and self.lost == 0 and self.longest_s < _LONGEST_S_MAX


_OUTCOME = re.compile(r"sent (\d+), answered (\d+), counted (-?\d+), lost (\d+),.* longest wait ([\d.]+) s")


def outcome(output: str) -> Outcome:
    """What the clients said at their end."""
    found = _OUTCOME.search(output)
    assert found is not None, output
    sent, answered, counted, lost = (int(found[number]) for number in range(1, 5))
    return Outcome(sent, answered, counted, lost, float(found[5]))


@pytest.mark.parametrize("name", sorted(files_in(PAGE)))
def test_a_file_that_the_tutorial_shows_is_the_one_that_it_uses(name: str) -> None:
    assert files_in(PAGE)[name] == (FILES / name).read_text()


def test_what_the_tutorial_shows_of_the_other_configuration_is_in_it() -> None:
    shown = re.search(r"\n```\n(    option httpchk\n.*?)```\n", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] in (FILES / "drainz/haproxy.cfg").read_text()


def test_the_tutorial_asks_for_something_to_be_typed() -> None:
    names = [block.name for block in blocks()]
    assert len(names) == len(set(names))
    assert len(names) == PAGE.read_text().count("<!-- step: ") + PAGE.read_text().count("<!-- look: ")
    assert set(names) >= PART_2 | {"freeze", "reboot", "redeploy", "the sum", "clean up"}


def _tell(record_property: Callable[[str, object], None], **outcomes: Outcome) -> None:
    """Say what was measured: `pytest -rP` shows it, and the report keeps it."""
    for name, clients in outcomes.items():
        record_property(name, str(clients))
        print(f"{name}: {clients}")  # noqa: T201


@needs_machines
def test_with_an_agent_no_request_is_lost_and_without_one_some_are(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with terminal(tmp_path) as reader:
        printed = {block.name: reader.do(block) for block in blocks()}
        namespaces_left = reader.do(Block("look", "what is left", "ip netns list", ""))
        is_folder_left = (reader.home / "survive").exists()
    without, with_agent = outcome(printed["what that cost"]), outcome(printed["the sum"])
    _tell(record_property, without=without, with_agent=with_agent)
    assert without.lost > 0
    assert without.counted < without.answered
    assert with_agent.sent > _SENT_MIN
    assert with_agent.is_without_loss
    assert (namespaces_left, is_folder_left) == ("", False)


@needs_machines
def test_haproxy_may_ask_the_agent_instead_of_being_told(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """As the page says: the other files, and no part 2."""
    page = PAGE.read_text()
    assert "after `cd ~/survive` say `cp drainz/* .`, and leave out part 2" in page
    with terminal(tmp_path) as reader:
        printed = {block.name: reader.do(_as_for_drainz(block)) for block in blocks() if block.name not in PART_2}
    clients = outcome(printed["the sum"])
    _tell(record_property, with_drainz=clients)
    assert clients.sent > _SENT_MIN
    assert clients.is_without_loss


def _as_for_drainz(block: Block) -> Block:
    """What is typed, and what HAProxy says, where it has its own opinion of servers."""
    script = block.script.replace("cd ~/survive\n", "cd ~/survive\ncp drainz/* .\n")
    return replace(block, script=script, prints=block.prints.replace(" MAINT ", " DOWN "))
