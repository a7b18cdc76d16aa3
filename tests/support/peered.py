"""Agents of several VMs as real processes, whose preparation ends when a test says so."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.ports import reserve_port
from tests.support.processes import Served, wait_for
from tests.support.spans import GUARD_S

__all__ = ["SECRET", "AgentProcess", "Approval", "approvals", "group_of", "operate", "schedule"]

SECRET = "a secret of more than sixteen bytes"
_STOP_S = GUARD_S
_HOOK = """
touch {here}/began
while [ ! -e {here}/go ]; do sleep 0.01; done
test ! -e {here}/fail
"""


@dataclass(kw_only=True)
class AgentProcess:
    """`python -m forewarn.agent` of one VM.

    Attributes:
        vm: Its name.
        folder: Its files.
        address: Where its peers reach it.
        port: As above.
        endpoint: Where it asks.
        prefix: What stands before its command, such as ``ip netns exec``.
        source_address: Where it asks from.
        peers: URL of every VM of the group.
        together: Settings of the table.
        secret: Its own idea of it.
        has_preparation: Whether its rule prepares anything.
    """

    vm: str
    folder: Path
    address: str
    port: int
    endpoint: str
    prefix: Sequence[str] = ()
    source_address: str = ""
    peers: dict[str, str] = field(default_factory=dict)
    together: dict[str, str] = field(default_factory=dict)
    secret: str = SECRET
    has_preparation: bool = True
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where its peers reach it."""
        return f"http://{self.address}:{self.port}"

    # Its life

    def start(self) -> AgentProcess:
        """Start it, perhaps anew, and wait until it has asked the endpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "secret").write_text(self.secret + "\n")
        (self.folder / "secret").chmod(0o600)
        (self.folder / "agent.toml").write_text(self._configuration())
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "forewarn.agent", "--config", str(self.folder / "agent.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        begun = len(self.lines("watching"))
        wait_for(lambda: len(self.lines("watching")) > begun or self._has_ended())
        assert not self._has_ended(), self.log
        return self

    def _has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it without warning, with the hooks it runs."""
        self.send(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """Let it end, also when it hangs."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        self._wait()

    def _wait(self) -> None:
        if self.process is not None:
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_STOP_S)
            self.process = None

    def _configuration(self) -> str:
        hook = ["sh", "-c", _HOOK.format(here=self.folder)]
        lines = [
            f"endpoint = {json.dumps(self.endpoint)}",
            f"name = {json.dumps(self.vm)}",
            f"source_address = {json.dumps(self.source_address)}",
            f"state_file = {json.dumps(str(self.folder / 'state.json'))}",
            'listen = ""',
            "[[rule]]",
            f"prepare = [{json.dumps(hook)}]" if self.has_preparation else 'approve = "at-once"',
            "[together]",
            'mode = "all-prepared"',
            f"listen = {json.dumps(f'{self.address}:{self.port}')}",
            f"secret_file = {json.dumps(str(self.folder / 'secret'))}",
            *(f"{key} = {json.dumps(value)}" for key, value in self.together.items()),
            "[together.peers]",
            *(f"{json.dumps(name)} = {json.dumps(url)}" for name, url in self.peers.items()),
        ]
        return "\n".join(lines) + "\n"

    # What it does

    def finish_preparing(self, *, has_failed: bool = False) -> None:
        """Let its hook end, and wait until that is on its disk."""
        if has_failed:
            (self.folder / "fail").touch()
        (self.folder / "go").touch()
        wait_for(lambda: self.prepared_at is not None)

    def hold_back(self) -> None:
        """Let the next hook wait again."""
        (self.folder / "go").unlink()

    def forget(self) -> None:
        """Lose the disk."""
        (self.folder / "state.json").unlink()

    # What is known of it

    @property
    def log(self) -> str:
        """What it has logged."""
        path = self.folder / "agent.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def lines(self, part: str) -> list[str]:
        """Lines of the log that hold that text."""
        return [line for line in self.log.splitlines() if part in line]

    @property
    def records(self) -> list[dict[str, Any]]:
        """What it remembers of the events that are there."""
        try:
            records: list[dict[str, Any]] = json.loads((self.folder / "state.json").read_text())["records"]
        except FileNotFoundError:
            return []
        return records

    @property
    def has_begun(self) -> bool:
        """Whether it has seen the event and prepares."""
        return any("prepare" in record["runs"] for record in self.records)

    @property
    def seen_at(self) -> datetime:
        """When it saw the event first."""
        return datetime.fromisoformat(self.records[0]["seen_at"])

    @property
    def prepared_at(self) -> datetime | None:
        """When its preparation came to its end, well or not."""
        ended = [record["runs"].get("prepare", {}).get("ended_at") for record in self.records]
        return datetime.fromisoformat(ended[0]) if ended and ended[0] else None

    def has_heard(self, peer: str, state: str) -> bool:
        """Whether that peer's last word, as far as the log tells, is this one."""
        said = re.findall(rf"peer {re.escape(peer)} reports: (\w+)", self.log)
        return bool(said) and said[-1] == state


@contextmanager
def group_of(
    folder: Path,
    endpoint: str,
    vms: Mapping[str, str],
    together: dict[str, str],
    prefixes: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[list[AgentProcess]]:
    """An agent for each VM, by name and address, not started yet; stopped at the end."""
    agents = [
        AgentProcess(
            vm=name,
            folder=folder / name,
            address=address,
            port=9470 if prefixes else reserve_port(address),
            endpoint=endpoint,
            prefix=(prefixes or {}).get(name, ()),
            source_address="" if prefixes else address,
            together=together,
        )
        for name, address in vms.items()
    ]
    for agent in agents:
        agent.peers = {other.vm: other.url for other in agents}
    try:
        yield agents
    finally:
        for agent in agents:
            (agent.folder / "go").touch() if agent.folder.exists() else None
            agent.stop()


# The service's side


@dataclass(frozen=True)
class Approval:
    """One approval, as the audit log has it."""

    vm: str
    at: datetime


def operate(service: Served, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - any JSON
    """What the control API answers to a GET, or to a POST of that body; also from another network namespace."""
    token = (Path(service.environment["FOREWARN_STATE_DIR"]) / "operator.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    command = [*service.prefix, "curl", "-sS", "--fail", "--noproxy", "*", "--max-time", "60"]
    command += [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    command += [] if body is None else ["-d", json.dumps(body)]
    done = subprocess.run([*command, service.control_url + path], check=True, capture_output=True, timeout=_STOP_S)
    return json.loads(done.stdout)


def schedule(service: Served, *vms: str, notice_s: int = 900) -> str:
    """Announce a maintenance that makes one event of these VMs, once their scope has asked; its id."""
    wait_for(lambda: operate(service, f"/v1/vms/{vms[0]}")["enabled"])
    wanted = {"vms": vms, "type": "Freeze", "notice_s": notice_s, "force": True, "reason": "a test"}
    (maintenance,) = operate(service, "/v1/maintenance", wanted)["items"]
    (event,) = maintenance["events"]
    assert event["resources"] == list(vms)
    return str(maintenance["id"])


def approvals(service: Served, maintenance_id: str) -> list[Approval]:
    """Who approved, in order."""
    entries = operate(service, f"/v1/audit-log?maintenance={maintenance_id}")["items"]
    return [
        Approval(entry["vm"], datetime.fromisoformat(entry["at"])) for entry in entries if entry["kind"] == "approved"
    ]
