"""Policies, deferrals and extensions through a whole service: control API, metadata endpoint, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.host.control_plane_client import ControlPlaneClient
from tests.support.access import client_of, tenant
from tests.support.control import error
from tests.support.service import Running, running
from tests.support.spans import GUARD_S
from tests.support.wire import Answer, approval, get, post

INVENTORY = """
hosts: [{name: host-1}, {name: host-2}]
scopes:
  - name: web
    kind: availability-set
    policy:
      user_operations_max: 1
      approvers: ["vm:web-0", operator]
      extension: {max: 10m, times: 2}
vms:
  - {name: web-0, host: host-1, scope: web, addresses: [127.0.7.1]}
  - {name: web-1, host: host-1, scope: web, addresses: [127.0.7.2]}
  - {name: db, host: host-2, addresses: [127.0.7.3], policy: {approve_freezes_up_to: 10s}}
  - name: night
    host: host-2
    addresses: [127.0.7.4]
    policy: {quiet_hours: [{from: "01:00", to: "00:00", timezone: UTC}]}
"""
ADDRESSES = {"web-0": "127.0.7.1", "web-1": "127.0.7.2", "db": "127.0.7.3", "night": "127.0.7.4"}


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service on virtual time, whose VMs have all asked once."""
    with running(tmp_path_factory.mktemp("policies"), clock="virtual") as service:
        with service.operator() as api:
            applied = api.put("/v1/inventory?remove_missing=true", content=INVENTORY)
            assert applied.status_code == 200, applied.text
        for address in ADDRESSES.values():
            with service.wire(address) as wire:
                assert wire.ask(get()).status == 200
        yield service


@pytest.fixture
def api(tenants: Running) -> Iterator[httpx.Client]:
    """An operator, who leaves nothing behind."""
    with tenants.operator() as client:
        yield client
        for state in ("scheduled", "started"):
            for each in client.get("/v1/maintenance", params={"state": state}).json()["items"]:
                client.post(f"/v1/maintenance/{each['id']}/{'cancel' if state == 'scheduled' else 'complete'}")


def scheduled(api: httpx.Client, *vms: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a request
    made = api.post("/v1/maintenance", json={"vms": list(vms), "type": "Reboot", **more})
    assert made.status_code == 201, made.text
    item: dict[str, Any] = made.json()["items"][0]
    return item


def now(api: httpx.Client) -> str:
    moment: str = api.get("/v1/clock").json()["now"]
    return moment


def approve(tenants: Running, vm: str, event_id: str) -> Answer:
    with tenants.wire(ADDRESSES[vm]) as wire:
        return wire.ask(post(approval(event_id)))


def document(tenants: Running, vm: str) -> Any:  # noqa: ANN401 - a document
    with tenants.wire(ADDRESSES[vm]) as wire:
        return wire.ask(get()).json


def test_the_inventory_shows_the_policies_that_were_applied(api: httpx.Client) -> None:
    shown = api.get("/v1/inventory").json()
    said = yaml.safe_load(INVENTORY)
    web = shown["scopes"][0]["policy"]
    assert {name: web[name] for name in said["scopes"][0]["policy"]} == said["scopes"][0]["policy"]
    night = next(vm for vm in shown["vms"] if vm["name"] == "night")
    assert night["policy"]["quiet_hours"][0] | {"days": None} == said["vms"][3]["policy"]["quiet_hours"][0] | {
        "days": None
    }
    assert api.put("/v1/inventory", json=shown).json()["unchanged"] == 4


def test_a_maintenance_is_deferred_up_to_its_latest_start_and_once_under_a_key(
    tenants: Running, api: httpx.Client
) -> None:
    """R40, R42."""
    made = scheduled(api, "web-0", latest_start="2030-01-02T00:00:00Z")
    assert made["latest_start"] == "2030-01-02T00:00:00Z"
    incarnation = document(tenants, "web-1")["DocumentIncarnation"]
    url = f"/v1/maintenance/{made['id']}/defer"
    for _ in range(2):
        moved = api.post(url, json={"by_s": 7200, "reason": "not now"}, headers={"Idempotency-Key": made["id"]}).json()
        assert (moved["deferrals"], moved["not_before"]) == (1, "2030-01-01T02:15:00Z")
    shown = document(tenants, "web-1")
    assert shown["DocumentIncarnation"] == incarnation + 1
    assert [event["NotBefore"] for event in shown["Events"]] == ["Tue, 01 Jan 2030 02:15:00 GMT"]
    entries = api.get("/v1/audit-log", params={"maintenance": made["id"]}).json()["items"]
    (entry,) = [each for each in entries if each["kind"] == "deferred"]
    assert (entry["actor"], entry["reason"].endswith(": not now")) == ("operator:local", True)
    assert api.post(url, json={"not_before": "2030-01-01T04:00:00Z"}).json()["deferrals"] == 2
    late = api.post(url, json={"not_before": "2030-01-02T00:00:01Z"})
    assert "latest start" in error(late, 409, "conflict")["message"]
    error(api.post(url, json={}), 422, "invalid_request")
    error(api.post(url, json={"by_s": 1, "not_before": "2030-01-01T04:00:00Z"}), 422, "invalid_request")
    error(api.post("/v1/maintenance/none/defer", json={"by_s": 1}), 404, "not_found")


def test_a_key_of_one_tenant_is_not_a_repetition_for_another_whose_token_has_the_same_name(
    tenants: Running, api: httpx.Client
) -> None:
    """Both have the same actor, and choose the same key for the same change of a maintenance that affects both."""
    made = scheduled(api, "db", "night", latest_start="2030-01-03T00:00:00Z")
    shown = []
    for vm in ("db", "night"):
        word = api.post("/v1/tokens", json={"name": "ci", "role": "tenant", "vms": [vm]}).json()["token"]
        with client_of(tenants, word) as client:
            answer = client.post(
                f"/v1/maintenance/{made['id']}/defer", json={"by_s": 60}, headers={"Idempotency-Key": "monday"}
            )
            assert answer.status_code == 200, answer.text
            shown.append(answer.json())
    assert [each["deferrals"] for each in shown] == [1, 2]
    assert [[event["resources"] for event in each["events"]] for each in shown] == [[["db"]], [["night"]]]


def test_more_time_is_given_as_the_policy_grants(api: httpx.Client) -> None:
    made = scheduled(api, "web-0")
    url = f"/v1/maintenance/{made['id']}/extend"
    moved = api.post(url, json={"by_s": 300, "scope": "web", "reason": "backup"}).json()
    assert (moved["not_before"], moved["extensions"], moved["extended_s"]) == ("2030-01-01T00:20:00Z", 1, 300)
    assert "grants" in error(api.post(url, json={"by_s": 301}), 409, "conflict")["message"]
    error(api.post(url, json={"by_s": 0}), 422, "invalid_request")
    error(api.post(url, json={"by_s": 1, "scope": "db"}), 400, "invalid_request")


def test_a_tenant_puts_off_what_hits_its_vms_and_is_told_nothing_of_others(tenants: Running, api: httpx.Client) -> None:
    made = scheduled(api, "web-0", "night", "db", latest_start="2030-01-02T00:00:00Z", force=True, reason="roof")
    url = f"/v1/maintenance/{made['id']}"
    with tenant(tenants, scopes=["web"], vms=["db"]) as me:
        moved = me.post(f"{url}/defer", json={"by_s": 3600, "reason": "not now"}).json()
        assert (moved["deferrals"], moved["vms"], moved["hosts"]) == (1, ["web-0", "db"], [])
        say = error(me.post(f"{url}/extend", json={"by_s": 60}), 400, "invalid_request")["message"]
        assert say == f"maintenance {made['id']} affects your db, web: name one of them"
        foreign = error(me.post(f"{url}/extend", json={"by_s": 60, "scope": "night"}), 400, "invalid_request")
        never = error(me.post(f"{url}/extend", json={"by_s": 60, "scope": "no-such"}), 400, "invalid_request")
        assert foreign == never
        assert me.post(f"{url}/extend", json={"by_s": 60, "scope": "web"}).json()["extensions"] == 1
    with tenant(tenants, scopes=["web"]) as me:
        assert me.post(f"{url}/extend", json={"by_s": 60}).json()["extensions"] == 2, "there is one only that it can be"
    named = api.post("/v1/tokens", json={"name": "neighbour", "role": "tenant", "vms": ["night"]}).json()["token"]
    with client_of(tenants, named) as neighbour:
        entries = neighbour.get("/v1/audit-log", params={"maintenance": made["id"]}).json()["items"]
        told = [(each["actor"], each["reason"]) for each in entries if each["kind"] in {"deferred", "extended"}]
        assert told == [("tenant", None)] * 3


def test_a_tenant_is_not_told_whose_quiet_hours_are_in_the_way(tenants: Running, api: httpx.Client) -> None:
    made = scheduled(api, "web-0", "night", latest_start="2030-01-01T03:00:00Z")
    url = f"/v1/maintenance/{made['id']}/defer"
    assert "night" in error(api.post(url, json={"by_s": 7200}), 409, "quiet_hours")["message"]
    with tenant(tenants, scopes=["web"]) as me:
        refusal = error(me.post(url, json={"by_s": 7200}), 409, "quiet_hours")
        assert "night" not in refusal["message"]
        assert refusal["details"] == {}


def test_only_the_vm_that_the_policy_names_approves(tenants: Running, api: httpx.Client) -> None:
    """R49, R54, R63: an error of the protocol's own kind, and never a 200 for what is not approved."""
    made = scheduled(api, "web-1")
    event_id = made["events"][0]["id"]
    for _ in range(2):
        answer = approve(tenants, "web-1", event_id)
        assert (answer.status, answer.json) == (400, {"error": "Bad request: . This VM may not approve this event"})
    assert api.get(f"/v1/maintenance/{made['id']}").json()["events"][0]["approved_at"] is None
    assert approve(tenants, "web-0", event_id).status == 200
    assert approve(tenants, "web-1", event_id).status == 200, "it is approved, whoever asks"
    assert api.get(f"/v1/maintenance/{made['id']}").json()["events"][0]["approved_by"] == "vm:web-0"


def test_an_endpoint_on_a_host_passes_the_refusal_on(tenants: Running, api: httpx.Client) -> None:
    event_id = scheduled(api, "web-1")["events"][0]["id"]
    url = tenants.service.control_url
    _, word = tenants.run(tenants.service.engine.tokens.create_host_token("host-1", actor="operator:test"))

    async def pass_on() -> ApprovalResult:
        link = ControlPlaneClient("host-1", [url], word)
        try:
            return await link.approve([event_id], Approver(actor="vm:web-1", vm="web-1"))
        finally:
            await link.close()

    assert asyncio.run(pass_on()) == ApprovalResult(refused=(event_id,))
    body = {"vm": "web-1", "event_ids": [event_id]}
    said = httpx.post(
        f"{url}/v1/hosts/host-1/approvals",
        json=body,
        headers={"authorization": f"Bearer {word}"},
        trust_env=False,
        timeout=GUARD_S,
    ).json()
    assert said == {"unknown": [], "approved": [], "unchanged": [], "refused": [event_id]}


def test_an_operator_whom_a_policy_leaves_out_is_told_so_and_the_others_are_approved(api: httpx.Client) -> None:
    """X6."""
    declared = yaml.safe_load(INVENTORY)
    declared["scopes"][0]["policy"]["approvers"] = ["vm"]
    api.put("/v1/inventory?remove_missing=true", json=declared)
    try:
        mine, other = (scheduled(api, name)["events"][0]["id"] for name in ("web-0", "night"))
        alone = api.post("/v1/events/approve", json={"event_ids": [mine]})
        assert (alone.status_code, alone.json()["items"][0]["outcome"]) == (409, "refused")
        both = api.post("/v1/events/approve", json={"event_ids": [mine, other, "none"]})
        assert both.status_code == 207
        assert [item["outcome"] for item in both.json()["items"]] == ["refused", "approved", "unknown"]
    finally:
        api.put("/v1/inventory?remove_missing=true", content=INVENTORY)


def test_a_freeze_that_a_policy_approves_is_scheduled_first(tenants: Running, api: httpx.Client) -> None:
    (made,) = api.post("/v1/maintenance", json={"vms": ["db"], "type": "Freeze"}).json()["items"]
    assert (made["state"], made["events"][0]["approved_by"]) == ("scheduled", "policy")
    assert [event["EventStatus"] for event in document(tenants, "db")["Events"]] == ["Scheduled"]
    # The VM's own approval is taken over the policy's, and starts it at once.
    assert approve(tenants, "db", made["events"][0]["id"]).status == 200
    shown = api.get(f"/v1/maintenance/{made['id']}").json()
    assert (shown["state"], shown["events"][0]["approved_by"]) == ("started", "vm:db")


def test_quiet_hours_put_a_maintenance_off_and_can_be_forced(api: httpx.Client) -> None:
    assert scheduled(api, "night")["not_before"] == "2030-01-01T00:15:00Z"
    moved = scheduled(api, "night", not_before="2030-01-01T09:00:00Z", cause="platform-redeploy", type="Redeploy")
    assert moved["state"] == "queued", "behind the other one"
    declared = yaml.safe_load(INVENTORY)
    declared["vms"][2]["policy"] = {"quiet_hours": [{"from": "23:00", "to": "02:00", "timezone": "UTC"}]}
    for each in api.get("/v1/maintenance", params={"state": ["scheduled", "queued"]}).json()["items"]:
        api.post(f"/v1/maintenance/{each['id']}/cancel")
    assert api.put("/v1/inventory?remove_missing=true", json=declared).status_code == 200
    try:
        body = {"hosts": ["host-2"], "type": "Reboot"}
        refusal = error(api.post("/v1/maintenance", json=body), 409, "quiet_hours")
        assert refusal["details"] == {"scopes": ["db", "night"]}
        forced = api.post("/v1/maintenance", json=body | {"force": True, "reason": "the roof leaks"}).json()["items"]
        assert forced[0]["not_before"] == "2030-01-01T00:15:00Z"
    finally:
        for each in api.get("/v1/maintenance", params={"state": "scheduled"}).json()["items"]:
            api.post(f"/v1/maintenance/{each['id']}/cancel")
        api.put("/v1/inventory?remove_missing=true", content=INVENTORY)


def test_the_second_user_operation_of_a_scope_is_refused(api: httpx.Client) -> None:
    first = api.post("/v1/vms/web-0/restart").json()["items"][0]
    refusal = error(api.post("/v1/vms/web-1/restart"), 409, "conflict")
    assert refusal["details"] == {"limit": 1, "ids": [first["id"]]}


def test_a_policy_that_makes_no_sense_changes_nothing(api: httpx.Client, tmp_path: Path) -> None:
    before = api.get("/v1/inventory").json()
    wrong = INVENTORY.replace("timezone: UTC", "timezone: Mars/Olympus")
    message = error(api.put("/v1/inventory", content=wrong), 400, "invalid_request")["message"]
    assert "vms[3] (night).policy.quiet_hours[0].timezone: 'Mars/Olympus' is not a time zone" in message
    assert api.get("/v1/inventory").json() == before
