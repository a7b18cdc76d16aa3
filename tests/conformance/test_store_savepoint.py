"""A part of a transaction that is undone, while the rest is committed."""

from __future__ import annotations

from forewarn.core.audit_chain import ChainVerifier
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import AuditEntry, EntryKind, Host
from forewarn.store import Store
from forewarn.store.contract import Transaction
from tests.support.world import NOW
from tests.unit.core.builders import vm


class Refused(Exception):
    """What a command is refused with."""


def record(tx: Transaction, reason: str) -> None:
    tx.save(ChangeSet(entries=[AuditEntry(at=NOW, kind=EntryKind.VM_CHANGED, actor="a", reason=reason)]))


def put_host(tx: Transaction, name: str) -> None:
    tx.replace_inventory(Inventory(hosts=(Host(name=name),), vms=(vm(f"vm-{name}", host=name),)), None, Inventory())


def refuse(tx: Transaction, name: str, *, with_host: bool = False) -> None:
    """Change something, then be refused."""
    try:
        with tx.savepoint():
            if with_host:
                put_host(tx, name)
            record(tx, name)
            raise Refused  # noqa: TRY301 - it is this block that undoes it
    except Refused:
        return
    raise AssertionError("the error was lost")


def test_what_is_refused_is_undone_and_the_rest_is_committed(store: Store) -> None:
    with store.write() as tx:
        with tx.savepoint():
            put_host(tx, "first")
            record(tx, "first")
        refuse(tx, "second", with_host=True)
        with tx.savepoint():
            record(tx, "third")
        assert tx.numbers is not None
        last = tx.numbers[1]
    with store.read() as reader:
        assert [host.name for host in reader.get_inventory().hosts] == ["first"]
        assert [each.name for each in reader.get_inventory().vms] == ["vm-first"]
        assert reader.get_position() == last
        assert reader.get_inventory_version() == 1
        entries = reader.list_entries(limit=10).items
        assert sorted(entry.reason or "" for entry in entries) == ["first", "third"]


def test_numbers_of_what_was_undone_are_free_again(store: Store) -> None:
    """The counter says whether a replica has missed anything: an undone change must not leave a gap."""
    with store.write() as tx:
        refuse(tx, "undone")
        assert tx.numbers is None
        first = tx.next_sequence()
    with store.read() as reader:
        assert reader.get_position() == first


def test_the_hash_chain_goes_on_from_the_entry_before(store: Store) -> None:
    with store.write() as tx:
        record(tx, "kept")
        refuse(tx, "undone")
        record(tx, "after")
    with store.write() as tx:
        record(tx, "later")
    with store.read() as reader:
        page = reader.get_link_page(None, 10)
    assert [link.entry.reason for link in page.links if link.entry is not None] == ["kept", "after", "later"]
    verifier = ChainVerifier({})
    verifier.verify_page(page)
    assert verifier.findings == []
