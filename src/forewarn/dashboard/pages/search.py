"""The search: VMs, hosts, scopes and maintenances whose name contains something."""

from __future__ import annotations

import heapq

from forewarn.dashboard.page import Look, Page
from forewarn.dashboard.pages.overview import matches
from forewarn.store.contract import Reader

__all__ = ["search"]

_MOST = 25


def search(reader: Reader, look: Look) -> Page:
    """What was found, at most a few of each kind."""
    wanted = look.params.get("q", "").strip().lower()
    found: dict[str, list[str]] = {"vms": [], "hosts": [], "scopes": []}
    items = []
    if wanted:
        owned = look.caller.owned
        vms = look.context.engine.identity.vms
        if owned is not None:
            scopes = reader.scopes({vm.scope for vm in vms if vm.scope is not None and vm.name in owned.vms})
            vms = [vm for vm in vms if owned.has_vm(vm, scopes.get(vm.scope or ""))]
        found["vms"] = _smallest({vm.name for vm in vms if wanted in vm.name.lower()})
        if look.has_hosts:
            found["hosts"] = _smallest({vm.host for vm in vms if wanted in vm.host.lower()})
        found["scopes"] = _smallest({vm.scope for vm in vms if vm.scope is not None and wanted in vm.scope.lower()})
        items = [item for item in (*look.seen.items, *look.seen.ended) if matches(item, wanted)][:_MOST]
    values = {"q": look.params.get("q", ""), "found": found, "items": items, "most": _MOST}
    return Page(template="search.html", title="Search", values=values, is_live=False)


def _smallest(names: set[str]) -> list[str]:
    return heapq.nsmallest(_MOST, names)
