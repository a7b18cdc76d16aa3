"""The inventory as one JSON document in lines, so that neither writer nor reader has to hold it as a whole.

::

    {"hosts": [{"name": "host-1"}, {"name": "host-2"}], "scopes": [], "vms": [{"name": "vm-1", "host": "host-1"}]}

It is the document that `wire.inventory.InventoryIn` describes, and any JSON parser reads it; only the line breaks are
fixed: one line for each host, scope and VM. If the document cannot be completed, its last line is an error instead of
``]}``, so that it is no longer JSON and cannot be taken for a smaller inventory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from pydantic_core import to_json

from forewarn.core.model import Host, Scope, VirtualMachine
from forewarn.core.policy import NO_POLICY
from forewarn.errors import ForewarnError
from forewarn.wire.inventory import VmIn, to_scope_in
from forewarn.wire.policy import to_policy_in

__all__ = ["encode_end_error", "encode_inventory_lines"]

_END = b"\n]}\n"

_VM_FIELDS = tuple(VmIn.model_fields)
_get_vm_fields = attrgetter(*_VM_FIELDS)


def encode_inventory_lines(
    hosts: Iterable[list[Host]], scopes: Iterable[list[Scope]], vms: Iterable[list[VirtualMachine]]
) -> Iterator[bytes]:
    """Yield the document of an inventory in pieces: one for each list of objects, and some between them."""
    separator = b"{"
    for name, lists in (
        (b"hosts", _encode_lists(hosts, _encode_host)),
        (b"scopes", _encode_lists(scopes, _encode_scope)),
        (b"vms", _encode_lists(vms, _encode_vm)),
    ):
        yield separator + b'"' + name + b'":['
        yield from lists
        separator = b"\n],"
    yield _END


def _encode_lists(lists: Iterable[list[Any]], encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    before = b"\n"
    for objects in filter(None, lists):
        yield before + b",\n".join(map(encode, objects))
        before = b",\n"


def _encode_host(host: Host) -> bytes:
    return to_json({"name": host.name, "labels": dict(host.labels)})


def _encode_scope(scope: Scope) -> bytes:
    return to_scope_in(scope).model_dump_json().encode()


def _encode_vm(vm: VirtualMachine) -> bytes:
    # Takes a fifth of the time of making a `VmIn` and encoding that.
    members = dict(zip(_VM_FIELDS, _get_vm_fields(vm), strict=True))
    members["tags"] = dict(vm.tags)
    members["labels"] = dict(vm.labels)
    members["policy"] = None if vm.policy == NO_POLICY else to_policy_in(vm.policy)
    return to_json(members)


def encode_end_error(error: ForewarnError) -> bytes:
    """Return the last lines of a document that cannot be completed."""
    content = {"error": {"code": error.code, "message": error.message, "details": {}}}
    return b"\n" + json.dumps(content, separators=(",", ":")).encode() + b"\n"
