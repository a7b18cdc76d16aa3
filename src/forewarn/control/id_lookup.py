"""`/v1/ids`: the ids that begin with a prefix, so that people need not type whole ids."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query

from forewarn.control.context import Caller, ContextOf
from forewarn.core.access import Ownership, Token
from forewarn.core.model import Event, Maintenance
from forewarn.errors import Forbidden
from forewarn.store.contract import Reader, StoredRollout
from forewarn.wire.control_response import IdsOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/ids", tags=["id"])

_FOUND_MAX = 10
"""Maximum number of ids in an answer: enough to say which ones a prefix could mean."""

_EXAMINED_MAX = 100
"""Maximum number of ids that are examined for a tenant, who sees only its own."""


class IdKind(StrEnum):
    """Kind of object that has an id."""

    MAINTENANCE = "maintenance"
    EVENT = "event"
    ROLLOUT = "rollout"
    TOKEN = "token"  # noqa: S105 - a kind of object


_CLASSES: dict[IdKind, type[Any]] = {
    IdKind.MAINTENANCE: Maintenance,
    IdKind.EVENT: Event,
    IdKind.ROLLOUT: StoredRollout,
    IdKind.TOKEN: Token,
}


@router.get("")
async def list_ids(
    context: ContextOf,
    caller: Caller,
    kind: Annotated[IdKind, Query(description="Kind of the objects. Tenants can look up maintenances and events.")],
    prefix: Annotated[
        str, Query(min_length=3, max_length=36, pattern="^[0-9A-Za-z-]+$", description="Beginning of the ids.")
    ],
) -> IdsOut:
    """List up to 10 ids that begin with a prefix, in order. Ids of events ignore case."""
    owned = caller.ownership
    if owned is not None and kind not in {IdKind.MAINTENANCE, IdKind.EVENT}:
        raise Forbidden(f"{caller.actor} may not look up a {kind}: not allowed for role {caller.role}")
    wanted = prefix.upper() if kind is IdKind.EVENT else prefix

    def read(reader: Reader) -> list[str]:
        if owned is None:
            return reader.find_ids(_CLASSES[kind], wanted, _FOUND_MAX)
        return _keep_owned(reader, kind, reader.find_ids(_CLASSES[kind], wanted, _EXAMINED_MAX), owned)[:_FOUND_MAX]

    return IdsOut(ids=await context.engine.read(read))


def _keep_owned(reader: Reader, kind: IdKind, ids: list[str], owned: Ownership) -> list[str]:
    if kind is IdKind.EVENT:
        kept = reader.find_owned_events(ids, owned)
        return [each for each in ids if each in kept]
    found = reader.find_maintenances(ids)
    return [each for each in ids if each in found and owned.select_claims(found[each])]
