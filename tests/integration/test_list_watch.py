"""`--watch` of lists: the list, then a line for each change."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from forewarn.core.access import Role
from tests.support.access import token_of
from tests.support.command_line import CommandLine, StartedCommand
from tests.support.service import Running, running
from tests.support.spans import lasts


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("watched")) as started:
        yield started


@pytest.fixture
def cli(service: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(service, monkeypatch, capsys)


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    with service.operator() as client:
        yield client


def schedule(api: httpx.Client, name: str, event_type: str = "Freeze") -> str:
    answer = api.post("/v1/maintenance", json={"vms": [name], "type": event_type, "notice_s": 3600})
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["items"][0]["id"]
    return made


def cells(command: StartedCommand) -> list[str]:
    return command.line().split()


def test_a_watched_list_has_a_line_for_each_change(service: Running, api: httpx.Client, cli: CommandLine) -> None:
    first = schedule(api, service.vm().name, "Reboot")
    command = ("maintenance", "list", "--watch", "--active", "--type", "Reboot")
    with cli.start(*command) as people, cli.start(*command, "--json") as programs:
        listed = json.loads(programs.line())
        assert (listed["change"], listed["item"]["id"]) == ("listed", first)
        assert cells(people)[:4] == ["CHANGE", "ID", "STATE", "TYPE"]
        assert cells(people)[:2] == ["listed", first]
        second = schedule(api, service.vm().name, "Reboot")
        assert cells(people)[:5] == ["added", second, "scheduled", "Reboot", "in"]
        assert json.loads(programs.line()) == {
            "change": "added",
            "item": api.get(f"/v1/maintenance/{second}").json(),
        }
        assert api.post(f"/v1/maintenance/{second}/start", json={"reason": "now"}).status_code == 200
        assert json.loads(programs.line())["change"] == "changed"
        assert cells(people)[:3] == ["changed", second, "started"]
        assert api.post(f"/v1/maintenance/{second}/complete").status_code == 200
        # No longer active: the options do not select it any more.
        assert json.loads(programs.line())["change"] == "removed"
        assert cells(people)[:2] == ["removed", second]
        assert people.interrupt() == programs.interrupt() == 130
        assert people.rest() == programs.rest() == ("", "")


def test_a_tenant_watches_only_what_it_may_see(service: Running, api: httpx.Client, cli: CommandLine) -> None:
    vm, other = service.vm(), service.vm()
    token = token_of(service, Role.TENANT, owns={"vms": [vm.name]})
    theirs = CommandLine(service, cli.monkeypatch, cli.capsys, token)
    with theirs.start("maintenance", "list", "--watch", "--json") as command:
        hidden = schedule(api, other.name)
        shown = schedule(api, vm.name)
        assert json.loads(command.line())["item"]["id"] == shown
        assert command.interrupt() == 130
        assert hidden not in command.rest()[0]


def test_a_watch_ends_with_its_time_out(service: Running, cli: CommandLine) -> None:
    with lasts(0.5):
        assert cli.lines("vm", "list", "--prefix", "Web_1", "-w", "--timeout", "0.5", "-o", "columns=name,host") == [
            "CHANGE  NAME   HOST",
            "listed  Web_1  host-Web_1",
        ]


def test_a_watch_ends_when_its_token_is_revoked(service: Running, api: httpx.Client, cli: CommandLine) -> None:
    made = api.post("/v1/tokens", json={"name": "reader", "role": "read-only"}).json()
    theirs = CommandLine(service, cli.monkeypatch, cli.capsys, made["token"])
    with theirs.start("host", "list", "--watch", "--limit", "1") as command:
        assert cells(command)[0] == "CHANGE"
        assert api.delete(f"/v1/tokens/{made['id']}").status_code == 200
        assert command.end() == 1
        assert "token" in command.rest()[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--watch", "--csv"], "cannot be combined with the format csv"),
        (["--watch", "-o", "yaml"], "cannot be combined with the format yaml"),
        (["--timeout", "1s"], "requires --watch"),
        (["--watch", "--timeout", "soon"], "'soon' is not a span of time"),
    ],
)
def test_what_cannot_be_watched_says_why(cli: CommandLine, options: list[str], message: str) -> None:
    out, err = cli.run("vm", "list", *options, status=2)
    assert out == ""
    assert message in err
