"""What waits for a metadata process that takes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.approval import ApprovalResult
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience
from forewarn.endpoint.messages import CallResult, SyncRequest, encode
from forewarn.endpoint.update_queue import UpdateQueue
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.wire.imds import Dialect
from tests.support.world import NOW
from tests.unit.core.builders import vm

AUDIENCES = [f"vm:vm-{n}" for n in range(3)]


class World:
    """A queue that is told of everything, and that nobody empties; updates are numbered from 1."""

    def __init__(self) -> None:
        self.feed = Feed(Dialect())
        self.identity = Identity(self.feed)
        self.queue = UpdateQueue(self.feed, self.identity)
        self.number = 0
        self.queue.is_open = True
        self.feed.listeners.append(lambda document: self.queue.add_document(document, self.next()))
        self.identity.listeners.append(lambda delta: self.queue.add_inventory(delta, self.next()))

    def next(self) -> int:
        self.number += 1
        return self.number

    @property
    def contents(self) -> list[object]:
        return [each.content for each in self.queue.items]


@pytest.fixture
def world() -> World:
    return World()


def document(number: int) -> AudienceDocument:
    key = AUDIENCES[number % len(AUDIENCES)]
    return AudienceDocument(audience=Audience(key=key, enabled_at=NOW, epoch=1, incarnation=number))


def answer(number: int) -> bytes:
    return encode(CallResult(number, ApprovalResult(approved=("A",))))


def waiting(world: World) -> list[object]:
    return [set(each) if isinstance(each, dict) else each for each in world.contents]


def test_of_the_documents_of_one_audience_only_the_newest_waits(world: World) -> None:
    world.feed.publish_documents(document(number) for number in range(1, 10_001))
    assert waiting(world) == [set(AUDIENCES)]
    newest = world.contents[0]
    assert isinstance(newest, dict)
    assert {each.audience.incarnation for each in newest.values()} == {9_998, 9_999, 10_000}


def test_an_answer_waits_behind_the_documents_that_it_implies(world: World) -> None:
    """Invariant 9: what is published before an answer arrives before it, and what comes later does not overtake it."""
    world.feed.publish_documents([document(1)])
    world.queue.add_message(answer(1))
    world.feed.publish_documents([document(2)])
    assert waiting(world) == [{AUDIENCES[1]}, answer(1), {AUDIENCES[2]}]


def test_documents_do_not_overtake_an_inventory(world: World) -> None:
    world.feed.publish_documents([document(1)])
    world.identity.load_inventory(Inventory(vms=(vm("vm-0"), vm("vm-1"))))
    world.feed.publish_documents([document(4)])
    first, declared, last = world.contents
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert declared == world.identity.snapshot()
    assert [each[AUDIENCES[1]].audience.incarnation for each in (first, last)] == [1, 4]


def test_many_inventories_wait_as_the_newest_with_every_document_and_answers_after_them(
    world: World,
) -> None:
    world.feed.publish_documents([document(1)])
    world.queue.add_message(answer(1))
    for count in range(100):
        world.identity.load_inventory(Inventory(vms=tuple(vm(f"vm-{n}") for n in range(count))))
        world.feed.publish_documents([document(3 * count + 2)])
    assert len(world.contents) < 10
    declared = [each for each in world.contents if isinstance(each, tuple)]
    assert len(declared) <= 2
    assert declared[-1] == world.identity.snapshot()
    assert answer(1) in world.contents


def test_however_answers_and_documents_alternate_the_queue_does_not_grow_without_end(world: World) -> None:
    for number in range(1, 5_001):
        world.feed.publish_documents([document(number)])
        world.queue.add_message(answer(number))
    groups = [each for each in world.contents if not isinstance(each, bytes)]
    answers = [each for each in world.contents if isinstance(each, bytes)]
    assert len(groups) <= 1001
    assert answers == [answer(number) for number in range(1, 5_001)], "each is waited for"


def test_a_first_question_waits_behind_every_snapshot_that_replaces_the_first(world: World) -> None:
    """It makes the process accept VMs, so none may be answered before the documents have arrived."""
    world.queue.open()
    world.queue.add_message(encode(SyncRequest(1)))
    for count in range(10):  # while the first inventory is still being sent
        world.identity.load_inventory(Inventory(vms=tuple(vm(f"vm-{n}") for n in range(200 + count))))
    kinds = [type(each) for each in world.contents]
    assert kinds.index(bytes) > max(at for at, kind in enumerate(kinds) if kind is dict)


def test_an_item_reaches_the_position_of_its_newest_update(world: World) -> None:
    world.feed.publish_documents([document(1), document(2)])
    world.identity.load_inventory(Inventory(vms=(vm("vm-0"),)))
    world.queue.add_message(answer(1))
    world.feed.publish_documents([document(3)])
    assert [each.position for each in world.queue.items] == [2, 3, 0, 4]


def test_a_snapshot_reaches_the_position_of_everything_that_it_replaces(world: World) -> None:
    for count in range(10):
        world.feed.publish_documents([document(count + 1)])
        world.identity.load_inventory(Inventory(vms=tuple(vm(f"vm-{n}") for n in range(200 + count))))
    assert world.queue.items[-1].position == world.number
    positions = [each.position for each in world.queue.items if each.position]
    assert positions == sorted(positions)
    world.queue.open(position=77)
    assert [each.position for each in world.queue.items] == [0, 77]


def test_a_process_that_is_away_is_told_nothing_until_it_is_told_everything(world: World) -> None:
    world.queue.close()
    world.feed.publish_documents([document(1)])
    world.identity.load_inventory(Inventory(vms=(replace(vm("vm-0"), addresses=("10.0.0.1",)),)))
    assert not world.contents
