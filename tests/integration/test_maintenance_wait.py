"""`forewarn maintenance wait`, and its exit statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from forewarn.cli.maintenance_wait import MISSED, TIMED_OUT
from tests.support.command_line import CommandLine
from tests.support.service import Running, running
from tests.support.spans import lasts


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("waits")) as started:
        yield started


@pytest.fixture
def cli(service: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(service, monkeypatch, capsys)


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    with service.operator() as client:
        yield client


@pytest.fixture
def made(service: Running, api: httpx.Client) -> str:
    answer = api.post("/v1/maintenance", json={"vms": [service.vm().name], "type": "Freeze", "notice_s": 3600})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["items"][0]["id"])


def test_a_command_waits_until_the_stage_is_reached(cli: CommandLine, api: httpx.Client, made: str) -> None:
    with (
        cli.start("maintenance", "wait", made, "--for", "started") as starting,
        cli.start("maintenance", "wait", made) as ending,
    ):
        assert starting.line() == ending.line() == f"maintenance {made} is scheduled"
        assert api.post(f"/v1/maintenance/{made}/start", json={"reason": "now"}).status_code == 200
        assert starting.line() == ending.line() == f"maintenance {made} is started"
        assert starting.end() == 0
        assert api.post(f"/v1/maintenance/{made}/complete").status_code == 200
        assert ending.line() == f"maintenance {made} is completed"
        assert ending.end() == 0
        assert starting.rest() == ending.rest() == ("", "")


def test_what_is_reached_already_needs_no_wait(cli: CommandLine, made: str) -> None:
    assert cli.run("maintenance", "wait", made, "--for", "announced") == (f"maintenance {made} is scheduled\n", "")
    assert cli.json("maintenance", "wait", made, "--for", "announced")["id"] == made


def test_a_time_out_has_an_exit_status(cli: CommandLine, made: str) -> None:
    with lasts(0.2):
        out, err = cli.run("maintenance", "wait", made, "--for", "started", "--timeout", "0.2", status=TIMED_OUT)
    assert out == f"maintenance {made} is scheduled\n"
    assert err == f"forewarn: maintenance {made} is still scheduled after 0.2s, not started\n"


def test_a_stage_that_will_not_come_has_an_exit_status(cli: CommandLine, api: httpx.Client, made: str) -> None:
    with cli.start("maintenance", "wait", made, "--for", "completed", "--json") as command:
        assert api.post(f"/v1/maintenance/{made}/cancel").status_code == 200
        assert command.end() == MISSED
        out, err = command.rest()
    assert json.loads(out)["state"] == "canceled"
    assert err == f"forewarn: maintenance {made} is canceled, so it will not be completed\n"
    assert cli.run("maintenance", "wait", made, "--for", "ended")[0] == f"maintenance {made} is canceled\n"


def test_an_unknown_maintenance_is_an_error_at_once(cli: CommandLine) -> None:
    assert "forewarn maintenance list" in cli.run("maintenance", "wait", "nope", status=1)[1]
