"""`/v1/vms/{name}/history`: why a VM restarted, who approved, how much notice it had, how long it was down."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query

from forewarn.control.context import AfterNumber, Caller, ContextOf, PageLimit, parse_after
from forewarn.core.access import Ownership, Principal
from forewarn.core.hints import SEE_VMS
from forewarn.core.model import AuditEntry, Maintenance
from forewarn.core.selection import Selection
from forewarn.core.vm_history import VmHistoryItem, build_history_item
from forewarn.errors import NotFound
from forewarn.store.contract import Reader
from forewarn.wire.control_response import PageOut
from forewarn.wire.exchange import Exchange
from forewarn.wire.history import EpisodeOut, Seen
from forewarn.wire.json_types import NO_NUL, Moment

__all__ = ["router"]

router = APIRouter(prefix="/v1/vms", tags=["vm"])

_ENTRIES_MAX = 10_000
"""Maximum number of entries read for one maintenance; one that affects 1,000 tenants has a few thousand."""


@router.get("/{name}/history")
async def show_history(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    name: Annotated[str, Path(pattern=NO_NUL)],
    since: Annotated[Moment | None, Query(description="Leave out maintenances that ended before this time.")] = None,
    until: Annotated[Moment | None, Query(description="Only maintenances created before this time.")] = None,
    after: AfterNumber = None,
    limit: PageLimit = 100,
) -> PageOut[EpisodeOut]:
    """List each maintenance that affected the VM, newest first, even if the VM is no longer declared."""
    before = parse_after(after)
    size = min(limit, context.settings.page_size_max)
    owned = caller.ownership

    def read(reader: Reader) -> tuple[list[VmHistoryItem], int | None] | None:
        page = reader.list_maintenances(
            before=before, limit=size, selection=Selection(vm=name, until=until), owned=owned
        )
        # Only the first page can show that the VM is unknown; a later one may just be empty.
        if not page.items and before is None and not _is_known_vm(reader, name, owned):
            return None
        # The store selects by creation, but `since` is about the end.
        taken = [m for m in page.items if _ended_after(m, since)]
        events = reader.find_events_of(m.id for m in taken)
        episodes = [
            build_history_item(
                name,
                caller.redact_maintenance(m),
                caller.redact_events(m, events.get(m.id, [])),
                _read_entries(reader, m, caller),
            )
            for m in taken
        ]
        return episodes, page.next

    found = await context.engine.read(read)
    if found is None:
        raise NotFound(f"vm {name!r} does not exist and has no history", hint=SEE_VMS, vm=name)
    episodes, following = found
    await context.refresh_endpoint_state()
    shown = [exchange for exchange in context.journal.list_exchanges(vm=name) if exchange.method == "GET"]
    items = [EpisodeOut.from_model(each, _find_first_seen(each, shown)) for each in episodes]
    return PageOut(items=items, next=None if following is None else str(following))


def _is_known_vm(reader: Reader, name: str, owned: Ownership | None) -> bool:
    touched = reader.list_maintenances(limit=1, selection=Selection(vm=name), owned=owned)
    return bool(reader.list_vms(name=name, owned=owned) or touched.items)


def _ended_after(maintenance: Maintenance, since: datetime | None) -> bool:
    return since is None or maintenance.ended_at is None or maintenance.ended_at >= since


def _read_entries(reader: Reader, maintenance: Maintenance, caller: Principal) -> list[AuditEntry]:
    selection = Selection(maintenance_id=maintenance.id)
    found = reader.list_entries(limit=_ENTRIES_MAX, selection=selection, owned=caller.ownership).items
    return [caller.redact_entry(entry) for entry in found]


def _find_first_seen(item: VmHistoryItem, exchanges: list[Exchange]) -> Seen | None:
    """Return the earliest known time at which the VM had seen its event, from a logged request or its own approval."""
    event, approved = item.event, item.approved
    if event is None:
        return None
    word = event.id.encode()
    first = next((exchange for exchange in exchanges if word in exchange.answer), None)
    # An operator's approval does not show that the VM has seen the event.
    is_own = approved is not None and approved.by == f"vm:{item.claim.vm}"
    # The earlier of the two: the log keeps only recent requests, so it may have lost the one before the approval.
    if first is not None and not (is_own and approved is not None and approved.at < first.at):
        return first.at, "request"
    return (approved.at, "approval") if is_own and approved is not None else None
