"""Every list of the control API comes in pages, and commands say when there is more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.cli.main import run_command_line
from forewarn.control.app import make_control_app
from tests.support.service import Running, running

COUNT = 3


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("lists"), fault_injection=True) as started:
        with started.operator() as api:
            for number in range(COUNT):
                host = f"host-{started.vm().name}"
                for path, body in (
                    ("/v1/faults", {"kind": "503", "vms": ["Web_0"]}),
                    ("/v1/subscriptions", {"name": f"chat-{number}", "url": "https://example.com/hook"}),
                    ("/v1/tokens", {"name": f"ann-{number}", "role": "read-only"}),
                    ("/v1/hosts/host-Web_0/tokens", None),
                    ("/v1/rollouts", {"name": f"kernel-{number}", "cause": "host-maintenance", "hosts": [host]}),
                ):
                    answer = api.post(path, json=body)
                    assert answer.status_code == 201, answer.text
            revoked = api.post("/v1/tokens", json={"name": "gone", "role": "read-only"}).json()["id"]
            assert api.delete(f"/v1/tokens/{revoked}").status_code == 200
            reader = api.post("/v1/tokens", json={"name": "reader", "role": "read-only"}).json()["token"]
            # Two callers, so that the list of callers has more than one item.
            assert api.get("/v1/whoami", headers={"authorization": f"Bearer {reader}"}).status_code == 200
        yield started


LISTS = [
    "/v1/faults",
    "/v1/subscriptions",
    "/v1/tokens",
    "/v1/hosts/host-Web_0/tokens",
    "/v1/rollouts",
    "/v1/limits",
    "/v1/hosts",
    "/v1/vms",
]


@pytest.mark.parametrize("path", LISTS)
def test_pages_of_one_item_are_the_whole_list(path: str, service: Running) -> None:
    with service.operator() as api:
        whole = api.get(path, params={"limit": 1000}).json()
        assert whole["next"] is None
        names: list[str] = []
        after = None
        while len(names) <= len(whole["items"]):
            page = api.get(path, params={"limit": 1} | ({} if after is None else {"after": after})).json()
            names += [each.get("id", each.get("name")) for each in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert names == [each.get("id", each.get("name")) for each in whole["items"]]
        assert len(names) > 1


@pytest.mark.parametrize("path", [path for path in LISTS if path not in {"/v1/hosts", "/v1/vms"}])
def test_a_wrong_page_is_refused_and_one_after_the_end_is_empty(path: str, service: Running) -> None:
    with service.operator() as api:
        assert api.get(path, params={"after": "x"}).status_code == 400
        after_end = api.get(path, params={"after": str((1 << 63) - 1)}).json()
        assert (after_end["items"], after_end["next"]) == ([], None)


def test_revoked_tokens_can_be_left_out(service: Running) -> None:
    with service.operator() as api:
        every = {each["name"] for each in api.get("/v1/tokens").json()["items"]}
        valid = {each["name"] for each in api.get("/v1/tokens", params={"valid": True}).json()["items"]}
    assert every - valid == {"gone"}


@pytest.mark.parametrize(
    ("command", "noun"),
    [
        (["fault", "list"], "faults"),
        (["subscription", "list"], "subscriptions"),
        (["token", "list"], "tokens"),
        (["host", "tokens", "host-Web_0"], "tokens"),
        (["rollout", "list"], "rollouts"),
        (["limit", "list"], "callers"),
        (["host", "list"], "hosts"),
        (["vm", "list"], "VMs"),
    ],
)
def test_a_command_says_when_there_is_more(
    command: list[str],
    noun: str,
    service: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FOREWARN_TOKEN", service.service.tokens.operator_token)
    monkeypatch.setenv("FOREWARN_STATE_DIR", str(tmp_path))
    url = ["--control-url", service.service.control_url]
    assert run_command_line([*command, "--limit", "1", "--json", *url]) == 0
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) == 1
    assert shown.err == f"there are more {noun}: use --limit 10\n"
    assert run_command_line([*command, "--limit", "1000", *url]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("command", "noun"), [("audit-log", "entries"), ("requests", "requests")])
def test_a_command_that_shows_the_newest_says_when_there_are_earlier_ones(
    command: str,
    noun: str,
    service: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    service.enable(service.vm())
    service.enable(service.vm())
    monkeypatch.setenv("FOREWARN_TOKEN", service.service.tokens.operator_token)
    monkeypatch.setenv("FOREWARN_STATE_DIR", str(tmp_path))
    url = ["--control-url", service.service.control_url]
    assert run_command_line([command, "--limit", "1", "--json", *url]) == 0
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) == 1
    assert shown.err == f"there are earlier {noun}: use --limit 10\n"
    assert run_command_line([command, "--limit", "1000", *url]) == 0
    assert capsys.readouterr().err == ""


def test_every_list_of_the_api_has_a_limit_and_pages(service: Running) -> None:
    document = make_control_app(service.service.context).openapi()
    found: dict[str, set[str]] = {}
    for path, methods in document["paths"].items():
        schema = json.dumps(methods.get("get", {}).get("responses", {}).get("200", {}))
        if "PageOut" in schema:
            found[path] = {parameter["name"] for parameter in methods["get"].get("parameters", [])}
    assert {"/v1/vms", "/v1/audit-log", "/v1/vms/{name}/history", "/v1/rollouts/{rollout_id}/hosts"} <= found.keys()
    assert {path for path, names in found.items() if not {"limit", "after"} <= names} == set()
