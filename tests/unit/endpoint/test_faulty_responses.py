"""Responses that arrive slowly."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from forewarn.endpoint import faulty_responses
from forewarn.endpoint.fastpath import VmConnection
from tests.support.warp import run_warped

CONTENT = bytes(range(200)) * 2
SPAN_S = 4.0


class Line:
    """A connection that keeps what is written, and when."""

    is_lost = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ended_s = 0.0

    def write(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.ended_s = asyncio.get_running_loop().time()


def written_slowly() -> tuple[Line, float]:
    """Return the connection, and the seconds until the last byte."""
    line = Line()

    async def write() -> float:
        began_s = asyncio.get_running_loop().time()
        await faulty_responses._write_slowly(cast("VmConnection", line), CONTENT, SPAN_S)
        return line.ended_s - began_s

    return line, run_warped(write())


def test_each_byte_arrives_alone() -> None:
    line, took_s = written_slowly()
    assert b"".join(line.pieces) == CONTENT
    assert max(map(len, line.pieces)) <= 2, "two, where the time of one was rounded"
    assert took_s == pytest.approx(SPAN_S, rel=0.01)


def test_a_busy_event_loop_does_not_make_a_slow_response_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes half a second late each time: with one byte at each time, this would take more than three minutes."""
    sleep = asyncio.sleep

    async def sleep_longer(seconds: float) -> None:
        await sleep(seconds + 0.5)

    monkeypatch.setattr(asyncio, "sleep", sleep_longer)
    line, took_s = written_slowly()
    assert b"".join(line.pieces) == CONTENT
    assert len(line.pieces) == 8
    assert took_s == pytest.approx(8 * 0.51)
