"""The control API over HTTP: tokens, errors, repetition, pages, streams, and what looks after the service."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn.core.model import EntryKind, MaintenanceState
from forewarn.wire.imds import VERSIONS
from tests.support.service import Running, Vm, eventually, running
from tests.support.wire import approval, get, post

UNKNOWN = "00000000-0000-0000-0000-000000000000"
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    """An operator."""
    with service.operator() as operator:
        yield operator


@pytest.fixture
def vm(service: Running) -> Vm:
    """A VM that has asked."""
    vm = service.vm()
    service.enable(vm)
    return vm


def freeze(vm: Vm, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a request
    return {"vms": [vm.name], "type": "Freeze", **more}


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The one shape that every error has (checked), and what stands in it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    body: dict[str, Any] = response.json()["error"]
    assert set(body) == {"code", "message", "details"}
    assert body["code"] == code
    assert isinstance(body["message"], str)
    assert isinstance(body["details"], dict)
    assert "\n" not in body["message"]
    return body


# Tokens


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic TOKEN", "TOKEN", "Bearer TOKENx", "Bearer \xff"])
def test_without_the_token_everything_is_401(service: Running, header: str | None) -> None:
    token = service.service.tokens.operator
    headers = {} if header is None else {"authorization": header.replace("TOKEN", token).strip().encode("latin-1")}
    with httpx.Client(base_url=service.service.control_url, headers=headers, trust_env=False) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, methods in paths.items():
            for method in methods:
                if not path.startswith("/v1/"):
                    continue
                response = client.request(method, path)
                error(response, 401, "unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"
                assert token not in response.text


def test_the_scheme_of_the_token_is_taken_in_any_case(service: Running) -> None:
    headers = {"authorization": f"bearer {service.service.tokens.operator}"}
    assert httpx.get(f"{service.service.control_url}/v1/clock", headers=headers, trust_env=False).status_code == 200


def test_on_loopback_what_looks_after_the_service_needs_no_token(service: Running) -> None:
    with httpx.Client(base_url=service.service.control_url, trust_env=False) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ready"}
        assert client.get("/metrics").status_code == 200


def test_beyond_loopback_what_looks_after_the_service_needs_the_token(tmp_path: Path) -> None:
    with running(tmp_path, control_listen="0.0.0.0:0", insecure=True) as service, service.operator() as api:
        for path in ("/healthz", "/readyz", "/metrics"):
            error(httpx.get(service.service.control_url + path, trust_env=False), 401, "unauthorized")
            assert api.get(path).status_code == 200


# Errors


def test_an_unknown_route_and_a_wrong_method_have_the_shape_of_errors(api: httpx.Client) -> None:
    error(api.get("/nowhere"), 404, "not_found")
    error(api.get("/metadata/scheduledevents"), 404, "not_found")
    response = api.put("/v1/maintenance")
    error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, POST"
    assert api.request("PATCH", "/v1/vms/a").headers["allow"] == "DELETE, GET"


@pytest.mark.parametrize(
    "path", ["/v1/maintenance/none", "/v1/vms/none", "/v1/vms/%00", "/v1/maintenance/%F0%9F%98%80", "/v1/vms/" + "x" * 5000]
)
def test_what_does_not_exist_is_404(api: httpx.Client, path: str) -> None:
    error(api.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"{", "body"),
        (b"\xff", "body"),
        (b"[]", "body"),
        (b"", "body"),
        (b"[" * 100_000, "body"),
        (b'{"vms":["a"]}', "name a type or a cause"),
        (b'{"vms":["a"],"type":"Explode"}', "body.type"),
        (b'{"vms":["a"],"type":"Freeze","more":1}', "body.more"),
        (b'{"vms":[""],"type":"Freeze"}', "body.vms.0"),
        (b'{"vms":["\\ud800"],"type":"Freeze"}', "body.vms.0"),
        (b'{"vms":["a"],"type":"Freeze","notice_s":-1}', "body.notice_s"),
        (b'{"vms":["a"],"type":"Freeze","notice_s":1e999}', "body.notice_s"),
        (b'{"vms":["a"],"type":"Freeze","force":true}', "to force it, give a reason"),
        (b'{"vms":["a"],"type":"Freeze","not_before":"2026-01-01T00:00:00"}', "body.not_before"),
        (b'{"vms":["a"],"type":"Freeze","not_before":"0001-01-01T00:00:00+14:00"}', "body.not_before"),
        (b'{"vms":["a"],"type":"Freeze","not_before":"9999-12-31T23:59:59-14:00"}', "body.not_before"),
    ],
)
def test_a_body_that_does_not_fit_the_schema_is_422_and_says_where(api: httpx.Client, content: bytes, where: str) -> None:
    response = api.post("/v1/maintenance", content=content, headers={"content-type": "application/json"})
    if response.status_code == 400:
        error(response, 400, "bad_request")
        return
    assert where in error(response, 422, "invalid_request")["message"]


@pytest.mark.parametrize("path", ["/v1/ledger", "/v1/maintenance", "/v1/events", "/v1/watch"])
@pytest.mark.parametrize("after", ["x", "-1", "1.5", "٣", "9223372036854775808", "9" * 30])
def test_a_page_that_no_page_named_is_400(api: httpx.Client, path: str, after: str) -> None:
    response = api.get(path, params={"after": after})
    error(response, 400, "invalid_request")


def test_a_limit_below_one_is_422_and_one_above_the_most_is_cut_down(api: httpx.Client) -> None:
    error(api.get("/v1/ledger", params={"limit": 0}), 422, "invalid_request")
    assert api.get("/v1/ledger", params={"limit": 10**30}).status_code == 200


def test_a_body_over_the_limit_is_413_and_is_read_by_its_sender(api: httpx.Client) -> None:
    for size in ((1 << 20) + 1, 8 << 20):
        response = api.post("/v1/maintenance", content=b" " * size)
        assert str(1 << 20) in error(response, 413, "too_large")["message"]
        assert response.headers["connection"] == "close"


def test_what_contradicts_the_state_is_409(api: httpx.Client, vm: Vm) -> None:
    """R71, R77."""
    error(api.post("/v1/maintenance", json=freeze(vm, notice_s=60)), 409, "below_minimum_notice")
    (made,) = api.post("/v1/maintenance", json=freeze(vm)).json()["items"]
    error(api.post(f"/v1/maintenance/{made['id']}/complete"), 409, "conflict")
    assert api.post(f"/v1/maintenance/{made['id']}/cancel").status_code == 200
    error(api.post(f"/v1/maintenance/{made['id']}/cancel"), 409, "conflict")
    error(api.post("/v1/clock/advance", json={"by_s": 1}), 400, "invalid_request")


def test_more_hosts_and_vms_than_are_taken_are_429(tmp_path: Path) -> None:
    with running(tmp_path, request_vms_max=2) as service, service.operator() as api:
        response = api.post("/v1/maintenance", json={"vms": ["vm-1", "vm-2", "vm-3"], "type": "Freeze"})
        assert "request_vms_max" in error(response, 429, "limit_exceeded")["message"]


@pytest.mark.parametrize("content", [b"\xff", b"vms: [", b"- 1", b"", b"5", b'{"vms":[{"name":"\\ud800"}]}', b"a: &a [*a]"])
def test_an_inventory_that_cannot_be_read_is_400_and_says_why(api: httpx.Client, content: bytes) -> None:
    assert error(api.put("/v1/inventory", content=content), 400, "invalid_request")["message"].startswith("inventory: ")


# Repetition


def test_a_change_repeated_under_the_same_key_is_made_once(api: httpx.Client, vm: Vm) -> None:
    headers = {"idempotency-key": f"schedule {vm.name}"}
    first = api.post("/v1/maintenance", json=freeze(vm), headers=headers)
    again = api.post("/v1/maintenance", json=freeze(vm), headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    (made,) = first.json()["items"]
    cancel = {"idempotency-key": f"cancel {vm.name}"}
    canceled = [api.post(f"/v1/maintenance/{made['id']}/cancel", headers=cancel) for _ in range(2)]
    assert [(response.status_code, response.json()["state"]) for response in canceled] == [(200, "canceled")] * 2
    kinds = [entry["kind"] for entry in api.get("/v1/ledger", params={"maintenance": made["id"]}).json()["items"]]
    assert (kinds.count("scheduled"), kinds.count("canceled")) == (1, 1)


def test_a_key_that_came_with_another_request_is_422(api: httpx.Client, service: Running, vm: Vm) -> None:
    headers = {"idempotency-key": f"mixed {vm.name}"}
    assert api.post("/v1/maintenance", json=freeze(vm), headers=headers).status_code == 201
    other = service.vm()
    error(api.post("/v1/maintenance", json=freeze(other), headers=headers), 422, "idempotency_mismatch")
    error(api.post(f"/v1/vms/{other.name}/restart", headers=headers), 422, "idempotency_mismatch")
    error(api.post("/v1/maintenance", json=freeze(vm), headers={"idempotency-key": "x" * 201}), 422, "invalid_request")


def test_a_request_that_failed_may_be_repeated_under_its_key(api: httpx.Client, vm: Vm) -> None:
    headers = {"idempotency-key": f"failed {vm.name}"}
    error(api.post("/v1/maintenance", json=freeze(vm, notice_s=1), headers=headers), 409, "below_minimum_notice")
    assert api.post("/v1/maintenance", json=freeze(vm), headers=headers).status_code == 201


# Pages


@pytest.mark.parametrize(("path", "key"), [("/v1/maintenance", "id"), ("/v1/ledger", "sequence"), ("/v1/events", "id")])
def test_the_pages_of_a_list_are_the_list(api: httpx.Client, service: Running, path: str, key: str) -> None:
    for _ in range(5):
        service.event(service.vm())
    whole = [item[key] for item in api.get(path, params={"limit": 1000}).json()["items"]]
    paged: list[Any] = []
    after: str | None = None
    for _ in range(1000):
        page = api.get(path, params={"limit": 2} | ({"after": after} if after else {})).json()
        assert len(page["items"]) <= 2
        paged += [item[key] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert paged == whole
    assert len(whole) >= 5


# Approving for VMs


def test_approvals_of_an_operator_are_answered_one_by_one_where_they_differ(
    api: httpx.Client, service: Running, vm: Vm
) -> None:
    """X6."""
    event_id = service.event(vm)
    response = api.post("/v1/events/approve", json={"event_ids": [event_id.lower(), UNKNOWN, event_id]})
    assert response.status_code == 207
    assert response.json()["items"] == [
        {"event_id": event_id, "status": 200, "outcome": "approved"},
        {"event_id": UNKNOWN, "status": 404, "outcome": "unknown"},
    ]
    again = api.post("/v1/events/approve", json={"event_ids": [event_id]})
    assert (again.status_code, again.json()["items"][0]["outcome"]) == (200, "unchanged")
    assert api.post("/v1/events/approve", json={"event_ids": [UNKNOWN]}).status_code == 404
    error(api.post("/v1/events/approve", json={"event_ids": []}), 422, "invalid_request")


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


def test_the_stream_tells_each_change_and_resumes_where_it_was_left(api: httpx.Client, service: Running, vm: Vm) -> None:
    newest = api.get("/v1/ledger", params={"newest": True, "limit": 1}).json()["items"][0]["sequence"]
    with api.stream("GET", "/v1/watch") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        event_id = service.event(vm)
        (scheduled, *_rest) = entries(response.iter_lines(), 1)
    assert scheduled["kind"] == "scheduled"
    service.run(service.service.engine.cancel(scheduled["maintenance_id"], actor="operator:test"))
    for headers, params in (({"last-event-id": str(newest)}, {}), ({}, {"after": str(newest)})):
        with api.stream("GET", "/v1/watch", headers=headers, params=params) as response:
            seen = entries(response.iter_lines(), 2)
            assert [entry["kind"] for entry in seen] == ["scheduled", "canceled"]
            assert event_id in {entry["event_id"] for entry in seen} | {event_id}
    with api.stream("GET", "/v1/watch", headers={"last-event-id": str(seen[0]["sequence"])}) as response:
        assert entries(response.iter_lines(), 1) == seen[1:]


def test_a_long_history_is_streamed_whole_and_in_order(api: httpx.Client, service: Running) -> None:
    for _ in range(10):
        service.event(service.vm())
    whole = api.get("/v1/ledger", params={"limit": 1000}).json()["items"]
    with api.stream("GET", "/v1/watch", params={"after": "0"}) as response:
        assert entries(response.iter_lines(), len(whole)) == whole


def test_a_stop_ends_the_streams_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as service, service.operator() as api, api.stream("GET", "/v1/watch") as response:
        service.event(service.vm())
        lines = response.iter_lines()
        entries(lines, 1)
        began = time.monotonic()
        service.do(service.stop)
        assert not any(line.startswith("event: failed") for line in lines)
        assert time.monotonic() - began < 0.9


# What looks after the service


def metrics(api: httpx.Client) -> dict[str, float]:
    response = api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = (line.rpartition(" ") for line in response.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_metrics_count_requests_by_version_and_outcome_on_either_path(api: httpx.Client, service: Running, vm: Vm) -> None:
    before = metrics(api)
    with service.wire(vm) as wire:
        for request in [get("2019-04-01")] * 5 + [get("2019-04-01", 'If-None-Match: "1"'), get("x"), get(metadata=None)]:
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


def test_metrics_tell_of_documents_approvals_ledger_and_maintenances(api: httpx.Client, service: Running, vm: Vm) -> None:
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
        assert f'forewarn_ledger_entries_total{{kind="{kind}"}}' in after
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
    documented = {line.split("`")[1].removesuffix("_total") for line in reference.splitlines() if line.startswith("| `")}
    shown = {
        line.split(" ")[2].removesuffix("_total").removesuffix("_created")
        for line in api.get("/metrics").text.splitlines()
        if line.startswith("# TYPE")
    }
    assert shown == documented


def test_a_store_that_takes_no_changes_makes_the_service_unready_but_not_dead(tmp_path: Path) -> None:
    """GET goes on being answered from memory (invariant 7)."""
    with running(tmp_path) as service, service.operator() as api:
        vm = service.vm()
        event_id = service.event(vm)
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
