"""Fair sharing of scarce resources: the database's writer, its reader, the event loop.

`FairQueue` decides the order, `FairBatcher` carries out waiting entries in batches, `FairGate` admits one task at a
time, and `FairSemaphore` a fixed number at the same time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from forewarn.errors import LimitExceeded, StoreUnavailable

__all__ = ["FairBatcher", "FairGate", "FairQueue", "FairSemaphore", "QueueLimits"]

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits of a queue.

    Attributes:
        entries_max: Maximum number of entries of all owners.
        weight_max: Maximum weight of all owners' entries. The first entry may be heavier.
        owner_entries_max: Maximum number of entries of one owner.
        owner_weight_max: Maximum weight of one owner's entries. An owner's first entry may be heavier.
    """

    entries_max: int = 10_000
    weight_max: int = 100_000
    owner_entries_max: int = 1000
    owner_weight_max: int = 10_000


@dataclass(slots=True)
class _Share:
    entries: int = 0
    weight: int = 0
    finish: int = 0


class FairQueue(Generic[T]):
    """Queue that serves its owners in proportion instead of by arrival (self-clocked fair queueing).

    Each entry gets a finish tag: its weight, added to the tag of its owner's previous entry or to the tag served last,
    whichever is larger. The smallest tag is served next. So owners with entries of equal weight take turns, and an
    owner with heavy entries is served less often.

    Args:
        limits: Limits of the queue.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._heap: list[tuple[int, int, int, str, T]] = []
        self._shares: dict[str, _Share] = {}
        self._number = count()
        self._served = 0
        self._weight = 0

    def __len__(self) -> int:
        """Return the number of waiting entries."""
        return len(self._heap)

    @property
    def next_weight(self) -> int:
        """Weight of the next entry; the queue must not be empty."""
        return self._heap[0][2]

    def push(self, owner: str, entry: T, weight: int = 1) -> None:
        """Add an entry.

        Raises:
            StoreUnavailable: The queue is full.
            LimitExceeded: The owner's share of the queue is full.
        """
        room = self._limits
        if len(self._heap) >= room.entries_max or (self._heap and self._weight + weight > room.weight_max):
            limit = "commands_max" if len(self._heap) >= room.entries_max else "approval_ids_waiting_max"
            msg = f"{len(self._heap)} changes are waiting for the database already ({limit})"
            raise StoreUnavailable(msg, limit=limit)
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = _Share()
        elif share.entries >= room.owner_entries_max or share.weight + weight > room.owner_weight_max:
            is_count = share.entries >= room.owner_entries_max
            limit = "approvals_waiting_per_caller_max" if is_count else "approval_ids_waiting_per_caller_max"
            raise LimitExceeded(f"{share.entries} approvals of {owner} are waiting already ({limit})", limit=limit)
        share.finish = max(self._served, share.finish) + weight
        share.entries += 1
        share.weight += weight
        self._weight += weight
        # The number keeps equal tags in order of arrival, and entries from being compared.
        heapq.heappush(self._heap, (share.finish, next(self._number), weight, owner, entry))

    def pop(self) -> T:
        """Remove and return the next entry; the queue must not be empty."""
        self._served, _, weight, owner, entry = heapq.heappop(self._heap)
        share = self._shares[owner]
        share.entries -= 1
        share.weight -= weight
        self._weight -= weight
        if not share.entries:
            del self._shares[owner]
        if not self._heap:
            self._served = 0  # no share is left, so the tags can start again
        return entry


class FairBatcher(Generic[T, R]):
    """Batcher of requests: those that arrive during a batch wait for the next ones, in fair shares.

    Args:
        carry_out: Carries out a batch and returns the result of each request.
        requests_max: Maximum number of requests in one batch; with 1, each is carried out at once by its caller.
        weight_max: Maximum weight of one batch. A single request may be heavier.
        limits: Limits of the queue; None for the defaults.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[T]], Awaitable[list[R]]],
        *,
        requests_max: int,
        weight_max: int = 1000,
        limits: QueueLimits | None = None,
    ) -> None:
        self._carry_out = carry_out
        self._requests_max = requests_max
        self._weight_max = weight_max
        self._waiting: FairQueue[tuple[T, asyncio.Future[R]]] = FairQueue(limits or QueueLimits())
        self._working: asyncio.Task[None] | None = None

    async def submit(self, request: T, *, owner: str, weight: int = 1) -> R:
        """Carry out a request in a batch and return its result; it is carried out even if the caller is cancelled.

        Raises as `FairQueue.push`.
        """
        if self._requests_max == 1:
            return (await self._carry_out([request]))[0]
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.push(owner, (request, answer), weight)
        # The batch begins in the next iteration of the event loop, so all requests of this one share it.
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._run_batches())
        return await answer

    async def drain(self) -> None:
        """Wait until the queue is empty and the last batch is done."""
        while self._working is not None and not self._working.done():
            await asyncio.wait({self._working})

    def _take_batch(self) -> list[tuple[T, asyncio.Future[R]]]:
        taken: list[tuple[T, asyncio.Future[R]]] = []
        weight = 0
        while self._waiting and len(taken) < self._requests_max:
            weight += self._waiting.next_weight
            if taken and weight > self._weight_max:
                break
            taken.append(self._waiting.pop())
        return taken

    async def _run_batches(self) -> None:
        while self._waiting:
            taken = self._take_batch()
            try:
                found = await self._carry_out([wish for wish, _ in taken])
            except Exception as error:  # noqa: BLE001 - passed on to the waiting callers
                for _, answer in taken:
                    if not answer.done():
                        answer.set_exception(error)
                        answer.exception()  # retrieve it, since the caller may be gone
                continue
            for (_, answer), result in zip(taken, found, strict=True):
                if not answer.done():
                    answer.set_result(result)


class FairGate:
    """Gate that admits one task in each iteration of the event loop, in fair shares.

    Other ready work runs between two turns. So work that takes milliseconds delays the rest by one turn at most.

    Args:
        limits: Limits of the queue.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(limits)
        self._is_turning = False

    async def wait_turn(self, owner: str, weight: int) -> None:
        """Wait for this owner's turn. Raises as `FairQueue.push`."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.push(owner, turn, weight)
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._admit_next)
        await turn

    def _admit_next(self) -> None:
        _wake_next(self._waiting)
        self._is_turning = bool(self._waiting)
        if self._is_turning:
            asyncio.get_running_loop().call_soon(self._admit_next)


class FairSemaphore:
    """Limit on concurrent tasks; waiting tasks are admitted in fair shares.

    Args:
        slots: Maximum number of concurrent tasks.
        limits: Limits of the queue.
    """

    def __init__(self, slots: int, limits: QueueLimits) -> None:
        self._free = slots
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(limits)

    @asynccontextmanager
    async def hold_slot(self, owner: str, weight: int = 1) -> AsyncIterator[None]:
        """Hold a slot while the block runs. Raises as `FairQueue.push`."""
        # A slot is free only while no task waits: the end of a task hands its slot to the next one.
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_slot(owner, weight)
        try:
            yield
        finally:
            self._release_slot()

    async def _wait_for_slot(self, owner: str, weight: int) -> None:
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(owner, slot, weight)
        try:
            await slot
        except asyncio.CancelledError:
            # The slot may have been granted in the same iteration as the cancellation: give it to the next task.
            if slot.done() and not slot.cancelled():
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        if not _wake_next(self._waiting):
            self._free += 1


def _wake_next(waiting: FairQueue[asyncio.Future[None]]) -> bool:
    """Wake the next waiting task; return False if there is none."""
    while waiting:
        # Entries of cancelled callers stay in the queue until their turn, and are skipped here.
        turn = waiting.pop()
        if not turn.done():
            turn.set_result(None)
            return True
    return False
