"""What waits for a metadata process that takes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn, cast

import pytest

from forewarn.clock import VirtualClock
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.messages import ApproveCall, CallResult, ProcessSettings, SyncReply, SyncRequest, encode
from forewarn.endpoint.parent import MetadataProcess
from forewarn.endpoint.pipe import Pipe
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.wire.imds import Dialect
from tests.support.warp import run_warped
from tests.support.world import NOW
from tests.unit.core.builders import vm

AUDIENCES = [f"vm:vm-{n}" for n in range(3)]


async def _never(*_: object) -> NoReturn:
    raise AssertionError


@pytest.fixture
def process() -> MetadataProcess:
    """Told of everything, and taking nothing: nobody empties its queue."""
    feed = Feed(Dialect())
    identity = Identity(feed)
    traffic = Traffic(EndpointLimits(), len(feed.versions), FaultRegistry(VirtualClock(NOW)))
    journal = RequestJournal(lambda: NOW)
    made = MetadataProcess(
        ProcessSettings(), feed=feed, identity=identity, enable=_never, approve=_never, traffic=traffic, journal=journal
    )
    made._pipe = cast("Pipe", object())
    made._sent_inventory = ({"vm-0": vm("vm-0")}, {})
    feed.listeners.append(made._queue_document)
    identity.listeners.append(made._queue_inventory)
    return made


def document(number: int) -> AudienceDocument:
    key = AUDIENCES[number % len(AUDIENCES)]
    return AudienceDocument(audience=Audience(key=key, enabled_at=NOW, epoch=1, incarnation=number))


def answer(number: int) -> bytes:
    return encode(CallResult(number, ApprovalResult(approved=("A",))))


def waiting(process: MetadataProcess) -> list[object]:
    return [set(each) if isinstance(each, dict) else each for each in process._queue]


def test_of_the_documents_of_one_audience_only_the_newest_waits(process: MetadataProcess) -> None:
    process._feed.publish_documents(document(number) for number in range(1, 10_001))
    assert waiting(process) == [set(AUDIENCES)]
    newest = process._queue[0]
    assert isinstance(newest, dict)
    assert {each.audience.incarnation for each in newest.values()} == {9_998, 9_999, 10_000}


def test_an_answer_waits_behind_the_documents_that_it_implies(process: MetadataProcess) -> None:
    """Invariant 9: what is published before an answer arrives before it, and what comes later does not overtake it."""
    process._feed.publish_documents([document(1)])
    process._enqueue(answer(1))
    process._feed.publish_documents([document(2)])
    assert waiting(process) == [{AUDIENCES[1]}, answer(1), {AUDIENCES[2]}]


def test_documents_do_not_overtake_an_inventory(process: MetadataProcess) -> None:
    process._feed.publish_documents([document(1)])
    process._identity.load_inventory(Inventory(vms=(vm("vm-0"), vm("vm-1"))))
    process._feed.publish_documents([document(4)])
    first, declared, last = process._queue
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert declared == process._identity.snapshot()
    assert [each[AUDIENCES[1]].audience.incarnation for each in (first, last)] == [1, 4]


def test_many_inventories_wait_as_the_newest_with_every_document_and_answers_after_them(
    process: MetadataProcess,
) -> None:
    process._feed.publish_documents([document(1)])
    process._enqueue(answer(1))
    for count in range(100):
        process._identity.load_inventory(Inventory(vms=tuple(vm(f"vm-{n}") for n in range(count))))
        process._feed.publish_documents([document(3 * count + 2)])
    assert len(process._queue) < 10
    declared = [each for each in process._queue if isinstance(each, tuple)]
    assert len(declared) <= 2
    assert declared[-1] == process._identity.snapshot()
    assert answer(1) in process._queue


def test_however_answers_and_documents_alternate_the_queue_does_not_grow_without_end(process: MetadataProcess) -> None:
    for number in range(1, 5_001):
        process._feed.publish_documents([document(number)])
        process._enqueue(answer(number))
    groups = [each for each in process._queue if not isinstance(each, bytes)]
    answers = [each for each in process._queue if isinstance(each, bytes)]
    assert len(groups) <= 1001
    assert answers == [answer(number) for number in range(1, 5_001)], "each is waited for"


def test_a_first_question_waits_behind_every_snapshot_that_replaces_the_first(process: MetadataProcess) -> None:
    """It makes the process accept VMs, so none may be answered before the documents have arrived."""
    process._sent_inventory = ({}, {})
    process._queue_snapshot()
    process._enqueue(encode(SyncRequest(1)))
    for count in range(10):  # while the first inventory is still being sent
        process._identity.load_inventory(Inventory(vms=tuple(vm(f"vm-{n}") for n in range(200 + count))))
    kinds = [type(each) for each in process._queue]
    assert kinds.index(bytes) > max(at for at, kind in enumerate(kinds) if kind is dict)


def test_a_process_that_is_away_is_told_nothing_until_it_is_told_everything(process: MetadataProcess) -> None:
    process._pipe = None
    process._feed.publish_documents([document(1)])
    process._identity.load_inventory(Inventory(vms=(replace(vm("vm-0"), addresses=("10.0.0.1",)),)))
    assert not process._queue


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
def test_only_a_process_that_sends_nothing_is_given_up(process: MetadataProcess, answers: bool) -> None:
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
async def test_a_process_that_begins_more_calls_than_it_may_is_given_up(process: MetadataProcess) -> None:
    begun, forever = 0, asyncio.Event()

    async def decide(*_: object) -> ApprovalResult:
        nonlocal begun
        begun += 1
        await forever.wait()
        return ApprovalResult()

    process._decide = decide
    process._settings = ProcessSettings(calls_max=3)
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
