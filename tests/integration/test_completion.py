"""Real shells complete command lines, with names that a real service knows."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Self

import pytest

from forewarn.cli.completion import Shell
from tests.support.processes import Served, served, wait_for
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(200)]

INVENTORY = """\
hosts: [{name: host-1}, {name: host-2}]
vms:
  - {name: web-0, host: host-1, addresses: [127.0.0.11]}
  - {name: web-1, host: host-1, addresses: [127.0.0.12]}
  - {name: db, host: host-2, addresses: [127.0.0.13]}
"""
_SILENT_S = 5.0
_ARGUMENTS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}
_SET_UP = {
    "bash": "source completion.bash",
    "zsh": "fpath+=~/.zfunc; autoload -Uz compinit; compinit -u -D",
}
_CLEAR_LINE = "\x15"
"""Ctrl-U."""
_UNSEEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\x07]")
"""What a terminal does not show: it moves the cursor, or rings the bell."""
needs_fish = pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "inventory.yaml").write_text(INVENTORY)
    with served(folder, "--inventory", str(folder / "inventory.yaml")) as service:
        yield service


@pytest.fixture
def shell(service: Served, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds `forewarn`, and its scripts in the folder of the test."""
    command = tmp_path / "bin" / "forewarn"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m forewarn "$@"\n')
    command.chmod(0o755)
    (tmp_path / ".zfunc").mkdir()
    for each in Shell:
        script = subprocess.run([command, "completion", each], check=True, capture_output=True, timeout=GUARD_S).stdout
        (tmp_path / (".zfunc/_forewarn" if each is Shell.ZSH else f"completion.{each}")).write_bytes(script)
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    return service.environment | {"PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def _fish(line: str, environment: dict[str, str], folder: Path) -> list[str]:
    done = subprocess.run(
        ["fish", "--no-config", "-c", 'source completion.fish; complete -C "$argv"', line],
        check=True, capture_output=True, text=True, cwd=folder, env=environment, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


# A busy service may take longer than a second to say. Whoever got nothing types the line again, and so do these tests:
# at a second tab key, bash only lists the candidates and inserts nothing.
LINES = [
    ("forewarn vm sho", "forewarn vm show "),
    ("forewarn vm show w", "forewarn vm show web-"),
    ("forewarn vm show d", "forewarn vm show db "),
    ("forewarn vm show --js", "forewarn vm show --json "),
    ("forewarn host fail host-2", "forewarn host fail host-2 "),
    ("forewarn maintenance schedule --vm web-0,d", "forewarn maintenance schedule --vm web-0,db "),
    ("forewarn scenario play spo", "forewarn scenario play spot-eviction "),
    ("forewarn inventory apply inv", "forewarn inventory apply inventory.yaml "),
]


@pytest.mark.parametrize("shell_name", ["bash", pytest.param("zsh", marks=needs_zsh)])
def test_a_line_is_completed_at_the_tab_key(shell_name: str, shell: dict[str, str], tmp_path: Path) -> None:
    with _Terminal(shell_name, shell, tmp_path) as terminal:
        for typed, becomes in LINES:
            terminal.type(f"{typed}\t")
            terminal.wait_for(becomes, again=f"{_CLEAR_LINE}{typed}\t")
            terminal.type(_CLEAR_LINE)


@needs_zsh
def test_zsh_completes_at_the_first_tab_key(shell: dict[str, str], tmp_path: Path) -> None:
    with _Terminal("zsh", shell, tmp_path) as zsh:
        zsh.type("forewarn vm sho\t")
        zsh.wait_for("forewarn vm show ")


@needs_fish
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vm sho", ["show"]),
        ("vm show w", ["web-0", "web-1"]),
        ("vm show --js", ["--json"]),
        ("maintenance schedule --vm web-0,", ["web-0,db", "web-0,web-1"]),
        ("maintenance schedule --host host-2", ["host-2"]),
        ("scenario play spot", ["spot-eviction"]),
        ("inventory apply inv", ["inventory.yaml"]),
    ],
)
def test_fish_completes_a_line(line: str, expected: list[str], shell: dict[str, str], tmp_path: Path) -> None:
    wait_for(lambda: _fish(f"forewarn {line}", shell, tmp_path) == expected)


class _Terminal:
    """A bash or zsh on a terminal of its own, with the script as the documentation says to set it up."""

    def __init__(self, shell_name: str, environment: dict[str, str], folder: Path) -> None:
        leader, follower = pty.openpty()
        self._terminal, self._seen = leader, ""
        self._process = subprocess.Popen(
            [shell_name, *_ARGUMENTS[shell_name]],
            stdin=follower, stdout=follower, stderr=follower, cwd=folder, start_new_session=True,
            env=environment | {"TERM": "dumb", "PS1": "> "},
        )  # fmt: skip
        os.close(follower)
        self.type(f"{_SET_UP[shell_name]}; echo RE''ADY\n")
        self.wait_for("READY")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str, again: str = "") -> None:
        """Wait until it shows the text; what is typed again meanwhile is typed where it shows nothing."""
        until = time.monotonic() + GUARD_S  # noqa: TID251 - a guard against hanging
        while text not in _UNSEEN.sub("", self._seen):
            assert time.monotonic() < until, self._seen  # noqa: TID251 - as above
            if select.select([self._terminal], [], [], _SILENT_S)[0]:
                self._seen += os.read(self._terminal, 65536).decode(errors="replace")
            else:
                self.type(again)
        self._seen = ""


def test_ids_are_offered_with_what_they_are_of(service: Served, shell: dict[str, str]) -> None:
    made = service.forewarn("maintenance", "schedule", "--host", "host-2", "--type", "Freeze")
    assert wait_for(lambda: made[0]["id"] in _complete(shell, "maintenance", "show", "")[0])


class _Hostile(BaseHTTPRequestHandler):
    """A service whose words would do something in a shell that evaluates them."""

    def do_GET(self) -> None:
        evil = ["$(touch hit)", "`touch hit`", "*", "x; touch hit", "\\$(touch hit)", "\\`touch hit`", '"', "'"]
        items = [{"name": word, "host": "h"} for word in evil]
        items += [{"name": f"web-{number}", "host": word} for number, word in enumerate(evil)]
        body = json.dumps({"items": items, "next": None}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("shell_name", ["bash", pytest.param("zsh", marks=needs_zsh)])
def test_no_name_and_no_description_is_evaluated(shell_name: str, shell: dict[str, str], tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Hostile) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        there = shell | {"FOREWARN_CONTROL_URL": f"http://127.0.0.1:{server.server_port}"}
        try:
            with _Terminal(shell_name, there, tmp_path) as terminal:
                terminal.type("forewarn vm show \t")
                terminal.wait_for("forewarn vm show web-", again="\t")
        finally:
            server.shutdown()
            thread.join()
    assert not (tmp_path / "hit").exists()


def _complete(environment: dict[str, str], *words: str, options: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """The offered words, and what is written to stderr."""
    asked = {
        "_FOREWARN_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(["forewarn", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, *options, "-m", "forewarn"],
        check=True, capture_output=True, text=True, env=environment | asked, timeout=GUARD_S,
    )  # fmt: skip
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nowhere", "http://[", "https://127.0.0.1:9"])
def test_a_service_that_cannot_be_reached_offers_nothing(url: str, shell: dict[str, str]) -> None:
    assert _complete(shell | {"FOREWARN_CONTROL_URL": url}, "vm", "show", "") == ([], "")


def test_a_service_that_does_not_answer_is_not_waited_for(shell: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def dribble() -> None:
            line, _ = server.accept()
            # Whoever asked does not wait for the end of it.
            with line, contextlib.suppress(OSError):
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                while not stop.wait(0.2):
                    line.sendall(b" ")

        thread = threading.Thread(target=dribble)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        # It dribbles until it is told to stop, so an answer at all is one that was not waited for.
        assert _complete(shell | {"FOREWARN_CONTROL_URL": url}, "vm", "show", "") == ([], "")
        stop.set()
        thread.join()


def test_an_answer_takes_little_of_the_machine(shell: dict[str, str]) -> None:
    """Nearly all that it takes is importing: of the large libraries it imports those that it needs."""

    def complete() -> tuple[bool, set[str]]:
        offered, imports = _complete(shell, "vm", "show", "", options=("-X", "importtime"))
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in imports.splitlines()}
        # Where others use the whole machine, the service may take longer than a second to say.
        return offered == ["db", "web-0", "web-1"], imported

    _, imported = wait_for(lambda: found if (found := complete())[0] else None)
    assert not imported & {"alembic", "fastapi", "psycopg", "rich", "sqlalchemy", "starlette", "uvicorn"}
