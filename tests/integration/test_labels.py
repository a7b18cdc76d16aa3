"""Labels, as operators use them: lists, maintenance and rollouts for the hosts and VMs that a selector selects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forewarn.cli.main import run_command_line
from tests.support.access import tenant
from tests.support.control import error
from tests.support.service import Running, running
from tests.support.wire import get

INVENTORY: dict[str, Any] = {
    "hosts": [
        {"name": "h1", "labels": {"rack": "r1", "model": "x"}},
        {"name": "h2", "labels": {"rack": "r1"}},
        {"name": "h3", "labels": {"rack": "r2"}},
    ],
    "scopes": [{"name": "web", "kind": "availability-set", "labels": {"team": "shop"}}],
    "vms": [
        {"name": "web-0", "host": "h1", "scope": "web", "addresses": ["127.0.0.11"]},
        {"name": "web-1", "host": "h3", "scope": "web", "addresses": ["127.0.0.12"], "labels": {"team": "ops"}},
        {"name": "db", "host": "h2", "addresses": ["127.0.0.13"], "labels": {"rack": "r9"}},
    ],
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("labels"), request_vms_max=2) as started:
        with started.operator() as api:
            answer = api.put("/v1/inventory", json=INVENTORY, params={"remove_missing": True})
            assert answer.status_code == 200, answer.text
        yield started


@pytest.fixture
def api(labelled: Running) -> Iterator[httpx.Client]:
    with labelled.operator() as client:
        yield client


def list_names(api: httpx.Client, path: str, selector: str, **more: str | int) -> list[str]:
    answer = api.get(path, params={"selector": selector, **more})
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", ["db", "web-0", "web-1"]),
        ("rack=r1", ["web-0"]),
        ("rack in (r1,r9)", ["db", "web-0"]),
        ("team=shop", ["web-0"]),
        ("team!=shop", ["db", "web-1"]),
        ("!team", ["db"]),
        ("model,team=shop", ["web-0"]),
        ("rack=r7", []),
    ],
)
def test_vms_are_listed_by_their_labels_and_those_of_scope_and_host(
    api: httpx.Client, selector: str, names: list[str]
) -> None:
    assert list_names(api, "/v1/vms", selector) == names


def test_a_selector_is_one_of_several_filters(api: httpx.Client) -> None:
    assert list_names(api, "/v1/vms", "rack", prefix="web", limit=1) == ["web-0"]
    assert list_names(api, "/v1/vms", "rack", scope="web", after="web-0") == ["web-1"]
    assert list_names(api, "/v1/vms", "rack=r1", host="h3") == []


def test_hosts_are_listed_by_their_labels(api: httpx.Client) -> None:
    assert list_names(api, "/v1/hosts", "rack=r1,!model") == ["h2"]
    assert list_names(api, "/v1/hosts", "rack=r1", limit=1) == ["h1"]
    assert api.get("/v1/hosts/h1").json()["labels"] == {"model": "x", "rack": "r1"}
    assert api.get("/v1/vms/web-1").json()["labels"] == {"team": "ops"}


@pytest.mark.parametrize("path", ["/v1/vms", "/v1/hosts"])
def test_a_malformed_selector_is_refused(api: httpx.Client, path: str) -> None:
    refused = error(api.get(path, params={"selector": "rack=r1,,"}), 400, "invalid_request")
    assert refused["message"].startswith("selector: cannot read ','")
    error(api.get(path, params={"selector": "a" * 1001}), 422, "invalid_request")


def test_a_tenant_learns_nothing_of_hosts_by_their_labels(labelled: Running) -> None:
    with tenant(labelled, scopes=["web"]) as me:
        assert list_names(me, "/v1/vms", "team=shop") == ["web-0"]
        assert list_names(me, "/v1/vms", "rack=r1") == []
        assert list_names(me, "/v1/vms", "!rack") == ["web-0", "web-1"]


def test_a_vm_reads_no_label(labelled: Running) -> None:
    """X7."""
    target = "/metadata/instance?api-version=2021-02-01"
    with labelled.wire("127.0.0.12") as wire:
        answers = [wire.ask(get()).body, wire.ask(get(target)).body]
    assert answers[1].startswith(b"{")
    for answer in answers:
        assert b"ops" not in answer
        assert b"label" not in answer.lower()


def test_maintenance_is_scheduled_for_the_hosts_that_have_the_labels(api: httpx.Client) -> None:
    body = {"selector": "rack=r1", "type": "Freeze"}
    planned = api.post("/v1/maintenance/plan", json=body).json()["items"]
    assert sorted(vm for each in planned for vm in each["vms"]) == ["db", "web-0"]
    made = api.post("/v1/maintenance", json=body).json()["items"]
    assert sorted(vm for each in made for vm in each["vms"]) == ["db", "web-0"]
    for each in made:
        assert api.post(f"/v1/maintenance/{each['id']}/cancel").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"selector": "rack=r7"}, 400, "no host has the labels 'rack=r7'"),
        ({"selector": "rack"}, 429, "selects more than 2 hosts"),
        ({"selector": " "}, 400, "selector is empty"),
        ({"selector": ""}, 422, "selector"),
        ({"selector": "rack=r1", "hosts": ["h1"]}, 422, "not several of them"),
        ({"selector": "rack=", "vms": ["db"]}, 422, "not several of them"),
        ({"selector": "=x"}, 400, "cannot read '=x'"),
    ],
)
def test_a_selector_that_selects_nothing_or_too_much_schedules_nothing(
    api: httpx.Client, body: dict[str, Any], status: int, says: str
) -> None:
    for path in ("/v1/maintenance", "/v1/maintenance/plan"):
        answer = api.post(path, json=body | {"type": "Freeze"})
        assert (answer.status_code, says in answer.text) == (status, True), answer.text


def test_a_rollout_goes_over_the_hosts_that_have_the_labels(api: httpx.Client) -> None:
    spec = {"name": "kernel", "type": "Reboot", "selector": "rack=r1", "canary": {"hosts": ["h2"]}}
    planned = api.post("/v1/rollouts/plan", json=spec).json()
    assert [round_ for batch in planned["batches"] for round_ in batch["rounds"]] == [["h2"], ["h1"]]
    for wrong, says in (
        ({"selector": "rack=r7", "canary": None}, "no working host has the labels 'rack=r7'"),
        ({"selector": "rack=r2"}, "canary: host 'h2' is not among the hosts"),
        ({"hosts": ["h1"]}, "list hosts or give a selector, not both"),
        ({"selector": "rack=r1,"}, "cannot read"),
        ({"selector": None}, "list hosts, or use all, or give a selector"),
    ):
        answer = api.post("/v1/rollouts/plan", json=spec | wrong)
        assert (answer.status_code in {400, 422}, says in answer.text) == (True, True), answer.text
    assert api.post("/v1/hosts/h1/fail").status_code == 201
    try:
        planned = api.post("/v1/rollouts/plan", json=spec | {"canary": None}).json()
        assert [batch["rounds"] for batch in planned["batches"]] == [[["h2"]]], "a failed host is left out"
        # An inventory that is applied again changes labels, and leaves the host failed.
        changed = INVENTORY | {"hosts": [{"name": "h1", "labels": {"rack": "new"}}, *INVENTORY["hosts"][1:]]}
        assert api.put("/v1/inventory", json=changed).json()["changed"] == 0
        host = api.get("/v1/hosts/h1").json()
        assert (host["labels"], host["failed_at"] is None) == ({"rack": "new"}, False)
    finally:
        assert api.put("/v1/inventory", json=INVENTORY).status_code == 200
        assert api.post("/v1/hosts/h1/recover").status_code == 200


def test_what_changes_is_shown_before_it_is_applied(api: httpx.Client) -> None:
    changed = INVENTORY | {"scopes": [{"name": "web", "kind": "availability-set", "labels": {"team": "new"}}]}
    found = api.post("/v1/inventory/diff", json=changed).json()
    [scope] = found["scopes"]["changed"]
    assert scope["fields"] == [{"field": "labels", "before": {"team": "shop"}, "after": {"team": "new"}}]


def test_commands_select(
    labelled: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREWARN_CONTROL_URL", labelled.service.control_url)
    monkeypatch.setenv("FOREWARN_TOKEN", labelled.service.tokens.operator_token)

    def run(*words: str) -> str:
        assert run_command_line(words) == 0
        return capsys.readouterr().out

    assert [vm["name"] for vm in json.loads(run("vm", "list", "-l", "team=shop", "--json"))] == ["web-0"]
    assert run("host", "list", "--selector", "rack=r1,!model", "--csv").splitlines()[1:] == ["h2,db,,,rack=r1"]
    assert "model=x, rack=r1" in run("host", "show", "h1")
    assert "labels" in run("vm", "show", "web-1")
    planned = run("maintenance", "schedule", "-l", "rack=r1,model", "--type", "Freeze", "--dry-run")
    assert "web-0" in planned
    assert "db" not in planned
