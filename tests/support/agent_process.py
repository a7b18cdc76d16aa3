"""The agent's real process with a configuration of a test's own, and what a terminal beside it would say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.ports import reserve_port
from tests.support.processes import wait_for
from tests.support.spans import GUARD_S

__all__ = ["AgentProcess", "agent_process"]

CLI = (sys.executable, "-m", "forewarn")
_HEAD = """\
endpoint = "{url}"
name = "vm-1"
state_file = "{folder}/agent.json"
listen = "127.0.0.1:{port}"
wait = "0s"
poll_interval = "100ms"
"""


class AgentProcess:
    """A running agent.

    Attributes:
        folder: With its configuration, state and log.
        pid: Its process.
    """

    def __init__(self, folder: Path, url: str, rules: str) -> None:
        self.folder = folder
        self.pid = 0
        self._head = _HEAD.format(url=url, folder=folder, port=reserve_port())
        self.write(rules)

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.folder / "agent.toml"

    def write(self, rules: str, head: str = "") -> None:
        """Write the configuration anew: its own beginning, then `head`, then the rules."""
        self.config.write_text(f"{self._head}{head}\n{rules.replace('{folder}', str(self.folder))}")

    def reload(self) -> None:
        """Have it read its configuration again, and wait until it has."""
        before = self._reloads()
        os.kill(self.pid, signal.SIGHUP)
        wait_for(lambda: self._reloads() > before)

    def _reloads(self) -> float:
        lines = [line for line in self.metrics().splitlines() if line.startswith("forewarn_agent_config_reloads_total")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def forewarn(self, *arguments: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
        """Run a command of `forewarn` with its configuration."""
        environment = os.environ | {
            "NO_COLOR": "1",
            "COLUMNS": str(columns),
            "FOREWARN_AGENT_CONFIG": str(self.config),
        }
        return subprocess.run(
            [*CLI, *arguments], check=False, capture_output=True, text=True, timeout=GUARD_S, env=environment
        )

    def metrics(self) -> str:
        """What Prometheus would read."""
        return self._get("/metrics").text

    def status(self) -> Any:  # noqa: ANN401 - JSON
        """What `agent status --json` would print, without starting a process for it; None while nothing answers."""
        try:
            return self._get("/status").json()
        except (OSError, httpx.HTTPError):
            return None

    def event(self) -> Any:  # noqa: ANN401 - JSON
        """The only event that it knows; None while there is none."""
        events = self.status()["events"]
        assert len(events) <= 1
        return events[0] if events else None

    def wait_for_state(self, state: str) -> Any:  # noqa: ANN401 - JSON
        """The only event, once it has come to that state."""
        return wait_for(lambda: (event := self.event()) is not None and event["state"] == state and event)

    def log(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in (self.folder / "agent.log").read_text().splitlines()]

    def _get(self, path: str) -> httpx.Response:
        listen = tomllib.loads(self._head)["listen"]
        token = (self.folder / "agent.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"http://{listen}{path}", headers=headers, trust_env=False, timeout=GUARD_S)


@contextmanager
def agent_process(
    folder: Path, url: str, rules: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[AgentProcess]:
    """The agent, watching the endpoint at that URL for vm-1; ended by SIGTERM at the end of the block."""
    agent = AgentProcess(folder, url, rules)
    with (folder / "agent.log").open("ab") as log:
        command = [sys.executable, "-m", "forewarn.agent", "--config", str(agent.config)]
        process = subprocess.Popen(command, stderr=log, env=os.environ | dict(environment or {}))
    agent.pid = process.pid
    try:
        wait_for(lambda: process.poll() is not None or agent.status() is not None)
        assert process.poll() is None, (folder / "agent.log").read_text()
        yield agent
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD_S) == 0
