"""Several `forewarn serve` on one PostgreSQL, as real processes that die, are halted, and lose their database."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.store.migrate import HEAD
from tests.support.databases import Database, PostgreSql, postgresql
from tests.support.processes import Served, served, wait_for
from tests.support.spans import GUARD_S
from tests.support.wire import Wire, approval, get, post

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(150)]

INVENTORY = """
hosts: [{name: host-1}]
vms:
  - {name: vm-1, host: host-1, addresses: [127.0.0.11]}
  - {name: vm-2, host: host-1, addresses: [127.0.0.12]}
"""
LEADS = "this replica is the leader"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


@pytest.fixture
def database(server: PostgreSql) -> Iterator[Database]:
    with server.database() as made:
        yield made


class Replicas:
    """Three of them, each with a folder of its own."""

    def __init__(self, folder: Path, url: str, stack: ExitStack, settings: dict[str, str]) -> None:
        self.folder = folder
        self.running: list[Served] = []
        (folder / "inventory.yaml").write_text(INVENTORY)
        for number in range(3):
            mine = folder / str(number)
            mine.mkdir()
            words = ["--database-url", url, "--inventory", str(folder / "inventory.yaml")]
            self.running.append(stack.enter_context(served(mine, *words, settings=settings)))

    def log(self, number: int) -> str:
        return (self.folder / str(number) / "serve.log").read_text()

    def leader(self, *, not_among: tuple[int, ...] = ()) -> int | None:
        """The one that said last that it carries out what is due."""
        found = []
        for number in {0, 1, 2} - set(not_among):
            written = self.log(number).splitlines(keepends=True)
            lines = [json.loads(line) for line in written if line.startswith("{") and line.endswith("}\n")]
            told = [(line["timestamp"], line["event"]) for line in lines if "the leader" in line["event"]]
            if told and told[-1][1] == LEADS:
                found.append((told[-1][0], number))
        return max(found)[1] if found else None

    def ask(self, number: int, vm: int) -> Any:  # noqa: ANN401 - a document
        with self._wire(number, vm) as wire:
            answer = wire.ask(get())
        assert answer.status == 200, answer.body
        return answer.json

    def approve(self, number: int, vm: int, event_id: str) -> int:
        with self._wire(number, vm) as wire:
            return wire.ask(post(approval(event_id))).status

    def _wire(self, number: int, vm: int) -> Wire:
        parts = urlsplit(self.running[number].metadata_url)
        assert parts.hostname is not None
        assert parts.port is not None
        return Wire((parts.hostname, parts.port), f"127.0.0.{10 + vm}")

    def shows(self, number: int, vm: int, status: str) -> bool:
        return [event["EventStatus"] for event in self.ask(number, vm)["Events"]] == [status]

    def audit_log(self, number: int, maintenance_id: str) -> list[str]:
        entries = self.running[number].forewarn("audit-log", "--maintenance", maintenance_id)
        return [entry["kind"] for entry in entries]


@pytest.fixture
def replicas(tmp_path: Path, database: Database) -> Iterator[Replicas]:
    with ExitStack() as stack:
        found = Replicas(
            tmp_path,
            database.url,
            stack,
            {"FOREWARN_SIMULATE_IMPACT_AFTER": "1s", "FOREWARN_SIMULATE_COMPLETE_AFTER": "2s"},
        )
        for number in range(3):
            assert found.ask(number, 1)["Events"] == []
        wait_for(lambda: found.leader() is not None)
        yield found


def test_what_one_is_told_all_show_and_one_carries_out(replicas: Replicas) -> None:
    """R84, invariants 5 and 9."""
    [made] = replicas.running[1].forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
    for number in range(3):
        wait_for(lambda number=number: replicas.shows(number, 1, "Scheduled"))
    documents = [replicas.ask(number, 1) for number in range(3)]
    assert documents[0] == documents[1] == documents[2]
    assert documents[0]["DocumentIncarnation"] == 2
    assert replicas.approve(2, 1, documents[2]["Events"][0]["EventId"]) == 200
    for number in range(3):
        wait_for(lambda number=number: replicas.ask(number, 1) == {"DocumentIncarnation": 4, "Events": []})
    kinds = replicas.audit_log(0, made["id"])
    assert kinds == ["scheduled", "approved", "started", "impacted", "completed"]


def test_a_rollout_that_one_is_told_is_driven_by_another(replicas: Replicas) -> None:
    """The one that drives has had none yet, and hears of this one from the database alone."""
    leader = replicas.leader()
    other = next(number for number in range(3) if number != leader)
    time.sleep(1)  # the leader has looked, and found none
    file = replicas.folder / "kernel.yaml"
    file.write_text("{name: kernel, type: Freeze, duration: 1s, notice: 15m, hosts: [host-1]}")
    replicas.running[other].forewarn("rollout", "start", str(file))
    wait_for(lambda: replicas.shows(other, 1, "Scheduled"))  # vm-2 has never asked
    [event] = replicas.ask(other, 1)["Events"]
    assert replicas.approve(other, 1, event["EventId"]) == 200

    def is_over() -> bool:
        [rollout] = replicas.running[other].forewarn("rollout", "list")
        return bool(rollout["state"] == "completed")

    assert wait_for(is_over)


def test_an_inventory_reaches_all(replicas: Replicas) -> None:
    with replicas._wire(2, 3) as wire:
        assert wire.ask(get()).status == 404
    file = replicas.folder / "more.yaml"
    file.write_text(INVENTORY + "  - {name: vm-3, host: host-1, addresses: [127.0.0.13]}\n")
    replicas.running[0].forewarn("inventory", "apply", str(file))

    def is_known() -> bool:
        with replicas._wire(2, 3) as wire:
            return wire.ask(get()).status == 200

    assert wait_for(is_known)


def test_when_the_one_that_carries_out_is_killed_another_does(replicas: Replicas) -> None:
    [made] = replicas.running[1].forewarn(
        *("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze"),
        *("--notice", "8s", "--force", "--reason", "a test"),
    )
    first = replicas.leader()
    assert first is not None
    replicas.running[first].process.send_signal(signal.SIGKILL)
    other = wait_for(lambda: replicas.leader(not_among=(first,)) is not None) and replicas.leader(not_among=(first,))
    assert other is not None
    wait_for(lambda: replicas.ask(other, 1)["Events"] == [])
    assert replicas.audit_log(other, made["id"]) == ["scheduled", "started", "impacted", "completed"]


def test_one_that_was_halted_acts_no_more_when_it_wakes(replicas: Replicas) -> None:
    """It is halted for longer than its lease lasts, while something falls due."""
    first = replicas.leader()
    assert first is not None
    [made] = replicas.running[first].forewarn(
        *("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze"),
        *("--notice", "3s", "--force", "--reason", "a test"),
    )
    halted = replicas.running[first].process
    halted.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: replicas.leader(not_among=(first,)) is not None)
        other = replicas.leader(not_among=(first,))
        assert other is not None
        wait_for(lambda: replicas.ask(other, 1)["Events"] == [])
    finally:
        halted.send_signal(signal.SIGCONT)
    wait_for(lambda: replicas.ask(first, 1)["Events"] == [])
    time.sleep(1.5)
    assert replicas.leader() == other
    assert replicas.audit_log(first, made["id"]) == ["scheduled", "started", "impacted", "completed"]
    assert replicas.ask(first, 1)["DocumentIncarnation"] == replicas.ask(other, 1)["DocumentIncarnation"] == 4


def test_replicas_go_on_while_the_next_version_migrates(replicas: Replicas, database: Database, tmp_path: Path) -> None:
    """A rolling upgrade: the schema is the next version's, and code of this one runs on, and starts anew on it."""
    [made] = replicas.running[0].forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
    database.migrate_further(HEAD)
    folder = tmp_path / "again"
    folder.mkdir()
    with served(folder, "--database-url", database.url) as again:
        parts = urlsplit(again.metadata_url)
        with Wire((str(parts.hostname), int(parts.port or 0)), "127.0.0.11") as wire:
            [event] = wire.ask(get()).json["Events"]
        assert replicas.approve(2, 1, event["EventId"]) == 200
        wait_for(lambda: replicas.ask(1, 1)["Events"] == [])
    assert replicas.audit_log(0, made["id"]) == ["scheduled", "approved", "started", "impacted", "completed"]


def test_one_that_stops_hands_over(replicas: Replicas) -> None:
    first = replicas.leader()
    assert first is not None
    replicas.running[first].process.send_signal(signal.SIGTERM)
    assert replicas.running[first].process.wait(GUARD_S) == 0
    wait_for(lambda: replicas.leader(not_among=(first,)) is not None)


def test_without_the_database_documents_are_served_and_nothing_is_promised(
    replicas: Replicas, database: Database
) -> None:
    """Invariant 5: no 200 for what is not on disk; invariant 7: a GET needs no database."""
    [made] = replicas.running[1].forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
    wait_for(lambda: replicas.shows(2, 1, "Scheduled"))
    event_id = replicas.ask(2, 1)["Events"][0]["EventId"]
    with database.away():
        assert replicas.shows(2, 1, "Scheduled")
        assert replicas.approve(2, 1, event_id) == 503
    assert wait_for(lambda: replicas.approve(2, 1, event_id) == 200)
    for number in range(3):
        wait_for(lambda number=number: replicas.ask(number, 1)["Events"] == [])
    assert replicas.audit_log(0, made["id"]) == ["scheduled", "approved", "started", "impacted", "completed"]
