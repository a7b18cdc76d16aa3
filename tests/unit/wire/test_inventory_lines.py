"""The inventory in lines: one JSON document, cut into pieces."""

from __future__ import annotations

import json

import pytest

from forewarn.core.inventory import Inventory
from forewarn.errors import StoreUnavailable
from forewarn.wire.inventory import parse_inventory, to_inventory_in
from forewarn.wire.inventory_lines import encode_end_error, encode_inventory_lines

EXAMPLE = """
hosts: [{name: host-1, labels: {rack: r1, a/b: ''}}, {name: host-2}, {name: host-3}]
scopes:
  - {name: web, kind: availability-set, labels: {team: shop}}
  - name: fleet
    kind: scale-set
    terminate_notification: {enable: true, not_before_timeout: PT9M}
    policy: {approve_freezes_up_to: 10s, user_operations_max: 2, unavailable_max: 1}
vms:
  - {name: web_0, host: host-1, scope: web, addresses: [10.9.0.11, "fd00::1"], tags: {a: "größer\\u2028"}}
  - {name: fleet_1, host: host-1, scope: fleet, priority: Spot, tags: {b: "1"}}
  - {name: db, host: host-2, policy: {approvers: [operator]}, labels: {team: data, row: "7"}}
"""


def encode(inventory: Inventory, size: int) -> list[bytes]:
    def cut(objects: tuple[object, ...]) -> list[list[object]]:
        return [list(objects[first : first + size]) for first in range(0, len(objects), size)]

    lists = (cut(inventory.hosts), cut(inventory.scopes), cut(inventory.vms))
    return list(encode_inventory_lines(*lists))  # type: ignore[arg-type] # as in the inventory


@pytest.mark.parametrize("size", [1, 2, 100])
def test_it_is_the_document_that_the_model_describes(size: int) -> None:
    declared = parse_inventory(EXAMPLE.encode())
    text = b"".join(encode(declared, size))
    assert json.loads(text) == to_inventory_in(declared).model_dump(mode="json")
    assert parse_inventory(text) == declared


def test_each_object_has_a_line_and_the_end_has_one() -> None:
    lines = b"".join(encode(parse_inventory(EXAMPLE.encode()), 2)).split(b"\n")
    assert [line for line in lines if not line.startswith(b'{"name":')] == [
        b'{"hosts":[', b'],"scopes":[', b'],"vms":[', b"]}", b""
    ]  # fmt: skip
    assert [json.loads(line.rstrip(b","))["name"] for line in lines if line.startswith(b'{"name":')] == [
        "host-1", "host-2", "host-3", "web", "fleet", "web_0", "fleet_1", "db"
    ]  # fmt: skip


def test_an_empty_inventory_has_all_members() -> None:
    assert json.loads(b"".join(encode(Inventory(), 1))) == {"hosts": [], "scopes": [], "vms": []}


def test_what_ends_with_an_error_is_never_a_smaller_inventory() -> None:
    pieces = encode(parse_inventory(EXAMPLE.encode()), 1)
    end = encode_end_error(StoreUnavailable("the disk is gone"))
    for count in range(1, len(pieces)):
        with pytest.raises(ValueError, match=r".*"):
            json.loads(b"".join(pieces[:count]))
        with pytest.raises(ValueError, match=r".*"):
            json.loads(b"".join(pieces[:count]) + end)
    assert json.loads(end)["error"]["code"] == StoreUnavailable.code
