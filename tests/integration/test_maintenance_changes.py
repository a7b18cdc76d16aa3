"""`forewarn maintenance approve`, `cancel`, `start` and `retry`, of several maintenances at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from forewarn.core.access import Role
from tests.support.access import token_of
from tests.support.command_line import CommandLine
from tests.support.service import Running, Vm, running


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("several")) as started:
        yield started


@pytest.fixture
def cli(service: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(service, monkeypatch, capsys)


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    with service.operator() as client:
        yield client


@pytest.fixture
def vms(service: Running) -> list[Vm]:
    found = [service.vm() for _ in range(3)]
    for vm in found:
        service.enable(vm)
    return found


def schedule(api: httpx.Client, vm: Vm, **more: object) -> str:
    body = {"vms": [vm.name], "type": "Freeze", "notice_s": 3600, "duration_s": 600} | more
    answer = api.post("/v1/maintenance", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["items"][0]["id"])


def state(api: httpx.Client, maintenance_id: str) -> str:
    return str(api.get(f"/v1/maintenance/{maintenance_id}").json()["state"])


def test_several_ids_have_a_result_each(api: httpx.Client, cli: CommandLine, vms: list[Vm]) -> None:
    ids = [schedule(api, vm) for vm in vms]
    out, err = cli.run("maintenance", "cancel", *ids[:2], "nope", "--yes", status=1)
    assert out.splitlines() == [f"maintenance {each} is canceled" for each in ids[:2]]
    assert "maintenance nope: " in err
    assert err.endswith("forewarn: 1 of 3 maintenances could not be canceled\n")
    assert [state(api, each) for each in ids] == ["canceled", "canceled", "scheduled"]


def test_one_id_needs_no_confirmation(api: httpx.Client, cli: CommandLine, vms: list[Vm]) -> None:
    only = schedule(api, vms[0])
    assert cli.lines("maintenance", "start", only, "--reason", "now") == [f"maintenance {only} is started"]
    canceled = schedule(api, vms[1])
    assert cli.json("maintenance", "cancel", canceled)["state"] == "canceled"


def test_without_a_terminal_several_need_yes(api: httpx.Client, cli: CommandLine, vms: list[Vm]) -> None:
    ids = [schedule(api, vm) for vm in vms[:2]]
    _, err = cli.run("maintenance", "cancel", *ids, status=2)
    assert "pass --yes" in err
    _, err = cli.run("maintenance", "cancel", "--vm", vms[0].name, status=2)
    assert "pass --yes" in err
    assert [state(api, each) for each in ids] == ["scheduled", "scheduled"]


def test_a_dry_run_shows_what_filters_select_and_changes_nothing(
    api: httpx.Client, cli: CommandLine, vms: list[Vm]
) -> None:
    first, second = schedule(api, vms[0]), schedule(api, vms[1])
    started = schedule(api, vms[2])
    assert api.post(f"/v1/maintenance/{started}/start", json={"reason": "now"}).status_code == 200
    lines = cli.lines("maintenance", "cancel", "--host", f"host-{vms[0].name}", "--dry-run")
    assert lines[0].startswith(f"  {first}  scheduled: Freeze of {vms[0].name}, not before ")
    assert lines[1] == "dry run: 1 maintenance would be canceled; nothing was changed"
    assert [m["id"] for m in cli.json("maintenance", "cancel", "--all", "--dry-run")][-2:] == [first, second]
    assert state(api, first) == "scheduled"


def test_filters_select_what_is_changed(api: httpx.Client, cli: CommandLine, vms: list[Vm]) -> None:
    first, other = schedule(api, vms[0]), schedule(api, vms[1])
    [result] = cli.json("maintenance", "cancel", "--vm", vms[0].name, "--yes")
    assert (result["id"], result["result"]["state"], result["error"]) == (first, "canceled", None)
    assert state(api, other) == "scheduled"
    assert cli.run("maintenance", "cancel", "--vm", vms[0].name, "--yes") == ("", "no maintenance to cancel\n")


def test_all_events_of_a_maintenance_are_approved(api: httpx.Client, cli: CommandLine, vms: list[Vm]) -> None:
    made = schedule(api, vms[0])
    assert cli.lines("maintenance", "approve", made) == [f"maintenance {made} is started: 1 event approved"]
    assert cli.lines("maintenance", "approve", made) == [f"maintenance {made} is started: no event needs approval"]


def test_a_tenant_changes_only_its_own(service: Running, api: httpx.Client, cli: CommandLine, vms: list[Vm]) -> None:
    own, other = schedule(api, vms[0]), schedule(api, vms[1])
    token = token_of(service, Role.TENANT, owns={"vms": [vms[0].name]})
    theirs = CommandLine(service, cli.monkeypatch, cli.capsys, token)
    assert theirs.lines("maintenance", "approve", "--all", "--yes") == [
        f"maintenance {own} is started: 1 event approved"
    ]
    _, err = theirs.run("maintenance", "approve", other, status=1)
    assert "does not exist" in err or "no maintenance" in err
    assert state(api, other) == "scheduled"


def test_what_did_not_happen_is_scheduled_again(api: httpx.Client, cli: CommandLine, vms: list[Vm]) -> None:
    was = schedule(api, vms[0], type="Reboot", impact="Freeze", description="new kernel", notice_s=7200)
    assert "is scheduled: only a failed or canceled one" in cli.run("maintenance", "retry", was, status=1)[1]
    cli.run("maintenance", "cancel", was)
    [line] = cli.lines("maintenance", "retry", was)
    new = line.removeprefix(f"maintenance {was} is scheduled again as ").partition(" ")[0]
    before, after = (api.get(f"/v1/maintenance/{each}").json() for each in (was, new))
    names = ("vms", "hosts", "type", "impact", "cause", "source", "description", "duration_s", "notice_s")
    assert {name: after[name] for name in names} == {name: before[name] for name in names}
    assert after["state"] == "scheduled"


@pytest.mark.parametrize(
    "options",
    [[], ["k3v9xq2mab", "--all"], ["k3v9xq2mab", "--vm", "db"], ["--vm", "db", "--all"]],
)
def test_what_to_change_is_named_in_one_way(cli: CommandLine, options: list[str]) -> None:
    out, err = cli.run("maintenance", "cancel", *options, "--yes", status=2)
    assert out == ""
    assert "give ids, or filters such as --host, or --all" in err


def test_too_many_are_refused(
    api: httpx.Client, cli: CommandLine, vms: list[Vm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forewarn.cli.maintenance_changes.SELECTED_MAX", 1)
    ids = [schedule(api, vm) for vm in vms[:2]]
    assert "select more than 1" in cli.run("maintenance", "cancel", "--all", "--yes", status=2)[1]
    assert [state(api, each) for each in ids] == ["scheduled", "scheduled"]


def test_json_has_the_error_of_each(api: httpx.Client, cli: CommandLine, vms: list[Vm]) -> None:
    made = schedule(api, vms[0])
    out, _ = cli.run("maintenance", "cancel", made, "nope", "--yes", "--json", status=1)
    done, failed = json.loads(out)
    assert done["result"]["state"] == "canceled"
    assert (failed["result"], failed["error"]["code"]) == (None, "not_found")
