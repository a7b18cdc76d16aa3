"""`/v1/inventory`: what is declared."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from forewarn.control.context import Actor, ContextOf, IdempotencyKey
from forewarn.wire.control import InventoryOut
from forewarn.wire.inventory import InventoryIn, fingerprint, parse_inventory, show_inventory

__all__ = ["router"]

router = APIRouter(prefix="/v1/inventory", tags=["inventory"])

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
async def apply(context: ContextOf, actor: Actor, key: IdempotencyKey, request: Request) -> InventoryOut:
    """Make the declared state exactly this file, YAML or JSON."""
    text = await request.body()
    change = await context.engine.apply_inventory(parse_inventory(text), fingerprint(text), actor=actor, key=key)
    return InventoryOut.of(change)


@router.get("")
async def show(context: ContextOf, _actor: Actor) -> InventoryIn:
    """What is declared, in the form of the file."""
    return await context.engine.read(lambda reader: show_inventory(reader.inventory()))
