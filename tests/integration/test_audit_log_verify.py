"""`forewarn audit-log verify` and `head`: over the API, and on a database file that nobody serves."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn.cli.main import run_command_line
from forewarn.core.access import Role
from forewarn.store import SqlStore
from tests.conformance.test_store_chain import OPERATOR, note
from tests.support.access import tenant, token_of
from tests.support.control import error
from tests.support.databases import save
from tests.support.service import Running, Vm


def lines(api: httpx.Client, **params: object) -> list[dict[str, Any]]:
    answer = api.get("/v1/audit-log/verify", params=params)  # type: ignore[arg-type] # of any kind
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_the_audit_log_of_a_service_is_whole_and_contains_its_former_heads(api: httpx.Client, vm: Vm) -> None:
    heads = api.get("/v1/audit-log/head").json()["heads"]
    assert [head.split(":")[0] for head in heads] == ["audit", "events"]
    api.post("/v1/maintenance", json={"vms": [vm.name], "type": "Freeze"})
    *_, last = lines(api, head=heads)
    assert last["result"]["findings"] == []
    assert sum(chain["entries"] for chain in last["result"]["chains"]) >= 1
    wrong = heads[0].rpartition(":")[0] + ":" + "0" * 64
    *_, last = lines(api, head=[wrong])
    assert [finding["fault"] for finding in last["result"]["findings"]] == ["head"]


def test_a_head_that_is_none_is_refused(api: httpx.Client) -> None:
    error(api.get("/v1/audit-log/verify", params={"head": "nonsense"}), 400, "invalid_request")


def test_a_tenant_may_not_verify(service: Running, vm: Vm) -> None:
    with tenant(service, vms=[vm.name]) as client:
        for path in ("/v1/audit-log/verify", "/v1/audit-log/head"):
            error(client.get(path), 403, "forbidden")


def test_the_commands_ask_the_service(
    service: Running, vm: Vm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.event(vm)
    monkeypatch.setenv("FOREWARN_CONTROL_URL", service.service.control_url)
    monkeypatch.setenv("FOREWARN_TOKEN", token_of(service, Role.OPERATOR))
    assert run_command_line(["audit-log", "head"]) == 0
    audit, events = capsys.readouterr().out.split()
    assert run_command_line(["audit-log", "verify", "--head", f"{audit},{events}"]) == 0
    assert "no entry was changed, removed or inserted" in capsys.readouterr().out
    assert run_command_line(["audit-log", "--limit", "1"]) == 0, "the command of one word is still there"
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert run_command_line(["audit-log", "verify", "--head", "x"]) == 1
    assert "expected CHAIN:SEQUENCE:HASH" in capsys.readouterr().err


# A file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "forewarn.db"
    with closing(SqlStore(f"sqlite:///{path}")) as store:
        for number in range(1, 10):
            save(store, note(number, OPERATOR if number % 3 == 0 else "tenant:red"))
    return path


def test_a_file_that_nobody_changed_is_whole(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["audit-log", "verify", "--database-url", f"sqlite:///{file}"]) == 0
    shown = capsys.readouterr().out
    assert "no entry was changed, removed or inserted" in shown
    assert "audit:9:" in shown


def test_a_changed_entry_is_named_with_status_1(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE audit_log SET reason = 'nothing' WHERE sequence = 6")
        connection.commit()
    assert run_command_line(["audit-log", "verify", "--database-url", f"sqlite:///{file}"]) == 1
    assert "entry 6 (audit): hash does not match" in capsys.readouterr().out
    assert run_command_line(["audit-log", "verify", "--json", "--database-url", f"sqlite:///{file}"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["sequence"] == 6


def test_a_head_that_cannot_be_read_is_an_error_in_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["audit-log", "verify", "--head", "x", "--database-url", f"sqlite:///{file}"]) == 1
    assert "expected CHAIN:SEQUENCE:HASH" in capsys.readouterr().err


def test_an_older_schema_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
        connection.commit()
    assert run_command_line(["audit-log", "verify", "--database-url", f"sqlite:///{file}"]) == 1
    assert "has schema 0000" in capsys.readouterr().err
