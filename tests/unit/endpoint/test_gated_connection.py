"""Requests that arrive before everything published has taken effect."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from forewarn.clock import VirtualClock
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.gated_connection import GatedConnection
from forewarn.endpoint.messages import PositionReached
from forewarn.endpoint.position_gate import PositionGate
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from tests.support.world import NOW


class Transport:
    """What a connection does with its transport."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_closed = False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def is_closing(self) -> bool:
        return self.is_closed


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = memoryview(bytearray(8)).cast("Q")
        self.memory[0] = 1
        self.gate = PositionGate(self.memory, lambda _: None, lambda _: None)
        self.gate.add(PositionReached(1))
        traffic = Traffic(EndpointLimits(), 1, FaultRegistry(VirtualClock(NOW)))
        nothing = cast("Any", None)
        loop = cast("asyncio.AbstractEventLoop", None)
        self.connection = GatedConnection(self.gate, traffic, nothing, nothing, nothing, loop)
        self.transport = Transport()
        self.connection._transport = cast("asyncio.Transport", self.transport)
        self.handled: list[bytes] = []
        monkeypatch.setattr(VmConnection, "data_received", lambda _, data: self.handled.append(data))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_request_is_handled_at_once_if_everything_published_has_taken_effect(world: World) -> None:
    world.connection.data_received(b"GET")
    assert (world.handled, world.transport.calls) == ([b"GET"], [])


def test_what_has_been_received_takes_effect_before_the_request_is_handled(world: World) -> None:
    world.gate.add(PositionReached(2))
    world.memory[0] = 2
    assert world.gate.shown == 1
    world.connection.data_received(b"GET")
    assert (world.gate.shown, world.handled, world.transport.calls) == (2, [b"GET"], [])


def test_a_request_waits_for_what_is_published_and_has_not_arrived(world: World) -> None:
    world.memory[0] = 3
    world.connection.data_received(b"GET")
    world.gate.add(PositionReached(2))
    assert (world.handled, world.transport.calls) == ([], ["pause"])
    world.gate.add(PositionReached(3))
    assert (world.handled, world.transport.calls) == ([b"GET"], ["pause", "resume"])


def test_a_connection_that_has_ended_meanwhile_handles_nothing(world: World) -> None:
    world.memory[0] = 2
    world.connection.data_received(b"GET")
    world.transport.is_closed = True
    world.gate.add(PositionReached(2))
    assert (world.handled, world.transport.calls) == ([], ["pause"])
