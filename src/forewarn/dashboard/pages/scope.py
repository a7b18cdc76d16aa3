"""Scope page: the VMs that share a document, and their maintenances."""

from __future__ import annotations

from forewarn.core.model import audience_key
from forewarn.dashboard.page import PageModel, PageView
from forewarn.errors import NotFound
from forewarn.store.contract import Reader

__all__ = ["make_scope_page"]

_VMS_MAX = 200


def make_scope_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of one scope.

    Raises:
        NotFound: No scope of the caller has that name.
    """
    name = view.path_params["name"]
    found = reader.find_scopes([name]).get(name)
    owned = view.caller.ownership
    if found is None or (owned is not None and name not in owned.scopes):
        raise NotFound(f"scope {name!r} does not exist", scope=name)
    vms = sorted((vm for vm in view.context.engine.identity.vms if vm.scope == name), key=lambda vm: vm.name)
    keys = sorted({audience_key(vm, found) for vm in vms})
    items = [i for i in view.visible_board.all_items if any(c.scope == name for c in i.maintenance.claims)]
    values = {
        "scope": found,
        "vms": vms[:_VMS_MAX],
        "vm_count": len(vms),
        "items": items,
        "asked_at": max((at for at in map(view.asked_at, keys) if at is not None), default=None),
        "audiences": reader.find_audiences(keys),
    }
    return PageModel(template="scope.html", title=f"Scope {name}", values=values)
