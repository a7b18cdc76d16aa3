"""Services that die in the middle of deliveries: nothing is lost, and what comes twice has the same id."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.databases import Database, PostgreSql, postgresql
from tests.support.processes import Served, served, wait_for
from tests.support.receiver import Got, Receiver, receiver
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VMS = 30
INVENTORY = "hosts: [{name: host-1}]\nvms:\n" + "".join(
    f"  - {{name: vm-{n}, host: host-1, addresses: [127.0.3.{n + 1}]}}\n" for n in range(VMS)
)
WANTED = {"scheduled", "started", "completed"}
SETTINGS = {
    "FOREWARN_SIMULATE_IMPACT_AFTER": "0s",
    "FOREWARN_SIMULATE_COMPLETE_AFTER": "1s",
    "FOREWARN_NOTIFY_RETRY": "200ms",
    "FOREWARN_NOTIFY_RETRY_MAX": "2s",
    # With a process for VMs a service delivers before it is ready, and would have delivered all before it is killed.
    "FOREWARN_METADATA_PROCESS": "shared",
}


def client_of(service: Served, folder: Path) -> httpx.Client:
    token = (folder / "operator.token").read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=service.control_url, headers=headers, timeout=GUARD_S, trust_env=False)


def ask(service: Served) -> None:
    """Every VM asks once, so that it is announced to."""
    for n in range(VMS):
        transport = httpx.HTTPTransport(local_address=f"127.0.3.{n + 1}")
        with httpx.Client(transport=transport, trust_env=False, timeout=GUARD_S) as vm:
            path = "/metadata/scheduledevents?api-version=2020-07-01"
            assert vm.get(f"{service.metadata_url}{path}", headers={"Metadata": "true"}).status_code == 200


def schedule(api: httpx.Client) -> None:
    for n in range(VMS):
        body = {"vms": [f"vm-{n}"], "type": "Freeze", "notice_s": 0, "force": True, "reason": "test"}
        assert api.post("/v1/maintenance", json=body).status_code == 201


def complete(hook: Receiver) -> bool:
    """Whether every VM's whole life was told."""
    kinds: dict[str, set[str]] = {}
    for got in list(hook.taken):
        if got.kind.startswith("event."):
            kinds.setdefault(got.event["subject"], set()).add(got.kind.removeprefix("event."))
    return len(kinds) == VMS and all(found >= WANTED for found in kinds.values())


def check_repeats(hook: Receiver, secret: str) -> None:
    """What came twice is the same, byte by byte; and nothing was told that has another id."""
    bodies: dict[str, bytes] = {}
    for got in hook.got:
        assert bodies.setdefault(got.id, got.body) == got.body
        assert got.headers["webhook-id"] == got.id
    pairs = {(body_of["subject"], body_of["type"]) for body_of in (got.event for got in hook.got)}
    assert len(bodies) == len(pairs)
    hook.taken[-1].verify(secret)


class Killer:
    """Lets some through, then has somebody killed while the receiver holds a request."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.kill: Any = None
        self.killed = 0

    def __call__(self, _got: Got) -> int | str:
        self.after -= 1
        if self.after <= 0 and self.kill is not None:
            kill, self.kill = self.kill, None
            kill()
            self.killed += 1
        return 204


def test_nothing_is_lost_when_the_service_is_killed_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    arguments = ("--inventory", str(tmp_path / "inventory.yaml"))
    killer = Killer(1 << 30)
    secret = ""
    with receiver(killer) as hook:
        for turn in range(4):
            with served(tmp_path, *arguments, settings=SETTINGS) as service:
                killer.after, killer.kill = 7 + turn, lambda s=service: s.process.send_signal(signal.SIGKILL)
                with client_of(service, tmp_path) as api:
                    if turn == 0:
                        ask(service)
                        made = api.post("/v1/subscriptions", json={"name": "chat", "url": hook.url})
                        secret = made.json()["secret"]
                        body = {"vms": [f"vm-{n}" for n in range(VMS)], "type": "Freeze", "notice_s": 0}
                        made = api.post("/v1/maintenance", json=body | {"force": True, "reason": "test"})
                        assert made.status_code in {201, 200}
                if turn < 3:
                    wait_for(lambda: service.process.poll() is not None)
                else:
                    killer.kill = None
                    wait_for(lambda: complete(hook), 120)
        assert killer.killed == 3
        check_repeats(hook, secret)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


@pytest.fixture
def database(server: PostgreSql) -> Iterator[Database]:
    with server.database() as made:
        yield made


def test_another_replica_goes_on_when_the_one_that_delivers_is_killed(tmp_path: Path, database: Database) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    killer = Killer(1 << 30)
    with receiver(killer) as hook, ExitStack() as stack:
        replicas = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            words = ["--database-url", database.url, "--inventory", str(tmp_path / "inventory.yaml")]
            replicas.append((stack.enter_context(served(folder, *words, settings=SETTINGS)), folder))
        apis = [stack.enter_context(client_of(*each)) for each in replicas]
        leaders = wait_for(lambda: [n for n in (0, 1) if _leads(apis[n])])
        first, second = leaders[0], 1 - leaders[0]
        ask(replicas[second][0])
        made = apis[second].post("/v1/subscriptions", json={"name": "chat", "url": hook.url})
        killer.after, killer.kill = 20, lambda: replicas[first][0].process.send_signal(signal.SIGKILL)
        schedule(apis[second])
        wait_for(lambda: complete(hook), 180)
        assert killer.killed == 1
        assert _leads(apis[second])
        check_repeats(hook, made.json()["secret"])
        assert apis[second].get("/v1/subscriptions/chat").json()["waiting"] == 0


def _leads(api: httpx.Client) -> bool:
    return "forewarn_leader 1.0" in api.get("/metrics").text
