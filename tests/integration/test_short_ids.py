"""Ids that are given by their beginning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from forewarn.core.access import Role
from tests.support.access import client_of, token_of
from tests.support.command_line import CommandLine
from tests.support.service import Running, Vm, running


class NumberedIds:
    """Ids that differ in their last characters only."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, kind: str) -> str:
        self.count += 1
        return f"ABCDEF00-0000-4000-8000-{self.count:012d}" if kind == "event" else f"k3v{self.count:07d}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("ids")) as started:
        yield started


@pytest.fixture
def cli(service: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(service, monkeypatch, capsys)


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    with service.operator() as client:
        yield client


def schedule(service: Running, api: httpx.Client, vm: Vm) -> dict[str, str]:
    service.enable(vm)
    answer = api.post("/v1/maintenance", json={"vms": [vm.name], "type": "Freeze", "notice_s": 3600})
    assert answer.status_code == 201, answer.text
    made = answer.json()["items"][0]
    return {"maintenance": made["id"], "event": made["events"][0]["id"]}


def find(client: httpx.Client, kind: str, prefix: str) -> list[str]:
    answer = client.get("/v1/ids", params={"kind": kind, "prefix": prefix})
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["ids"]
    return found


def shorten(api: httpx.Client, kind: str, whole: str) -> str:
    """Return the shortest beginning that only this id has; random ids may share a few characters."""
    return next(whole[:n] for n in range(3, len(whole)) if len(find(api, kind, whole[:n])) == 1)


def test_a_unique_beginning_stands_for_the_whole_id(service: Running, api: httpx.Client, cli: CommandLine) -> None:
    ids = schedule(service, api, service.vm())
    short = shorten(api, "maintenance", ids["maintenance"])
    assert cli.json("maintenance", "show", short)["id"] == ids["maintenance"]
    assert {entry["maintenance_id"] for entry in cli.json("audit-log", "--maintenance", short)} == {ids["maintenance"]}
    event = shorten(api, "event", ids["event"])
    [result] = cli.json("event", "approve", event.lower())
    assert result["event_id"] == ids["event"]
    assert cli.lines("maintenance", "wait", short, "--for", "announced") == [
        f"maintenance {ids['maintenance']} is {cli.json('maintenance', 'show', short)['state']}"
    ]
    assert cli.json("maintenance", "complete", short)["state"] == "completed"


def test_tokens_and_rollouts_have_short_ids_too(service: Running, api: httpx.Client, cli: CommandLine) -> None:
    host = f"host-{service.vm().name}"
    body = {"name": "kernel", "cause": "host-maintenance", "hosts": [host]}
    rollout = api.post("/v1/rollouts", json=body).json()["id"]
    short = shorten(api, "rollout", rollout)
    assert cli.json("rollout", "pause", short)["id"] == cli.json("rollout", "show", short)["id"] == rollout
    token = api.post("/v1/tokens", json={"name": "ann", "role": "read-only"}).json()["id"]
    assert cli.json("token", "revoke", shorten(api, "token", token), "--yes")["id"] == token
    token = api.post(f"/v1/hosts/{host}/tokens").json()["id"]
    assert cli.json("host", "revoke-token", host, shorten(api, "token", token), "--yes")["id"] == token


def test_an_ambiguous_beginning_lists_what_it_could_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path) as service, service.operator() as api:
        monkeypatch.setattr(service.service.context.engine.committer, "_new_id", NumberedIds())
        cli = CommandLine(service, monkeypatch, capsys)
        made = [schedule(service, api, service.vm()) for _ in range(2)]
        first, second = (each["maintenance"] for each in made)
        _, err = cli.run("maintenance", "cancel", "k3v", status=1)
        assert f"several maintenances have an id that begins with 'k3v': {first}, {second}; type more of it" in err
        _, err = cli.run("event", "approve", "abcdef", status=1)
        assert f"several events have an id that begins with 'abcdef': {made[0]['event']}, {made[1]['event']};" in err
        # A whole id is never ambiguous, and one of several that is refused leaves the others as they are.
        assert cli.json("maintenance", "show", first)["state"] == "scheduled"
        more = [schedule(service, api, service.vm())["maintenance"] for _ in range(9)]
        _, err = cli.run("maintenance", "show", "k3v", status=1)
        assert "and others; type more of it" in err
        assert more[-1] not in err


def test_a_short_or_unknown_beginning_is_taken_as_it_is(cli: CommandLine) -> None:
    for text in ("k3", "zzzzzzzzz", "zzz-", "../x"):
        _, err = cli.run("maintenance", "show", text, status=1)
        assert text in err


def test_a_tenant_finds_only_its_own(service: Running, api: httpx.Client) -> None:
    own, other = service.vm(), service.vm()
    mine, theirs = schedule(service, api, own), schedule(service, api, other)
    token = token_of(service, Role.TENANT, owns={"vms": [own.name]})
    with client_of(service, token) as tenant:
        for kind in ("maintenance", "event"):
            assert find(tenant, kind, mine[kind][:3])[:1] == [mine[kind]]
            assert theirs[kind] not in find(tenant, kind, theirs[kind][:3])
            assert find(tenant, kind, theirs[kind]) == []
        for kind in ("token", "rollout"):
            answer = tenant.get("/v1/ids", params={"kind": kind, "prefix": "abc"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("prefix", ["ab", "", "a" * 37, "abc%", "abc/"])
def test_a_wrong_prefix_is_refused(api: httpx.Client, prefix: str) -> None:
    assert api.get("/v1/ids", params={"kind": "event", "prefix": prefix}).status_code in {400, 422}
