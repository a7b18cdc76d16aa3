"""What the service does about one metadata process: silence, and one that was taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn, cast

import pytest

from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.endpoint.messages import ApproveCall, EndpointSettings, ProcessSettings, SyncReply, encode
from forewarn.endpoint.metadata_process import MetadataProcess, ProcessPorts
from forewarn.endpoint.pipe import Pipe
from forewarn.endpoint.update_queue import UpdateQueue
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.wire.imds import Dialect
from tests.support.warp import run_warped


async def _never(*_: object) -> NoReturn:
    raise AssertionError


def _no_settings(_: int) -> EndpointSettings:
    raise AssertionError


def make_process(
    settings: ProcessSettings | None = None, approve: Callable[..., Awaitable[ApprovalResult]] = _never
) -> MetadataProcess:
    feed = Feed(Dialect())
    ports = ProcessPorts(
        enable=_never,
        approve=approve,
        make_settings=_no_settings,
        find_position=lambda: 0,
        on_answering=lambda *_: None,
        on_silent=lambda *_: None,
        on_received=lambda *_: None,
        on_counters=lambda *_: None,
        on_requests=lambda *_: None,
    )
    return MetadataProcess(0, settings or ProcessSettings(), ports, feed, UpdateQueue(feed, Identity(feed)))


# Silence


class Line:
    """A pipe to a process that answers what it is asked, or does not."""

    def __init__(self, *, answers: bool) -> None:
        self.asked = 0
        self._answers = answers
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()

    def send(self, frame: bytes) -> None:
        self.asked += 1
        if self._answers:
            self._frames.put_nowait(encode(SyncReply(self.asked)))

    async def receive(self) -> list[bytes]:
        return [await self._frames.get()]


@pytest.mark.parametrize("answers", [True, False], ids=["one that answers", "one that hangs"])
def test_only_a_process_that_sends_nothing_is_given_up(answers: bool) -> None:
    process = make_process()
    line = Line(answers=answers)

    async def ten_minutes() -> bool:
        knows_all = asyncio.get_running_loop().create_future()
        knows_all.set_result(True)
        pipe = cast("Pipe", line)
        listening = asyncio.create_task(process._handle_messages(pipe))
        watching = asyncio.create_task(process._wait_until_silent(pipe, knows_all))
        await asyncio.sleep(600)
        is_given_up = watching.done()
        for task in (listening, watching):
            task.cancel()
        await asyncio.gather(listening, watching, return_exceptions=True)
        return is_given_up

    assert run_warped(ten_minutes()) is not answers
    assert line.asked >= 59 if answers else line.asked == 6


# A process that was taken over


@pytest.mark.anyio
async def test_a_process_that_begins_more_calls_than_it_may_is_given_up() -> None:
    begun, forever = 0, asyncio.Event()

    async def decide(*_: object) -> ApprovalResult:
        nonlocal begun
        begun += 1
        await forever.wait()
        return ApprovalResult()

    process = make_process(ProcessSettings(calls_max=3), decide)
    first, second = cast("Pipe", object()), cast("Pipe", object())
    call = ApproveCall(1, ("A",), Approver(actor="vm:vm-0", vm="vm-0"))
    for pipe in (first, second):  # those of an earlier process do not count for the next
        for _ in range(3):
            process._handle_message(call, pipe)
        with pytest.raises(ConnectionError, match="more than 3 calls"):
            process._handle_message(call, pipe)
    await asyncio.sleep(0)
    assert begun == 6
    forever.set()
    await asyncio.gather(*(task for calls in process._calls.values() for task in calls))
    assert process._calls == {}
