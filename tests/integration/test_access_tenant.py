"""A tenant sees and does what concerns its own VMs; anything else does not exist for it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from forewarn.endpoint.request_journal import RequestJournal
from forewarn.wire.exchange import Exchange
from tests.support.access import tenant
from tests.support.control import error
from tests.support.service import Running, Vm, running


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service of its own, in which nobody else's VMs are announced anything."""
    with running(tmp_path_factory.mktemp("apart")) as started:
        yield started


@pytest.fixture
def mine(apart: Running) -> Vm:
    found = apart.vm()
    apart.enable(found)
    return found


@pytest.fixture
def other(apart: Running) -> Vm:
    found = apart.vm()
    apart.enable(found)
    return found


@pytest.fixture
def me(apart: Running, mine: Vm) -> Iterator[httpx.Client]:
    """The owner of one VM."""
    with tenant(apart, vms=[mine.name]) as client:
        yield client


@pytest.fixture
def operator(apart: Running) -> Iterator[httpx.Client]:
    with apart.operator() as client:
        yield client


def schedule(operator: httpx.Client, *vms: Vm, **more: object) -> dict[str, Any]:
    body = {"vms": [vm.name for vm in vms], "type": "Freeze", **more}
    found: dict[str, Any] = operator.post("/v1/maintenance", json=body).json()["items"][0]
    return found


def test_a_tenant_sees_its_own_vms_and_no_host(apart: Running, me: httpx.Client, mine: Vm) -> None:
    page = me.get("/v1/vms").json()
    assert [vm["name"] for vm in page["items"]] == [mine.name]
    assert page["next"] is None
    assert page["items"][0]["host"] is None
    assert me.get(f"/v1/vms/{mine.name}").json()["host"] is None
    assert "host-" not in me.get("/v1/vms").text
    assert me.get("/v1/vms", params={"prefix": mine.name[:-1]}).json() == page
    assert me.get("/v1/vms", params={"prefix": f"{mine.name}-"}).json()["items"] == []
    # Matches would reveal the host.
    refused = error(me.get("/v1/vms", params={"host": f"host-{mine.name}"}), 403, "forbidden")
    assert "may not filter by host" in refused["message"]
    with tenant(apart, scopes=["wide"]) as wide:
        first = wide.get("/v1/vms", params={"limit": 10}).json()
        assert len(first["items"]) == 10, "a page is full, whatever lies between"
        assert all(vm["scope"] == "wide" for vm in first["items"])
        last = wide.get("/v1/vms", params={"limit": 100, "after": first["next"]}).json()
        assert (len(last["items"]), last["next"]) == (20, None)


def test_what_is_foreign_answers_like_what_never_was(me: httpx.Client, operator: httpx.Client, other: Vm) -> None:
    made = schedule(operator, other)
    event = made["events"][0]["id"]
    never = str(uuid.uuid4()).upper()
    pairs = [
        ("GET", "/v1/vms/{}", other.name, "vm-none"),
        ("POST", "/v1/vms/{}/restart", other.name, "vm-none"),
        ("POST", "/v1/vms/{}/redeploy", other.name, "vm-none"),
        ("POST", "/v1/vms/{}/reimage", other.name, "vm-none"),
        ("DELETE", "/v1/vms/{}", other.name, "vm-none"),
        ("GET", "/v1/maintenance/{}", made["id"], "0000000000"),
        ("POST", "/v1/maintenance/{}/cancel", made["id"], "0000000000"),
        ("POST", "/v1/maintenance/{}/defer", made["id"], "0000000000"),
        ("POST", "/v1/maintenance/{}/extend", made["id"], "0000000000"),
    ]
    bodies = {"defer": {"by_s": 3600}, "extend": {"by_s": 60}}
    for method, path, foreign, missing in pairs:
        body = bodies.get(path.rpartition("/")[2])
        answers = [me.request(method, path.format(name), json=body) for name in (foreign, missing)]
        told = [
            json.dumps(error(a, 404, "not_found")).replace(n, "X")
            for a, n in zip(answers, (foreign, missing), strict=True)
        ]
        assert told[0] == told[1], path
    approvals = [me.post("/v1/events/approve", json={"event_ids": [i]}) for i in (event, never)]
    assert [a.status_code for a in approvals] == [404, 404]
    assert approvals[0].text.replace(event, "X") == approvals[1].text.replace(never, "X")
    assert operator.get(f"/v1/maintenance/{made['id']}").json()["events"][0]["approved_at"] is None


def test_of_a_maintenance_of_several_owners_each_sees_its_part(
    me: httpx.Client, operator: httpx.Client, mine: Vm, other: Vm
) -> None:
    made = schedule(operator, mine, other, force=True, reason=f"disk of host-{other.name}", notice_s=600)
    foreign = next(e for e in made["events"] if e["resources"] == [other.name])
    own = next(e for e in made["events"] if e["resources"] == [mine.name])
    operator.post("/v1/events/approve", json={"event_ids": [foreign["id"], own["id"]]})
    shown = me.get(f"/v1/maintenance/{made['id']}").json()
    assert (shown["vms"], shown["hosts"], shown["force_reason"]) == ([mine.name], [], None)
    assert [event["id"] for event in shown["events"]] == [own["id"]]
    assert shown["events"][0]["approved_by"] == "operator"
    listed = me.get("/v1/events", params={"all": True}).json()["items"]
    assert [event["id"] for event in listed] == [own["id"]]
    audit_log = me.get("/v1/audit-log").json()["items"]
    assert {entry["maintenance_id"] for entry in audit_log} == {made["id"], None}
    assert {entry["event_id"] for entry in audit_log} == {own["id"], None}
    assert any(entry["kind"] == "approved" and entry["actor"] == "operator" for entry in audit_log)
    everything = "".join(me.get(path).text for path in ("/v1/maintenance", "/v1/events?all=1", "/v1/audit-log"))
    for word in (other.name, foreign["id"], "host-", "operator:local"):
        assert f'"{word}' not in everything
        assert word not in everything or word == other.name


def test_the_history_of_a_tenant_outlives_the_maintenance(me: httpx.Client, operator: httpx.Client, mine: Vm) -> None:
    made = schedule(operator, mine)
    operator.post(f"/v1/maintenance/{made['id']}/cancel", json={"reason": "not on host-7"})
    assert me.get(f"/v1/maintenance/{made['id']}").json()["state"] == "canceled"
    kinds = [e["kind"] for e in me.get("/v1/audit-log", params={"maintenance": made["id"]}).json()["items"]]
    assert kinds == ["scheduled", "canceled"]
    assert "host-7" not in me.get("/v1/audit-log").text


def test_a_tenant_cancels_what_a_tenant_asked_for_and_nothing_of_the_platform(
    me: httpx.Client, operator: httpx.Client, mine: Vm
) -> None:
    asked = me.post(f"/v1/vms/{mine.name}/restart").json()["items"][0]
    assert (asked["source"], asked["vms"]) == ("User", [mine.name])
    canceled = me.post(f"/v1/maintenance/{asked['id']}/cancel", json={"reason": "tomorrow"})
    assert canceled.json()["state"] == "canceled"
    mine_said = me.get("/v1/audit-log", params={"maintenance": asked["id"]}).json()["items"][-1]
    assert (mine_said["actor"], mine_said["reason"]) == ("tenant:test-tenant", "tomorrow")
    for path, body in (
        ("/v1/maintenance", {"vms": [mine.name], "type": "Freeze"}),
        (f"/v1/vms/{mine.name}/redeploy", {}),
    ):
        made = operator.post(path, json=body).json()["items"][0]
        error(me.post(f"/v1/maintenance/{made['id']}/cancel"), 403, "forbidden")
        operator.post(f"/v1/maintenance/{made['id']}/cancel")


def test_a_tenant_neither_forces_nor_speaks_for_the_platform(me: httpx.Client, mine: Vm) -> None:
    path = f"/v1/vms/{mine.name}/restart"
    error(me.post(path, json={"force": True, "reason": "now", "notice_s": 0}), 403, "forbidden")
    error(me.post(path, json={"source": "Platform"}), 403, "forbidden")
    error(me.post(path, json={"notice_s": 0}), 409, "below_minimum_notice")


def test_a_tenant_approves_its_own_events_and_known_ones_count_beside_foreign_ones(
    me: httpx.Client, operator: httpx.Client, mine: Vm, other: Vm
) -> None:
    made = schedule(operator, mine, other)
    by_vm = {event["resources"][0]: event["id"] for event in made["events"]}
    answer = me.post("/v1/events/approve", json={"event_ids": [by_vm[other.name], by_vm[mine.name]]})
    assert answer.status_code == 207
    assert [item["outcome"] for item in answer.json()["items"]] == ["unknown", "approved"]
    seen = {e["id"]: e["approved_by"] for e in operator.get(f"/v1/maintenance/{made['id']}").json()["events"]}
    assert seen == {by_vm[mine.name]: "tenant:test-tenant", by_vm[other.name]: None}


def test_asking_for_the_requests_of_a_foreign_vm_does_as_much_as_for_one_that_never_was(
    apart: Running, me: httpx.Client, mine: Vm, other: Vm, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = apart.service.journal
    looks: list[str] = []

    def counted(*, vm: str = "", is_visible: Callable[[str], bool] | None = None) -> list[Exchange]:
        looks.append(vm)
        return RequestJournal.list_exchanges(journal, vm=vm, is_visible=is_visible)

    monkeypatch.setattr(journal, "list_exchanges", counted)
    for name in (other.name, "never-was", mine.name):
        me.get("/v1/requests", params={"vm": name}).raise_for_status()
    assert looks == [mine.name]


def test_the_journal_of_requests_has_its_own_vms_only(apart: Running, me: httpx.Client, mine: Vm, other: Vm) -> None:
    items = me.get("/v1/requests", params={"limit": 1000}).json()["items"]
    assert {item["vm"] for item in items} == {mine.name}
    assert me.get("/v1/requests", params={"vm": other.name}).json()["items"] == []


def test_the_stream_tells_its_own_and_ends_when_the_token_is_revoked(
    me: httpx.Client, operator: httpx.Client, mine: Vm, other: Vm
) -> None:
    with me.stream("GET", "/v1/watch") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": watching"
        schedule(operator, other)
        schedule(operator, mine)
        token_id = me.get("/v1/whoami").json()["token_id"]
        assert operator.delete(f"/v1/tokens/{token_id}").status_code == 200
        told = list(lines)
    data = [json.loads(line.removeprefix("data: ")) for line in told if line.startswith("data: ")]
    assert [(entry["kind"], entry["actor"]) for entry in data] == [("scheduled", "operator")]
    assert other.name not in "".join(told)
    assert me.get("/v1/vms").status_code == 401


def test_the_vms_of_a_scope_are_owned_by_who_owns_the_scope(apart: Running, operator: httpx.Client) -> None:
    """R58: a VM in a scope sees the events of all of it, so no one of them has an owner of its own."""
    web = {"name": "web-owner", "role": "tenant"}
    error(operator.post("/v1/tokens", json=web | {"vms": ["Web_0"]}), 400, "invalid_request")
    error(operator.post("/v1/tokens", json=web | {"scopes": ["wbe"]}), 404, "not_found")
    error(operator.post("/v1/tokens", json=web | {"vms": ["vm-none"]}), 404, "not_found")
    apart.enable(apart.web[0])
    with tenant(apart, scopes=["web"]) as owner:
        made = schedule(operator, *apart.web[:1])
        assert owner.get(f"/v1/maintenance/{made['id']}").json()["vms"] == ["Web_0"]
        kinds = {entry["kind"] for entry in owner.get("/v1/audit-log").json()["items"]}
        assert {"enabled", "scheduled"} <= kinds


def test_a_tenant_is_told_the_history_of_its_vms_and_nothing_of_others_in_it(
    me: httpx.Client, operator: httpx.Client, mine: Vm, other: Vm
) -> None:
    made = schedule(operator, mine, other, force=True, reason=f"host-{other.name} smokes", notice_s=800)
    told = me.get(f"/v1/vms/{mine.name}/history")
    (story,) = told.json()["items"]
    assert (story["maintenance_id"], story["vms_count"], story["others_pending"]) == (made["id"], 1, 0)
    assert (story["host"], story["hosts"], story["force_reason"], story["requested_by"]) == ("", [], None, "operator")
    assert other.name not in told.text
    answers = [me.get(f"/v1/vms/{name}/history") for name in (other.name, "vm-none")]
    words = [error(a, 404, "not_found")["message"] for a in answers]
    assert words[0].replace(other.name, "X") == words[1].replace("vm-none", "X")


def test_a_tenant_does_not_find_out_by_choosing_what_it_is_not_shown(
    me: httpx.Client, operator: httpx.Client, mine: Vm, other: Vm
) -> None:
    schedule(operator, mine, other, force=True, reason="smoke", notice_s=800)
    for path in ("/v1/maintenance", "/v1/events", "/v1/audit-log"):
        for hidden in ({"host": f"host-{mine.name}"}, {"actor": "operator:local"}, {"text": "smoke"}):
            error(me.get(path, params=hidden), 403, "forbidden")
        assert me.get(path, params={"vm": other.name}).json()["items"] == []
        assert me.get(path, params={"vm": mine.name}).json()["items"] != []
    for path in ("/v1/maintenance", "/v1/events"):
        error(me.get(path, params={"kind": "approved"}), 403, "forbidden")
    assert [e["kind"] for e in me.get("/v1/audit-log", params={"kind": "scheduled"}).json()["items"]] == ["scheduled"]
