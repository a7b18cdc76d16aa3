"""What a process shows of the updates that it has received."""

from __future__ import annotations

import pytest

from forewarn.endpoint.messages import (
    CallResult,
    CounterRequest,
    DocumentUpdate,
    FromService,
    InventoryPart,
    PositionPublished,
    PositionReached,
    SyncRequest,
)
from forewarn.endpoint.position_gate import PositionGate


class World:
    """A gate, what has passed it, and what it has confirmed."""

    def __init__(self, published: int = 1) -> None:
        self.memory = memoryview(bytearray(8)).cast("Q")
        self.memory[0] = published
        self.applied: list[FromService] = []
        self.confirmed: list[int] = []
        self.gate = PositionGate(self.memory, self.applied.append, self.confirmed.append)

    def add(self, *messages: FromService) -> None:
        for message in messages:
            self.gate.add(message)


def documents() -> DocumentUpdate:
    return DocumentUpdate([])


def begun(published: int = 1) -> World:
    """A gate whose process has the state of position 1."""
    world = World(published)
    world.add(InventoryPart(is_last=True), documents(), PositionReached(1))
    world.applied.clear()
    return world


def test_the_state_at_the_start_takes_effect_as_it_arrives() -> None:
    world = World(published=5)
    world.add(InventoryPart(), InventoryPart(is_last=True), documents())
    assert len(world.applied) == 3
    world.add(PositionReached(6))
    assert (world.confirmed, world.gate.shown) == ([6], 6)


def test_no_vm_is_accepted_before_the_state_at_the_start_is_published() -> None:
    world = World(published=5)
    world.add(documents(), PositionReached(6), SyncRequest(1))
    assert len(world.applied) == 1
    world.memory[0] = 6
    world.add(PositionPublished())
    assert isinstance(world.applied[-1], SyncRequest)


def test_an_update_is_confirmed_when_it_arrives_and_shown_when_it_is_published() -> None:
    world = begun()
    update = documents()
    world.add(update, PositionReached(2))
    assert (world.applied, world.confirmed) == ([], [1, 2])
    world.memory[0] = 2
    assert world.gate.catch_up()
    assert world.applied == [update]


def test_updates_beyond_the_published_position_stay_behind() -> None:
    world = begun()
    first, second = documents(), documents()
    world.add(first, PositionReached(2), second, PositionReached(4))
    world.memory[0] = 3
    assert not world.gate.catch_up(), "position 3 arrives with 4"
    assert [each is first for each in world.applied] == [True]
    world.memory[0] = 4
    assert world.gate.catch_up()
    assert world.applied[-1] is second


def test_an_answer_takes_effect_after_the_update_before_it() -> None:
    world = begun()
    update, answer = documents(), CallResult(1)
    world.add(update, PositionReached(2), answer)
    assert world.applied == []
    world.memory[0] = 2
    world.add(PositionPublished())
    assert world.applied[:2] == [update, answer]


def test_a_question_about_counters_waits_for_nothing() -> None:
    world = begun()
    question = CounterRequest(1, 0)
    world.add(documents(), PositionReached(2), question)
    assert world.applied == [question]


def test_parts_of_an_inventory_are_prepared_at_once_and_the_last_one_waits() -> None:
    world = begun()
    part, last = InventoryPart(removed_vms=["a"]), InventoryPart(is_last=True)
    world.add(part, last, PositionReached(2))
    assert world.applied == [part]
    world.memory[0] = 2
    world.gate.catch_up()
    assert world.applied == [part, last]


def test_parts_of_an_inventory_are_not_prepared_from_one_that_an_earlier_update_replaces() -> None:
    world = begun()
    first = InventoryPart(is_last=True)
    part, last = InventoryPart(removed_vms=["a"]), InventoryPart(is_last=True)
    world.add(first, PositionReached(2), part, last, PositionReached(3))
    assert world.applied == []
    world.memory[0] = 3
    world.gate.catch_up()
    assert world.applied == [first, part, last]


def test_who_waits_is_called_once_everything_published_has_taken_effect() -> None:
    world = begun(published=3)
    called: list[int] = []
    assert not world.gate.catch_up()
    world.gate.hold(lambda: called.append(world.gate.shown))
    world.add(documents(), PositionReached(2))
    assert called == []
    world.add(documents(), PositionReached(3))
    assert called == [3]
    world.add(PositionPublished())
    assert called == [3]


def test_an_update_that_fails_is_not_taken_as_shown() -> None:
    def fail(_: FromService) -> None:
        raise ValueError("a bug")

    memory = memoryview(bytearray(8)).cast("Q")
    gate = PositionGate(memory, fail, lambda _: None)
    gate.add(PositionReached(1))
    gate.add(documents())
    gate.add(PositionReached(2))
    memory[0] = 2
    for _ in range(2):  # first in a request, then where it ends the process
        with pytest.raises(ValueError, match="a bug"):
            gate.catch_up()
    assert gate.shown == 1
