"""Backend: all parts of the service except its control API.

`forewarn serve` runs it with threads for the database. Tests run it inline, on virtual time.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from forewarn.actuators import Actuator, Simulate
from forewarn.clock import Clock
from forewarn.config.settings import Settings
from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.actuator_result import RetryPolicy
from forewarn.core.subscription import DeliveryBackoff
from forewarn.endpoint import MetadataApp, MetadataServer
from forewarn.endpoint.authority import Authority
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.messages import ProcessSettings
from forewarn.endpoint.parent import MetadataProcesses
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from forewarn.engine.clock_guard import ClockGuard
from forewarn.engine.engine import Engine, make_engine
from forewarn.engine.follower import Follower
from forewarn.engine.leader_election import Leadership, LeasedLeadership
from forewarn.engine.shared_clock import SharedClock
from forewarn.engine.transaction import Committer, IdSource, Runner, make_thread_runner, run_inline
from forewarn.errors import ForewarnError
from forewarn.net.listen_address import parse_host_names
from forewarn.notifications.notifier import DeliveryPolicy, Notifier
from forewarn.observability.tracing import Tracing
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.scheduling.scheduler import Scheduler, SchedulerSettings
from forewarn.server.traced_authority import TracedAuthority
from forewarn.store.contract import Store
from forewarn.util.fair_share import QueueLimits
from forewarn.util.ids import make_random_id
from forewarn.util.tasks import cancel_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from forewarn.net.outbound import OutboundOptions

__all__ = ["STOP_GRACE_S", "Backend"]

_log = structlog.get_logger("forewarn")

STOP_GRACE_S = 2.0
"""Grace period for answers under way when the service stops, in seconds."""

_REPORT_S = 5.0
"""Interval at which a separate metadata process reports VM requests if nothing is announced, in seconds."""


class Backend:
    """Store, engine, scheduler, metadata endpoint, faults and journal.

    Args:
        settings: Settings of the service.
        store: Store of record; the caller closes it.
        clock: Source of the time.
        actuator: Actuator that carries out maintenances; None for `simulate`.
        new_id: Source of ids; None for random ones.
        write: Runner of write transactions.
        read: Runner of reads.
        read_long: Runner of reads that take seconds; None for `read`.
        on_lateness: Called with the lateness of each start, in seconds.
        tracing: Tracing of commands and approvals; None for none.
        wrap_authority: Wraps what decides on the requests of VMs; None to leave it as it is.
        assumes_spot: See `DecisionRules`.
    """

    def __init__(  # noqa: PLR0913 - dependencies that callers replace
        self,
        settings: Settings,
        *,
        store: Store,
        clock: Clock,
        actuator: Actuator | None = None,
        new_id: IdSource | None = None,
        write: Runner = run_inline,
        read: Runner = run_inline,
        read_long: Runner | None = None,
        on_lateness: Callable[[float], None] | None = None,
        tracing: Tracing | None = None,
        wrap_authority: Callable[[Authority], Authority] | None = None,
        assumes_spot: bool = False,
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.feed = Feed(settings.dialect)
        self.identity = Identity(self.feed, settings.any_caller_is)
        self.faults = FaultRegistry(clock, settings.faults_max)
        self.journal = RequestJournal(clock.now, settings.journal_requests_max)
        # A lease ends by real time, so there are no replicas on a virtual clock.
        shared = None if clock.is_virtual else store.shared
        leadership = Leadership()
        shared_clock: SharedClock | None = None
        if shared is not None:
            shared_clock = SharedClock(clock)
            # Readable in the log, and different even for replicas on one machine.
            holder = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
            # A separate thread: behind a long write transaction, a renewal would come too late.
            self._renewer = ThreadPoolExecutor(1, thread_name_prefix="forewarn-lease")
            renew = make_thread_runner(self._renewer)
            leadership = LeasedLeadership(shared, clock, holder, write, renew=renew, shared_clock=shared_clock)
        tracing = tracing or Tracing()
        committer = Committer(
            store=store,
            clock=clock,
            feed=self.feed,
            identity=self.identity,
            rules=replace(settings.rules, assumes_spot=assumes_spot),
            new_id=new_id or make_random_id,
            write=write,
            read=read,
            read_long=read_long,
            waiting_max=settings.commands_max,
            clock_guard=ClockGuard(settings.clock_jump_max),
            leadership=leadership,
            tracing=tracing,
            shared_clock=shared_clock,
        )
        self.engine = make_engine(
            committer,
            limits=QueueLimits(
                entries_max=settings.commands_max,
                weight_max=settings.approval_ids_waiting_max,
                owner_entries_max=settings.approvals_waiting_per_caller_max,
                owner_weight_max=settings.approval_ids_waiting_per_caller_max,
            ),
            faults=self.faults,
            tokens_max=settings.tokens_max,
            subscriptions_max=settings.subscriptions_max,
            deliveries_dead_max=settings.notify_dead_max,
            secret_overlap=settings.notify_secret_overlap,
        )
        self.authority: Authority = self.engine.authority
        if tracing.is_on:
            self.authority = TracedAuthority(self.authority, tracing)
        if wrap_authority is not None:
            self.authority = wrap_authority(self.authority)
        self.traffic = Traffic(
            _make_endpoint_limits(settings), len(self.feed.versions), self.faults, self.journal or None
        )
        self.app = MetadataApp(self.authority, clock, self.traffic, settings.first_answer_delay.total_seconds())
        self.endpoint = MetadataServer(self.app, self.traffic, self.identity, clock)
        self.follower = None if shared is None else Follower(shared, self.engine.committer, self._notify_remote_change)
        self.on_remote_change: list[Callable[[], None]] = []
        self.actuator = actuator or Simulate(settings.simulate_impact_after, settings.simulate_complete_after)
        self.scheduler = Scheduler(
            self.engine,
            committer.clock,
            self.actuator,
            _make_scheduler_settings(settings),
            on_lateness,
        )
        self.notifier = _make_notifier(settings, self.engine)

    @asynccontextmanager
    async def scheduling(self) -> AsyncIterator[None]:
        """Carry out deadlines until the block ends, then wait for commands under way."""
        leadership = self.engine.leadership
        async with AsyncExitStack() as stack:
            # The stack unwinds in reverse: the lease is released after the scheduler has stopped, commands end last.
            stack.push_async_callback(self.engine.drain)
            stack.push_async_callback(leadership.release)
            if isinstance(leadership, LeasedLeadership):
                stack.callback(self._renewer.shutdown)
                leadership.on_change = self._wake_workers
                stack.push_async_callback(cancel_tasks, asyncio.create_task(leadership.run()))
            if self.follower is not None:
                stack.push_async_callback(cancel_tasks, asyncio.create_task(self.follower.run()))
            # Registered before the scheduler, so that it is closed after the last call.
            stack.push_async_callback(self.actuator.close)
            task = asyncio.create_task(self.scheduler.run())
            stack.push_async_callback(self._stop_scheduler, task)
            stack.push_async_callback(self.notifier.stop)
            stack.push_async_callback(cancel_tasks, asyncio.create_task(self.notifier.run()))
            yield

    def _wake_workers(self) -> None:
        """Wake the scheduler and the notifier: the leader may have changed."""
        self.scheduler.wake()
        self.notifier.wake()

    def _notify_remote_change(self) -> None:
        """Notify all parts that another replica has committed something."""
        self._wake_workers()
        for listener in self.on_remote_change:
            listener()

    @asynccontextmanager
    async def answering(self, sockets: Sequence[socket.socket], grace_s: float = STOP_GRACE_S) -> AsyncIterator[None]:
        """Answer VMs on these sockets until the block ends."""
        await self.endpoint.start(sockets)
        try:
            yield
        finally:
            await self.endpoint.stop(grace_s)

    def make_processes(self) -> MetadataProcesses:
        """Return the processes that answer VMs instead of this one, not started yet."""
        settings = self.settings
        terms = ProcessSettings(
            any_caller_is=settings.any_caller_is,
            first_answer_delay_s=settings.first_answer_delay.total_seconds(),
            # Reports must come well within `disable_after`, or audiences that poll would count as silent.
            report_s=min(_REPORT_S, settings.disable_after.total_seconds() / 4),
            requests_kept=settings.journal_requests_max,
            calls_max=settings.commands_max,
            calls_per_vm_max=settings.approvals_at_work_per_vm_max,
            silence_max_s=settings.metadata_silence_max.total_seconds(),
        )
        return MetadataProcesses(
            terms,
            count=settings.workers,
            feed=self.feed,
            identity=self.identity,
            enable=self.authority.enable,
            approve=self.authority.approve,
            traffic=self.traffic,
            journal=self.journal,
            now=self.clock.now,
        )

    async def _stop_scheduler(self, task: asyncio.Task[None]) -> None:
        await cancel_tasks(task)
        try:
            await self.scheduler.stop()
        except ForewarnError as error:
            _log.warning("cannot store when audiences last polled", error=error.message)


def _make_endpoint_limits(settings: Settings) -> EndpointLimits:
    return EndpointLimits(
        # VMs are trusted less than operators, so their limit may be lower but never higher.
        body_size_bytes_max=min(settings.body_size_bytes_max, settings.metadata_body_size_bytes_max),
        header_size_bytes_max=settings.header_size_bytes_max,
        start_requests_max=settings.start_requests_max,
        request_timeout_s=settings.request_timeout.total_seconds(),
        idle_timeout_s=settings.idle_timeout.total_seconds(),
        connections_max=settings.connections_max,
        connections_per_vm_max=settings.connections_per_vm_max,
        connections_per_unknown_address_max=settings.connections_per_unknown_address_max,
        approvals_at_work_per_vm_max=settings.approvals_at_work_per_vm_max,
        approval_bytes_per_vm_minute_max=settings.approval_bytes_per_vm_minute_max,
        body_bytes_per_vm_max=settings.body_bytes_per_vm_max,
        body_bytes_max=settings.body_bytes_max,
        wait_s_max=settings.wait_max.total_seconds(),
        rate_limit_per_s=settings.rate_limit_per_s,
        host_names=parse_host_names(settings.metadata_host_names),
    )


def _make_notifier(settings: Settings, engine: Engine) -> Notifier:
    backoff = DeliveryBackoff(
        pause_first=settings.notify_retry, pause_max=settings.notify_retry_max, age_max=settings.notify_age_max
    )
    habits = DeliveryPolicy(
        source=settings.notify_source,
        backoff=backoff,
        requests_max=settings.notify_requests_max,
        waiting_max=settings.notify_waiting_max,
    )
    if settings.notify_proxy or settings.notify_ca_file is not None:
        from forewarn.net.outbound import check_options  # noqa: PLC0415 - unused by most services

        # A wrong proxy or CA file must fail the start, not the first delivery.
        check_options(_make_outbound_terms(settings))
    return Notifier(engine, engine.committer.clock, lambda: _make_outbound_terms(settings), habits)


def _make_outbound_terms(settings: Settings) -> OutboundOptions:
    from forewarn.net.outbound import OutboundOptions  # noqa: PLC0415 - unused by most services

    return OutboundOptions(
        deadline=settings.notify_deadline,
        answer_size_bytes_max=settings.notify_answer_size_bytes_max,
        allows_private=settings.notify_private_addresses,
        proxy=settings.notify_proxy,
        ca_file=settings.notify_ca_file,
    )


def _make_scheduler_settings(settings: Settings) -> SchedulerSettings:
    return SchedulerSettings(
        batch_max=settings.due_batch_max,
        calls_max=settings.actuator_calls_max,
        call_timeout=settings.actuator_timeout,
        retry=RetryPolicy(attempts_max=settings.actuator_attempts_max, pause=settings.actuator_retry),
        history=settings.history_retention,
        audit=settings.audit_retention,
        entries_max=settings.history_entries_max,
        outcomes=settings.idempotency_retention,
    )
