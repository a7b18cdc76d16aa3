"""Slips with an inventory are caught: what is cut short, empty or wrong removes nothing."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from structlog.testing import capture_logs

from forewarn.cli.main import run_command_line
from forewarn.config.loading import load_settings
from forewarn.server.service import Service
from tests.support.service import Running, running

pytestmark = pytest.mark.anyio

VMS = 30


def fleet(vms: int = VMS) -> dict[str, Any]:
    return {
        "hosts": [{"name": f"host-{n}"} for n in range(3)],
        "scopes": [{"name": "web", "kind": "availability-set"}],
        "vms": [{"name": f"vm-{n}", "host": f"host-{n % 3}", "addresses": [f"127.8.0.{n + 1}"]} for n in range(vms)],
    }


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("slips")) as started:
        yield started


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    with service.operator() as client:
        client.put("/v1/inventory", json=fleet(), params={"remove_missing": True}).raise_for_status()
        yield client


@pytest.fixture(autouse=True)
def _connected(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_CONTROL_URL", service.service.control_url)
    monkeypatch.setenv("FOREWARN_TOKEN", service.service.tokens.operator_token)


def count(api: httpx.Client) -> int:
    return len(api.get("/v1/inventory").json()["vms"])


def test_an_empty_inventory_removes_nothing_unless_that_is_said(
    api: httpx.Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert run_command_line(["inventory", "apply", "-"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("forewarn: this inventory removes 30 of 30 VMs (vm-0, vm-1, vm-10, ")
    assert "--remove-missing" in said
    assert count(api) == VMS
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert run_command_line(["inventory", "apply", "-", "--remove-missing"]) == 0
    assert count(api) == 0


def test_a_file_that_was_cut_at_the_end_of_a_line_removes_nothing(api: httpx.Client, tmp_path: Path) -> None:
    whole = yaml.safe_dump(fleet(), sort_keys=False)
    file = tmp_path / "inventory.yaml"
    file.write_text(whole[: whole.index("- name: vm-12")])
    assert run_command_line(["inventory", "apply", str(file)]) == 1
    assert count(api) == VMS


def test_a_few_may_be_removed(api: httpx.Client) -> None:
    answer = api.put("/v1/inventory", json=fleet(VMS - 3))
    assert answer.json() == {"added": 0, "changed": 0, "removed": 3, "unchanged": 27}


def test_the_api_refuses_and_says_what_is_missing(api: httpx.Client) -> None:
    answer = api.put("/v1/inventory", json=fleet(VMS - 4))
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["details"]["removed"], error["details"]["of"]) == ("too_many_removals", 4, 30)
    assert error["details"]["names"] == ["vm-26", "vm-27", "vm-28", "vm-29"]
    confirmed = api.put("/v1/inventory", json=fleet(VMS - 4), params={"remove_missing": True})
    assert confirmed.json()["removed"] == 4


def test_a_vm_under_maintenance_stays_whatever_is_said(api: httpx.Client) -> None:
    made = api.post("/v1/maintenance", json={"vms": ["vm-29"], "type": "Reboot", "notice_s": 3600}).json()["items"][0]
    for params in ({}, {"remove_missing": True}):
        answer = api.put("/v1/inventory", json=fleet(VMS - 1), params=params)
        assert answer.status_code == 409
        assert "vm vm-29 is held by maintenance" in answer.json()["error"]["message"]
    found = api.post("/v1/inventory/diff", json=fleet(VMS - 1)).json()
    assert "vm vm-29 is held by maintenance" in found["refusal"]
    verb = "cancel" if made["state"] in {"queued", "scheduled"} else "complete"
    api.post(f"/v1/maintenance/{made['id']}/{verb}").raise_for_status()


def test_a_host_that_suddenly_declares_none_keeps_its_vms(api: httpx.Client) -> None:
    answer = api.put("/v1/hosts/host-1/vms", json={"vms": []})
    assert answer.status_code == 409
    assert "removes 10 of 10 VMs of host host-1 (vm-1, vm-10, " in answer.json()["error"]["message"]
    assert count(api) == VMS
    answer = api.put("/v1/hosts/host-1/vms", json={"vms": []}, params={"remove_missing": True})
    assert answer.json()["removed"] == 10


def test_a_diff_shows_what_would_change_and_changes_nothing(
    api: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = fleet(VMS - 1)
    declared["vms"][0]["host"] = "host-2"
    declared["vms"].append({"name": "new", "host": "host-0"})
    file = tmp_path / "inventory.json"
    file.write_text(json.dumps(declared))
    assert run_command_line(["inventory", "diff", str(file)]) == 4
    assert capsys.readouterr().out == (
        "+ vm new\n~ vm vm-0: host host-0 -> host-2\n- vm vm-29\nvms: 1 added, 1 changed, 1 removed\n"
    )
    assert run_command_line(["inventory", "diff", str(file), "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["vms"]["changed"] == [
        {"name": "vm-0", "fields": [{"field": "host", "before": "host-0", "after": "host-2"}]}
    ]
    assert found["refusal"] is None
    assert api.get("/v1/inventory").json()["vms"][0]["host"] == "host-0"
    assert count(api) == VMS


def test_a_diff_of_what_is_declared_is_empty(
    api: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "inventory.json"
    file.write_text(json.dumps(fleet()))
    assert run_command_line(["inventory", "diff", str(file)]) == 0
    assert capsys.readouterr().out == "nothing would change\n"


def test_a_diff_says_what_would_be_refused(
    api: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "inventory.json"
    file.write_text("{}")
    assert run_command_line(["inventory", "diff", str(file)]) == 4
    said = capsys.readouterr()
    assert said.out.endswith("hosts: 3 removed; scopes: 1 removed; vms: 30 removed\n")
    assert said.err.startswith("the file would be refused: this inventory removes 30 of 30 VMs")


@pytest.mark.parametrize("verb", ["apply", "diff"])
def test_a_fault_names_file_and_line(
    api: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("hosts:\n  - name: host-0\nvms:\n  - name: a\n    host: host-0\n    addresses: [0.0.0.0]\n")
    assert run_command_line(["inventory", verb, str(file)]) == 1
    assert capsys.readouterr().err == (
        f"forewarn: {file}:6: vms[0] (a).addresses[0]: "
        "'0.0.0.0' is the unspecified address, which no VM can call from\n"
    )
    answer = api.put("/v1/inventory", content=file.read_bytes())
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("inventory: line 6: vms[0] (a).addresses[0]: ")
    assert answer.json()["error"]["details"]["line"] == 6


# The file that the service is started with


def started(folder: Path, declared: str) -> Service:
    file = folder / "started.yaml"
    file.write_text(declared)
    return Service(
        load_settings(
            database_url=f"sqlite:///{folder}/started.db",
            state_dir=folder,
            inventory=file,
            metadata_listen="127.0.0.1:0",
            control_listen="127.0.0.1:0",
        )
    )


async def test_a_start_with_a_file_that_removes_much_keeps_what_was_declared_and_says_so(
    tmp_path: Path,
) -> None:
    whole = yaml.safe_dump(fleet())
    async with started(tmp_path, whole).running() as service:
        assert len(list(service.identity.vms)) == VMS
    with capture_logs() as logs:
        async with started(tmp_path, "hosts: []\n").running() as service:
            assert len(list(service.identity.vms)) == VMS
    (said,) = [entry for entry in logs if "the earlier inventory stays in force" in entry["event"]]
    assert said["log_level"] == "warning"
    assert "this inventory removes 30 of 30 VMs" in said["reason"]
    async with started(tmp_path, whole).running() as service:
        assert len(list(service.identity.vms)) == VMS


async def test_a_start_with_a_file_that_cannot_be_read_names_file_and_line(tmp_path: Path) -> None:
    service = started(tmp_path, "hosts:\n  - nam: a\n")
    with pytest.raises(Exception, match=r"started.yaml:2: hosts\[0\].name: Field required"):
        async with service.running():
            pass
