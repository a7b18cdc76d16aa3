"""The policy that applies, as operators and owners see it, is the one that real maintenance follows."""

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

INVENTORY = """
hosts: [{name: host-1}]
scopes:
  - name: web
    kind: availability-set
    policy:
      quiet_hours: [{from: "00:10", to: "06:00", timezone: Asia/Tokyo}, {from: "00:00", to: "02:00", timezone: UTC}]
      approve_freezes_up_to: 10s
      extension: {max: 10m, times: 2}
  - {name: singles, kind: standalone, policy: {approvers: ["vm:one", "vm:two"]}}
  - {name: empty, kind: cloud-service}
vms:
  - {name: web-0, host: host-1, scope: web, addresses: [127.0.6.1]}
  - {name: one, host: host-1, scope: singles, addresses: [127.0.6.2]}
  - {name: two, host: host-1, scope: singles, addresses: [127.0.6.3]}
  - {name: db, host: host-1, addresses: [127.0.6.4], policy: {extension: {max: 30m}}}
  - {name: plain, host: host-1, addresses: [127.0.6.5]}
"""


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service on virtual time, which begins in quiet hours, and whose VMs have all polled."""
    with running(tmp_path_factory.mktemp("policy"), clock="virtual") as service:
        with service.operator() as api:
            applied = api.put("/v1/inventory?remove_missing=true", content=INVENTORY)
            assert applied.status_code == 200, applied.text
        for number in range(1, 6):
            with service.wire(f"127.0.6.{number}") as wire:
                assert wire.ask(get()).status == 200
        yield service


@pytest.fixture
def api(declared: Running) -> Iterator[httpx.Client]:
    with declared.operator() as client:
        yield client


def show(api: httpx.Client, place: str, **params: str | float) -> dict[str, Any]:
    answer = api.get(f"/v1/{place}/policy", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    ("place", "origin", "reason"),
    [
        ("vms/web-0", "scope", "VM web-0 is in scope web, whose policy applies to all its VMs"),
        ("vms/db", "vm", "VM db is in no scope, so its own policy applies"),
        ("vms/plain", "default", "VM plain is in no scope and declares no policy"),
        ("scopes/web", "scope", "scope web declares it for all its VMs"),
        ("scopes/empty", "default", "scope empty declares no policy"),
    ],
)
def test_the_policy_that_counts_is_shown_with_the_reason(
    api: httpx.Client, place: str, origin: str, reason: str
) -> None:
    found = show(api, place)
    assert (found["origin"], found["reason"], found["start"]) == (origin, reason, None)
    assert (found["policy"] is None) is (origin == "default")


def test_the_next_quiet_hours_are_in_local_time_and_utc(api: httpx.Client) -> None:
    first, second = show(api, "vms/web-0")["next_quiet_hours"][:2]
    assert (first["begin"], first["end"], first["timezone"]) == ("2030-01-01T00:00:00Z", "2030-01-01T02:00:00Z", "UTC")
    assert (second["begin"], second["local_begin"]) == ("2030-01-01T15:10:00Z", "2030-01-02T00:10+09:00")
    assert len(show(api, "scopes/web")["next_quiet_hours"]) == 5


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "Reboot"},
        {"type": "Reboot", "notice_s": 1800.0},
        {"type": "Reboot", "notice_s": 54000.0, "duration_s": 60},
        {"type": "Freeze", "duration_s": 5},
        {"type": "Redeploy", "notice_s": 86400.0},
    ],
)
@pytest.mark.parametrize("vm", ["web-0", "db", "one"])
def test_the_earliest_start_is_what_a_plan_of_that_maintenance_gets(
    api: httpx.Client, vm: str, wanted: dict[str, str | float]
) -> None:
    start = show(api, f"vms/{vm}", **wanted)["start"]
    [planned] = api.post("/v1/maintenance/plan", json={"vms": [vm], **wanted}).json()["items"]
    assert (start["not_before"], start["notice_s"]) == (planned["not_before"], planned["notice_s"])
    is_moved = any("quiet hours" in reason and "moved" in reason for reason in start["reasons"])
    assert is_moved is (planned["moved_from"] is not None)
    is_approved = any("approves" in reason for reason in start["reasons"])
    assert is_approved is planned["events"][0]["is_approved"]


def test_a_scope_without_vms_has_an_earliest_start_too(api: httpx.Client) -> None:
    start = show(api, "scopes/empty", type="Reboot")["start"]
    assert (start["not_before"], start["approved_starts_at"]) == ("2030-01-01T00:15:00Z", "2030-01-01T00:00:00Z")


def test_a_refusal_is_a_reason(api: httpx.Client) -> None:
    start = show(api, "vms/web-0", type="Reboot", notice_s=60)["start"]
    assert (start["is_refused"], start["not_before"]) == (True, None)
    assert "needs at least 15m" in start["reasons"][-1]
    error(api.get("/v1/vms/web-0/policy", params={"notice_s": 60}), 400, "invalid_request")
    error(api.get("/v1/vms/web-0/policy", params={"type": "Nap"}), 422, "invalid_request")


def test_what_is_left_of_extensions_is_shown_for_each_scheduled_maintenance(api: httpx.Client) -> None:
    [made] = api.post("/v1/maintenance", json={"vms": ["web-0"], "type": "Reboot", "notice_s": 36000}).json()["items"]
    try:
        assert api.post(f"/v1/maintenance/{made['id']}/extend", json={"by_s": 240}).status_code == 200
        for place in ("vms/web-0", "scopes/web"):
            [left] = show(api, place)["extensions"]
            assert (left["maintenance_id"], left["times_left"], left["time_left_s"]) == (made["id"], 1, 360)
        assert show(api, "vms/db")["extensions"] == []
    finally:
        assert api.post(f"/v1/maintenance/{made['id']}/cancel").status_code == 200


def test_a_tenant_sees_the_policy_of_its_own_vms_without_the_names_of_others(declared: Running) -> None:
    with tenant(declared, vms=["one"], scopes=["web"]) as me:
        assert show(me, "scopes/web")["policy"] is not None
        mine = show(me, "vms/one", type="Reboot")
        assert (mine["policy"], "two" in json.dumps(mine)) == (None, False)
        assert {rule["name"]: rule["text"] for rule in mine["rules"]}["approvers"] == "only approvals by VM one count"
        for place in ("vms/two", "vms/no-such", "scopes/singles", "scopes/no-such"):
            error(me.get(f"/v1/{place}/policy"), 404, "not_found")


def test_the_command_shows_the_policy_in_words(
    declared: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREWARN_CONTROL_URL", declared.service.control_url)
    monkeypatch.setenv("FOREWARN_TOKEN", declared.service.tokens.operator_token)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str, status: int = 0) -> str:
        assert run_command_line(words) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    shown = run("policy", "show", "web-0", "--type", "Reboot", "--notice", "15h", "--duration", "15m")
    for text in (
        "whose policy applies to all its VMs",
        "every day 00:10 to 06:00 (Asia/Tokyo)",
        "Wed 2030-01-02 00:10",
        "2030-01-01 15:10:00Z",
        "not before",
        "quiet hours of web moved NotBefore from 2030-01-01T15:00:00Z",
        "a notice of 15h is given; a Reboot needs at least 15m",
    ):
        assert text in shown, shown
    assert json.loads(run("policy", "show", "--scope", "empty", "--json"))["origin"] == "default"
    assert "refused" in run("policy", "show", "db", "--type", "Reboot", "--notice", "1s")
    assert "either a VM or a scope" in run("policy", "show", status=2)
    assert "either a VM or a scope" in run("policy", "show", "db", "--scope", "web", status=2)
    assert "is needed with" in run("policy", "show", "db", "--notice", "1h", status=2)
    assert "no-such" in run("policy", "show", "no-such", status=1)
