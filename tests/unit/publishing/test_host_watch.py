"""Who is told of which change, and how much waits for one who does not listen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, Host
from forewarn.errors import LimitExceeded, NotFound
from forewarn.publishing.feed import Feed
from forewarn.publishing.host_watch import HostWatch, HostWatches
from forewarn.publishing.identity import Identity
from forewarn.wire.hostfeed import parse_line
from forewarn.wire.imds import Dialect
from tests.support.world import NOW
from tests.unit.core.builders import availability_set, vm

INVENTORY = Inventory(
    hosts=(Host(name="one"), Host(name="two"), Host(name="empty")),
    scopes=(availability_set("web"),),
    vms=(
        replace(vm("web-0", scope="web"), host="one"),
        replace(vm("db"), host="one"),
        replace(vm("web-1", scope="web"), host="two"),
    ),
)


class Sleeper:
    """A watcher that counts how often it is woken."""

    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1


class Place:
    """A feed with a hub on it."""

    def __init__(self, watches_max: int = 10) -> None:
        self.feed = Feed(Dialect())
        self.identity = Identity(self.feed)
        self.hub = HostWatches(self.feed, self.identity, 0.0, lambda: 7, watches_max)
        self.identity.load_inventory(INVENTORY)
        self.sleeper = Sleeper()

    def publish(self, key: str, incarnation: int) -> None:
        audience = Audience(key=key, enabled_at=NOW, epoch=1, incarnation=incarnation)
        self.feed.publish_documents([AudienceDocument(audience=audience)])

    def watch(self, host: str) -> HostWatch:
        """One that has heard everything up to now."""
        watch = self.hub.begin_watch(host, self.sleeper)
        assert watch.take_changes() is None
        return watch


def heard(watch: HostWatch) -> dict[str, int] | None:
    changes = watch.take_changes()
    if changes is None:
        return None
    return {change.document.audience.key: change.document.audience.incarnation for change in changes}


def test_a_change_goes_to_the_hosts_of_its_vms() -> None:
    place = Place()
    one, two, empty = (place.watch(host) for host in ("one", "two", "empty"))
    place.publish("scope:web", 1)
    place.publish("vm:db", 5)
    assert (heard(one), heard(two), heard(empty)) == ({"scope:web": 1, "vm:db": 5}, {"scope:web": 1}, {})
    assert heard(one) == {}


def test_for_one_who_does_not_listen_the_newest_of_each_waits() -> None:
    place = Place()
    one = place.watch("one")
    for incarnation in range(1, 1001):
        place.publish("vm:db", incarnation)
    assert heard(one) == {"vm:db": 1000}


def test_a_state_holds_what_concerns_the_host() -> None:
    place = Place()
    place.publish("scope:web", 3)
    place.publish("vm:db", 5)
    two = place.watch("two")
    state = place.hub.build_state(two)
    assert (state.host, state.position, [v.name for v in state.inventory.vms]) == ("two", 7, ["web-1"])
    assert [(d.audience.key, d.audience.incarnation) for d in state.documents] == [("scope:web", 3)]
    assert [scope.name for scope in state.inventory.scopes] == ["web"]
    nothing = place.hub.build_state(place.watch("empty"))
    assert (nothing.inventory.vms, nothing.documents) == ((), ())


def test_another_inventory_is_heard_from_the_beginning_and_by_those_whom_it_concerns_now() -> None:
    place = Place()
    one, two = place.watch("one"), place.watch("two")
    moved = tuple(replace(each, host="two") if each.name == "db" else each for each in INVENTORY.vms)
    place.identity.load_inventory(replace(INVENTORY, vms=moved))
    assert (heard(one), heard(two)) == (None, None)
    place.publish("vm:db", 2)
    assert (heard(one), heard(two)) == ({}, {"vm:db": 2})


def test_another_inventory_leaves_alone_those_of_whom_it_says_the_same() -> None:
    place = Place()
    one, two, empty = (place.watch(host) for host in ("one", "two", "empty"))
    place.publish("vm:db", 2)
    more = replace(INVENTORY, vms=(*(replace(each) for each in INVENTORY.vms), replace(vm("new"), host="two")))
    place.identity.load_inventory(more)
    assert (heard(one), heard(two), heard(empty)) == ({"vm:db": 2}, None, {})
    assert [each.name for each in place.hub.build_state(two).inventory.vms] == ["new", "web-1"]
    # Nothing of the inventory before is held on to.
    assert all(any(declared is each for each in more.vms) for declared in one.declared[0])


def test_a_scope_that_changes_is_heard_by_all_its_hosts() -> None:
    place = Place()
    one, two, empty = (place.watch(host) for host in ("one", "two", "empty"))
    place.identity.load_inventory(replace(INVENTORY, scopes=(replace(availability_set("web"), fault_domain_count=3),)))
    assert (heard(one), heard(two), heard(empty)) == (None, None, {})


def test_the_line_of_a_change_is_made_once_for_all() -> None:
    place = Place()
    one, two = place.watch("one"), place.watch("two")
    place.publish("scope:web", 1)
    [told_one], [told_two] = one.take_changes() or [], two.take_changes() or []
    assert told_one is told_two
    assert told_one.encoded_line is told_two.encoded_line
    told = parse_line(told_one.encoded_line)
    assert isinstance(told, AudienceDocument)
    assert (told.audience.key, told.audience.incarnation) == ("scope:web", 1)


def test_one_that_is_disabled_is_told_of() -> None:
    place = Place()
    one = place.watch("one")
    place.publish("vm:db", 1)
    assert heard(one) == {"vm:db": 1}
    place.feed.replace_documents([])
    [gone] = one.take_changes() or []
    assert (gone.document.audience.key, gone.document.audience.enabled_at) == ("vm:db", None)


def test_who_has_gone_is_forgotten() -> None:
    place = Place(watches_max=1)
    one = place.watch("one")
    with pytest.raises(LimitExceeded, match="watches_max"):
        place.hub.begin_watch("two", place.sleeper)
    place.hub.end_watch(one)
    place.hub.end_watch(one)
    place.publish("vm:db", 1)
    assert (len(place.hub), one.take_changes()) == (0, [])
    assert place.watch("two") is not None
    with pytest.raises(NotFound, match="host 'three' does not exist"):
        place.hub.begin_watch("three", place.sleeper)


def test_a_watcher_is_woken_once_until_it_takes_its_changes() -> None:
    place = Place()
    one = place.hub.begin_watch("one", place.sleeper)
    place.publish("vm:db", 1)
    assert place.sleeper.wakes == 0  # it has yet to take the state with which it begins
    assert one.take_changes() is None
    place.publish("vm:db", 2)
    place.publish("scope:web", 1)
    assert place.sleeper.wakes == 1
    assert heard(one) == {"vm:db": 2, "scope:web": 1}
    place.identity.load_inventory(replace(INVENTORY, vms=INVENTORY.vms[:1]))
    place.publish("scope:web", 2)
    assert place.sleeper.wakes == 2
    assert one.take_changes() is None


def test_two_watches_of_a_host_hear_the_same_until_one_ends() -> None:
    place = Place()
    first, second = place.watch("one"), place.watch("one")
    place.publish("vm:db", 1)
    place.hub.end_watch(first)
    place.publish("scope:web", 1)
    assert (heard(first), heard(second)) == ({"vm:db": 1}, {"vm:db": 1, "scope:web": 1})


def test_a_vm_that_moves_into_a_scope_is_no_longer_heard_of_by_its_own_key() -> None:
    place = Place()
    one = place.watch("one")
    joined = tuple(replace(each, scope="web") if each.name == "db" else each for each in INVENTORY.vms)
    place.identity.load_inventory(replace(INVENTORY, vms=joined))
    assert heard(one) is None
    place.publish("vm:db", 1)
    place.publish("vm:none", 1)
    place.publish("scope:web", 1)
    assert heard(one) == {"scope:web": 1}


def test_a_watch_of_standalone_vms_is_listed_under_its_host_alone() -> None:
    """An entry for each VM would take most of the memory of a watch."""
    place = Place()
    vms = tuple(replace(vm(f"vm-{number}"), host="one") for number in range(20))
    place.identity.load_inventory(replace(INVENTORY, vms=vms))
    one = place.watch("one")
    assert place.hub._by_host == {"one": (one,)}
    assert place.hub._by_shared_audience == {}
    assert one.declared[0] is place.identity.vms_of("one")
    place.publish("vm:vm-7", 1)
    assert heard(one) == {"vm:vm-7": 1}
    place.hub.end_watch(one)
    assert place.hub._by_host == {}


def test_a_watch_knows_how_much_waits() -> None:
    place = Place()
    watch = place.hub.begin_watch("one", place.sleeper)
    counts = [watch.waiting_count]
    watch.take_changes()
    counts.append(watch.waiting_count)
    place.publish("scope:web", 1)
    place.publish("scope:web", 2)
    place.publish("vm:db", 5)
    counts.append(watch.waiting_count)
    watch.restart()
    counts.append(watch.waiting_count)
    assert counts == [None, 0, 2, None], "None: everything is to be sent"
