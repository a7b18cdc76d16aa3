"""VM pages: the list of VMs, and one VM with its documents, recent requests and maintenances."""

from __future__ import annotations

import json

from forewarn.core.label import merge_labels
from forewarn.core.model import Scope, VirtualMachine, audience_key
from forewarn.core.vm_filter import VmFilter
from forewarn.dashboard.list_filter import read_list_filter
from forewarn.dashboard.page import PageModel, PageView
from forewarn.errors import NotFound
from forewarn.store.contract import Reader
from forewarn.wire.advice import find_advice_for_all

__all__ = ["make_vm_list", "make_vm_page"]

_REQUESTS = 30
_ROWS = 100


def make_vm_list(reader: Reader, view: PageView) -> PageModel:
    """Make the list of VMs, by name."""
    after, given = view.query_params.get("after") or None, read_list_filter(view.query_params)
    wanted = VmFilter(prefix=given.prefix, selector=given.selector, ignores_host_labels=not view.has_hosts)
    found = [] if given.wrong else reader.get_vm_page(after, _ROWS + 1, view.caller.ownership, wanted)
    values = {
        "rows": found[:_ROWS],
        "filter": given,
        "next": found[_ROWS - 1].name if len(found) > _ROWS else None,
        "after": after,
    }
    return PageModel(template="vms.html", title="VMs", values=values, is_live=False)


def _merge_labels(reader: Reader, view: PageView, vm: VirtualMachine, scope: Scope | None) -> dict[str, str]:
    """Return the labels by which the list finds the VM for this caller."""
    host = reader.find_hosts([vm.host]).get(vm.host) if view.has_hosts else None
    return merge_labels(() if host is None else host.labels, () if scope is None else scope.labels, vm.labels)


def make_vm_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of one VM.

    Raises:
        NotFound: No VM of the caller has that name.
    """
    name = view.path_params["name"]
    found = reader.list_vms(name=name, owned=view.caller.ownership)
    if not found:
        raise NotFound(f"vm {name!r} does not exist", vm=name)
    one = found[0]
    declared = reader.find_scopes([one.scope]).get(one.scope) if one.scope else None
    feed = view.context.engine.feed
    key = audience_key(one, declared)
    document = feed.find_document(key)
    # Without an enabled scope there are no replies.
    replies = () if document is None else feed.encode_document(document)
    documents = [
        (version.name, json.dumps(json.loads(reply.body), indent=2, ensure_ascii=False))
        for version, reply in zip(feed.versions, replies, strict=False)
    ]
    advised = find_advice_for_all(view.context.journal.list_exchanges(vm=name), _REQUESTS)
    values = {
        "vm": one,
        "scope": declared,
        "labels": sorted(_merge_labels(reader, view, one, declared).items()),
        "is_enabled": document is not None and document.audience.enabled_at is not None,
        "incarnation": 0 if document is None else document.audience.incarnation,
        "asked_at": feed.last_polled_at(key),
        "documents": documents[::-1],
        "requests": advised[::-1],
        "items": [i for i in view.visible_board.all_items if name in i.maintenance.vms],
    }
    return PageModel(template="vm.html", title=f"VM {name}", values=values)
