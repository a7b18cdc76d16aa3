"""The real process, killed with SIGKILL again and again under load: what it acknowledged is not lost or repeated."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.load import Load, Remembered, inventory
from tests.support.processes import Served, served, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(120), pytest.mark.timeout(600)]

ROUNDS = 8
ONCE = ("scheduled", "queued", "started", "impacted", "completed")


def read_all(client: httpx.Client, path: str) -> list[dict[str, Any]]:
    """All pages of a list."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = client.get(path, params={"limit": 1000} | ({"after": after} if after else {})).json()
        found += page["items"]
        after = page["next"]
        if after is None:
            return found


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Verdict:
    """The service's own account, held against what its clients were told."""

    def __init__(self, client: httpx.Client) -> None:
        self.entries = read_all(client, "/v1/audit-log")
        self.maintenances = {m["id"]: m for m in read_all(client, "/v1/maintenance")}
        self.by_kind = {kind: [e for e in self.entries if e["kind"] == kind] for kind in (*ONCE, "approved")}

    def check(self, told: Remembered) -> None:
        assert told.faults == []
        assert [e["sequence"] for e in self.entries] == sorted({e["sequence"] for e in self.entries})
        for kind in ONCE:
            counts = Counter(e["maintenance_id"] for e in self.by_kind[kind])
            assert [id_ for id_, count in counts.items() if count > 1] == [], f"{kind} more than once"
        self._check_schedules(told)
        self._check_approvals(told)
        self._check_starts()

    def _check_schedules(self, told: Remembered) -> None:
        """What a 201 acknowledged exists, and whatever was asked exists once at most."""
        by_key = Counter(m["description"] for m in self.maintenances.values())
        assert [key for key, count in by_key.items() if count > 1] == []
        for key, (_, id_) in told.keys.items():
            if id_ is not None:
                assert self.maintenances[id_]["description"] == key

    def _check_approvals(self, told: Remembered) -> None:
        """R49, invariant 5: a 200 means that it is on disk, unless the event had started before."""
        in_audit_log = Counter(e["event_id"] for e in self.by_kind["approved"])
        assert max(in_audit_log.values(), default=1) == 1
        started_at = {e["maintenance_id"]: at(e["at"]) for e in self.by_kind["started"]}
        maintenance_of = {e["id"]: m["id"] for m in self.maintenances.values() for e in m["events"]}
        for event_id, moment in told.approved.items():
            if event_id not in in_audit_log:
                assert started_at[maintenance_of[event_id]] <= moment, f"the approval of {event_id} was lost"

    def _check_starts(self) -> None:
        """Invariant 4."""
        approved = {e["event_id"] for e in self.by_kind["approved"]}
        for m in self.maintenances.values():
            if m["started_at"] is not None and at(m["started_at"]) < at(m["not_before"]):
                assert all(event["id"] in approved for event in m["events"]), f"{m['id']} started early"

    def check_order(self, down_from: float, ready_at: float) -> int:
        """What fell due while nobody was there started in the order in which it fell due; says how many that were.

        A maintenance that left the queue at the start is not among them: it follows the end of the one before it, and
        that end may have fallen due earlier than anything else.
        """
        approved = {e["event_id"] for e in self.by_kind["approved"]}
        announced_at = {e["maintenance_id"]: at(e["at"]) for e in self.by_kind["scheduled"]}
        late = [
            m
            for m in (self.maintenances[e["maintenance_id"]] for e in self.by_kind["started"])
            if announced_at[m["id"]] <= down_from < at(m["not_before"]) < ready_at
        ]
        late = [m for m in late if not all(event["id"] in approved for event in m["events"])]
        moments = [at(m["not_before"]) for m in late if at(m["started_at"]) >= ready_at - 5]
        assert moments == sorted(moments)
        return len(late)


def client_of(service: Served, folder: Path) -> httpx.Client:
    token = (folder / "operator.token").read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=service.control_url, headers=headers, timeout=60, trust_env=False)


def test_nothing_acknowledged_is_lost_or_done_twice_however_often_the_process_is_killed(tmp_path: Path) -> None:
    """R42, R49, R84; invariants 3 to 6 of the design."""
    (tmp_path / "inventory.json").write_text(inventory())
    told = Remembered()
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    settings = ["--set", "simulate_impact_after=0.1s", "--set", "simulate_complete_after=0.4s"]
    arguments = ["--inventory", str(tmp_path / "inventory.json"), *settings]
    killed_at = time.time()  # noqa: TID251 - what was before it and what after
    late = 0
    for number in range(ROUNDS):
        with served(tmp_path, *arguments) as service, client_of(service, tmp_path) as client:
            ready_at = time.time()  # noqa: TID251 - as above
            verdict = Verdict(client)
            verdict.check(told)
            late += verdict.check_order(killed_at, ready_at)
            load = Load(
                service.metadata_url, service.control_url, client.headers["authorization"][7:], told, seed + number
            )
            load.start()
            time.sleep(rng.uniform(0.2, 2.5))
            wait_for(lambda least=number: len(told.approved) > least and len(told.keys) > least)
            service.process.send_signal(signal.SIGKILL)
            service.process.wait()
            killed_at = time.time()  # noqa: TID251 - what was before it and what after
            load.stop()
    with served(tmp_path, *arguments) as service, client_of(service, tmp_path) as client:
        verdict = wait_for(lambda: _ended(client), pause_s=0.2)
    verdict.check(told)
    for _, id_ in told.keys.values():
        if id_ is not None:
            assert verdict.maintenances[id_]["state"] == "completed"
    assert len(told.approved) >= ROUNDS, "clients approved"
    assert len(verdict.maintenances) >= ROUNDS, "operators scheduled"
    assert late > 0, "some fell due while the process was down"


def _ended(client: httpx.Client) -> Verdict | None:
    verdict = Verdict(client)
    active = {"queued", "scheduled", "started"}
    return None if any(m["state"] in active for m in verdict.maintenances.values()) else verdict
