"""What a large inventory costs the others, told by what is read and where, and not by time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn.control import inventory_parser
from forewarn.control.inventory_parser import InventoryParser
from forewarn.core.inventory import Inventory
from forewarn.errors import InvalidRequest
from forewarn.wire.inventory import parse_inventory
from tests.support.control import error
from tests.support.service import Running, inventory, running


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("cost")) as made:
        yield made


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    with service.operator() as client:
        yield client


@contextmanager
def without_whole_reads(service: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The inventory as a whole cannot be read from the store, nor loaded anew."""

    def refuse(*_: object) -> Inventory:
        raise AssertionError("the whole inventory was read")

    with monkeypatch.context() as patch:
        patch.setattr("forewarn.store.sql_reader.SqlReader.get_inventory", refuse)
        patch.setattr(service.service.identity, "load_inventory", refuse)
        yield


def test_a_change_of_one_host_reads_that_host_only(
    service: Running, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 12."""
    vm = service.vm()
    body = {"vms": [{"name": vm.name, "host": f"host-{vm.name}", "size": "D4"}]}
    count = service.service.identity.vm_count
    with without_whole_reads(service, monkeypatch):
        answer = api.put(f"/v1/hosts/host-{vm.name}/vms", json=body)
    assert answer.json() == {"added": 0, "changed": 1, "removed": 0, "unchanged": count - 1}
    caller = service.service.identity.find_caller(vm.name)
    assert caller is not None
    assert caller.vm.size == "D4"


def test_the_file_that_was_applied_last_is_not_read_again_unless_something_has_changed(
    service: Running, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 12: a file may be applied on a schedule."""
    declared = api.get("/v1/inventory").content
    count = service.service.identity.vm_count
    unchanged = {"added": 0, "changed": 0, "removed": 0, "unchanged": count}
    assert api.put("/v1/inventory", content=declared).json() == unchanged

    async def refuse(_text: bytes) -> Inventory:
        raise AssertionError("the file was read")

    with monkeypatch.context() as patch, without_whole_reads(service, monkeypatch):
        patch.setattr(service.service.context.inventory_parser, "parse", refuse)
        assert api.put("/v1/inventory", content=declared).json() == unchanged
    entry = api.get("/v1/audit-log?newest=true&limit=1").json()["items"][0]
    assert (entry["kind"], entry["reason"]) == ("inventory-applied", "0 added, 0 changed, 0 removed")
    vm = service.vm()
    body = {"vms": [{"name": vm.name, "host": f"host-{vm.name}", "size": "D16"}]}
    assert api.put(f"/v1/hosts/host-{vm.name}/vms", json=body).json()["changed"] == 1
    assert api.put("/v1/inventory", content=declared).json() == unchanged | {"changed": 1, "unchanged": count - 1}
    assert api.get("/v1/inventory").content == declared


def test_a_large_inventory_is_read_in_a_process_of_its_own(
    service: Running, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_text: bytes) -> Inventory:
        raise AssertionError("the inventory was read in the service's own process")

    monkeypatch.setattr(inventory_parser, "parse_inventory", refuse)
    monkeypatch.setattr(service.service.context, "inventory_parser", InventoryParser(inline_bytes_max=100))
    declared: dict[str, Any] = api.get("/v1/inventory").json()
    declared["vms"][0]["size"] = "D8"
    assert api.put("/v1/inventory", json=declared).json()["changed"] == 1
    assert api.get("/v1/inventory").json() == declared
    declared["vms"][7]["host"] = "nowhere"
    said = error(api.put("/v1/inventory", json=declared), 400, "invalid_request")
    assert "nowhere" in said["message"]
    assert said["details"]["line"] == 1


@pytest.mark.anyio
async def test_both_ways_of_reading_say_the_same() -> None:
    text = json.dumps(inventory()).encode()
    large = InventoryParser(inline_bytes_max=0)
    assert await large.parse(text) == parse_inventory(text)
    for wrong in (b"vms: [", b'{"vms":[{"name":"a"}]}', b"\xff"):
        with pytest.raises(InvalidRequest) as inline:
            parse_inventory(wrong)
        with pytest.raises(InvalidRequest) as aside:
            await large.parse(wrong)
        assert (aside.value.message, aside.value.details) == (inline.value.message, inline.value.details)


def test_an_inventory_that_changes_while_another_is_compared_is_compared_again(tmp_path: Path) -> None:
    with running(tmp_path) as service, service.operator() as api, service.operator() as other:
        engine = service.service.engine
        declared: dict[str, Any] = api.get("/v1/inventory").json()
        read, reads = engine.committer.read_long, []

        async def meanwhile(function: Any) -> Any:  # noqa: ANN401 - as `Committer.read_long`
            found = await read(function)
            if "plan" in function.__qualname__:
                reads.append(found)
                if len(reads) == 1:
                    body = {"vms": [{"name": "vm-1", "host": "host-vm-1", "size": "D2"}]}
                    await engine_put(other, body)
            return found

        async def engine_put(client: httpx.Client, body: dict[str, Any]) -> None:
            import asyncio  # noqa: PLC0415 - beside its only use

            answer = await asyncio.to_thread(client.put, "/v1/hosts/host-vm-1/vms", json=body)
            answer.raise_for_status()

        engine.committer.read_long = meanwhile  # type: ignore[method-assign] # something happens between comparing and committing
        declared["vms"][0]["size"] = "D16"
        answer = api.put("/v1/inventory", json=declared)
        engine.committer.read_long = read  # type: ignore[method-assign] # as above
        assert answer.status_code == 200, answer.text
        assert len(reads) == 2
        sizes = {vm["name"]: vm["size"] for vm in api.get("/v1/inventory").json()["vms"]}
        assert (sizes[declared["vms"][0]["name"]], sizes["vm-1"]) == ("D16", "")
