"""Asking the history over HTTP: filters, pages, the story of a VM."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.control import error
from tests.support.service import Running, Vm
from tests.support.wire import approval, get, post


def items(api: httpx.Client, path: str, **params: object) -> list[dict[str, Any]]:
    """All pages of a list."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = api.get(path, params=params | ({"after": after} if after else {}))  # type: ignore[arg-type] # of any kind
        assert page.status_code == 200, page.text
        found += page.json()["items"]
        after = page.json()["next"]
        if after is None:
            return found


@pytest.fixture
def approved(service: Running, vm: Vm) -> str:
    """The id of an event that its VM has approved."""
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        wire.ask(get())
        assert wire.ask(post(approval(event_id))).status == 200
    return event_id


def test_the_story_of_a_vm_is_told(api: httpx.Client, vm: Vm, approved: str) -> None:
    (told,) = items(api, f"/v1/vms/{vm.name}/history")
    assert told["event_id"] == approved
    assert (told["cause"], told["requested_by"]) == ("host-maintenance", "operator:test")
    assert 900 <= told["notice_s"] < 901, "rounded up to a whole second (R71)"
    assert told["approved"]["by"] == f"vm:{vm.name}"
    assert told["approved"]["source_address"]
    assert told["seen_by"] == "request"
    assert told["announced_at"] <= told["seen_at"] <= told["approved"]["at"]
    assert told["impact_s"] is None
    assert items(api, f"/v1/vms/{vm.name}/history", until=told["created_at"]) == []
    error(api.get("/v1/vms/nobody/history"), 404, "not_found")


def test_a_vm_to_which_nothing_has_happened_has_an_empty_history(api: httpx.Client, service: Running) -> None:
    assert items(api, f"/v1/vms/{service.vm().name}/history") == []


def test_the_same_words_choose_a_part_of_each_list(api: httpx.Client, vm: Vm, approved: str) -> None:
    (m,) = items(api, "/v1/maintenance", vm=vm.name)
    assert [e["id"] for e in items(api, "/v1/events", vm=vm.name, since=m["created_at"])] == [approved]
    assert items(api, "/v1/events", vm=vm.name, status=["Canceled", "Withdrawn"]) == []
    kinds = [e["kind"] for e in items(api, "/v1/audit-log", vm=vm.name, maintenance=m["id"])]
    assert kinds[:2] == ["scheduled", "approved"]
    (entry,) = items(api, "/v1/audit-log", vm=vm.name, kind="approved")
    assert entry["event_id"] == approved
    assert items(api, "/v1/audit-log", actor=f"vm:{vm.name}")[0] == entry
    assert items(api, "/v1/audit-log", vm=vm.name, kind="approved", until=entry["at"]) == []
    assert [each["id"] for each in items(api, "/v1/maintenance", actor=f"vm:{vm.name}", type="Freeze")] == [m["id"]]
    assert items(api, "/v1/maintenance", vm=vm.name, source="User") == []


def test_the_last_of_a_part_come_page_by_page_too(api: httpx.Client, vm: Vm, approved: str) -> None:
    assert approved
    whole = [e["sequence"] for e in items(api, "/v1/audit-log", vm=vm.name)]
    page = api.get("/v1/audit-log", params={"vm": vm.name, "newest": True, "limit": 2}).json()
    assert [e["sequence"] for e in page["items"]] == whole[-2:]
    before = {"vm": vm.name, "newest": True, "before": page["next"]}
    assert [e["sequence"] for e in api.get("/v1/audit-log", params=before).json()["items"]] == whole[:-2]


def test_the_stream_tells_only_what_is_chosen(api: httpx.Client, service: Running, vm: Vm) -> None:
    other = service.vm()
    with api.stream("GET", "/v1/watch", params={"vm": vm.name, "kind": "scheduled"}) as response:
        service.event(other)
        service.event(vm)
        line = next(line for line in response.iter_lines() if line.startswith("data:"))
    maintenance_id = items(api, "/v1/maintenance", vm=vm.name)[0]["id"]
    assert f'"maintenance_id":"{maintenance_id}"' in line


@pytest.mark.parametrize(
    "params",
    [
        {"since": "yesterday"},
        {"since": "2030-01-01T00:00:00"},
        {"vm": ""},
        {"text": "\0"},
        {"kind": "nothing"},
        {"before": "x"},
    ],
)
def test_a_part_that_nobody_can_mean_is_refused(api: httpx.Client, params: dict[str, str]) -> None:
    assert api.get("/v1/audit-log", params=params).status_code in {400, 422}


def test_no_time_lies_between_moments_in_the_wrong_order(api: httpx.Client) -> None:
    params = {"since": "2030-01-02T00:00:00Z", "until": "2030-01-01T00:00:00Z"}
    error(api.get("/v1/events", params=params), 400, "invalid_request")
