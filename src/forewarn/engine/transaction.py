"""Execution of commands: decide, commit, publish.

In one transaction, on the writer's thread, a command loads a working set, lets the pure core decide, settles what
follows, and commits. Only then are the new documents published and listeners called, in the order of the commits.

A command is shielded: once begun it is carried out and published, even if its caller is cancelled. A commit that
failed may have succeeded all the same, if only the answer was lost; so the next command that succeeds publishes
everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from forewarn.clock import Clock, uptime_s
from forewarn.core import settlement
from forewarn.core.announcement import is_announcing, makes_event
from forewarn.core.decision import AudienceDocument, ChangeSet, DecisionRules, Draft, WorkingSet
from forewarn.core.inventory import Inventory
from forewarn.core.model import Maintenance, audience_key
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.engine.clock_guard import ClockGuard
from forewarn.engine.leader_election import Leadership, SoleLeader
from forewarn.errors import IdempotencyMismatch, StoreUnavailable
from forewarn.observability.tracing import Tracing
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity, InventoryIndex
from forewarn.store.contract import FeedChanges, IdempotencyRecord, Reader, Store, Transaction

__all__ = [
    "Committer",
    "IdSource",
    "IdempotencyKey",
    "Runner",
    "Snapshot",
    "make_thread_runner",
    "recall_outcome",
    "run_inline",
    "trace_command",
]

T = TypeVar("T")
C = TypeVar("C", bound="Committer")
P = ParamSpec("P")

Snapshot = tuple[Inventory, list[AudienceDocument]]
"""Complete state of the endpoint: the inventory and the documents."""

Runner = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Function that runs a blocking function somewhere and returns its result."""


class IdSource(Protocol):
    """Source of ids: an upper-case GUID for ``"event"``, a short lower-case id for ``"maintenance"``."""

    def __call__(self, kind: str) -> str:
        """Return a new id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """An ``Idempotency-Key`` and the fingerprint of its request."""

    key: str
    fingerprint: str


async def run_inline(function: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the function returns
    """Run a function in the calling thread: for tests and virtual time, where the order must never vary."""
    return function()


def make_thread_runner(executor: ThreadPoolExecutor) -> Runner:
    """Return a runner on a thread of `executor`, so that the event loop never waits for a disk."""

    async def run(function: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the function returns
        return await asyncio.get_running_loop().run_in_executor(executor, function)

    return run


def trace_command(
    method: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Trace a command under its name, if tracing is on."""
    name = method.__name__.replace("_", " ")

    @wraps(method)
    async def command(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not self.tracing.is_on:
            return await method(self, *args, **kwargs)
        with self.tracing.command_span(name):
            return await method(self, *args, **kwargs)

    return command


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
        faults: Injected faults; None for a new, empty registry.
        clock_guard: Detector of clock jumps; None for one with the default limit.
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
        faults: FaultRegistry | None = None,
        clock_guard: ClockGuard | None = None,
    ) -> None:
        self.clock = clock
        self.clock_guard = clock_guard or ClockGuard()
        self.rules = rules
        self.faults = faults or FaultRegistry(clock)
        self.feed = feed
        self.identity = identity
        self._store = store
        self._new_id = new_id
        self._write = write
        self._read = read
        self._read_long = read_long or read
        self._waiting_max = waiting_max
        self._lock = asyncio.Lock()
        self._commands: set[asyncio.Task[Any]] = set()
        self._is_in_doubt = False
        self._position = 0
        self.leadership: Leadership = SoleLeader()
        self.tracing = Tracing()
        self.listeners: list[Callable[[ChangeSet], None]] = []

    async def read(self, function: Callable[[Reader], T]) -> T:
        """Run a read on a reader thread."""
        result: T = await self._read(partial(self._run_read, function))
        return result

    async def read_long(self, function: Callable[[Reader], T]) -> T:
        """Run a read that takes seconds for a large inventory; one at a time, without delaying short reads."""
        result: T = await self._read_long(partial(self._run_read, function))
        return result

    def _run_read(self, function: Callable[[Reader], T]) -> T:
        with self._store.read() as reader:
            return function(reader)

    async def _maintenance_command(
        self,
        load: Callable[[Transaction], WorkingSet],
        decide: Callable[[Draft], list[str]],
        *,
        actor: str,
        key: IdempotencyKey | None,
    ) -> list[Maintenance]:
        """Run a command that returns maintenances and can be repeated under an ``Idempotency-Key``."""

        def work(tx: Transaction) -> tuple[list[Maintenance], ChangeSet]:
            known = recall_outcome(tx, key)
            if known is not None:
                # The answer shows their present state; those that were deleted since are left out.
                found = [tx.get_maintenance(i) for i in known["maintenances"]]
                return [m for m in found if m is not None], ChangeSet()
            draft = self._make_draft(load(tx), tx, actor)
            ids = decide(draft)
            settlement.settle_maintenances(draft)
            changes = draft.finish()
            tx.save(changes)
            # Stored with the changes, so that a repeated request finds both or neither.
            if key is not None:
                content = {"maintenances": ids}
                tx.save_idempotency_record(
                    IdempotencyRecord(key=key.key, fingerprint=key.fingerprint, content=content, at=draft.now)
                )
            return [draft.maintenances[i] for i in ids], changes

        def publish(result: tuple[list[Maintenance], ChangeSet]) -> list[Maintenance]:
            self._publish_changes(result[1])
            return result[0]

        return await self._run_transaction(work, publish)

    async def _run_decision(
        self, load: Callable[[Transaction], WorkingSet], decide: Callable[[Draft], T], *, actor: str
    ) -> T:
        def work(tx: Transaction) -> tuple[T, ChangeSet]:
            draft = self._make_draft(load(tx), tx, actor)
            result = decide(draft)
            settlement.settle_maintenances(draft)
            changes = draft.finish()
            if not changes.is_empty:
                tx.save(changes)
            return result, changes

        def publish(result: tuple[T, ChangeSet]) -> T:
            self._publish_changes(result[1])
            return result[0]

        return await self._run_transaction(work, publish)

    async def _run_transaction(self, work: Callable[[Transaction], Any], publish: Callable[[Any], T]) -> T:
        """Run a transaction and publish its result, in the order of commits, even if the caller is cancelled."""
        origin = self.tracing.current_span()

        def transact() -> tuple[int, Snapshot | None, Any]:
            with self.tracing.child_span("transaction", origin), self._store.write() as tx:
                # After a commit in doubt, documents and inventory in memory may be outdated: read everything, in the
                # transaction that follows it, and publish it with the result.
                position = tx.get_position() if self._is_in_doubt else 0
                snapshot = (tx.get_inventory(), list(tx.iter_documents())) if self._is_in_doubt else None
                result = work(tx)
                # The commit happens at the end of this block; if it raises, it may have succeeded all the same.
                self._is_in_doubt = True
            self._is_in_doubt = False
            return position, snapshot, result

        def show(position: int, snapshot: Snapshot | None, result: Any) -> T:  # noqa: ANN401 - the result of the work
            if snapshot is not None:
                self.identity.load_inventory(snapshot[0])
                self.feed.replace_documents(snapshot[1])
                self._position = position  # only now: a refused command publishes nothing
            return publish(result)

        async def run() -> T:
            # The lock covers commit and publication. If it were released in between, a later commit could be published
            # first, and VMs would see its document replaced by an older one.
            async with self._lock:
                return show(*await self._write(transact))

        if self._write is run_inline:
            return show(*transact())  # nothing runs in between, and the caller cannot be cancelled here
        if len(self._commands) >= self._waiting_max:
            msg = f"{len(self._commands)} changes are waiting for the database already (commands_max)"
            raise StoreUnavailable(msg, limit="commands_max")
        # A separate task, shielded below: a client that disconnects must not prevent the publication of what it has
        # changed. The set keeps the task alive, since the event loop holds only a weak reference.
        task = asyncio.get_running_loop().create_task(run())
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)
        return await asyncio.shield(task)

    async def catch_up(self) -> bool:
        """Publish what other replicas have committed; return True if there was anything."""
        async with self._lock:  # a view read before one of our commits must not be published after it

            def work() -> tuple[FeedChanges, InventoryIndex | None]:
                with self._store.read() as reader:
                    news = reader.get_feed_changes(self._position)
                return news, None if news.inventory is None else InventoryIndex.of(news.inventory)

            found: tuple[FeedChanges, InventoryIndex | None] = await self._read(work)
            news, index = found
            # This replica's commits do not move the position, or an earlier change of another one could be skipped.
            has_changed = news.position != self._position
            self._position = news.position
            if index is not None:
                self.identity.load_inventory(index)
            elif news.hosts:
                self.identity.replace_hosts(news.hosts)
            # The news include this replica's commits, which are published already.
            self.feed.publish_documents(document for document in news.documents if self.feed.is_new(document))
            return has_changed

    def would_warn(self, cause: str, vm: str) -> bool:
        """Return whether this cause would show an event to this VM now, as far as this replica knows (R70c)."""
        found = self.identity.find_declared(vm)
        if found is None:
            return False
        audience = self.feed.find_audience(audience_key(*found))
        return is_announcing(audience, self.clock.now(), self.rules.announce_delay) and makes_event(cause, *found)

    def _read_missed_documents(self, tx: Transaction) -> list[AudienceDocument]:
        """Return documents that other replicas committed and that are not published here yet.

        A VM that moves must see nothing on its new host that is older than what it saw on the old one. So these
        documents are published before the inventory that moves it.
        """
        return [] if isinstance(self.leadership, SoleLeader) else list(tx.get_feed_changes(self._position).documents)

    @property
    def position(self) -> int:
        """Number of the last change of other replicas published here; 0 without other replicas."""
        return 0 if isinstance(self.leadership, SoleLeader) else self._position

    def _now(self, tx: Transaction) -> datetime:
        """Return the time of a decision: by the database's clock, common to all replicas, where they share one.

        Each reading is compared with a monotonic clock before anything is decided by it.
        """
        shared = None if self.clock.is_virtual else tx.now()
        if shared is not None:
            self.clock_guard.observe(shared, uptime_s())
            return shared
        # A process halted between these two readings seems to have jumped ahead. That errs on the safe side: an
        # operator has to confirm the clock.
        elapsed_s, now = self.clock.uptime_s(), self.clock.now()
        self.clock_guard.observe(now, elapsed_s)
        return now

    async def drain(self) -> None:
        """Wait for the commands under way; used when the service stops."""
        await asyncio.gather(*self._commands, return_exceptions=True)

    def _make_draft(self, state: WorkingSet, tx: Transaction, actor: str) -> Draft:
        now = self._now(tx)
        return Draft(
            state,
            now=now,
            may_start=self.clock_guard.jump is None,
            rules=self.rules,
            new_id=self._new_id,
            new_sequence=tx.next_sequence,
            actor=actor,
        )

    def _publish_changes(self, changes: ChangeSet) -> None:
        with self.tracing.publication_span(changes):
            self.feed.publish_documents(changes.documents)
        # After the documents: a listener that is woken must find the feed up to date.
        if not changes.is_empty:
            for listener in self.listeners:
                listener(changes)


def recall_outcome(reader: Reader, key: IdempotencyKey | None) -> dict[str, Any] | None:
    """Return the outcome of the request under this key; None if it was not carried out yet.

    Raises:
        IdempotencyMismatch: The key was used for a different request.
    """
    known = None if key is None else reader.get_idempotency_record(key.key)
    if known is None or key is None:
        return None
    # A client that reuses a key by mistake must not take the outcome of another request for its own.
    if known.fingerprint != key.fingerprint:
        msg = "this Idempotency-Key was used for a different request: use a new key"
        raise IdempotencyMismatch(msg)
    return known.content
