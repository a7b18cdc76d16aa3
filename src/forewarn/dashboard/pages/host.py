"""Host pages: the list of hosts, and one host with its VMs and maintenances."""

from __future__ import annotations

from forewarn.dashboard.page import Look, Page
from forewarn.errors import NotFound
from forewarn.store.contract import Reader

__all__ = ["host", "hosts"]

_ROWS = 100


def hosts(reader: Reader, look: Look) -> Page:
    """Make the list of hosts, by name."""
    after = look.params.get("after") or None
    found = reader.host_page(after, _ROWS + 1)
    names = list(found)
    marks = reader.hosts(names[:_ROWS])
    busy = {claim.host for item in look.seen.items for claim in item.maintenance.claims}
    values = {
        "rows": [(name, len(found[name]), name in busy, marks[name].failed_at) for name in names[:_ROWS]],
        "next": names[_ROWS - 1] if len(names) > _ROWS else None,
        "after": after,
    }
    return Page(template="hosts.html", title="Hosts", values=values)


def host(reader: Reader, look: Look) -> Page:
    """Make the page of one host.

    Raises:
        NotFound: The host does not exist.
    """
    name = look.path["name"]
    vms = reader.vms(host=name)
    mark = reader.hosts([name]).get(name)
    if mark is None:
        msg = f"host {name!r} does not exist"
        raise NotFound(msg, host=name)
    items = [i for i in (*look.seen.items, *look.seen.ended) if any(c.host == name for c in i.maintenance.claims)]
    values = {"name": name, "mark": mark, "vms": vms[:_ROWS], "vm_count": len(vms), "items": items}
    return Page(template="host.html", title=f"Host {name}", values=values)
