"""Scopes, as operators and their owners see them."""

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
    "hosts": [{"name": "h1"}],
    "scopes": [
        {"name": "gpu", "kind": "scale-set", "fault_domain_count": 1},
        {"name": "idle", "kind": "cloud-service", "labels": {"team": "ops"}},
        {"name": "single", "kind": "standalone"},
        {
            "name": "web",
            "kind": "availability-set",
            "labels": {"team": "shop"},
            "policy": {"approve_freezes_up_to": "10s", "approvers": ["vm:web-0", "operator"]},
        },
    ],
    "vms": [
        {"name": "gpu-0", "host": "h1", "scope": "gpu", "size": "Standard_NC6", "addresses": ["127.0.5.1"]},
        {"name": "gpu-1", "host": "h1", "scope": "gpu", "size": "Standard_NC6", "addresses": ["127.0.5.2"]},
        {"name": "gpu-2", "host": "h1", "scope": "gpu", "size": "Standard_D2", "addresses": ["127.0.5.3"]},
        {"name": "one", "host": "h1", "scope": "single", "addresses": ["127.0.5.4"]},
        {"name": "two", "host": "h1", "scope": "single", "addresses": ["127.0.5.5"]},
        {"name": "web-0", "host": "h1", "scope": "web", "addresses": ["127.0.5.6"]},
        {"name": "web-1", "host": "h1", "scope": "web", "addresses": ["127.0.5.7"]},
    ],
}
POLLED = ("127.0.5.1", "127.0.5.3", "127.0.5.5", "127.0.5.7")
"""A GPU VM, one beside it, a standalone VM, and one of two that share a document."""


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("scopes"), clock="virtual") as started:
        with started.operator() as api:
            answer = api.put("/v1/inventory", json=INVENTORY, params={"remove_missing": True})
            assert answer.status_code == 200, answer.text
            for address in POLLED:
                with started.wire(address) as wire:
                    assert wire.ask(get()).status == 200
        yield started


@pytest.fixture
def api(grouped: Running) -> Iterator[httpx.Client]:
    with grouped.operator() as client:
        yield client


def list_names(api: httpx.Client, **params: str | int) -> list[str]:
    return [each["name"] for each in api.get("/v1/scopes", params=params).json()["items"]]


def test_scopes_are_listed_by_name_in_pages(api: httpx.Client) -> None:
    assert list_names(api) == ["gpu", "idle", "single", "web"]
    page = api.get("/v1/scopes", params={"limit": 2}).json()
    assert (len(page["items"]), page["next"]) == (2, "idle")
    assert list_names(api, limit=2, after="idle") == ["single", "web"]
    assert list_names(api, prefix="s") == ["single"]
    assert list_names(api, selector="team,team!=ops") == ["web"]
    error(api.get("/v1/scopes", params={"selector": "team=,,"}), 400, "invalid_request")


@pytest.mark.parametrize(("name", "count", "enabled"), [("gpu", 3, 2), ("idle", 0, 0), ("single", 2, 1), ("web", 2, 2)])
def test_a_scope_shows_for_how_many_of_its_vms_events_are_enabled(
    api: httpx.Client, name: str, count: int, enabled: int
) -> None:
    """R58, R67."""
    found = api.get(f"/v1/scopes/{name}").json()
    assert (found["vm_count"], found["enabled_vm_count"]) == (count, enabled)
    assert (found["last_polled_at"] is None) is (enabled == 0)
    assert found in api.get("/v1/scopes").json()["items"]


def test_a_scope_shows_its_policy_as_declared_and_in_words(api: httpx.Client) -> None:
    web = api.get("/v1/scopes/web").json()
    assert web["policy"]["approve_freezes_up_to"] == "10s"
    rules = {rule["name"]: rule["text"] for rule in web["rules"] if rule["is_declared"]}
    assert rules == {
        "approvers": "only approvals by operators, VM web-0 count",
        "pauses": "a Freeze by the platform that lasts at most 10s is approved automatically",
    }
    idle = api.get("/v1/scopes/idle").json()
    assert (idle["policy"], [rule for rule in idle["rules"] if rule["is_declared"]]) == (None, [])


def test_a_tenant_sees_its_own_scopes_only(grouped: Running, api: httpx.Client) -> None:
    with tenant(grouped, scopes=["web"], vms=["one"]) as me:
        assert list_names(me) == ["web"]
        assert me.get("/v1/scopes/web").json() == api.get("/v1/scopes/web").json()
        foreign, missing = (me.get(f"/v1/scopes/{name}") for name in ("single", "no-such"))
        assert (
            error(foreign, 404, "not_found")["message"].replace("single", "no-such")
            == error(missing, 404, "not_found")["message"]
        )


def test_commands_show_scopes(
    grouped: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREWARN_CONTROL_URL", grouped.service.control_url)
    monkeypatch.setenv("FOREWARN_TOKEN", grouped.service.tokens.operator_token)

    def run(*words: str) -> str:
        assert run_command_line(words) == 0
        return capsys.readouterr().out

    assert [each["name"] for each in json.loads(run("scope", "list", "-l", "team=ops", "--json"))] == ["idle"]
    assert "1 of 2 VMs" in run("scope", "list", "--prefix", "single")
    listed = run("scope", "list", "--prefix", "web")
    assert all(word in listed for word in ("availability-set", "approvers", "pauses", "team=shop"))
    assert run("scope", "list", "--prefix", "web", "--csv").splitlines()[1].startswith("web,availability-set,2,2,")
    shown = run("scope", "show", "web")
    assert "team=shop" in shown
    assert "only approvals by operators, VM web-0 count" in shown
    assert "none is declared" in run("scope", "show", "idle")
