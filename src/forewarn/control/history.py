"""`/v1/vms/{name}/history`: why a VM restarted, who approved, how much notice it had, how long it was down."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query

from forewarn.control.context import Caller, ContextOf
from forewarn.control.maintenance import number
from forewarn.core.access import Owned, Principal
from forewarn.core.history import Episode, episode
from forewarn.core.model import Entry, Maintenance
from forewarn.core.selection import Selection
from forewarn.errors import NotFound
from forewarn.store.contract import Reader
from forewarn.wire.control import Moment, PageOut
from forewarn.wire.exchange import Exchange
from forewarn.wire.history import EpisodeOut, Seen

__all__ = ["router"]

router = APIRouter(prefix="/v1/vms", tags=["vm"])

_ENTRIES_MAX = 10_000
"""Maximum number of entries read for one maintenance; one that affects 1,000 tenants has a few thousand."""


@router.get("/{name}/history")
async def show_history(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    name: Annotated[str, Path(pattern=r"^[^\x00]*$")],
    since: Annotated[Moment | None, Query(description="What was not over by then.")] = None,
    until: Annotated[Moment | None, Query(description="What was made before.")] = None,
    after: Annotated[str | None, Query(max_length=32, description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1)] = 100,
) -> PageOut[EpisodeOut]:
    """List each maintenance that affected the VM, newest first. The VM may no longer be declared."""
    before = number(after)
    size = min(limit, context.page_size_max)
    owned = caller.owned

    def read(reader: Reader) -> tuple[list[Episode], int | None] | None:
        page = reader.maintenances(before=before, limit=size, selection=Selection(vm=name, until=until), owned=owned)
        if not page.items and before is None and not _is_known(reader, name, owned):
            return None
        taken = [m for m in page.items if _lasted_until(m, since)]
        events = reader.events_of(m.id for m in taken)
        told = [
            episode(name, caller.shown(m), caller.shown_events(m, events.get(m.id, [])), _entries(reader, m, caller))
            for m in taken
        ]
        return told, page.next

    found = await context.engine.read(read)
    if found is None:
        msg = f"vm {name!r} does not exist, and nothing is known of it: see 'forewarn vm list'"
        raise NotFound(msg, vm=name)
    told, following = found
    await context.look()
    shown = [exchange for exchange in context.journal.exchanges(vm=name) if exchange.method == "GET"]
    items = [EpisodeOut.of(each, _seen(each, shown)) for each in told]
    return PageOut(items=items, next=None if following is None else str(following))


def _is_known(reader: Reader, name: str, owned: Owned | None) -> bool:
    touched = reader.maintenances(limit=1, selection=Selection(vm=name), owned=owned)
    return bool(reader.vms(name=name, owned=owned) or touched.items)


def _lasted_until(maintenance: Maintenance, since: datetime | None) -> bool:
    return since is None or maintenance.ended_at is None or maintenance.ended_at >= since


def _entries(reader: Reader, maintenance: Maintenance, caller: Principal) -> list[Entry]:
    selection = Selection(maintenance_id=maintenance.id)
    found = reader.entries(limit=_ENTRIES_MAX, selection=selection, owned=caller.owned).items
    return [caller.shown_entry(entry) for entry in found]


def _seen(told: Episode, shown: list[Exchange]) -> Seen | None:
    """Return the earliest known time at which the VM had seen its event, from a logged request or its own approval."""
    event, approved = told.event, told.approved
    if event is None:
        return None
    word = event.id.encode()
    first = next((exchange for exchange in shown if word in exchange.answer), None)
    is_own = approved is not None and approved.by == f"vm:{told.claim.vm}"
    if first is not None and not (is_own and approved is not None and approved.at < first.at):
        return first.at, "request"
    return (approved.at, "approval") if is_own and approved is not None else None
