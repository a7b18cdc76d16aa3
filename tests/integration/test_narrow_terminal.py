"""What commands print in a terminal of 80 columns, with names as long as people give them: no word is broken."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Running, Vm, running
from tests.support.warm import run_warm

WIDTH = 80
LONG = "a-rather-long-name-that-clouds-make-0123456789abcdef"
SCOPE, HOST, OTHER_HOST = f"scope-{LONG}", f"host-1-{LONG}", f"host-2-{LONG}"
VMS = [Vm(f"vm-{n}-{LONG}", f"127.0.12.{n + 1}") for n in range(3)]
INVENTORY = {
    "hosts": [{"name": HOST, "labels": {"rack": "r1"}}, {"name": OTHER_HOST}],
    "scopes": [{"name": SCOPE, "kind": "availability-set"}],
    "vms": [
        {"name": VMS[0].name, "host": HOST, "scope": SCOPE, "addresses": [VMS[0].address]},
        {"name": VMS[1].name, "host": HOST, "scope": SCOPE, "addresses": [VMS[1].address]},
        {"name": VMS[2].name, "host": OTHER_HOST, "addresses": [VMS[2].address]},
    ],
}
TIME = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(?:\.\d+)?Z")


@dataclass
class Terminal:
    """A terminal of an operator, and the words that must stay whole in it."""

    service: Running
    folder: Path
    words: set[str] = field(default_factory=set)

    def run(self, *arguments: str, columns: int | None = WIDTH) -> str:
        environment = {"FOREWARN_TOKEN": str(self.service.service.tokens.operator_token), "PATH": os.environ["PATH"]}
        environment |= {"FOREWARN_CONTROL_URL": self.service.service.control_url}
        environment |= {} if columns is None else {"COLUMNS": str(columns)}
        status, out, err = run_warm(arguments, environment, folder=self.folder)
        assert status == 0, err
        return out


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "long.json").write_text(json.dumps(INVENTORY))
    with (
        running(folder, inventory=folder / "long.json", clock="virtual", fault_injection=True) as service,
        service.operator() as api,
    ):
        made = Terminal(service, folder)
        service.enable(VMS[0])
        service.enable(VMS[2])

        def send(path: str, **body: object) -> dict[str, Any]:
            answer = api.post(f"/v1/{path}", json=body)
            assert answer.is_success, answer.text
            found: dict[str, Any] = answer.json()
            return found

        wanted = {"type": "Reboot", "description": f"firmware of {HOST}", "reason": f"by {LONG}"}
        [maintenance] = send("maintenance", hosts=[HOST], **wanted)["items"]
        send(f"vms/{VMS[2].name}/restart")
        rollout = send("rollouts", name=f"rollout-{LONG}", cause="host-maintenance", hosts=[OTHER_HOST])
        send("subscriptions", name=f"chat-{LONG}", url=f"http://127.0.0.1:9/{LONG}")
        send("tokens", name=f"ann-{LONG}", role="tenant", scopes=[SCOPE])
        send("faults", kind="no-notice", vms=[VMS[1].name])
        send(f"hosts/{HOST}/tokens")
        send(f"hosts/{OTHER_HOST}/fail", reason=f"the board {LONG} burnt")
        events = [event["id"] for event in api.get("/v1/events", params={"all": True}).json()["items"]]
        made.words = {HOST, OTHER_HOST, SCOPE, LONG, f"chat-{LONG}", f"ann-{LONG}", f"rollout-{LONG}"}
        made.words |= {*(vm.name for vm in VMS), *events, maintenance["id"], rollout["id"]}
        yield made


COMMANDS = [
    "vm list",
    "vm show {vm}",
    "vm history {vm}",
    "host list",
    "host show {host}",
    "host tokens {host}",
    "maintenance list",
    "maintenance show {maintenance}",
    "maintenance schedule --host {host} --type Freeze --dry-run",
    "event list --all",
    "rollout list",
    "rollout show {rollout}",
    "token list",
    "token whoami",
    "subscription list",
    "subscription show {subscription}",
    "fault list",
    "limit list",
    "audit-log",
    "requests",
    "clock show",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_word_is_broken_in_a_terminal_of_80_columns(terminal: Terminal, command: str) -> None:
    with terminal.service.operator() as api:
        maintenance = api.get("/v1/maintenance").json()["items"][-1]["id"]
        rollout = api.get("/v1/rollouts").json()["items"][0]["id"]
    names = {"vm": VMS[0].name, "host": HOST, "subscription": f"chat-{LONG}"}
    arguments = command.format(**names, maintenance=maintenance, rollout=rollout).split()
    shown, whole = terminal.run(*arguments), terminal.run(*arguments, columns=None)
    for word in sorted({*terminal.words, *TIME.findall(whole)}):
        assert shown.count(word) == whole.count(word), word
    for line in shown.splitlines():
        # A word that is longer than the line has one of its own, perhaps behind the name of its field.
        assert len(line) <= WIDTH or max(map(len, line.split())) > WIDTH // 2, line
