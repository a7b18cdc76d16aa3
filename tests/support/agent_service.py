"""The agent's real process beside a real `forewarn serve`, with hooks that note that they ran."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.processes import Served, served, wait_for
from tests.support.spans import GUARD_S

__all__ = [
    "AGENT",
    "NOTING",
    "START_S",
    "STUCK",
    "Agent",
    "Cloud",
    "announcing",
    "configure",
    "is_alive",
    "lines",
    "pid_of_hook",
    "ran",
    "refused",
    "running",
]

METADATA = {"Metadata": "true"}
AGENT = (sys.executable, "-m", "forewarn.agent")
START_S = GUARD_S
LISTENS = re.compile(r"status, metrics and health at (http://[^\s\"]+)")

COMMON = """
endpoint = "{endpoint}"
wait = "5m"
poll_interval = "100ms"
listen = "127.0.0.1:0"
state_file = "{folder}/state/agent.json"
"""


class Agent:
    """An agent's process.

    Attributes:
        process: It.
        folder: Where its configuration, state and log are, and what its hooks write.
        url: Where it listens.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, url: str) -> None:
        self.process = process
        self.folder = folder
        self.url = url

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer to anybody."""
        answer = httpx.get(f"{self.url}{path}", trust_env=False, timeout=GUARD_S)
        return answer.status_code, answer.text.strip()

    def status(self) -> dict[str, Any]:
        """What it tells operators."""
        token = (self.folder / "state" / "agent.token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        told: dict[str, Any] = httpx.get(f"{self.url}/status", headers=headers, trust_env=False, timeout=GUARD_S).json()
        return told

    def wait_ready(self) -> None:
        wait_for(lambda: self.get("/readyz") == (200, "ready"))

    def state_of(self, event_id: str) -> str:
        """Where an event stands; empty when there is none."""
        return next((e["state"] for e in self.status()["events"] if e["event"]["id"] == event_id), "")

    def wait_done(self, event_id: str, step: str) -> None:
        """Wait until a step is done; what its hooks write is there before that."""

        def is_done() -> bool:
            steps = [event["steps"] for event in self.status()["events"] if event["event"]["id"] == event_id]
            return bool(steps) and steps[0].get(step, {}).get("state") == "done"

        wait_for(is_done)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Return the exit status after that signal. What it waits for meanwhile would take minutes."""
        self.process.send_signal(number)
        return self.process.wait(GUARD_S)


def configure(folder: Path, endpoint: str, rest: str = "") -> Path:
    """Write a configuration. In `rest`, ``{folder}`` is that folder."""
    config = folder / "agent.toml"
    config.write_text((COMMON + rest).replace("{endpoint}", endpoint).replace("{folder}", str(folder)))
    return config


@contextmanager
def running(
    folder: Path, *arguments: str, command: tuple[str, ...] = AGENT, environment: Mapping[str, str] | None = None
) -> Iterator[Agent]:
    """The agent with the configuration of that folder, started and listening; killed at the end."""
    log = folder / "stderr.log"
    begins_at = log.stat().st_size if log.exists() else 0
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "--config", str(folder / "agent.toml"), *arguments], stderr=file, env=environment
        )
    try:

        def listens() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()
            return LISTENS.search(log.read_text()[begins_at:])

        yield Agent(process, folder, wait_for(listens, START_S)[1])
    finally:
        process.kill()
        process.wait(START_S)


def lines(folder: Path) -> list[dict[str, Any]]:
    """What the agent has logged."""
    return [json.loads(line) for line in (folder / "stderr.log").read_text().splitlines()]


def ran(folder: Path) -> list[str]:
    """Which steps ran hooks, in order."""
    done = folder / "ran"
    return done.read_text().split() if done.exists() else []


def refused(folder: Path) -> str:
    """The one line with which an agent gives up at its start."""
    done = subprocess.run(
        [*AGENT, "--config", str(folder / "agent.toml")], check=False, capture_output=True, text=True, timeout=START_S
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    return line


def is_alive(pid: int) -> bool:
    """Whether that process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pid_of_hook(folder: Path) -> int:
    """The process of the hook that stays in the middle, once it runs."""
    wait_for((folder / "pid").exists)
    return int((folder / "pid").read_text())


def noting(*steps: str) -> str:
    """Hooks that write their step into the file ``ran``."""
    return "\n".join(f"{step} = [{{ shell = 'echo $FOREWARN_STEP >> {{folder}}/ran' }}]" for step in steps)


NOTING = f"""
[[rule]]
name = "noting"
{noting("prepare", "before_approval", "started", "recover", "canceled", "alert")}
"""

# The first run of the hook stays in the middle; the second one succeeds.
STUCK = """
[[rule]]
name = "stuck"
interrupted = "{interrupted}"
prepare = [{ shell = '''
echo $FOREWARN_STEP >> {folder}/ran
if [ ! -e {folder}/pid ]; then echo $$ > {folder}/pid.new; mv {folder}/pid.new {folder}/pid; exec sleep 120; fi
''' }]
recover = [{ shell = 'echo $FOREWARN_STEP >> {folder}/ran' }]
alert = [{ shell = 'echo $FOREWARN_STEP $FOREWARN_REASON >> {folder}/alerts' }]
"""


class Cloud:
    """A running service with one VM, for which maintenance is announced.

    Args:
        service: It.
        folder: With its token.

    Attributes:
        url: Where the VM asks.
    """

    def __init__(self, service: Served, folder: Path) -> None:
        token = (folder / "operator.token").read_text().strip()
        self.url = service.metadata_url
        self._announced: list[str] = []
        # Who has never asked is not told of anything (R67).
        httpx.get(
            f"{self.url}/metadata/scheduledevents?api-version=2020-07-01",
            headers=METADATA,
            trust_env=False,
            timeout=GUARD_S,
        )
        self._operator = httpx.Client(
            base_url=service.control_url, headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=GUARD_S
        )

    def announce(self, notice_s: float = 300) -> str:
        """Announce a freeze; hands back the id of the event."""
        wanted = {"vms": ["vm-1"], "type": "Freeze", "notice_s": notice_s, "force": True, "reason": "test"}
        answer = self._operator.post("/v1/maintenance", json=wanted)
        assert answer.status_code == 201, answer.text
        (made,) = answer.json()["items"]
        self._announced.append(made["id"])
        return str(wait_for(lambda: self._maintenance(made["id"])["events"])[0]["id"])

    def _maintenance(self, id_: str) -> dict[str, Any]:
        told: dict[str, Any] = self._operator.get(f"/v1/maintenance/{id_}").json()
        return told

    def states(self) -> list[str]:
        """Of every maintenance that was announced here and not ended."""
        return [self._maintenance(id_)["state"] for id_ in self._announced]

    def adopt(self, before: Cloud) -> None:
        """Answer for what was announced before the service was started anew."""
        self._announced += before._announced

    def clear(self) -> None:
        """End all maintenance: what has started completes, the rest is cancelled."""
        while self._announced:
            path = f"/v1/maintenance/{self._announced.pop()}"
            # It may start at any moment, and what has started cannot be cancelled.
            if self._operator.post(f"{path}/cancel").status_code != 200:
                answer = self._operator.post(f"{path}/complete")
                assert answer.status_code == 200, answer.text

    def close(self) -> None:
        """Close connections."""
        self._operator.close()


@contextmanager
def announcing(folder: Path, port: int = 0) -> Iterator[Cloud]:
    """A service with its files in that folder."""
    with served(folder, metadata_listen=f"127.0.0.1:{port}") as service:
        cloud = Cloud(service, folder)
        try:
            yield cloud
        finally:
            cloud.close()
