"""A tutorial, followed as a reader would: what it shows is typed, what it promises comes out."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.support.documents import ROOT
from tests.support.processes import descendants

__all__ = ["Block", "Terminal", "blocks", "is_shown", "terminal"]

_COME_TO_PASS_S = 60.0
_LOOK_AGAIN_S = 0.3
_ENDED_S = 60.0


# The page


@dataclass(frozen=True)
class Block:
    """Commands of the page, and what it says that they print.

    Attributes:
        kind: ``step``: done once; ``look``: done again until it shows what it should.
        machine: Where it is typed, where the page has several machines.
        prints: What is promised, in order; ``…`` stands for anything, and a number for any number.
    """

    kind: str
    machine: str
    name: str
    script: str
    prints: str


_BLOCK = re.compile(
    r"<!-- (?P<kind>step|look)(?: on (?P<machine>[^:>]+))?: (?P<name>[^>]+?) -->\n```\n(?P<script>.*?)```\n"
    r"(?:\n<!-- prints -->\n```\n(?P<prints>.*?)```\n)?",
    re.DOTALL,
)
_VARIES = re.compile(r"…|\d+[smhd](?: \d+[smhd])*|\d+|\s+")


def blocks(page: Path) -> list[Block]:
    """Everything that the page asks a reader to type, in order."""
    return [
        Block(found["kind"], found["machine"] or "", found["name"], found["script"], found["prints"] or "")
        for found in _BLOCK.finditer(page.read_text())
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
BEGINNING
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

    def __init__(
        self, process: subprocess.Popen[bytes], keyboard: IO[str], folder: Path, logs: str, patience_s: float
    ) -> None:
        self._process = process
        self._keyboard = keyboard
        self._folder = folder
        self._logs = logs
        self._patience_s = patience_s
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
        deadline = time.monotonic() + self._patience_s  # noqa: TID251 - a reader has real time
        while not file.with_name(f"{file.name}.done").exists():
            if self._process.poll() is not None:
                pytest.fail(f"a command failed:\n{script}\n{self._report()}", pytrace=False)
            if time.monotonic() > deadline:  # noqa: TID251 - as above
                pytest.fail(f"a command does not end:\n{script}\n{self._report()}", pytrace=False)
            time.sleep(0.02)
        return file.with_name(f"{file.name}.out")

    def _wait(self, is_there: Callable[[], bool], block: Block, shown: Callable[[], str]) -> None:
        deadline = time.monotonic() + self._patience_s  # noqa: TID251 - as above
        while not is_there():
            if time.monotonic() > deadline:  # noqa: TID251 - as above
                parts = [f"{block.name!r} did not show:", block.prints, "but:", shown(), self._report()]
                pytest.fail("\n".join(parts), pytrace=False)
            time.sleep(_LOOK_AGAIN_S)

    def _report(self) -> str:
        """Everything that helps to see what went wrong."""
        parts = ["--- screen", self.screen, "--- processes", descendants(self._process.pid)]
        for log in sorted(self._folder.glob(self._logs)):
            parts += [f"--- {log.relative_to(self._folder)}", log.read_text(errors="replace")[-20_000:]]
        return "\n".join(parts)


PRIVATE_NAMESPACES = """
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
"""
"""Names of network namespaces that nobody else sees."""


@contextmanager
def terminal(
    folder: Path,
    *,
    prefix: Sequence[str] = (),
    beginning: str = PRIVATE_NAMESPACES,
    logs: str = "home/**/*.log",
    patience_s: float = _COME_TO_PASS_S,
) -> Iterator[Terminal]:
    """A `Terminal` in the folder of the repository.

    Args:
        folder: For its files, and the reader's home.
        prefix: Begins the command that makes the machine, such as ``nsenter``.
        beginning: What its shell does first.
        logs: Files below `folder` that help when something goes wrong.
        patience_s: How long a command may take, and what is promised may take to come.
    """
    (folder / "home").mkdir()
    kept = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith("FOREWARN_")}
    environment = kept | {
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    listening, typing = os.pipe()
    command = [*prefix, "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    shell = _SHELL.replace("BEGINNING", beginning).replace("KEYBOARD", str(listening))
    with (folder / "screen").open("wb") as screen, os.fdopen(typing, "w") as keyboard:
        process = subprocess.Popen(
            [*command, "bash", "-c", shell],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=subprocess.STDOUT,
            pass_fds=[listening],
        )
        os.close(listening)
        try:
            yield Terminal(process, keyboard, folder, logs, patience_s)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(_ENDED_S)
