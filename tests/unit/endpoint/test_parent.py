"""How updates are published in several metadata processes, and who accepts connections for one that is away."""

from __future__ import annotations

import asyncio
from typing import NoReturn, cast

from forewarn.clock import VirtualClock
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.messages import (
    FromService,
    PositionPublished,
    ProcessSettings,
    SocketAssignment,
    decode_from_service,
)
from forewarn.endpoint.parent import MetadataProcesses
from forewarn.endpoint.pipe import Pipe
from forewarn.endpoint.published_position import PublishedPosition
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.wire.imds import Dialect
from tests.support.warp import run_warped
from tests.support.world import NOW


async def _never(*_: object) -> NoReturn:
    raise AssertionError


class Line:
    """A pipe that keeps what is sent, as if the process read it at once."""

    def __init__(self) -> None:
        self.sent: list[FromService] = []
        self.unsent_bytes = 0

    def send(self, message: bytes) -> None:
        self.sent.append(decode_from_service(message))

    def take(self, kind: type[FromService]) -> list[FromService]:
        found = [each for each in self.sent if isinstance(each, kind)]
        self.sent.clear()
        return found


class Position:
    """The published position, without shared memory."""

    def __init__(self) -> None:
        self.value = 1

    def set(self, position: int) -> None:
        self.value = position


class World:
    """Processes that all answer, and have received everything so far."""

    def __init__(self, count: int) -> None:
        feed = Feed(Dialect())
        self.feed = feed
        self.parent = MetadataProcesses(
            ProcessSettings(),
            count=count,
            feed=feed,
            identity=Identity(feed),
            enable=_never,
            approve=_never,
            traffic=Traffic(EndpointLimits(), len(feed.versions), FaultRegistry(VirtualClock(NOW))),
            journal=RequestJournal(lambda: NOW),
            now=lambda: NOW,
        )
        self.position = Position()
        if count > 1:
            self.parent._position = cast("PublishedPosition", self.position)
        self.lines = [Line() for _ in range(count)]
        for number, (process, line) in enumerate(zip(self.parent._processes, self.lines, strict=True)):
            process._pipe = cast("Pipe", line)
            process.queue.is_open = True
            process.received = 1
            self.parent._note_answering(number, True)
        feed.listeners.append(self.parent._publish_document)
        for line in self.lines:
            line.sent.clear()

    def publish(self) -> None:
        audience = Audience(key="vm:vm-0", enabled_at=NOW, epoch=1, incarnation=self.feed.documents_published + 1)
        self.feed.publish_documents([AudienceDocument(audience=audience)])

    def confirm(self, number: int, position: int) -> None:
        self.parent._note_received(number, position)

    def take_assigned(self) -> list[list[int]]:
        """Return the latest assignment that each process was sent since the last call; empty if it was sent none."""
        found = [line.take(SocketAssignment) for line in self.lines]
        return [cast("SocketAssignment", each[-1]).processes if each else [] for each in found]


def test_an_update_is_published_when_all_have_received_it_and_then_all_are_given_a_hint() -> None:
    async def check() -> None:
        world = World(2)
        world.publish()
        assert [process.queue.items[-1].position for process in world.parent._processes] == [2, 2]
        world.confirm(0, 2)
        assert (world.position.value, [line.sent for line in world.lines]) == (1, [[], []])
        world.confirm(1, 2)
        assert world.position.value == 2
        assert [len(line.take(PositionPublished)) for line in world.lines] == [1, 1]

    run_warped(check())


def test_no_hints_pile_up_for_a_process_that_does_not_read() -> None:
    async def check() -> None:
        world = World(2)
        world.lines[1].unsent_bytes = 100
        world.publish()
        world.confirm(0, 2)
        world.confirm(1, 2)
        assert [len(line.take(PositionPublished)) for line in world.lines] == [1, 0]

    run_warped(check())


def test_a_late_process_is_waited_for_a_second_and_another_accepts_for_it_until_it_has_caught_up() -> None:
    async def check() -> None:
        world = World(3)
        world.publish()
        world.confirm(0, 2)
        world.confirm(1, 2)
        await asyncio.sleep(0.9)
        assert world.position.value == 1
        await asyncio.sleep(0.2)
        assert world.position.value == 2
        assert world.take_assigned() == [[2], [], []]
        world.publish()
        world.confirm(0, 3)
        world.confirm(1, 3)
        assert world.position.value == 3, "it is late already"
        world.confirm(2, 3)
        assert world.lines[0].sent[-1] == SocketAssignment([])

    run_warped(check())


def test_another_accepts_for_a_process_that_is_silent_or_gone_until_it_is_back() -> None:
    async def check() -> None:
        world = World(2)
        world.parent._note_silent(1, True)
        assert world.take_assigned() == [[1], []]
        world.parent._note_silent(1, False)
        assert world.lines[0].sent == [SocketAssignment([])]
        world.parent._note_answering(0, False)
        assert world.take_assigned() == [[], [0]]
        world.parent._note_answering(0, True)
        assert world.lines[1].sent == [SocketAssignment([])]

    run_warped(check())


def test_a_process_that_is_gone_holds_up_no_update() -> None:
    async def check() -> None:
        world = World(2)
        world.publish()
        world.confirm(0, 2)
        world.parent._note_answering(1, False)
        assert world.position.value == 2

    run_warped(check())


def test_a_single_process_gets_no_positions_and_no_hints() -> None:
    async def check() -> None:
        world = World(1)
        world.publish()
        assert [each.position for each in world.parent._processes[0].queue.items] == [0]
        assert world.lines[0].sent == []

    run_warped(check())
