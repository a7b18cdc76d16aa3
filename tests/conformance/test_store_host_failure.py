"""A host that has failed keeps its mark in every store, until it has recovered."""

from __future__ import annotations

from dataclasses import replace

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import Host
from forewarn.store.contract import Store
from tests.support.world import NOW
from tests.unit.core.builders import vm

FAILED = Host(name="host-2", failed_at=NOW, failure_reason="power supply burnt")


def declare(store: Store, *hosts: Host) -> None:
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=hosts, vms=(vm("a", host="host-1"),)), "1")


def test_a_host_that_failed_is_found_as_such(store: Store) -> None:
    declare(store, Host(name="host-1"), Host(name="host-2"))
    with store.write() as tx:
        assert tx.load_targets(["host-2", "none"], []).hosts == {"host-2": Host(name="host-2")}
        tx.save(ChangeSet(hosts={"host-2": FAILED}))
    with store.read() as reader:
        assert reader.find_hosts(["host-1", "host-2", "none"]) == {"host-1": Host(name="host-1"), "host-2": FAILED}
        assert reader.list_failed_hosts(10) == [FAILED]
        assert reader.get_inventory().hosts == (Host(name="host-1"), FAILED)


def test_one_that_has_recovered_is_as_before(store: Store) -> None:
    declare(store, Host(name="host-1"), FAILED)
    with store.write() as tx:
        tx.save(ChangeSet(hosts={"host-2": Host(name="host-2")}))
    with store.read() as reader:
        assert reader.list_failed_hosts(10) == []
        assert reader.find_hosts(["host-2"]) == {"host-2": Host(name="host-2")}


def test_the_last_to_fail_come_first_and_no_more_than_asked_for(store: Store) -> None:
    hosts = [replace(FAILED, name=f"host-{n}", failed_at=NOW.replace(second=n)) for n in range(1, 4)]
    declare(store, *hosts)
    with store.read() as reader:
        assert [host.name for host in reader.list_failed_hosts(2)] == ["host-3", "host-2"]
