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

from forewarn.cli.completion import SCRIPTS, Shell
from tests.support.processes import Served, served, wait_for
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.slow

INVENTORY = """\
hosts: [{name: host-1}, {name: host-2}]
vms:
  - {name: web-0, host: host-1, addresses: [127.0.0.11]}
  - {name: web-1, host: host-1, addresses: [127.0.0.12]}
  - {name: db, host: host-2, addresses: [127.0.0.13]}
"""
_SILENT_S = 5.0
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
    for each, text in SCRIPTS.items():
        (tmp_path / f"completion.{each}").write_text(text)
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    return service.environment | {"PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def _bash(words: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    script = (
        'source completion.bash; compopt() { :; }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        "_forewarn forewarn; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", "forewarn", *words],
        check=True, capture_output=True, text=True, cwd=folder, env=environment, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def _fish(words: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    line = " ".join(["forewarn", *words])
    done = subprocess.run(
        ["fish", "--no-config", "-c", 'source completion.fish; complete -C "$argv"', line],
        check=True, capture_output=True, text=True, cwd=folder, env=environment, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


# Whoever got nothing presses the key again, and so do these tests: a busy service may take longer than a second to say.
LINES = [
    (["vm", "sho"], ["show"]),
    (["vm", "show", "w"], ["web-0", "web-1"]),
    (["vm", "show", "--js"], ["--json"]),
    (["maintenance", "schedule", "--vm", "web-0,"], ["web-0,db", "web-0,web-1"]),
    (["maintenance", "schedule", "--host", "host-2"], ["host-2"]),
    (["scenario", "play", "spot"], ["spot-eviction"]),
    (["inventory", "apply", "inv"], ["inventory.yaml"]),
]


@pytest.mark.parametrize(("words", "expected"), LINES, ids=[" ".join(words) for words, _ in LINES])
def test_bash_completes_a_line(words: list[str], expected: list[str], shell: dict[str, str], tmp_path: Path) -> None:
    wait_for(lambda: _bash(words, shell, tmp_path) == expected)


@needs_fish
@pytest.mark.parametrize(("words", "expected"), LINES, ids=[" ".join(words) for words, _ in LINES])
def test_fish_completes_a_line(words: list[str], expected: list[str], shell: dict[str, str], tmp_path: Path) -> None:
    wait_for(lambda: _fish(words, shell, tmp_path) == expected)


@needs_zsh
@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("forewarn vm sho\t", "forewarn vm show "),
        ("forewarn host fail host-2\t", "forewarn host fail host-2 "),
        ("forewarn vm show w\t", "forewarn vm show web-"),
        ("forewarn scenario play spo\t", "forewarn scenario play spot-eviction "),
        ("forewarn inventory apply inv\t", "forewarn inventory apply inventory.yaml "),
    ],
)
def test_zsh_completes_a_line_at_the_tab_key(typed: str, becomes: str, shell: dict[str, str], tmp_path: Path) -> None:
    with _Zsh(shell, tmp_path) as zsh:
        zsh.ready()
        zsh.type(typed)
        zsh.wait_for(becomes, again="\t")


class _Zsh:
    """A zsh on a terminal of its own."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        leader, follower = pty.openpty()
        self._terminal, self._seen = leader, ""
        self._process = subprocess.Popen(
            ["zsh", "-f", "-i"],
            stdin=follower, stdout=follower, stderr=follower, cwd=folder, start_new_session=True,
            env=environment | {"TERM": "dumb", "PS1": "> "},
        )  # fmt: skip
        os.close(follower)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def ready(self) -> None:
        self.type("autoload -U compinit; compinit -u -D; source ./completion.zsh; print RE''ADY\n")
        self.wait_for("READY")

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str, again: str = "") -> None:
        """Wait until it shows the text; what is typed again meanwhile is typed where it shows nothing."""
        until = time.monotonic() + GUARD_S  # noqa: TID251 - a guard against hanging
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self._seen):
            assert time.monotonic() < until, self._seen  # noqa: TID251 - as above
            if select.select([self._terminal], [], [], _SILENT_S)[0]:
                self._seen += os.read(self._terminal, 65536).decode(errors="replace")
            else:
                self.type(again)


def test_ids_are_offered_with_what_they_are_of(service: Served, shell: dict[str, str], tmp_path: Path) -> None:
    made = service.forewarn("maintenance", "schedule", "--host", "host-2", "--type", "Freeze")
    wait_for(lambda: made[0]["id"] in _bash(["maintenance", "show", ""], shell, tmp_path))


class _Hostile(BaseHTTPRequestHandler):
    """A service whose names would do something in a shell that evaluates them."""

    def do_GET(self) -> None:
        names = ["web-9", "$(touch hit)", "`touch hit`", "*", "x; touch hit", "x\ty", "x\\$(touch hit)"]
        body = json.dumps({"items": [{"name": name, "host": "$(touch hit)"} for name in names], "next": None}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@needs_zsh
def test_no_name_is_evaluated(shell: dict[str, str], tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Hostile) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        there = shell | {"FOREWARN_CONTROL_URL": f"http://127.0.0.1:{server.server_port}"}
        try:
            wait_for(lambda: _bash(["vm", "show", ""], there, tmp_path) == ["web-9"])
            with _Zsh(there, tmp_path) as zsh:
                zsh.ready()
                zsh.type("forewarn vm show \t")
                zsh.wait_for("forewarn vm show web-9 ", again="\t")
        finally:
            server.shutdown()
            thread.join()
    assert not (tmp_path / "hit").exists()


def _asked(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "forewarn", "__complete", *words],
        check=False, capture_output=True, text=True, env=environment, timeout=GUARD_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nowhere", "http://[", "https://127.0.0.1:9"])
def test_a_service_that_cannot_be_reached_offers_nothing(url: str, shell: dict[str, str]) -> None:
    assert _asked(shell | {"FOREWARN_CONTROL_URL": url}, "vm", "show", "") == "words\n"


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
        assert _asked(shell | {"FOREWARN_CONTROL_URL": url}, "vm", "show", "") == "words\n"
        stop.set()
        thread.join()


def test_an_answer_takes_little_of_the_machine(shell: dict[str, str]) -> None:
    """Nearly all that it takes is importing: of the large libraries it imports those that it needs."""
    command = [sys.executable, "-X", "importtime", "-m", "forewarn", "__complete", "vm", "show", ""]

    def answer() -> tuple[bool, set[str]]:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=shell, timeout=GUARD_S)
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
        # Where others use the whole machine, the service may take longer than a second to say.
        return done.stdout == "words\ndb\ton host-2\nweb-0\ton host-1\nweb-1\ton host-1\n", imported

    _, imported = wait_for(lambda: found if (found := answer())[0] else None)
    assert not imported & {"alembic", "fastapi", "psycopg", "pydantic", "rich", "sqlalchemy", "starlette", "uvicorn"}


def test_every_shell_has_a_script() -> None:
    assert set(SCRIPTS) == set(Shell)
