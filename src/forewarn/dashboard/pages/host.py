"""Host pages: the list of hosts, and one host with its VMs and maintenances."""

from __future__ import annotations

from forewarn.dashboard.list_filter import read_list_filter
from forewarn.dashboard.page import PageModel, PageView
from forewarn.errors import NotFound
from forewarn.store.contract import Reader

__all__ = ["make_host_list", "make_host_page"]

_ROWS = 100


def make_host_list(reader: Reader, view: PageView) -> PageModel:
    """Make the list of hosts, by name."""
    after, wanted = view.query_params.get("after") or None, read_list_filter(view.query_params)
    found = {} if wanted.wrong else reader.get_host_page(after, _ROWS + 1, wanted.prefix, wanted.selector)
    names = list(found)
    marks = reader.find_hosts(names[:_ROWS])
    busy = {claim.host for item in view.visible_board.items for claim in item.maintenance.claims}
    values = {
        "rows": [(marks[name], len(found[name]), name in busy) for name in names[:_ROWS]],
        "filter": wanted,
        "next": names[_ROWS - 1] if len(names) > _ROWS else None,
        "after": after,
    }
    return PageModel(template="hosts.html", title="Hosts", values=values)


def make_host_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of one host.

    Raises:
        NotFound: The host does not exist.
    """
    name = view.path_params["name"]
    vms = reader.list_vms(host=name)
    mark = reader.find_hosts([name]).get(name)
    if mark is None:
        raise NotFound(f"host {name!r} does not exist", host=name)
    items = [i for i in view.visible_board.all_items if any(c.host == name for c in i.maintenance.claims)]
    values = {"name": name, "mark": mark, "vms": vms[:_ROWS], "vm_count": len(vms), "items": items}
    return PageModel(template="host.html", title=f"Host {name}", values=values)
