"""`/v1/scopes`: scopes, with their policies and whether their VMs get events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fastapi import APIRouter

from forewarn.control.context import (
    AfterName,
    Caller,
    Context,
    ContextOf,
    NamePrefix,
    PageLimit,
    SelectorText,
    not_found_error,
)
from forewarn.core.access import Principal
from forewarn.core.label import parse_selector
from forewarn.core.model import Scope, audience_key, may_separate_vms
from forewarn.core.vm_filter import VmFilter
from forewarn.store.contract import Reader
from forewarn.wire.control_response import PageOut
from forewarn.wire.scope import ScopeOut

__all__ = ["find_scope", "router"]

router = APIRouter(prefix="/v1/scopes", tags=["scope"])

_VMS_MAX = 1_000_000
"""More VMs than an inventory has."""


@router.get("")
async def list_scopes(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    prefix: NamePrefix = None,
    selector: SelectorText = None,
    after: AfterName = None,
    limit: PageLimit = 100,
) -> PageOut[ScopeOut]:
    """List scopes, by name. A tenant sees those that it owns."""
    size = min(limit, context.settings.page_size_max)
    wanted = parse_selector(selector or "")

    def read(reader: Reader) -> PageOut[ScopeOut]:
        found = reader.get_scope_page(after, size + 1, caller.ownership, prefix or "", wanted)
        following = found[size - 1].name if len(found) > size else None
        return PageOut(items=_make_scopes_out(context, reader, found[:size]), next=following)

    return await context.engine.read(read)


@router.get("/{name}")
async def show_scope(context: ContextOf, caller: Caller, name: str) -> ScopeOut:
    """Show one scope."""
    return await context.engine.read(
        lambda reader: _make_scopes_out(context, reader, [find_scope(reader, name, caller)])[0]
    )


def find_scope(reader: Reader, name: str, caller: Principal) -> Scope:
    """Return a scope that the caller may see.

    Raises:
        NotFound: There is none of that name.
    """
    owned = caller.ownership
    found = reader.find_scopes([name]).get(name) if owned is None or name in owned.scopes else None
    if found is None:
        raise not_found_error(name, "scope")
    return found


def _make_scopes_out(context: Context, reader: Reader, scopes: Sequence[Scope]) -> list[ScopeOut]:
    counts = reader.count_vms_by_scope(scope.name for scope in scopes)
    # Audiences of each scope, with their number of VMs. Only where VMs may be separate does it take a look at each.
    members: dict[str, Counter[str]] = {}
    for scope in scopes:
        if may_separate_vms(scope):
            vms = reader.get_vm_page(None, _VMS_MAX, wanted=VmFilter(scope=scope.name))
            members[scope.name] = Counter(audience_key(vm, scope) for vm in vms)
        else:
            members[scope.name] = Counter({f"scope:{scope.name}": counts.get(scope.name, 0)})
    audiences = reader.find_audiences(key for keys in members.values() for key in keys)
    enabled = {key: each for key, each in audiences.items() if each.enabled_at is not None}
    get_last_poll = context.engine.feed.last_polled_at
    return [
        ScopeOut.from_model(
            scope,
            vm_count=members[scope.name].total(),
            enabled_vm_count=sum(count for key, count in members[scope.name].items() if key in enabled),
            # The memory knows the requests since the start of this process, the store those that were written down.
            polls=[
                at
                for key in members[scope.name].keys() & enabled.keys()
                for at in (get_last_poll(key), enabled[key].active_until)
            ],
        )
        for scope in scopes
    ]
