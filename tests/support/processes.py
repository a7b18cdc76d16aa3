"""Real processes of `forewarn`, started and ended by tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.store import SqlStore
from tests.support.preloaded import PreloadedProcess
from tests.support.spans import GUARD_S
from tests.support.warm import run_warm

__all__ = ["Served", "descendants", "is_written", "served", "wait_for"]

FOREWARN = (sys.executable, "-m", "forewarn")
_READY_S = GUARD_S
_STOP_S = GUARD_S
_COMMAND_S = GUARD_S


@dataclass
class Served:
    """A `forewarn serve` that is ready.

    Attributes:
        process: Its process.
        metadata_url: Where VMs ask.
        control_url: Where operators ask.
        prefix: What stands before a command that is to reach it, such as ``ip netns exec``.
        environment: For commands that are to reach it.
    """

    process: subprocess.Popen[str] | PreloadedProcess
    metadata_url: str
    control_url: str
    prefix: tuple[str, ...]
    environment: dict[str, str]

    def forewarn(self, *arguments: str) -> Any:  # noqa: ANN401 - what the command printed, as JSON
        """Run a command of the CLI with ``--json`` and return what it printed."""
        printed = self.printed(*arguments, "--json")
        return json.loads(printed) if printed.strip() else None

    def printed(self, *arguments: str) -> str:
        """Run a command of the CLI and return what it printed."""
        if self.prefix:
            command = [*self.prefix, *FOREWARN, *arguments]
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=_COMMAND_S, env=self.environment
            )
            status, printed, errors = done.returncode, done.stdout, done.stderr
        else:
            status, printed, errors = run_warm([*arguments], self.environment)
        assert status == 0, f"{arguments}: {errors}"
        return printed


@contextmanager
def served(
    folder: Path,
    *arguments: str,
    prefix: Sequence[str] = (),
    metadata_listen: str = "127.0.0.1:0",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[Served]:
    """`forewarn serve` with its files in `folder`, stopped by SIGTERM at the end; its log is there too, or in `log`."""
    log_file = log or folder / "serve.log"
    if not (folder / "forewarn.db").exists():
        SqlStore(f"sqlite:///{folder}/forewarn.db").close()  # its schema is copied, which takes no time
    environment = os.environ | {"FOREWARN_STATE_DIR": str(folder), "NO_COLOR": "1"} | dict(settings or {})
    urls = ("--metadata-listen", metadata_listen, "--control-listen", "127.0.0.1:0")
    words = ["serve", "--database-url", f"sqlite:///{folder}/forewarn.db", *urls, *arguments]
    process: subprocess.Popen[str] | PreloadedProcess
    with log_file.open("a") as errors:
        # With another path, it is another version.
        if prefix or "PYTHONPATH" in (settings or {}):
            command = [*prefix, *FOREWARN, *words]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        else:
            process = PreloadedProcess(words, environment, errors)
    try:
        line = _ready_line(process, log_file)
        found = re.findall(r"https?://[^\s,]+", line)
        environment["FOREWARN_CONTROL_URL"] = found[-1]
        yield Served(process, found[0], found[-1], tuple(prefix), environment)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)
        if process.stdout is not None:
            process.stdout.close()


def _ready_line(process: subprocess.Popen[str] | PreloadedProcess, log_file: Path) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if selector.select(_READY_S):
            line = process.stdout.readline()
            if line:
                return line
    raise AssertionError("serve did not get ready: " + log_file.read_text())


def wait_for(condition: Any, timeout_s: float = GUARD_S, pause_s: float = 0.05) -> Any:  # noqa: ANN401 - what it answers
    """Return the first true answer of `condition`, asked again and again; the time is a guard against hanging."""
    deadline = time.monotonic() + timeout_s  # noqa: TID251 - a guard against hanging
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"  # noqa: TID251 - as above
        time.sleep(pause_s)
    return answer


def is_written(file: Path) -> bool:
    """Whether it has a whole line; a shell makes a file before it writes into it."""
    return file.exists() and file.read_text().endswith("\n")


def descendants(pid: int) -> str:
    """Everything that a process has begun and that has not ended: a line for each, with what its threads wait for."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    lines, waiting = [], [(pid, 0)]
    while waiting:
        each, depth = waiting.pop()
        waiting += [(child, depth + 1) for child in parents.get(each, [])]
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{each}")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            waits = [(task / "wchan").read_text() for task in (folder / "task").iterdir()]
            lines.append(f"{'  ' * depth}{each} [{', '.join(waits)}] {command}")
    return "\n".join(lines)
