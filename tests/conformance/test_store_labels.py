"""Hosts and VMs are selected by labels in the query, exactly as the selector defines it."""

from __future__ import annotations

from itertools import product

import pytest

from forewarn.core.access import Ownership
from forewarn.core.fast_replace import replace
from forewarn.core.inventory import Inventory
from forewarn.core.label import Labels, merge_labels, parse_selector
from forewarn.core.model import Host, Scope, ScopeKind, VirtualMachine
from forewarn.core.vm_filter import VmFilter
from forewarn.store import SqlStore
from tests.unit.core.builders import vm

LABELS: tuple[Labels, ...] = ((), (("k", "1"),), (("k", "2"), ("odd'\"$.key", "")), (("k", ""),))
CONDITIONS = ("k=1", "k!=1", "k in (1,2)", "k notin (2,3)", "k", "!k", "k=", "k!=", "other", "!other")
SELECTORS = (*CONDITIONS, "k,k!=2", "k notin (1),k", "k=1,k=2", "other=,k=2", "x.y/z=1")


def build_inventory() -> Inventory:
    """Every combination of labels of a host, a scope (or none), and a VM."""
    hosts = tuple(Host(name=f"host-{n}", labels=labels) for n, labels in enumerate(LABELS))
    scopes = tuple(
        Scope(name=f"scope-{n}", kind=ScopeKind.AVAILABILITY_SET, labels=labels) for n, labels in enumerate(LABELS)
    )
    vms = [
        replace(vm(f"vm-{number:03}", host=host.name, scope=None if scope is None else scope.name), labels=labels)
        for number, (host, scope, labels) in enumerate(product(hosts, (None, *scopes), LABELS))
    ]
    return Inventory(hosts=hosts, scopes=scopes, vms=tuple(vms))


@pytest.fixture
def filled(store: SqlStore) -> SqlStore:
    with store.write() as tx:
        tx.replace_inventory(build_inventory(), "mark")
    return store


def test_labels_are_read_back(filled: SqlStore) -> None:
    with filled.read() as reader:
        assert reader.get_inventory() == build_inventory()


@pytest.mark.parametrize("ignores_hosts", [False, True])
def test_vms_are_selected_by_their_labels_and_those_of_scope_and_host(filled: SqlStore, *, ignores_hosts: bool) -> None:
    declared = build_inventory()
    hosts = {host.name: host.labels for host in declared.hosts}
    scopes: dict[str | None, Labels] = {scope.name: scope.labels for scope in declared.scopes}

    def list_labels(one: VirtualMachine) -> dict[str, str]:
        return merge_labels(() if ignores_hosts else hosts[one.host], scopes.get(one.scope, ()), one.labels)

    for text in SELECTORS:
        wanted = VmFilter(selector=parse_selector(text), ignores_host_labels=ignores_hosts)
        expected = [one.name for one in declared.vms if wanted.matches(one, list_labels(one))]
        with filled.read() as reader:
            assert [one.name for one in reader.get_vm_page(None, 999, wanted=wanted)] == expected, text
            paged = reader.get_vm_page("vm-010", 3, wanted=wanted)
            assert [one.name for one in paged] == [name for name in expected if name > "vm-010"][:3], text


def test_hosts_are_selected_by_their_labels(filled: SqlStore) -> None:
    for text in SELECTORS:
        selector = parse_selector(text)
        expected = [host.name for host in build_inventory().hosts if selector.matches(dict(host.labels))]
        with filled.read() as reader:
            assert list(reader.get_host_page(None, 9, "", selector)) == expected, text


def test_scopes_are_selected_by_their_labels_and_counted(filled: SqlStore) -> None:
    scopes = build_inventory().scopes
    owned = Ownership(scopes=frozenset({"scope-1", "scope-3", "unknown"}))
    for text in SELECTORS:
        selector = parse_selector(text)
        expected = [scope for scope in scopes if selector.matches(dict(scope.labels))]
        with filled.read() as reader:
            assert reader.get_scope_page(None, 9, selector=selector) == expected, text
            assert reader.get_scope_page(None, 9, owned, selector=selector) == [
                scope for scope in expected if scope.name in owned.scopes
            ]
    with filled.read() as reader:
        assert [scope.name for scope in reader.get_scope_page("scope-0", 2)] == ["scope-1", "scope-2"]
        assert [scope.name for scope in reader.get_scope_page(None, 9, prefix="scope-3")] == ["scope-3"]
        assert reader.get_scope_page(None, 9, prefix="Scope") == []
        assert reader.get_scope_page(None, 9, Ownership()) == []
        assert reader.count_vms_by_scope(["scope-0", "scope-2", "unknown"]) == {"scope-0": 16, "scope-2": 16}
        assert reader.count_vms_by_scope([]) == {}


def test_a_changed_label_is_written(filled: SqlStore) -> None:
    declared = build_inventory()
    hosts = tuple(replace(host, labels=(("k", "new"),)) for host in declared.hosts)
    scopes = tuple(replace(scope, labels=()) for scope in declared.scopes)
    vms = tuple(replace(one, labels=()) for one in declared.vms)
    after = Inventory(hosts=hosts, scopes=scopes, vms=vms)
    with filled.write() as tx:
        tx.replace_inventory(after, "mark")
    with filled.read() as reader:
        assert reader.get_inventory() == after
        found = reader.get_vm_page(None, 999, wanted=VmFilter(selector=parse_selector("k=new")))
        assert len(found) == len(vms)
