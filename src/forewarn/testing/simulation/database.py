"""PostgreSQL's part in the simulation: one database in memory that several replicas share.

It keeps the contract of `SharedStore`: one time for all replicas, a lease, changes since a position, hints that may be
lost, and one writer at a time. What can fail between a replica and the database fails in the `ReplicaStore` of that
replica: no connection, a commit whose answer is lost, a commit that waits for the standby.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from forewarn.errors import StoreUnavailable
from forewarn.store.contract import Reader, SharedTransaction
from forewarn.store.lease import Lease
from forewarn.store.memory_reader import MemoryReader
from forewarn.store.memory_tables import Tables
from forewarn.store.memory_transaction import MemoryTransaction
from forewarn.testing.simulation.machine_clock import MachineClock

__all__ = ["Database", "LinkState", "ReplicaStore"]


class _SharedMemoryTransaction(MemoryTransaction, SharedTransaction):
    """A write transaction with a lease and the database's time."""

    def __init__(self, tables: Tables, leases: dict[str, Lease], clock: MachineClock) -> None:
        super().__init__(tables)
        self._leases = leases
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def get_lease(self, name: str) -> Lease | None:
        lease = self._leases.get(name)
        return None if lease is None else replace(lease, now=self.now())

    def acquire_lease(self, name: str, holder: str, span: timedelta) -> Lease:
        held = self.get_lease(name)
        if held is not None and held.holder != holder and not held.is_over:
            return held
        term = 1 if held is None else held.term + (held.holder != holder or held.is_over)
        now = self.now()
        self._leases[name] = Lease(holder=holder, term=term, expires_at=now + span, now=now)
        return self._leases[name]

    def release_lease(self, name: str, holder: str) -> None:
        held = self._leases.get(name)
        if held is not None and held.holder == holder:
            self._leases[name] = replace(held, expires_at=datetime.fromtimestamp(0, held.now.tzinfo))


class Database:
    """The database of a cluster.

    Args:
        clock: Clock of the machine that it runs on.

    Attributes:
        tables: Everything that is committed.
        leases: Leases by name.
        hint_is_lost: Decides for each hint to a replica whether it is lost.
        delay_s_max: Maximum time for a request to the database, and for its answer, in seconds.
    """

    def __init__(self, clock: MachineClock) -> None:
        self.tables = Tables()
        self.leases: dict[str, Lease] = {}
        self.clock = clock
        self.hint_is_lost: Callable[[], bool] = lambda: False
        self.delay_s_max = 0.0
        self._waiting: dict[asyncio.Future[int], None] = {}

    @contextmanager
    def write(self) -> Iterator[_SharedMemoryTransaction]:
        """Begin a write transaction. It runs at one moment of virtual time, so no other can come between."""
        leases = dict(self.leases)
        transaction = _SharedMemoryTransaction(self.tables, leases, self.clock)
        counter = self.tables.counter
        try:
            yield transaction
        except BaseException:
            self.tables.roll_back()
            raise
        transaction.flush()
        self.tables.commit()
        self.leases = leases
        if self.tables.counter != counter:
            self._send_hints()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """Open a view for reading."""
        yield MemoryReader(self.tables)

    def _send_hints(self) -> None:
        for waiting in list(self._waiting):
            if not waiting.done() and not self.hint_is_lost():
                waiting.set_result(self.tables.counter)

    async def wait_for_hint(self, timeout_s: float) -> int | None:
        """Wait until something is committed or the time is over; return the counter after a commit."""
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            return None
        finally:
            del self._waiting[waiting]


class LinkState:
    """State of the connection from one replica to the database.

    Attributes:
        is_cut: Nothing gets through in either direction.
        refuses: Probability that a transaction cannot begin.
        loses_answer: Probability that the answer to a commit is lost.
        aborts: Probability that a transaction is rolled back at its commit.
        dies_at_commit: Called right after the next commit, before the replica learns of it; None to go on.
        requests: Number of transactions and reads in each second of virtual time.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self.is_cut = False
        self.refuses = 0.0
        self.loses_answer = 0.0
        self.aborts = 0.0
        self.dies_at_commit: Callable[[], None] | None = None
        self.requests: Counter[int] = Counter()
        self._random = random

    def count_request(self) -> None:
        """Count a transaction or a read that begins now."""
        self.requests[int(asyncio.get_running_loop().time())] += 1

    def heal(self) -> None:
        """End every fault."""
        self.is_cut = False
        self.refuses = self.loses_answer = self.aborts = 0.0
        self.dies_at_commit = None

    def strikes(self, probability: float) -> bool:
        """Draw whether a fault of that probability happens now."""
        return probability > 0 and self._random() < probability


class ReplicaStore:
    """The database as one replica reaches it; a `Store` and a `SharedStore`."""

    damage = None

    def __init__(self, database: Database, link: LinkState) -> None:
        self._database = database
        self._link = link
        self._was_listening = False

    @property
    def shared(self) -> ReplicaStore:
        """The same database as several replicas use it."""
        return self

    @contextmanager
    def write(self) -> Iterator[_SharedMemoryTransaction]:
        """Begin a write transaction.

        Raises:
            StoreUnavailable: The database was not reached, or its answer was lost: then it may be committed.
        """
        link = self._link
        link.count_request()
        if link.is_cut or link.strikes(link.refuses):
            raise StoreUnavailable("no connection to the database")
        with self._database.write() as transaction:
            yield transaction
            if link.strikes(link.aborts):
                raise StoreUnavailable("the database ended the transaction")
        if link.dies_at_commit is not None:
            die, link.dies_at_commit = link.dies_at_commit, None
            die()
        if link.strikes(1.0 if self._link.is_cut else link.loses_answer):
            raise StoreUnavailable("the answer to the commit was lost")

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """Open a view for reading.

        Raises:
            StoreUnavailable: The database was not reached.
        """
        self._link.count_request()
        if self._link.is_cut or self._link.strikes(self._link.refuses):
            raise StoreUnavailable("no connection to the database")
        with self._database.read() as reader:
            yield reader

    def renew_lease(self, name: str, holder: str, term: int, span: timedelta) -> Lease | None:
        """Extend a lease that is held and not over; None if it is not held."""
        with self.write() as transaction:
            held = transaction.get_lease(name)
            if held is None or (held.holder, held.term) != (holder, term) or held.is_over:
                return None
            return transaction.acquire_lease(name, holder, span)

    def count_replicas(self) -> int:
        """Return 1: no simulated service is asked for its status."""
        return 1

    def wait_for_change(self, timeout_s: float) -> int | None:
        """Wait for a hint; what it returns is awaited by `VirtualLoop.run_in_executor`."""
        if self._link.is_cut:
            self._was_listening = False
            raise StoreUnavailable("cannot listen for changes in the database")
        if not self._was_listening:
            self._was_listening = True
            return None
        waiting: Awaitable[int | None] = self._database.wait_for_hint(timeout_s)
        return cast("int | None", waiting)

    def check_pages(self, span_s: float) -> None:
        """Do nothing: there are no pages."""

    def stop_check(self) -> None:
        """Do nothing: no check ever runs."""

    def close(self) -> None:
        """Do nothing: the database belongs to the simulation."""
