"""One host says over the control API what it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.control import entries, error
from tests.support.service import running
from tests.support.spans import GUARD_S

INVENTORY: dict[str, Any] = {
    "hosts": [{"name": "host-1"}, {"name": "host-2"}],
    "scopes": [{"name": "web", "kind": "availability-set"}],
    "vms": [
        {"name": "web-0", "host": "host-1", "scope": "web", "addresses": ["127.9.0.1"], "size": "D2"},
        {"name": "web-1", "host": "host-2", "scope": "web", "addresses": ["127.9.0.2"]},
    ],
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("declared")
    with running(folder) as service, service.operator() as client:
        yield client


@pytest.fixture(autouse=True)
def _declared(api: httpx.Client) -> None:
    api.put("/v1/inventory?remove_missing=true", json=INVENTORY).raise_for_status()


def vms(api: httpx.Client) -> dict[str, dict[str, Any]]:
    return {vm["name"]: vm for vm in api.get("/v1/inventory").json()["vms"]}


def test_a_move_is_taken_over_and_what_the_host_does_not_know_stays(api: httpx.Client) -> None:
    body = {"vms": [{"name": "web-1", "host": "host-2"}, {"name": "web-0", "host": "host-2", "size": "D4"}]}
    answer = api.put("/v1/hosts/host-2/vms", json=body)
    assert answer.json() == {"added": 0, "changed": 1, "removed": 0, "unchanged": 1}
    moved = vms(api)["web-0"]
    assert (moved["host"], moved["scope"], moved["addresses"], moved["size"]) == ("host-2", "web", ["127.9.0.1"], "D4")


def test_a_host_that_is_new_comes_with_its_vms(api: httpx.Client) -> None:
    answer = api.put("/v1/hosts/host-3/vms", json={"vms": [{"name": "db", "host": "host-3"}]})
    assert answer.json()["added"] == 1
    assert [host["name"] for host in api.get("/v1/hosts").json()["items"]] == ["host-1", "host-2", "host-3"]


def test_what_changes_nothing_is_not_in_the_audit_log(api: httpx.Client) -> None:
    body = {"vms": [{"name": "web-0", "host": "host-1"}]}
    before = entries(api)
    assert api.put("/v1/hosts/host-1/vms", json=body).json()["unchanged"] == 2
    assert entries(api) == before


def test_a_vm_that_a_maintenance_holds_is_removed_when_that_is_over(api: httpx.Client) -> None:
    """R58."""
    made = api.post("/v1/maintenance", json={"vms": ["web-0"], "type": "Reboot", "now": True}).json()["items"][0]
    assert api.put("/v1/hosts/host-1/vms", json={"vms": []}).json()["removed"] == 0
    api.post(f"/v1/maintenance/{made['id']}/complete").raise_for_status()
    assert api.put("/v1/hosts/host-1/vms", json={"vms": []}).json()["removed"] == 1
    assert list(vms(api)) == ["web-1"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"vms": [{"name": "a", "host": "host-2"}]}, 400, "host is 'host-2', but expected"),
        ({"vms": [{"name": "a", "host": "host-1", "scope": "web"}]}, 400, "scope 'web' is not declared"),
        ({"vms": [], "idle": ["a"]}, 400, "idle: 'a' is not one of the VMs"),
        ({"vms": [{"name": "a", "host": "host-1"}] * 2}, 400, "duplicate vm name 'a'"),
        ({"vms": [{"name": "a", "host": "host-1", "addresses": ["127.9.0.2"]}]}, 409, "belongs to vm web-1 on host-2"),
        ({"scopes": [{"name": "web", "kind": "scale-set"}]}, 409, "declares scope web as scale-set"),
        ({"machines": []}, 422, "machines"),
    ],
)
def test_what_contradicts_itself_or_others_changes_nothing(
    api: httpx.Client, body: dict[str, Any], status: int, words: str
) -> None:
    code = "conflict" if status == 409 else "invalid_request"
    assert words in error(api.put("/v1/hosts/host-1/vms", json=body), status, code)["message"]
    assert list(vms(api)) == ["web-0", "web-1"]


# With the host's own token


@pytest.fixture(scope="module")
def host_2(api: httpx.Client) -> Iterator[httpx.Client]:
    """host-2, with a token of its own."""
    api.put("/v1/inventory?remove_missing=true", json=INVENTORY).raise_for_status()
    token = api.post("/v1/hosts/host-2/tokens").json()["token"]
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=api.base_url, headers=headers, trust_env=False, timeout=GUARD_S) as client:
        yield client


WEB_0 = {"name": "web-0", "host": "host-2"}
WEB_1 = {"name": "web-1", "host": "host-2"}


def test_a_host_declares_its_own_vms_with_its_own_token(api: httpx.Client, host_2: httpx.Client) -> None:
    answer = host_2.put("/v1/hosts/host-2/vms", json={"vms": [WEB_1 | {"size": "D4"}, WEB_1 | {"name": "new"}]})
    assert answer.json() == {"added": 1, "changed": 1, "removed": 0, "unchanged": 1}
    assert host_2.put("/v1/hosts/host-2/vms", json={"vms": [WEB_1]}).json()["removed"] == 1
    assert sorted(vms(api)) == ["web-0", "web-1"]
    assert entries(api)[-1]["actor"] == "host:host-2"


def test_it_declares_those_of_no_other_host(api: httpx.Client, host_2: httpx.Client) -> None:
    body = {"vms": [{"name": "web-0", "host": "host-1", "size": "D4"}]}
    message = error(host_2.put("/v1/hosts/host-1/vms", json=body), 403, "forbidden")["message"]
    assert message == "this token belongs to host 'host-2'"
    for path in ("/v1/inventory", "/v1/hosts/host-1/fail"):
        error(host_2.request("PUT" if "inventory" in path else "POST", path, json={}), 403, "forbidden")
    assert vms(api)["web-0"]["size"] != "D4"


def test_it_takes_no_vm_away_from_another_host_and_is_not_told_which(api: httpx.Client, host_2: httpx.Client) -> None:
    """A host that claims another's VM would be shown that VM's documents, and could approve for it."""
    message = error(host_2.put("/v1/hosts/host-2/vms", json={"vms": [WEB_0, WEB_1]}), 409, "conflict")["message"]
    assert "may not take over vm web-0" in message
    assert "host-1" not in message
    assert vms(api)["web-0"]["host"] == "host-1"
    taken = WEB_1 | {"name": "thief", "addresses": ["127.9.0.1"]}
    message = error(host_2.put("/v1/hosts/host-2/vms", json={"vms": [WEB_1, taken]}), 409, "conflict")["message"]
    assert message == "host host-2: address 127.9.0.1 of vm thief belongs to another vm"


def test_what_it_puts_into_a_scope_is_named_in_the_audit_log(api: httpx.Client, host_2: httpx.Client) -> None:
    said = {"vms": [WEB_1, {"name": "thief", "host": "host-2", "scope": "web"}], "scopes": INVENTORY["scopes"]}
    host_2.put("/v1/hosts/host-2/vms", json=said).raise_for_status()
    entry = entries(api)[-1]
    assert entry["actor"] == "host:host-2"
    assert entry["reason"] == "host host-2: 1 added, 0 changed, 0 removed; joined scopes: thief (web)"


def test_where_hosts_may_not_join_scopes_it_joins_none_that_it_runs_no_vm_of(tmp_path: Path) -> None:
    with running(tmp_path, hosts_may_join_scopes=False) as service, service.operator() as operator:
        operator.put("/v1/inventory?remove_missing=true", json=INVENTORY | {"vms": INVENTORY["vms"][:1]})
        token = operator.post("/v1/hosts/host-2/tokens").json()["token"]
        said = {"vms": [WEB_1 | {"scope": "web"}], "scopes": INVENTORY["scopes"]}
        headers = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=operator.base_url, headers=headers, trust_env=False, timeout=GUARD_S) as host:
            message = error(host.put("/v1/hosts/host-2/vms", json=said), 409, "conflict")["message"]
            assert (
                "may not add vm web-1 to scope web, because it runs no other VM of the scope "
                "(hosts_may_join_scopes is off)" in message
            )
            assert list(vms(operator)) == ["web-0"]
            operator.put("/v1/hosts/host-2/vms", json=said).raise_for_status()
            host.put("/v1/hosts/host-2/vms", json=said).raise_for_status()


@pytest.mark.parametrize("kind", ["Freeze", "Redeploy", "Reboot"])
def test_it_takes_over_what_a_maintenance_carries_there_once_it_has_started(
    kind: str, api: httpx.Client, host_2: httpx.Client
) -> None:
    name = f"by-{kind}"
    web_0, moved = {"name": "web-0", "host": "host-1"}, {"name": name, "host": "host-2"}
    api.put("/v1/hosts/host-1/vms", json={"vms": [web_0, {"name": name, "host": "host-1"}]}).raise_for_status()
    asked = {"vms": {name: "2026-01-01T00:00:00Z"}}  # without a client, it would start at once
    api.post("/v1/hosts/host-1/requests", json=asked).raise_for_status()
    body = {"vms": [name], "type": kind, "duration_s": 3600}
    made = api.post("/v1/maintenance", json=body).json()["items"][0]
    body = {"vms": [moved, WEB_1]}
    error(host_2.put("/v1/hosts/host-2/vms", json=body), 409, "conflict")
    api.post(f"/v1/maintenance/{made['id']}/start", json={"reason": "now"}).raise_for_status()
    is_move = kind != "Reboot"
    assert host_2.put("/v1/hosts/host-2/vms", json=body).status_code == (200 if is_move else 409)
    assert vms(api)[name]["host"] == ("host-2" if is_move else "host-1")
    api.post(f"/v1/maintenance/{made['id']}/complete").raise_for_status()


def test_it_takes_over_what_its_other_host_gave_up(api: httpx.Client, host_2: httpx.Client) -> None:
    api.put("/v1/hosts/host-1/vms", json={"vms": []}).raise_for_status()
    assert host_2.put("/v1/hosts/host-2/vms", json={"vms": [WEB_0, WEB_1]}).json()["added"] == 1
    assert vms(api)["web-0"]["host"] == "host-2"
