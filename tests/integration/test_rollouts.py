"""Rollouts as operators see them: `forewarn rollout` against a real service on virtual time, that is also restarted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.processes import Served, served
from tests.support.spans import GUARD_S
from tests.support.wire import Wire, get

pytestmark = pytest.mark.slow  # whole processes, for seconds

INVENTORY = """
hosts: [{name: h1}, {name: h2}, {name: h3}, {name: h4}, {name: spare}]
scopes: [{name: web, kind: availability-set, fault_domain_count: 3}]
vms:
  - {name: web-0, host: h1, scope: web, fault_domain: 0, addresses: [127.0.0.11]}
  - {name: web-1, host: h2, scope: web, fault_domain: 1, addresses: [127.0.0.12]}
  - {name: db-0, host: h3, addresses: [127.0.0.13]}
  - {name: db-1, host: h4, addresses: [127.0.0.14]}
"""
KERNEL = """
name: kernel
type: Reboot
hosts: all
batch_size: 4
hosts_at_once: 2
canary: {hosts: [spare]}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service for tests that change nothing there."""
    with serving(tmp_path_factory.mktemp("untouched")) as running:
        yield running


def serving(folder: Path, **settings: str) -> Any:  # noqa: ANN401 - a context manager
    (folder / "inventory.yaml").write_text(INVENTORY)
    (folder / "kernel.yaml").write_text(KERNEL)
    variables = {f"FOREWARN_{name.upper()}": value for name, value in settings.items()}
    words = ["--inventory", str(folder / "inventory.yaml"), "--clock", "virtual"]
    return served(folder, *words, settings=variables)


def enable(service: Served) -> None:
    parts = urlsplit(service.metadata_url)
    for number in (1, 2, 3, 4):
        with Wire((str(parts.hostname), int(parts.port or 0)), f"127.0.0.1{number}") as wire:
            assert wire.ask(get()).status == 200


def start(service: Served, folder: Path, content: str = KERNEL) -> str:
    (folder / "kernel.yaml").write_text(content)
    started: dict[str, Any] = service.forewarn("rollout", "start", str(folder / "kernel.yaml"))
    return str(started["id"])


def states(service: Served, rollout: str) -> dict[str, str]:
    shown = service.forewarn("rollout", "show", rollout)
    return {host["name"]: host["state"] for host in shown["hosts"]} | {"": shown["state"]}


def advance(service: Served, span: str) -> None:
    service.forewarn("clock", "advance", span)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(service: Served, tmp_path: Path) -> None:
    enable(service)
    plan = service.forewarn("rollout", "start", str(tmp_path / "kernel.yaml"), "--dry-run")
    assert [batch["rounds"] for batch in plan["batches"]] == [[["spare"]], [["h1", "h3"], ["h2", "h4"]]]
    assert [batch["is_canary"] for batch in plan["batches"]] == [True, False]
    assert (service.forewarn("rollout", "list"), service.forewarn("maintenance", "list")) == ([], [])


def test_hosts_have_their_turn_and_fault_domains_are_never_hit_together(service: Served, tmp_path: Path) -> None:
    enable(service)
    rollout = start(service, tmp_path)
    advance(service, "1m")
    assert states(service, rollout)["spare"] == "started"
    advance(service, "10m")
    found = states(service, rollout)
    assert (found["spare"], found["h1"], found["h3"]) == ("done", "waiting", "waiting")
    assert (found["h2"], found["h4"], found[""]) == ("pending", "pending", "running")
    shown = service.forewarn("rollout", "show", rollout)
    assert (shown["in_flight"], shown["waits_for"]) == (["h1", "h3"], "2 hosts are in flight")
    advance(service, "15m")
    assert states(service, rollout)["h1"] == "started"
    advance(service, "70m")
    assert set(states(service, rollout).values()) == {"done", "completed"}
    ends = {m["hosts"][0]: (m["started_at"], m["ended_at"]) for m in service.forewarn("maintenance", "list")}
    assert ends["h1"][1] <= ends["h2"][0]
    reasons = [e["reason"] for e in service.forewarn("audit-log", "--all") if e["kind"] == "rollout"]
    assert [reason.rpartition("' ")[2] for reason in reasons] == ["started: 5 hosts", "completed"]


def test_it_is_paused_resumed_and_aborted(service: Served, tmp_path: Path) -> None:
    enable(service)
    rollout = start(service, tmp_path)
    advance(service, "12m")
    service.forewarn("rollout", "pause", rollout, "--reason", "somebody called")
    advance(service, "2h")
    found = states(service, rollout)
    assert (found["h1"], found["h3"], found["h2"], found[""]) == ("done", "done", "pending", "paused")
    service.forewarn("rollout", "resume", rollout)
    advance(service, "1m")
    assert states(service, rollout)["h2"] == "waiting"
    service.forewarn("rollout", "abort", rollout, "--yes")
    advance(service, "1m")
    found = states(service, rollout)
    assert (found["h2"], found["h4"], found[""]) == ("skipped", "skipped", "aborted")
    by_host = {m["hosts"][0]: m["state"] for m in service.forewarn("maintenance", "list")}
    assert (by_host["h1"], by_host["h2"]) == ("completed", "canceled")


def test_it_goes_on_from_where_it_was_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        enable(first)
        rollout = start(first, tmp_path)
        advance(first, "12m")
        before = states(first, rollout)
        first.process.kill()
        first.process.wait()
    with serving(tmp_path) as second:
        assert states(second, rollout) == before
        advance(second, "2h")
        assert set(states(second, rollout).values()) == {"done", "completed"}
        assert len(second.forewarn("maintenance", "list")) == 5


def test_a_health_command_is_asked_between_batches(tmp_path: Path) -> None:
    flag = tmp_path / "well"
    content = KERNEL + f"health: {{command: [test, -e, {flag}], timeout: 10s}}\n"
    with serving(tmp_path, health_commands="true") as service:
        enable(service)
        rollout = start(service, tmp_path, content)
        advance(service, "12m")
        shown = service.forewarn("rollout", "show", rollout)
        assert (shown["state"], shown["reason"]) == ("paused", "the health check after batch 1 failed: exit status 1")
        flag.touch()
        service.forewarn("rollout", "resume", rollout)
        advance(service, "1m")
        assert states(service, rollout)["h1"] == "waiting"


def test_commands_are_run_only_where_that_is_allowed(untouched: Served, tmp_path: Path) -> None:
    content = KERNEL + "health: {command: ['true']}\n"
    (tmp_path / "kernel.yaml").write_text(content)
    command = [sys.executable, "-m", "forewarn", "rollout", "start", str(tmp_path / "kernel.yaml")]
    ran = subprocess.run(command, env=untouched.environment, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert ran.stderr == (
        "forewarn: this service runs no health commands: allow them with the setting health_commands\n"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (KERNEL.replace("hosts: all", "hosts: [h1, h9, spare]"), "h9"),
        (KERNEL.replace("hosts: all", "hosts: [h1, h1]"), "h1"),
        (KERNEL.replace("batch_size: 4", "batch_size: none"), "kernel.yaml:5"),
        (KERNEL + "unknown: 1\n", "kernel.yaml:8"),
        ("", "kernel.yaml"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(untouched: Served, tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "kernel.yaml").write_text(content)
    command = [sys.executable, "-m", "forewarn", "rollout", "start", str(tmp_path / "kernel.yaml")]
    ran = subprocess.run(command, env=untouched.environment, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1)
    assert expected in ran.stderr


def test_the_same_request_under_the_same_key_starts_one(service: Served, tmp_path: Path) -> None:
    token = (tmp_path / "operator.token").read_text().strip()
    headers = {"authorization": f"Bearer {token}", "idempotency-key": "once"}
    body = {"name": "kernel", "type": "Reboot", "hosts": "all"}
    with httpx.Client(base_url=service.control_url, headers=headers, timeout=GUARD_S) as client:
        first, again = (client.post("/v1/rollouts", json=body) for _ in range(2))
        assert (first.status_code, first.json()["id"]) == (201, again.json()["id"])
        other = client.post("/v1/rollouts", json=body | {"name": "other"})
        assert other.status_code == 422
    assert len(service.forewarn("rollout", "list")) == 1


def test_following_shows_each_change_and_ends_with_it(service: Served, tmp_path: Path) -> None:
    rollout = start(service, tmp_path, KERNEL.replace("hosts: all", "hosts: [h1, spare]"))
    command = [sys.executable, "-m", "forewarn", "rollout", "show", rollout, "--follow"]
    with subprocess.Popen(command, env=service.environment, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline().startswith("running: 0 of 2 hosts")
        advance(service, "2h")
        rest = follower.stdout.read()
        assert (follower.wait(GUARD_S), rest.splitlines()[-1]) == (0, "completed: 2 of 2 hosts")
