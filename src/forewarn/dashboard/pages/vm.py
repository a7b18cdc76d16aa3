"""VM pages: the list of VMs, and one VM with its documents, recent requests and maintenances."""

from __future__ import annotations

import json

from forewarn.core.model import audience_key
from forewarn.dashboard.page import Look, Page
from forewarn.errors import NotFound
from forewarn.store.contract import Reader
from forewarn.wire.advice import advise_all

__all__ = ["vm", "vms"]

_REQUESTS = 30
_ROWS = 100


def vms(reader: Reader, look: Look) -> Page:
    """Make the list of VMs, by name."""
    after = look.params.get("after") or None
    found = reader.vm_page(after, _ROWS + 1, look.caller.owned)
    values = {"rows": found[:_ROWS], "next": found[_ROWS - 1].name if len(found) > _ROWS else None, "after": after}
    return Page(template="vms.html", title="VMs", values=values, is_live=False)


def vm(reader: Reader, look: Look) -> Page:
    """Make the page of one VM.

    Raises:
        NotFound: No VM of the caller has that name.
    """
    name = look.path["name"]
    found = reader.vms(name=name, owned=look.caller.owned)
    if not found:
        msg = f"vm {name!r} does not exist"
        raise NotFound(msg, vm=name)
    one = found[0]
    declared = reader.scopes([one.scope]).get(one.scope) if one.scope else None
    feed = look.context.engine.feed
    channel = feed.channel(audience_key(one, declared))
    documents = [
        (version.name, json.dumps(json.loads(reply.body), indent=2, ensure_ascii=False))
        for version, reply in zip(feed.versions, channel.replies, strict=False)
    ]
    told = advise_all(look.context.journal.exchanges(vm=name), _REQUESTS)
    values = {
        "vm": one,
        "scope": declared,
        "is_enabled": channel.is_enabled,
        "incarnation": channel.incarnation,
        "asked_at": channel.asked_at,
        "documents": documents[::-1],
        "requests": told[::-1],
        "items": [i for i in (*look.seen.items, *look.seen.ended) if name in i.maintenance.vms],
    }
    return Page(template="vm.html", title=f"VM {name}", values=values)
