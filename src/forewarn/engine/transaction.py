"""Execution of commands: decide, commit, publish.

In one transaction, on the writer's thread, a command loads a working set, lets the pure core decide, settles what
follows, and commits. Only then are the new documents published and listeners called, in the order of the commits.

A command is shielded: once begun it is carried out and published, even if its caller is cancelled. A commit that
failed may have succeeded all the same, if only the answer was lost; so the next command that succeeds publishes
everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from forewarn.clock import Clock, uptime_s
from forewarn.core.maintenance import settlement
from forewarn.core.maintenance.announcement import is_announcing, makes_event
from forewarn.core.maintenance.decision import AudienceDocument, ChangeSet, DecisionRules, Draft, WorkingSet
from forewarn.core.model import audience_key
from forewarn.engine.clock_guard import ClockGuard
from forewarn.engine.command_group import CommandGroups, GroupFailedError, WaitingCommand, attempt
from forewarn.engine.leader_election import Leadership
from forewarn.engine.publisher import InventoryUpdate, Publisher, Snapshot
from forewarn.engine.shared_clock import SharedClock
from forewarn.errors import StoreUnavailable
from forewarn.observability.tracing import Origin, Tracing
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.store.contract import Reader, Store, Transaction
from forewarn.util.failpoint import FailPoint, reach_failpoint

__all__ = [
    "Commands",
    "Committer",
    "IdSource",
    "Runner",
    "TransactionResult",
    "make_thread_runner",
    "run_inline",
    "save_draft",
    "trace_command",
]

T = TypeVar("T")
C = TypeVar("C", bound="Commands")
P = ParamSpec("P")

Runner = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Function that runs a blocking function somewhere and returns its result."""


class IdSource(Protocol):
    """Source of ids: an upper-case GUID for ``"event"``, a short lower-case id for ``"maintenance"``."""

    def __call__(self, kind: str) -> str:
        """Return a new id."""


async def run_inline(function: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the function returns
    """Run a function in the calling thread: for tests and virtual time, where the order must never vary."""
    return function()


def make_thread_runner(executor: ThreadPoolExecutor) -> Runner:
    """Return a runner on a thread of `executor`, so that the event loop never waits for a disk."""

    async def run(function: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the function returns
        return await asyncio.get_running_loop().run_in_executor(executor, function)

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionResult(Generic[T]):
    """Outcome of a transaction, with all that is published once it is committed.

    Attributes:
        answer: Result for the caller.
        changes: Saved changes, in the order in which they are published.
        inventory: Change of the inventory, published before `changes`; None if it stays.
        confirms_clock: True if the clock is trusted again.
        due_since: Time at which the scheduler began this work, for its trace; None for a command.
        snapshot: State before the transaction, which replaces what is known; the committer reads it after a commit in
            doubt. None otherwise.
        numbers: Counter of the store before and after the transaction; the committer reads it. None: no change.
    """

    answer: T
    changes: Sequence[ChangeSet] = ()
    inventory: InventoryUpdate | None = None
    confirms_clock: bool = False
    due_since: datetime | None = None
    snapshot: Snapshot | None = None
    numbers: tuple[int, int] | None = None


class Commands:
    """Commands on one subject.

    Args:
        committer: Carries out the commands.
    """

    def __init__(self, *, committer: Committer) -> None:
        self._committer = committer


def trace_command(
    name: str,
) -> Callable[[Callable[Concatenate[C, P], Awaitable[T]]], Callable[Concatenate[C, P], Coroutine[Any, Any, T]]]:
    """Return a decorator that traces a command under this name."""

    def decorate(
        method: Callable[Concatenate[C, P], Awaitable[T]],
    ) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def command(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
            with self._committer.tracing.command_span(name):
                return await method(self, *args, **kwargs)

        return command

    return decorate


class Committer:
    """Carries out transactions and publishes what they changed.

    Args:
        store: Database.
        clock: Source of the time.
        feed: Feed that documents are published to.
        identity: Index that takes over inventory changes.
        rules: Settings of the core.
        new_id: Source of ids.
        write: Runner of write transactions, one after the other.
        read: Runner of reads.
        read_long: Runner of reads of a whole inventory, which take seconds; None for `read`.
        waiting_max: Maximum number of changes waiting for the database; one more is refused.
        clock_guard: Detector of clock jumps; None for one with the default limit.
        leadership: Leadership of this replica; None if it is the only one.
        tracing: Tracing of commands; None for none.
        shared_clock: The database's clock, if replicas share one; then `clock` does not count.

    Attributes:
        is_inline: True if transactions run in the caller's thread, so that nothing ever waits for them.
        publisher: Publisher of what was committed.
        listeners: Called with the changes of each commit, once their documents are published.
        remote_listeners: Awaited after changes of other replicas were published.
    """

    def __init__(  # noqa: PLR0913 - its parts
        self,
        *,
        store: Store,
        clock: Clock,
        feed: Feed,
        identity: Identity,
        rules: DecisionRules,
        new_id: IdSource,
        write: Runner = run_inline,
        read: Runner = run_inline,
        read_long: Runner | None = None,
        waiting_max: int = 10_000,
        clock_guard: ClockGuard | None = None,
        leadership: Leadership | None = None,
        tracing: Tracing | None = None,
        shared_clock: SharedClock | None = None,
    ) -> None:
        self.store = store
        self.clock = shared_clock or clock
        self.feed = feed
        self.identity = identity
        self.rules = rules
        self.clock_guard = clock_guard or ClockGuard()
        self.leadership = leadership or Leadership()
        self.tracing = tracing or Tracing()
        self.is_inline = write is run_inline
        self.publisher = Publisher(feed, identity, self.tracing)
        self.listeners = self.publisher.listeners
        self.remote_listeners: list[Callable[[], Awaitable[None]]] = []
        self._new_id = new_id
        self._write = write
        self._read = read
        self._read_long = read_long or read
        self._waiting_max = waiting_max
        # asyncio's lock is fair: commands that wait for it run in the order in which they were issued.
        self._lock = asyncio.Lock()
        self._commands: set[asyncio.Task[Any]] = set()
        self._groups = CommandGroups()
        # Only `commit` uses this, on the writer's thread and in one transaction at a time, so it needs no lock.
        self._is_in_doubt = False
        self._shared_clock = shared_clock
        self._last_reading: datetime | None = None

    # Reads

    async def read(self, function: Callable[[Reader], T]) -> T:
        """Run a read on a reader thread."""
        result: T = await self._read(partial(self._run_read, function))
        return result

    async def read_long(self, function: Callable[[Reader], T]) -> T:
        """Run a read that takes seconds for a large inventory; one at a time, without delaying short reads."""
        result: T = await self._read_long(partial(self._run_read, function))
        return result

    def _run_read(self, function: Callable[[Reader], T]) -> T:
        with self.store.read() as reader:
            return function(reader)

    # Transactions

    async def decide(self, load: Callable[[Transaction], WorkingSet], decide: Callable[[Draft], T], *, actor: str) -> T:
        """Load a working set, decide, settle what follows, and commit; return the result of `decide`."""

        def work(tx: Transaction) -> TransactionResult[T]:
            draft = self.make_draft(tx, actor, load(tx))
            answer = decide(draft)
            # In the same transaction: a queued maintenance has no due time, so after a crash nothing would announce it.
            settlement.settle_maintenances(draft)
            return TransactionResult(answer=answer, changes=[save_draft(tx, draft)])

        return await self.commit(work)

    async def record(self, change: Callable[[Transaction, Draft], T], *, actor: str) -> T:
        """Commit a change that affects no maintenance, with what it records in the audit log; return its result."""

        def work(tx: Transaction) -> TransactionResult[T]:
            draft = self.make_draft(tx, actor)
            answer = change(tx, draft)
            return TransactionResult(answer=answer, changes=[save_draft(tx, draft)])

        return await self.commit(work)

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a transaction that changes nothing to publish; return its result."""
        return await self.commit(lambda tx: TransactionResult(answer=function(tx)))

    async def commit(self, work: Callable[[Transaction], TransactionResult[T]], *, shares_commit: bool = False) -> T:
        """Run a transaction and publish its result, in the order of commits, even if the caller is cancelled.

        Args:
            work: What to do in the transaction.
            shares_commit: True if it may share the transaction with others that wait; see `command_group`.

        Raises:
            StoreUnavailable: Too many changes wait for the database; or the store takes none. Then the commit may have
                succeeded all the same.
        """
        command = WaitingCommand(work=work, context=copy_context(), shares=shares_commit)
        if self.is_inline:
            # Nothing runs in between, and the caller cannot be cancelled here.
            self._publish_results([command], self._transact([command], self.tracing.current_span()))
            return cast("T", command.get_answer())
        # Refused, not queued: while the database is away, clients that retry would fill the memory (invariant 10).
        if len(self._commands) >= self._waiting_max:
            msg = f"{len(self._commands)} changes are waiting for the database already (commands_max)"
            raise StoreUnavailable(msg, limit="commands_max")
        self._groups.add(command)
        # A separate task, shielded below: a client that disconnects must not prevent the publication of what it has
        # changed. The set keeps the task alive, since the event loop holds only a weak reference.
        task = asyncio.get_running_loop().create_task(self._carry_out(command))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)
        return cast("T", await asyncio.shield(task))

    async def _carry_out(self, command: WaitingCommand) -> Any:  # noqa: ANN401 - the command's answer
        # The lock covers commit and publication. If it were released in between, a later commit could be published
        # first, and VMs would see its document replaced by an older one.
        async with self._lock:
            if not command.is_taken:
                group = self._groups.take(command)
                # Taken here: `run_in_executor` does not pass context variables on to the writer's thread.
                origin = self.tracing.current_span()
                try:
                    results = await self._write(partial(self._transact, group, origin))
                    reach_failpoint(FailPoint.COMMITTED)
                except BaseException as error:
                    for each in group:
                        each.error = error
                    raise
                self._publish_results(group, results)
        return command.get_answer()

    def _transact(self, group: Sequence[WaitingCommand], origin: Origin | None) -> list[Any]:
        """Carry out a group; return the result of each command, or its error if it was refused."""
        try:
            return self._transact_once(group, origin)
        except GroupFailedError:
            # Nothing was committed. In separate transactions, the failure of one concerns no other.
            return [self._transact_alone(each, origin) for each in group]

    def _transact_alone(self, command: WaitingCommand, origin: Origin | None) -> Any:  # noqa: ANN401 - as `_transact`
        try:
            return self._transact_once([command], origin)[0]
        except Exception as error:  # noqa: BLE001 - raised to the caller of that command
            return error

    def _transact_once(self, group: Sequence[WaitingCommand], origin: Origin | None) -> list[Any]:
        """Run one transaction for a group; return as `_transact`.

        Raises:
            GroupFailedError: One of several commands has failed, and was not just refused.
        """
        found: list[Any] = []
        with suppress(_RollbackError):
            with self.tracing.child_span("transaction", origin), self.store.write() as tx:
                # After a commit in doubt, documents and inventory in memory may be outdated: read everything, in the
                # transaction that follows it, and publish it with the result.
                snapshot = self.publisher.read_snapshot(tx) if self._is_in_doubt else None
                found += [attempt(each, tx) for each in group] if len(group) > 1 else [group[0].work(tx)]
                done = [number for number, each in enumerate(found) if isinstance(each, TransactionResult)]
                if not done:
                    raise _RollbackError
                # The commit happens at the end of this block; if it raises, it may have succeeded all the same.
                self._is_in_doubt = True
            # A refused command does not get here, so an earlier doubt remains until a commit has succeeded.
            self._is_in_doubt = False
            found[done[0]] = replace(found[done[0]], snapshot=snapshot)
            found[done[-1]] = replace(found[done[-1]], numbers=tx.numbers)
        return found

    def _publish_results(self, group: Sequence[WaitingCommand], results: Sequence[Any]) -> None:
        for command, result in zip(group, results, strict=True):
            command.error = result if isinstance(result, Exception) else None
            if command.error is None:
                try:
                    command.answer = command.context.run(self._publish_result, result)
                except Exception as error:  # noqa: BLE001 - raised to the caller of that command
                    command.error = error

    async def rehearse(
        self, load: Callable[[Transaction], WorkingSet], decide: Callable[[Draft], T], *, actor: str
    ) -> T:
        """Return what `decide` returns in a transaction that is rolled back, so there is nothing to publish."""

        def work() -> T:
            answers: list[T] = []
            # A write transaction, since planning takes numbers of the counter; the rollback frees them again.
            with suppress(_RollbackError), self.store.write() as tx:
                answers.append(decide(self.make_draft(tx, actor, load(tx))))
                raise _RollbackError
            return answers[0]

        async with self._lock:
            # Not shielded: nothing is committed, so a caller that is cancelled leaves nothing to publish.
            result: T = await self._write(work)
            return result

    async def drain(self) -> None:
        """Wait for the commands under way; used when the service stops."""
        # Each error goes to the caller of its command, and must not end the wait for the others.
        await asyncio.gather(*self._commands, return_exceptions=True)

    async def probe_store(self) -> None:
        """Check that the store takes changes, by a write, so that a full disk is detected.

        Raises:
            StoreUnavailable: It takes none, or its pages are damaged.
        """

        def work(tx: Transaction) -> None:
            # Reads the clock as well, so that a jump is noticed while nothing else happens.
            self.read_now(tx)
            tx.check_writable()

        if self.store.damage is None:
            await self.write(work)
        if self.store.damage is not None:
            raise StoreUnavailable(f"{self.store.damage}: stop the service, and restore the database from a backup")

    # Within a transaction

    def make_draft(self, tx: Transaction, actor: str, state: WorkingSet | None = None) -> Draft:
        """Return a draft for a decision in this transaction; without a working set, one that affects nothing."""
        now = self.read_now(tx)
        return Draft(
            state or WorkingSet(),
            now=now,
            # After `read_now` above, which may have found a jump in this very reading.
            may_start=self.clock_guard.jump is None,
            rules=self.rules,
            new_id=self._new_id,
            new_sequence=tx.next_sequence,
            actor=actor,
        )

    def read_now(self, tx: Transaction) -> datetime:
        """Return the time of a decision: by the database's clock, common to all replicas, where they share one.

        Each reading is compared with a monotonic clock before anything is decided by it.
        """
        # The time of PostgreSQL means nothing on a virtual clock, on which there are no replicas.
        asked_s = uptime_s()
        shared = None if self.clock.is_virtual else tx.now()
        if shared is not None:
            # A transaction has one time. Read again at its end, it has passed, which is no jump.
            if shared != self._last_reading:
                self._last_reading, answered_s = shared, uptime_s()
                self.clock_guard.observe(shared, answered_s)
                if self._shared_clock is not None:
                    self._shared_clock.observe(shared, asked_s, answered_s)
            return shared
        # A process halted between these two readings seems to have jumped ahead. That errs on the safe side: an
        # operator has to confirm the clock.
        elapsed_s, now = self.clock.uptime_s(), self.clock.now()
        self.clock_guard.observe(now, elapsed_s)
        return now

    def read_missed_documents(self, tx: Transaction) -> Sequence[AudienceDocument]:
        """Return documents that other replicas committed and that are not published here yet."""
        return tx.get_feed_changes(self.publisher.position).documents if self.leadership.has_replicas else []

    # Publication

    def _publish_result(self, result: TransactionResult[T]) -> T:
        publisher = self.publisher
        if result.snapshot is not None:
            publisher.publish_snapshot(result.snapshot)  # only now: a refused command publishes nothing
        # Only after the commit: a confirmation that was not stored must not let anything start.
        if result.confirms_clock:
            self.clock_guard.trust_again()
        if result.inventory is not None:
            publisher.publish_inventory(result.inventory)
        with nullcontext() if result.due_since is None else self.tracing.due_span(result.due_since):
            for changes in result.changes:
                publisher.publish_changes(changes)
        # If no change of another replica came in between, everything up to this commit is published now. So the
        # follower, which the commit wakes as well, finds nothing new, and wakes nothing else.
        if result.numbers is not None and result.numbers[0] == publisher.position:
            publisher.position = result.numbers[1]
        return result.answer

    async def load_snapshot(self) -> None:
        """Publish the complete state of the store."""
        # Locked: a commit that is published during the read would be replaced by this older state.
        async with self._lock:
            # In a read, not in a write transaction: reading a million VMs takes half a minute.
            self.publisher.publish_snapshot(await self.read(self.publisher.read_snapshot))

    async def catch_up(self) -> bool:
        """Publish what other replicas have committed; return True if there was anything."""
        async with self._lock:  # a view read before one of our commits must not be published after it
            changes = await self.read(self.publisher.read_remote_changes)
            has_changed = changes.position != self.publisher.position
            if has_changed:
                reach_failpoint(FailPoint.REMOTE_CHANGES_READ)
            self.publisher.publish_remote_changes(changes)
        # Outside of the lock: listeners read the database, and commands must not wait for that.
        if has_changed:
            for listener in self.remote_listeners:
                await listener()
        return has_changed

    def is_published(self, number: int) -> bool:
        """Return whether everything up to this number of the store's counter is published here."""
        return number <= self.publisher.position

    @property
    def position(self) -> int:
        """Number up to which every change is published here; 0 without other replicas."""
        return self.publisher.position if self.leadership.has_replicas else 0

    def would_warn(self, cause: str, vm: str) -> bool:
        """Return whether this cause would show an event to this VM now, as far as this replica knows (R70c)."""
        found = self.identity.find_declared(vm)
        if found is None:
            return False
        # Not `channel`, which would create one: reads call this on their threads.
        audience = self.feed.find_audience(audience_key(*found))
        return is_announcing(audience, self.clock.now(), self.rules.announce_delay) and makes_event(cause, *found)


class _RollbackError(Exception):
    """Control flow, not an error: ends a transaction without a commit."""


def save_draft(tx: Transaction, draft: Draft) -> ChangeSet:
    """Save the changes of a draft and return them."""
    changes = draft.finish()
    if not changes.is_empty:
        tx.save(changes)
    return changes
