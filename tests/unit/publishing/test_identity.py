"""Who calls: decided by the connection's addresses alone (R2, invariant 8)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.inventory import Inventory, extract_changes
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, Host
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Caller, Identity
from forewarn.publishing.inventory_index import InventoryDelta
from forewarn.wire.imds import Dialect
from tests.support.world import NOW, minutes
from tests.unit.core.builders import availability_set, scale_set, vm

HERE = "169.254.169.254"
WEB = [replace(vm(f"web-{n}", scope="web"), addresses=(f"10.9.0.{n}",)) for n in range(2)]
DB = replace(vm("db"), addresses=("10.9.0.9", "fd00::9"))
GPU = [replace(vm(f"gpu-{n}", scope="gpu", size="Standard_NC6"), addresses=(f"10.9.1.{n}",)) for n in range(2)]
INVENTORY = Inventory(scopes=(availability_set("web"), scale_set("gpu", fault_domain_count=1)), vms=(*WEB, DB, *GPU))


@pytest.fixture
def identity() -> Identity:
    made = Identity(Feed(Dialect()))
    made.load_inventory(INVENTORY)
    return made


def key(identity: Identity, peer: str, local: str = HERE) -> str | None:
    caller = identity.resolve_caller(peer, local)
    return None if caller is None else caller.channel.key


def test_vms_of_a_scope_share_a_channel_and_the_others_have_their_own(identity: Identity) -> None:
    """R58."""
    assert key(identity, "10.9.0.0") == key(identity, "10.9.0.1") == "scope:web"
    assert key(identity, "10.9.0.9") == key(identity, "fd00::9") == "vm:db"
    assert [key(identity, f"10.9.1.{n}") for n in range(2)] == ["vm:gpu-0", "vm:gpu-1"]
    assert identity.vm_count == 5


def test_a_caller_is_the_same_object_until_the_inventory_changes(identity: Identity) -> None:
    caller = identity.resolve_caller("10.9.0.0", HERE)
    assert caller is not None
    assert caller is identity.resolve_caller("10.9.0.0", HERE)
    assert (caller.vm, caller.scope) == (WEB[0], availability_set("web"))


@pytest.mark.parametrize("peer", ["10.9.0.99", "127.0.0.1", "", "::1", "nonsense", HERE])
def test_who_is_not_declared_is_nobody(peer: str, identity: Identity) -> None:
    assert key(identity, peer) is None


@pytest.mark.parametrize("peer", ["::ffff:10.9.0.9", "fd00::9%eth0"])
def test_an_address_is_recognised_in_its_other_forms(peer: str, identity: Identity) -> None:
    assert key(identity, peer) == "vm:db"


def test_after_a_new_inventory_nothing_is_answered_from_what_was_known_before(identity: Identity) -> None:
    """R85: an address may belong to another tenant now."""
    feed = identity.feed
    enabled = Audience(key="scope:web", enabled_at=NOW, epoch=1, incarnation=1, active_until=NOW)
    feed.publish_documents([AudienceDocument(audience=enabled)])
    before = identity.resolve_caller("10.9.0.0", HERE)
    assert before is not None
    assert before.channel.replies
    identity.load_inventory(Inventory(vms=(replace(DB, addresses=("10.9.0.0",)),)))
    assert not before.is_current
    assert before.channel.replies == ()
    assert not before.channel.is_enabled
    assert key(identity, "10.9.0.0") == "vm:db"
    assert key(identity, "10.9.0.1") is None


@pytest.mark.parametrize("is_declared", [True, False])
def test_connections_opened_before_a_new_inventory_still_count_for_their_vm(
    identity: Identity, is_declared: bool
) -> None:
    """So that no VM may hold its limit of connections once for each inventory."""
    before = identity.resolve_caller("10.9.0.0", HERE)
    assert before is not None
    before.usage.connections = 7
    for size in ("small", "large"):
        vms = (replace(WEB[0], size=size),) if is_declared or size == "large" else ()
        identity.replace_part(Inventory(vms=(WEB[0],)), Inventory(vms=vms))
    again = identity.resolve_caller("10.9.0.0", HERE)
    assert again is not None
    assert again is not before
    assert again.usage.connections == 7
    identity.load_inventory(INVENTORY)
    del before, again  # its last connections end without another request
    last = identity.resolve_caller("10.9.0.0", HERE)
    assert last is not None
    assert last.usage.connections == 0


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.5.5.5", HERE),
        ("::1", "::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:127.0.0.1", HERE),
    ],
)
def test_a_single_vm_without_addresses_answers_every_caller_on_this_machine(peer: str, local: str) -> None:
    identity = Identity(Feed(Dialect()))
    identity.load_inventory(Inventory(vms=(vm("vm-1"),)))
    assert key(identity, peer, local) == "vm:vm-1"


@pytest.mark.parametrize("peer", ["10.0.0.2", "fe80::1", ""])
def test_a_single_vm_without_addresses_answers_nobody_else(peer: str) -> None:
    identity = Identity(Feed(Dialect()))
    identity.load_inventory(Inventory(vms=(vm("vm-1"),)))
    assert key(identity, peer, "10.0.0.1") is None


@pytest.mark.parametrize("peer", ["10.0.0.2", "172.17.0.1", "fe80::1", "127.0.0.1"])
def test_any_caller_may_be_said_to_be_one_vm(peer: str) -> None:
    identity = Identity(Feed(Dialect()), any_caller_is="a")
    identity.load_inventory(Inventory(vms=(vm("a"), replace(vm("b"), addresses=("192.0.2.7",)))))
    assert key(identity, peer, "10.0.0.1") == "vm:a"
    assert key(identity, "192.0.2.7", "10.0.0.1") == "vm:b"


def test_one_of_several_vms_or_one_with_an_address_answers_its_own_callers_only() -> None:
    for inventory in (Inventory(vms=(vm("a"), vm("b"))), Inventory(vms=(DB,)), Inventory()):
        identity = Identity(Feed(Dialect()))
        identity.load_inventory(inventory)
        assert key(identity, "127.0.0.1") is None


_SCOPES = st.sampled_from([None, "web", "gpu"])
_VMS = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.sampled_from(["host-1", "host-2", "host-3"]), _SCOPES, st.integers(0, 9))
)


def declared(vms: dict[str, tuple[str, str | None, int]], fault_domains: int) -> Inventory:
    """An inventory in which each VM has an address of its own."""
    made = (
        replace(vm(name, scope=scope, host=host), addresses=(f"10.0.{ord(name)}.{last}",))
        for name, (host, scope, last) in vms.items()
    )
    hosts = tuple(Host(name=name) for name in sorted({host for host, _, _ in vms.values()}))
    scopes = (availability_set("web"), scale_set("gpu", fault_domain_count=fault_domains))
    return Inventory(hosts=hosts, scopes=scopes, vms=tuple(made))


@given(_VMS, _VMS, st.integers(1, 2), st.integers(1, 2))
def test_a_change_leads_to_what_loading_the_whole_leads_to(
    old: dict[str, tuple[str, str | None, int]], new: dict[str, tuple[str, str | None, int]], before: int, after: int
) -> None:
    """Invariant 12: a change costs what it changes."""
    first, second = declared(old, before), declared(new, after)
    changed, loaded = Identity(Feed(Dialect())), Identity(Feed(Dialect()))
    changed.load_inventory(first)
    callers = {name: changed.find_caller(name) for name in old}
    changed.replace_part(*extract_changes(first, second))
    loaded.load_inventory(second)
    assert {each.name: each for each in changed.vms} == {each.name: each for each in loaded.vms}
    assert changed.hosts == loaded.hosts
    for host in ("host-1", "host-2", "host-3"):
        assert sorted(each.name for each in changed.vms_of(host)) == sorted(each.name for each in loaded.vms_of(host))
    for one in second.vms:
        assert key(changed, one.addresses[0]) == key(loaded, one.addresses[0])
        caller, was = changed.find_caller(one.name), callers.get(one.name)
        assert caller is not None
        assert (caller.vm, caller.scope) == (one, None if one.scope is None else changed.get_scope(one.scope))
        assert was is None or was.is_current is (was is caller)
    gone = {address for one in first.vms for address in one.addresses}
    for address in gone - {address for one in second.vms for address in one.addresses}:
        assert changed.resolve_caller(address, HERE) is None


def test_a_change_of_one_vm_leaves_the_connections_of_others_alone(identity: Identity) -> None:
    other, own = identity.resolve_caller("10.9.0.0", HERE), identity.resolve_caller("10.9.0.9", HERE)
    assert other is not None
    assert own is not None
    heard: list[InventoryDelta | None] = []
    identity.listeners.append(heard.append)
    identity.replace_part(Inventory(vms=(DB,)), Inventory(vms=(replace(DB, size="D4"),)))
    assert (other.is_current, own.is_current) == (True, False)
    assert [delta and delta.hosts for delta in heard] == [frozenset({DB.host})]


def test_a_revision_changes_what_it_names_and_leaves_other_callers_alone(identity: Identity) -> None:
    """R2: connections of VMs that are declared as before go on as they are."""
    web, db = identity.resolve_caller("10.9.0.0", HERE), identity.resolve_caller("10.9.0.9", HERE)
    assert web is not None
    assert db is not None
    revision = identity.begin_revision()
    revision.remove_vm("gpu-0")
    revision.put_vm(replace(DB, addresses=("10.9.0.10",)))
    revision.put_vm(replace(vm("new"), addresses=("10.9.0.9",)))
    assert identity.resolve_caller("10.9.0.9", HERE) is db, "nothing changes before it is taken over"
    identity.apply_revision(revision)
    assert (web.is_current, db.is_current) == (True, False)
    assert db.channel.replies == ()
    assert key(identity, "10.9.0.9") == "vm:new"
    assert key(identity, "10.9.0.10") == "vm:db"
    assert key(identity, "fd00::9") is None
    assert key(identity, "10.9.1.0") is None
    assert identity.vm_count == 5


def test_an_address_that_moves_between_vms_is_the_new_owners_in_whichever_order_they_are_told(
    identity: Identity,
) -> None:
    without, taker = replace(DB, addresses=()), replace(vm("taker"), addresses=DB.addresses)
    for order in ((without, taker), (taker, without)):
        identity.load_inventory(INVENTORY)
        revision = identity.begin_revision()
        for each in order:
            revision.put_vm(each)
        identity.apply_revision(revision)
        assert {key(identity, address) for address in DB.addresses} == {"vm:taker"}


def test_a_scope_that_is_declared_otherwise_moves_all_its_vms(identity: Identity) -> None:
    """R58: whether VMs share a document may depend on their scope alone."""
    before = identity.resolve_caller("10.9.1.0", HERE)
    web = identity.resolve_caller("10.9.0.0", HERE)
    assert before is not None
    assert web is not None
    revision = identity.begin_revision()
    revision.put_scope(scale_set("gpu", fault_domain_count=2))
    identity.apply_revision(revision)
    assert (before.is_current, web.is_current) == (False, True)
    assert key(identity, "10.9.1.0") == "scope:gpu"


def test_a_second_vm_ends_that_the_first_answers_every_caller() -> None:
    identity = Identity(Feed(Dialect()))
    identity.load_inventory(Inventory(vms=(vm("a"),)))
    alone = identity.resolve_caller("127.0.0.1", HERE)
    assert alone is not None
    revision = identity.begin_revision()
    revision.put_vm(vm("b"))
    identity.apply_revision(revision)
    assert not alone.is_current
    assert key(identity, "127.0.0.1") is None
    revision = identity.begin_revision()
    revision.remove_vm("b")
    identity.apply_revision(revision)
    assert key(identity, "127.0.0.1") == "vm:a"


def test_a_revision_is_the_inventory_that_it_was_made_from() -> None:
    """However an inventory is told, in whole or in parts, the same callers are the same VMs."""
    told, whole = Identity(Feed(Dialect())), Identity(Feed(Dialect()))
    revision = told.begin_revision()
    for scope in INVENTORY.scopes:
        revision.put_scope(scope)
    for each in INVENTORY.vms:
        revision.put_vm(each)
    told.apply_revision(revision)
    whole.load_inventory(INVENTORY)
    assert told.snapshot() == whole.snapshot()
    for address in (address for each in INVENTORY.vms for address in each.addresses):
        assert key(told, address) == key(whole, address)


def call(identity: Identity, name: str, at: datetime) -> Caller:
    """Have a VM ask."""
    caller = identity.find_caller(name)
    assert caller is not None
    caller.channel.last_polled_at = at
    return caller


def test_a_vm_that_has_not_asked_for_long_is_released_and_sees_the_same_when_it_asks_again(identity: Identity) -> None:
    db = Audience(key="vm:db", enabled_at=NOW, epoch=1, incarnation=4, active_until=NOW)
    identity.feed.publish_documents([AudienceDocument(audience=db)])
    caller = call(identity, "db", NOW)
    replies = caller.channel.replies
    assert identity.release_silent_callers(NOW, 100) == 0
    assert identity.release_silent_callers(NOW + minutes(1), 100) == 1
    assert not caller.is_current
    assert identity.feed._channels == {}
    again = identity.find_caller("db")
    assert again is not None
    assert again is not caller
    assert (again.channel.incarnation, again.channel.last_polled_at) == (4, NOW)
    assert [each.keep_alive_bytes for each in again.channel.replies] == [each.keep_alive_bytes for each in replies]


def test_a_vm_with_a_connection_or_that_never_asked_is_not_released(identity: Identity) -> None:
    identity.find_caller("db")
    connected = call(identity, "gpu-0", NOW)
    connected.usage.connections = 1
    assert identity.release_silent_callers(NOW + minutes(1), 100) == 0
    assert connected.is_current
    assert identity.find_caller("gpu-0") is connected


def test_the_channel_of_a_scope_stays_when_one_of_its_vms_is_released(identity: Identity) -> None:
    web = Audience(key="scope:web", scope="web", enabled_at=NOW, epoch=1, incarnation=4, active_until=NOW)
    identity.feed.publish_documents([AudienceDocument(audience=web)])
    released, connected = call(identity, "web-0", NOW), call(identity, "web-1", NOW)
    channel, connected.usage.connections = connected.channel, 1
    assert identity.release_silent_callers(NOW + minutes(1), 100) == 1
    assert (released.is_current, connected.is_current) == (False, True)
    again = identity.find_caller("web-0")
    assert again is not None
    assert again.channel is connected.channel is channel


def test_each_call_examines_a_bounded_number_of_callers_and_all_have_their_turn(identity: Identity) -> None:
    for name in ("db", "web-0", "web-1", "gpu-0", "gpu-1"):
        call(identity, name, NOW)
    assert [identity.release_silent_callers(NOW + minutes(1), 2) for _ in range(4)] == [2, 2, 1, 0]
