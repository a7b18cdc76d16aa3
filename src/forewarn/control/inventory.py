"""`/v1/inventory`: the declared hosts, scopes and VMs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from forewarn.control.context import Actor, ContextOf, IdempotencyHeader
from forewarn.control.inventory_snapshot import SnapshotResponse
from forewarn.wire.control_response import InventoryChangeOut
from forewarn.wire.inventory import (
    InventoryDifferenceOut,
    InventoryIn,
    compute_fingerprint,
    to_difference_out,
)

__all__ = ["RemoveMissing", "router"]

router = APIRouter(prefix="/v1/inventory", tags=["inventory"])

RemoveMissing = Annotated[
    bool,
    Query(
        description="Remove everything that is not listed, without a limit. VMs under an active maintenance are never "
        "removed: an inventory that leaves one out is refused, and of the VMs of a host, it stays."
    ),
]

# Described by hand: the routes parse the file themselves, since FastAPI takes no YAML and parses on the event loop.
_SCHEMA = InventoryIn.model_json_schema(ref_template="#/components/schemas/{model}")
_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/yaml": {"schema": _SCHEMA},
            "application/json": {"schema": _SCHEMA},
        },
    }
}


@router.put("", openapi_extra=_FILE)
async def apply(
    context: ContextOf, actor: Actor, key: IdempotencyHeader, request: Request, *, remove_missing: RemoveMissing = False
) -> InventoryChangeOut:
    """Replace the declared state with the inventory file in the body, YAML or JSON.

    A file that removes more than `inventory_removals_max` or `inventory_removals_share_max` allows is refused with
    `too_many_removals`, unless `remove_missing` is true. A file that leaves out a VM under an active maintenance is
    always refused. A refused file changes nothing.
    """
    text = await request.body()
    # On a thread, since a file may have many megabytes.
    fingerprint = await asyncio.to_thread(compute_fingerprint, text)
    change = await context.engine.inventory.apply_again(fingerprint, actor=actor, key=key)
    if change is None:
        removals = None if remove_missing else context.settings.removals
        inventory = await context.inventory_parser.parse(text)
        change = await context.engine.inventory.apply(inventory, fingerprint, actor=actor, key=key, removals=removals)
    return InventoryChangeOut.from_model(change)


@router.post("/diff", openapi_extra=_FILE)
async def diff(context: ContextOf, request: Request) -> InventoryDifferenceOut:
    """Preview what the inventory file in the body would change, and whether the file would be refused."""
    inventory = await context.inventory_parser.parse(await request.body())
    return to_difference_out(*await context.engine.inventory.compare(inventory, context.settings.removals))


@router.get("", response_model=InventoryIn)
async def show(context: ContextOf, actor: Actor) -> Response:
    """Return the declared state, in the format of the inventory file.

    The response is the inventory at one moment: when the service begins to read it. Later changes are not in it. Each
    host, scope and VM has a line. A response that does not end with `]}` is incomplete, and its last line may be an
    object with the `error`.
    """
    return SnapshotResponse(context.inventory_snapshots, actor, context.engine.committer.read_long)
