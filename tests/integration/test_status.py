"""The status of the service: what it knows of itself, and the same list of troubles as the dashboard's overview."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn import __version__
from forewarn.cli.main import run_command_line
from forewarn.core.access import Role
from forewarn.errors import StoreUnavailable
from tests.support.access import client_of, tenant, token_of
from tests.support.control import error
from tests.support.databases import postgresql
from tests.support.service import Running, eventually, running
from tests.support.spans import GUARD_S


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, clock="virtual") as started:
        yield started


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    with service.operator() as client:
        yield client


def show(api: httpx.Client) -> dict[str, Any]:
    answer = api.get("/v1/status")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run(service: Running, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setenv("FOREWARN_CONTROL_URL", service.service.control_url)
    monkeypatch.setenv("FOREWARN_TOKEN", service.service.tokens.operator_token)
    monkeypatch.setenv("COLUMNS", "200")
    return run_command_line(["status", *words])


def test_a_service_without_troubles_is_well(
    service: Running, api: httpx.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = show(api)
    assert (found["is_well"], found["version"], found["problems"], found["attention"]) == (True, __version__, [], [])
    assert found["replicas"] | {"up_s": 0} == {"role": "single", "name": None, "leader": None, "count": None, "up_s": 0}
    assert found["database"] == {"kind": "sqlite", "is_writable": True}
    assert found["inventory"] == {"hosts": 433, "scopes": 2, "vms": 433}
    assert found["maintenances"] == {"queued": 0, "scheduled": 0, "started": 0}
    assert found["rollouts"] == {"planned": 0, "running": 0, "paused": 0, "aborting": 0}
    assert found["endpoints"] == {"connected": 0, "oldest_s": None, "newest_s": None}
    assert run(service, monkeypatch) == 0
    shown = capsys.readouterr().out
    for text in ("version", "single", "433 hosts, 2 scopes, 433 VMs", "takes changes", "\n\nall is well"):
        assert text in shown, shown


def test_what_needs_attention_is_what_the_overview_lists(
    service: Running, api: httpx.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = service.web[0], service.vm()
    service.enable(one)
    service.schedule(one)
    spec = {"name": "kernel", "type": "Reboot", "hosts": [f"host-{service.wide[0].name}"], "notice_s": 86400}
    assert api.post("/v1/rollouts", json=spec).status_code == 201
    assert api.post(f"/v1/hosts/host-{other.name}/fail", json={"reason": "power supply"}).status_code == 201
    assert api.post("/v1/clock/advance", json={"by_s": 840}).status_code == 200
    assert eventually(lambda: show(api)["rollouts"]["running"] == 1)
    found = show(api)
    assert found["is_well"] is False
    kinds = [(each["kind"], each["problem"]) for each in found["attention"]]
    assert ("host", "failed") in kinds
    assert any(kind == "maintenance" for kind, _ in kinds)
    assert found["attention_count"] == len(found["attention"])
    url = service.service.control_url
    with httpx.Client(base_url=url, follow_redirects=True, trust_env=False, timeout=GUARD_S) as browser:
        form = {"token": service.service.tokens.operator_token}
        assert browser.post("/login", data=form, headers={"origin": url}).is_success
        page = browser.get("/")
        for each in found["attention"]:
            row = f"failed-{each['id']}" if each["kind"] == "host" else f"trouble-{each['id']}"
            assert f'id="{row}"' in page.text, row
    assert run(service, monkeypatch) == 1
    shown = capsys.readouterr().out
    assert "power supply" in shown
    assert f"Needs attention: {found['attention_count']}" in shown
    assert run(service, monkeypatch, "--json") == 1
    assert json.loads(capsys.readouterr().out)["is_well"] is False


def test_endpoints_are_counted_with_the_age_of_their_connection(service: Running, api: httpx.Client) -> None:
    token = token_of(service, Role.HOST, host="host-Web_0")
    with client_of(service, token) as client, client.stream("GET", "/v1/hosts/host-Web_0/watch"):
        assert eventually(lambda: show(api)["endpoints"]["connected"] == 1)
        found = show(api)["endpoints"]
        assert found["oldest_s"] == found["newest_s"] >= 0
    assert eventually(lambda: show(api)["endpoints"]["connected"] == 0)


def test_a_database_that_takes_no_changes_is_a_problem(
    service: Running, api: httpx.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse() -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(service.service.context, "check_ready", refuse)
    found = show(api)
    assert (found["is_well"], found["database"]["is_writable"]) == (False, False)
    assert found["problems"] == [{"name": "store_unavailable", "text": "the disk is full"}]
    assert run(service, monkeypatch) == 1
    assert "the disk is full" in capsys.readouterr().out


def test_a_damaged_database_is_a_problem_and_the_answer_comes_all_the_same(service: Running, api: httpx.Client) -> None:
    # As a read that finds it; that would log an error as well.
    service.do(lambda: setattr(service.service.store, "_damage", "malformed page"))
    found = show(api)
    assert found["problems"][0]["name"] == "store_unavailable"
    assert "restore" in found["problems"][0]["text"]


def test_a_service_that_cannot_be_reached_ends_the_command_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_CONTROL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FOREWARN_TOKEN", "x")
    assert run_command_line(["status"]) == 3


def test_a_tenant_gets_no_status_and_a_reader_does(service: Running) -> None:
    with tenant(service, scopes=["web"]) as me:
        error(me.get("/v1/status"), 403, "forbidden")
    with client_of(service, token_of(service, Role.READ_ONLY)) as reader:
        assert show(reader)["is_well"] is True


@pytest.mark.slow
def test_replicas_name_their_leader_and_are_counted(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with (
        postgresql() as server,
        server.database() as database,
        running(folders[0], database_url=database.url) as one,
        running(folders[1], database_url=database.url) as two,
        one.operator() as first,
        two.operator() as second,
    ):
        assert eventually(lambda: show(first)["replicas"]["count"] == 2)
        assert eventually(lambda: show(second)["replicas"]["leader"] is not None)
        found = [show(api)["replicas"] for api in (first, second)]
        assert sorted(each["role"] for each in found) == ["follower", "leader"]
        [leader] = [each["name"] for each in found if each["role"] == "leader"]
        assert [each["leader"] for each in found] == [leader, leader]
        assert show(first)["database"] == {"kind": "postgresql", "is_writable": True}
