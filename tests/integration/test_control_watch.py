"""What looks at the service from outside: the stream of changes, health, metrics, the description of the API."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn.core.model import EntryKind, MaintenanceState
from forewarn.store import SqlStore
from forewarn.wire.imds import VERSIONS
from tests.support.control import error
from tests.support.service import Running, Vm, eventually, running
from tests.support.wire import approval, get, post

ROOT = Path(__file__).parent.parent.parent


# The stream


def entries(lines: Iterator[str], count: int) -> list[dict[str, Any]]:
    """So many entries of the stream; the id of each is its sequence."""
    found: list[dict[str, Any]] = []
    last_id = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            last_id = value
        elif name == "data":
            found.append(json.loads(value))
            assert str(found[-1]["sequence"]) == last_id
            if len(found) == count:
                return found
    pytest.fail("the stream ended")


def test_the_stream_tells_each_change_and_resumes_where_it_was_left(
    api: httpx.Client, service: Running, vm: Vm
) -> None:
    newest = api.get("/v1/audit-log", params={"newest": True, "limit": 1}).json()["items"][0]["sequence"]
    with api.stream("GET", "/v1/watch") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        event_id = service.event(vm)
        (scheduled, *_rest) = entries(response.iter_lines(), 1)
    assert scheduled["kind"] == "scheduled"
    service.run(service.service.engine.maintenances.cancel(scheduled["maintenance_id"], actor="operator:test"))
    resumed: list[list[dict[str, Any]]] = []
    for headers, params in (({"last-event-id": str(newest)}, {}), ({}, {"after": str(newest)})):
        with api.stream("GET", "/v1/watch", headers=headers, params=params) as response:
            resumed.append(entries(response.iter_lines(), 2))
    assert resumed[0] == resumed[1]
    assert [entry["kind"] for entry in resumed[0]] == ["scheduled", "canceled"]
    assert scheduled["event_id"] in {event_id, None}
    with api.stream("GET", "/v1/watch", headers={"last-event-id": str(resumed[0][0]["sequence"])}) as response:
        assert entries(response.iter_lines(), 1) == resumed[0][1:]


def test_a_long_history_is_streamed_whole_and_in_order(api: httpx.Client, service: Running) -> None:
    for _ in range(10):
        service.event(service.vm())
    whole = api.get("/v1/audit-log", params={"limit": 1000}).json()["items"]
    with api.stream("GET", "/v1/watch", params={"after": "0"}) as response:
        assert entries(response.iter_lines(), len(whole)) == whole


def test_a_stop_ends_the_streams_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as service, service.operator() as api, api.stream("GET", "/v1/watch") as response:
        service.event(service.vm())
        lines = response.iter_lines()
        entries(lines, 1)
        service.do(service.stop)
        assert not any(line.startswith("event: failed") for line in lines)


# What looks after the service


def metrics(api: httpx.Client) -> dict[str, float]:
    response = api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = (line.rpartition(" ") for line in response.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_metrics_count_requests_by_version_and_outcome_on_either_path(
    api: httpx.Client, service: Running, vm: Vm
) -> None:
    before = metrics(api)
    with service.wire(vm) as wire:
        for request in [get("2019-04-01")] * 5 + [
            get("2019-04-01", 'If-None-Match: "1"'),
            get("x"),
            get(metadata=None),
        ]:
            wire.ask(request)
        wire.ask(post(b"{", "2017-03-01"))
        after = metrics(api)
        assert after["forewarn_connections"] >= 1

    def grown(version: str, method: str, status: int) -> float:
        name = f'forewarn_requests_total{{method="{method}",status="{status}",version="{version}"}}'
        return after[name] - before.get(name, 0)

    assert grown("2019-04-01", "GET", 200) == 5
    assert grown("2019-04-01", "GET", 304) == 1
    assert grown("other", "GET", 400) == 1
    assert grown("2020-07-01", "GET", 400) == 1
    assert grown("2017-03-01", "POST", 400) == 1


def test_metrics_tell_of_documents_approvals_audit_log_and_maintenances(
    api: httpx.Client, service: Running, vm: Vm
) -> None:
    before = metrics(api)
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        wire.ask(post(approval(event_id)))
    after = metrics(api)
    assert after["forewarn_documents"] == before["forewarn_documents"]
    assert after["forewarn_documents_published_total"] >= before["forewarn_documents_published_total"] + 2
    assert after['forewarn_approvals_total{by="vm"}'] == before['forewarn_approvals_total{by="vm"}'] + 1
    assert after['forewarn_maintenances{state="started"}'] == before['forewarn_maintenances{state="started"}'] + 1
    for state in MaintenanceState:
        assert f'forewarn_maintenances{{state="{state}"}}' in after
    for kind in EntryKind:
        assert f'forewarn_audit_log_entries_total{{kind="{kind}"}}' in after
    for version in VERSIONS:
        assert f'forewarn_requests_total{{method="GET",status="200",version="{version.name}"}}' in after


def test_metrics_tell_how_late_starts_were(tmp_path: Path) -> None:
    with running(tmp_path, clock="virtual") as service, service.operator() as api:
        vm = service.vm()
        service.event(vm)
        assert api.post("/v1/clock/advance", json={"by_s": 3600}).json()["now"] == "2030-01-01T01:00:00Z"
        assert metrics(api)["forewarn_start_lateness_seconds_count"] == 1
        assert metrics(api)['forewarn_start_lateness_seconds_bucket{le="0.005"}'] == 1


def test_every_metric_of_the_reference_is_shown_and_every_shown_one_stands_there(api: httpx.Client) -> None:
    reference = (ROOT / "docs/reference/metrics.md").read_text()
    documented = {
        line.split("`")[1].removesuffix("_total")
        for line in reference.splitlines()
        if line.startswith("| `") and not line.startswith("| `forewarn_endpoint_")  # those are a host's
    }
    shown = {
        line.split(" ")[2].removesuffix("_total").removesuffix("_created")
        for line in api.get("/metrics").text.splitlines()
        if line.startswith("# TYPE")
    }
    assert shown == documented


def hasten(service: Running) -> None:
    """Let the store give up waiting for a lock after a moment."""
    store = service.service.store
    assert isinstance(store, SqlStore)

    def change() -> None:
        assert store._writer is not None
        with store._writer.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            driver.execute("PRAGMA busy_timeout=50")

    service.service._writer.submit(change).result()


def test_a_store_that_takes_no_changes_makes_the_service_unready_but_not_dead(tmp_path: Path) -> None:
    """GET goes on being answered from memory (invariant 7)."""
    with running(tmp_path) as service, service.operator() as api:
        vm = service.vm()
        event_id = service.event(vm)
        hasten(service)
        holder = sqlite3.connect(tmp_path / "forewarn.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            error(api.get("/readyz"), 503, "store_unavailable")
            assert api.get("/healthz").status_code == 200
            with service.wire(vm) as wire:
                assert wire.ask(get()).json["Events"][0]["EventId"] == event_id
                answer = wire.ask(post(approval(event_id)))
                assert (answer.status, answer.json) == (503, {"error": "Service unavailable"})
        finally:
            holder.close()
        assert eventually(lambda: api.get("/readyz").status_code == 200)
        assert not service.is_approved(event_id)


# The description


def test_the_api_describes_itself(api: httpx.Client) -> None:
    document = api.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert list(document["components"]["securitySchemes"]) == ["HTTPBearer"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert bool(operation.get("security")) == path.startswith("/v1/"), path
    assert api.get("/docs").status_code == 200
    assert document == json.loads((ROOT / "docs/reference/openapi.json").read_text())
