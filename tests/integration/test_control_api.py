"""The control API over HTTP: tokens, the one shape of errors, repetition, pages, approvals for VMs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.control import entries, error
from tests.support.service import Running, Vm, running
from tests.support.spans import GUARD_S

UNKNOWN = "00000000-0000-0000-0000-000000000000"


def freeze(vm: Vm, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a request
    return {"vms": [vm.name], "type": "Freeze", **more}


# Tokens


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic TOKEN", "TOKEN", "Bearer TOKENx", "Bearer \xff"]
)
def test_without_the_token_everything_is_401(service: Running, header: str | None) -> None:
    token = service.service.tokens.operator_token
    sent = {} if header is None else {b"authorization": header.replace("TOKEN", token).strip().encode("latin-1")}
    with httpx.Client(base_url=service.service.control_url, headers=sent, trust_env=False, timeout=GUARD_S) as client:
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
    headers = {"authorization": f"bearer {service.service.tokens.operator_token}"}
    assert (
        httpx.get(
            f"{service.service.control_url}/v1/clock", headers=headers, trust_env=False, timeout=GUARD_S
        ).status_code
        == 200
    )


def test_on_loopback_what_looks_after_the_service_needs_no_token(service: Running) -> None:
    with httpx.Client(base_url=service.service.control_url, trust_env=False, timeout=GUARD_S) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ready"}
        assert client.get("/metrics").status_code == 200


def test_beyond_loopback_what_looks_after_the_service_needs_the_token(tmp_path: Path) -> None:
    with running(tmp_path, control_listen="0.0.0.0:0", insecure=True) as service, service.operator() as api:
        for path in ("/healthz", "/readyz", "/metrics"):
            error(httpx.get(service.service.control_url + path, trust_env=False, timeout=GUARD_S), 401, "unauthorized")
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
    "path",
    ["/v1/maintenance/none", "/v1/vms/none", "/v1/vms/%00", "/v1/maintenance/%F0%9F%98%80", "/v1/vms/" + "x" * 5000],
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
        (b'{"vms":["a"],"type":"Freeze","force":true}', "force requires a reason"),
        (b'{"vms":["a"],"type":"Freeze","not_before":"2026-01-01T00:00:00"}', "body.not_before"),
        (b'{"vms":["a"],"type":"Freeze","not_before":"0001-01-01T00:00:00+14:00"}', "body.not_before"),
        (b'{"vms":["a"],"type":"Freeze","not_before":"9999-12-31T23:59:59-14:00"}', "body.not_before"),
    ],
)
def test_a_body_that_does_not_fit_the_schema_is_422_and_says_where(
    api: httpx.Client, content: bytes, where: str
) -> None:
    response = api.post("/v1/maintenance", content=content, headers={"content-type": "application/json"})
    if response.status_code == 400:
        error(response, 400, "bad_request")
        return
    assert where in error(response, 422, "invalid_request")["message"]


@pytest.mark.parametrize("path", ["/v1/audit-log", "/v1/maintenance", "/v1/events", "/v1/watch"])
@pytest.mark.parametrize("after", ["x", "-1", "1.5", "٣", "9223372036854775808", "9" * 30])
def test_a_page_that_no_page_named_is_400(api: httpx.Client, path: str, after: str) -> None:
    response = api.get(path, params={"after": after})
    error(response, 400, "invalid_request")


def test_a_limit_below_one_is_422_and_one_above_the_most_is_cut_down(api: httpx.Client) -> None:
    error(api.get("/v1/audit-log", params={"limit": 0}), 422, "invalid_request")
    assert api.get("/v1/audit-log", params={"limit": 10**30}).status_code == 200


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


@pytest.mark.parametrize(
    "content", [b"\xff", b"vms: [", b"- 1", b"", b"5", b'{"vms":[{"name":"\\ud800"}]}', b"a: &a [*a]"]
)
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
    kinds = [entry["kind"] for entry in api.get("/v1/audit-log", params={"maintenance": made["id"]}).json()["items"]]
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


@pytest.mark.parametrize(
    ("path", "key"), [("/v1/maintenance", "id"), ("/v1/audit-log", "sequence"), ("/v1/events", "id")]
)
def test_the_pages_of_a_list_are_the_list(api: httpx.Client, service: Running, path: str, key: str) -> None:
    for _ in range(5):
        service.event(service.vm())

    def whole() -> list[Any]:
        answer = api.get(path, params={"limit": 1000}).json()
        assert answer["next"] is None
        return [item[key] for item in answer["items"]]

    before, paged = whole(), []
    after: str | None = None
    for _ in range(1000):
        page = api.get(path, params={"limit": 2} | ({"after": after} if after else {})).json()
        assert len(page["items"]) <= 2
        paged += [item[key] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
    later = whole()  # what other tests began may have gone on meanwhile
    assert [each for each in paged if each in before] == before
    assert [each for each in later if each in paged] == paged
    assert len(before) >= 5


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


@pytest.mark.parametrize("path", ["/v1/vms", "/v1/hosts"])
def test_vms_and_hosts_come_in_pages_by_name(api: httpx.Client, service: Running, path: str) -> None:
    names: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = api.get(path, params={"limit": "100", **after}).json()
        assert 0 < len(page["items"]) <= 100
        names += [item["name"] for item in page["items"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert names == sorted(set(names))
    inventory = api.get("/v1/inventory").json()
    assert names == sorted(item["name"] for item in inventory[path.removeprefix("/v1/")])


def test_advancing_the_clock_under_one_key_moves_it_once(tmp_path: Path) -> None:
    with running(tmp_path, clock="virtual") as service, service.operator() as api:
        headers = {"idempotency-key": "a quarter"}
        first = api.post("/v1/clock/advance", json={"by_s": 900}, headers=headers).json()
        assert api.post("/v1/clock/advance", json={"by_s": 900}, headers=headers).json() == first
        error(api.post("/v1/clock/advance", json={"by_s": 901}, headers=headers), 422, "idempotency_mismatch")
        assert api.post("/v1/clock/advance", json={"by_s": 900}).json() != first


# What would be


def test_what_would_be_announced_is_told_and_nothing_is_done(service: Running) -> None:
    vm = service.vm()
    service.enable(vm)
    with service.operator() as api:
        before = entries(api)
        planned = api.post("/v1/maintenance/plan", json=freeze(vm, duration_s=9))
        assert planned.status_code == 200, planned.text
        (item,) = planned.json()["items"]
        assert (item["state"], item["would_be"], item["dry_run"]) == ("planned", "scheduled", True)
        assert not {"id", "request_id", "created_at"} & item.keys()
        assert [event["resources"] for event in item["events"]] == [[vm.name]]
        assert "id" not in item["events"][0]
        assert item["unwarned_vms"] == []
        assert entries(api) == before
        made = api.post("/v1/maintenance", json=freeze(vm, duration_s=9)).json()["items"][0]
        assert (made["type"], made["duration_s"], made["notice_s"]) == (item["type"], 9, item["notice_s"])


def test_who_is_not_warned_is_named_by_the_preview_the_answer_and_the_maintenance(service: Running) -> None:
    """R70a, R70c."""
    vm = service.vm()
    with service.operator() as api:
        (item,) = api.post("/v1/maintenance/plan", json=freeze(vm, notice_s=7200)).json()["items"]
        assert (item["would_be"], item["unwarned_vms"], item["events"]) == ("scheduled", [vm.name], [])
        (made,) = api.post("/v1/maintenance", json=freeze(vm, notice_s=7200)).json()["items"]
        assert (made["state"], made["unwarned_vms"], made["notice_s"]) == ("scheduled", [vm.name], 7200)
        service.enable(vm)
        shown = api.get(f"/v1/maintenance/{made['id']}").json()
        assert (shown["unwarned_vms"], shown["not_before"]) == ([], made["not_before"])
        assert [event["status"] for event in shown["events"]] == ["Scheduled"], "it asks now, and is shown what waits"


def test_the_preview_of_what_would_wait_names_who_would_not_be_warned(service: Running) -> None:
    """R70c."""
    asking, silent = service.vm(), service.vm()
    service.enable(asking)
    wanted = {"vms": [asking.name, silent.name], "cause": "live-migration", "notice_s": 7200}
    with service.operator() as api:
        assert api.post("/v1/maintenance", json=wanted).status_code == 201
        (item,) = api.post("/v1/maintenance/plan", json=wanted).json()["items"]
        assert (item["would_be"], item["unwarned_vms"]) == ("queued", [silent.name])


def test_now_starts_what_nobody_is_warned_of_and_is_refused_otherwise(service: Running) -> None:
    """R70a."""
    silent, asking = service.vm(), service.vm()
    service.enable(asking)
    with service.operator() as api:
        (made,) = api.post("/v1/maintenance", json=freeze(silent, now=True)).json()["items"]
        assert (made["state"], made["unwarned_vms"]) == ("started", [silent.name])
        error(api.post("/v1/maintenance", json=freeze(asking, now=True)), 409, "below_minimum_notice")
        error(api.post("/v1/maintenance", json=freeze(asking, now=True, notice_s=900)), 422, "invalid_request")
        forced = api.post("/v1/maintenance", json=freeze(asking, now=True, force=True, reason="fire")).json()["items"]
        assert [each["state"] for each in forced] == ["started"]


def test_what_would_be_refused_is_refused_when_it_is_only_asked(service: Running) -> None:
    vm = service.vm()
    service.enable(vm)
    with service.operator() as api:
        error(api.post("/v1/maintenance/plan", json=freeze(vm, notice_s=1)), 409, "below_minimum_notice")
        error(api.post("/v1/maintenance/plan", json={"hosts": ["none"], "type": "Freeze"}), 404, "not_found")
