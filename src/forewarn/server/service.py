"""Assembly of the service: store, engine, scheduler, metadata endpoint, control API.

`Service` owns the parts and their order: what was started last stops first. `serve` runs a `Service` until a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, cast

import structlog
import uvicorn

from forewarn.actuators import Actuator
from forewarn.actuators.factory import make_actuator
from forewarn.actuators.traced import TracedActuator
from forewarn.auth.authenticator import Authenticator, load_operator_token
from forewarn.auth.oidc import Issuer
from forewarn.auth.refusal_counter import RefusalCounter
from forewarn.clock import VIRTUAL_START, Clock, RealClock, VirtualClock, uptime_s
from forewarn.config.settings import Settings
from forewarn.control import Context, make_control_app
from forewarn.control.admission import Admission
from forewarn.control.listener import ControlServer
from forewarn.control.refusal_log import RefusalLog
from forewarn.control.settling import SettlingMiddleware
from forewarn.control.throttle import Throttle
from forewarn.control.trace_headers import TraceHeaderFilter
from forewarn.core.inventory import Inventory
from forewarn.core.model import SERVICE, Host, VirtualMachine
from forewarn.core.usage_limits import UsageAccounts, UseKind
from forewarn.dashboard import add_dashboard
from forewarn.endpoint.descriptors import reserve_descriptors
from forewarn.engine.inventory import SAMPLE_FINGERPRINT
from forewarn.engine.transaction import make_thread_runner
from forewarn.errors import ConfigError, Conflict, EndpointBehind, ForewarnError, InvalidRequest, ServerError
from forewarn.net.listen_address import bind_listener, build_socket_url, is_loopback, parse_listen
from forewarn.net.pool import PoolLimit, parse_networks
from forewarn.observability.metrics import Metrics, MetricSources
from forewarn.observability.tracing import make_tracing
from forewarn.observability.tracing.first_seen import FirstSeenDetector
from forewarn.publishing.host_watch import HostWatches
from forewarn.server.backend import STOP_GRACE_S, Backend
from forewarn.server.control_server import make_control_server
from forewarn.server.metadata_sockets import bind_metadata_sockets
from forewarn.store import SqlStore
from forewarn.store.contract import Store
from forewarn.util.garbage import begin_rare_collections
from forewarn.util.large_blocks import map_large_blocks
from forewarn.util.tasks import cancel_tasks
from forewarn.wire.inventory import compute_fingerprint, format_file_error, parse_inventory

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig
    from starlette.types import ASGIApp

__all__ = ["Service", "run_service", "serve"]

_log = structlog.get_logger("forewarn.server.service")

# With Python's default of 5 ms, a busy database thread could delay the event loop that long at each switch.
_SWITCH_INTERVAL_S = 0.001
_PROBE_EVERY_S = 1.0
_CHECK_SPAN_S = 60.0
"""Maximum duration of a check for damage, in seconds: while it runs, SQLite's write-ahead log grows. Only for a table
that takes longer is it exceeded.
"""


class Service:
    """Complete service of `forewarn serve`, in one event loop.

    Args:
        settings: Settings of the service.
        actuator: Actuator that carries out maintenances; None for the one in the settings.
        clock: Source of the time; None for the one in the settings.
        may_start_process: True to allow a separate process for answering VMs, if the settings ask for it.
        store: Store of record, which is closed at the end; None for the one in the settings.
        bind: Binds an address for listening; a simulation has its own network.
        make_app: Makes what the control address serves; None for the control API and the dashboard.

    Attributes:
        control: Control listener, while it runs.
        control_tick_s: Interval between its sweeps for overdue connections, in seconds.
    """

    control: ControlServer
    control_tick_s = 1.0

    def __init__(  # noqa: PLR0913 - its ports
        self,
        settings: Settings,
        *,
        actuator: Actuator | None = None,
        clock: Clock | None = None,
        may_start_process: bool = False,
        store: Store | None = None,
        bind: Callable[[str, int], AbstractContextManager[socket.socket]] = bind_listener,
        make_app: Callable[[Context, TelemetryConfig | None], ASGIApp] | None = None,
    ) -> None:
        self.settings = settings
        self._bind = bind
        self._make_app = make_app or _make_whole_app
        # All parts of the service share a virtual clock and injected faults, so these need a single process.
        self._has_processes = (
            may_start_process
            and settings.metadata_process == "own"
            and settings.clock == "real"
            and clock is None
            and not settings.fault_injection
        )
        if settings.workers > 1 and not self._has_processes:
            msg = "more than one worker needs metadata_process=own, a real clock, and no fault injection"
            raise ConfigError(msg, setting="workers")
        self.tokens = Authenticator(
            operator_token=load_operator_token(settings.state_dir), issuer=_make_issuer(settings)
        )
        self._metadata_addresses = [parse_listen(part) for part in settings.metadata_listen.split(",")]
        self._control_address = parse_listen(settings.control_listen)
        _check_exposure(settings, self._control_address[0])
        inventory = _read_inventory(settings.inventory)
        self.store: Store = store or SqlStore(settings.database_url, size_bytes_max=settings.database_size_bytes_max)
        try:
            self._build_parts(settings, actuator, clock, inventory)
        except BaseException:
            # The caller never gets this object, so no one else can close the store.
            self.store.close()
            raise

    def _build_parts(
        self, settings: Settings, actuator: Actuator | None, clock: Clock | None, inventory: bytes | None
    ) -> None:
        self.clock = clock or _make_clock(settings, self.store)
        self._inventory = inventory
        self.tracing = make_tracing(
            settings.tracing_endpoint,
            clock=self.clock,
            sample_ratio=settings.tracing_sample_ratio,
            service_name=settings.tracing_service_name,
            spans_max=settings.tracing_moments_max,
        )
        actuator = actuator or make_actuator(settings, self.clock)
        # One thread writes, since the store carries out one transaction at a time. Reads of a whole inventory take
        # seconds and have a separate thread, so that they do not delay short reads.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="forewarn-write")
        self._reader = ThreadPoolExecutor(2, thread_name_prefix="forewarn-read")
        self._long_reader = ThreadPoolExecutor(1, thread_name_prefix="forewarn-read-long")
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="forewarn-check")
        self._probing = asyncio.Lock()
        self._probed_s = float("-inf")
        self.backend = Backend(
            settings,
            store=self.store,
            clock=self.clock,
            actuator=TracedActuator(actuator, self.tracing, self.clock) if self.tracing.is_on else actuator,
            write=make_thread_runner(self._writer),
            read=make_thread_runner(self._reader),
            read_long=make_thread_runner(self._long_reader),
            on_lateness=self._observe_lateness,
            tracing=self.tracing,
        )
        self.feed, self.identity = self.backend.feed, self.backend.identity
        self.engine, self.scheduler = self.backend.engine, self.backend.scheduler
        self.endpoint, self.traffic = self.backend.endpoint, self.backend.traffic
        self.faults, self.journal = self.backend.faults, self.backend.journal
        self.processes = self.backend.make_processes() if self._has_processes else None
        hub = HostWatches(
            self.feed,
            self.identity,
            settings.first_answer_delay.total_seconds(),
            lambda: self.engine.committer.position,
            watches_max=settings.watches_max,
        )
        fleet = MetricSources(
            is_leader=lambda: self.engine.leadership.is_held,
            skew_s=self._read_skew_s,
            watches=hub.__len__,
            clock_jump_s=self._read_clock_jump_s,
            clock_jumps=lambda: self.engine.clock.guard.jumps,
            deliveries=lambda: self.backend.notifier.log.counts,
            undelivered_s=self.backend.notifier.ages_s,
            limited=self._count_limited,
            control_connections=self._count_control_connections,
            endpoint_restarts=lambda: 0 if self.processes is None else self.processes.restarts,
        )
        endpoint = self.processes or self.endpoint
        self.metrics = Metrics(self.traffic, self.feed, lambda: endpoint.connection_count, fleet)
        refusals = RefusalCounter(
            failures_max=settings.auth_failures_max,
            entries_max=settings.refused_entries_max,
            entries_total_max=settings.refused_entries_total_max,
            addresses_max=settings.refused_addresses_max,
        )
        self.context = Context(
            settings=settings,
            engine=self.engine,
            hub=hub,
            scheduler=self.scheduler,
            clock=self.clock,
            authenticator=self.tokens,
            metrics=self.metrics,
            is_loopback=is_loopback(self._control_address[0]),
            check_ready=self._check_ready,
            journal=self.journal,
            refusal_counter=refusals,
            refusal_log=RefusalLog(self.engine, refusals, self.clock),
            notifier=self.backend.notifier,
            admission=Admission(
                UsageAccounts(settings.budgets.by_role(), settings.budgets_max), _make_throttle(settings)
            ),
            limits_met=self.traffic.quotas.limit_log,
        )
        if self.processes is not None:
            self.context.refresh_endpoint_state = self.processes.refresh_counters
        self.engine.listeners.extend([self.metrics.count_changes, self.context.wake_streams])
        self.backend.on_remote_change.append(self.context.wake_streams)
        if self.tracing.is_on:
            self._trace_maintenances()

    def _trace_maintenances(self) -> None:
        """Trace maintenances, and the first GET that sees each event."""
        self.engine.listeners.append(self.tracing.export_changes)
        self.first_seen_detector = FirstSeenDetector(
            self.tracing, self.clock, self.feed.last_polled_at, self.settings.tracing_sights_max
        )
        self.feed.listeners.append(self.first_seen_detector.note_document)

    def _count_limited(self) -> dict[str, int]:
        """Return how often each limit of the control address was met."""
        refused = self.control.pool.refused
        by_connections = {limit.value: refused[limit] for limit in PoolLimit}
        admission = self.context.admission
        by_use = {use.value: admission.limited[use] for use in UseKind}
        return by_connections | by_use | admission.throttle.refused

    def _count_control_connections(self) -> dict[str, int]:
        pool = self.control.pool
        return {"known": len(pool) - pool.unknown_count, "unknown": pool.unknown_count}

    def _read_skew_s(self) -> float:
        return self.engine.leadership.skew.total_seconds()

    def _read_clock_jump_s(self) -> float:
        jump = self.engine.clock.guard.jump
        return 0.0 if jump is None else jump.by.total_seconds()

    def _observe_lateness(self, late_s: float) -> None:
        self.metrics.observe_lateness(late_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """Run the service, ready to answer, until the block ends.

        Raises:
            ConfigError: An address cannot be listened on.
            ForewarnError: The inventory or the store cannot be used.
        """
        async with contextlib.AsyncExitStack() as stack:
            # Unwound in reverse: the store closes last, after every thread that uses it has ended.
            stack.callback(self.store.close)
            stack.callback(self._reader.shutdown)
            stack.callback(self._long_reader.shutdown)
            stack.callback(self._writer.shutdown)
            stack.callback(self._checker.shutdown)
            # Called before the shutdown of its thread, which would otherwise wait for the rest of a check.
            stack.callback(self.store.stop_check)
            stack.push_async_callback(self.tracing.close)
            # Bound before anything is loaded, so that an address in use does not leave a new inventory applied.
            metadata = bind_metadata_sockets(stack, self._metadata_addresses, self.settings.workers, self._bind)
            control = stack.enter_context(self._bind(*self._control_address))
            self.metadata_urls = [build_socket_url("http", shared[0]) for shared in metadata]
            self.control_url = build_socket_url("https" if self.settings.tls_certificate else "http", control)
            if self.processes is not None:
                await stack.enter_async_context(self.processes.start_processes(list(zip(*metadata, strict=True))))
            await self._load_state()
            self._check_callers()
            stack.push_async_callback(cancel_tasks, asyncio.create_task(self._check_pages()))
            if self.tracing.is_on:
                self.first_seen_detector.is_begun = True
                stack.push_async_callback(cancel_tasks, asyncio.create_task(self.first_seen_detector.run()))
            await stack.enter_async_context(self.backend.scheduling())
            stack.push_async_callback(self.context.refusal_log.stop)
            control_app = self._make_app(self.context, cast("TelemetryConfig | None", self.tracing.telemetry_options))
            names = self.tracing.propagation_headers
            guarded: ASGIApp = TraceHeaderFilter(control_app, self.context, names) if names else control_app
            # That process learns of a commit a moment later; the answer to the caller waits until it has.
            if self.processes is not None:
                guarded = SettlingMiddleware(guarded, self.processes.wait_until_settled)
            server = self.control = make_control_server(self.settings, guarded)
            server.tick_s = self.control_tick_s
            server.log_callbacks.append(self.context.admission.log_limits)
            server.should_refuse_unread = self.context.admission.should_refuse_unread
            control_task = asyncio.create_task(server.serve(sockets=[control]))
            stack.push_async_callback(_stop_control, server, control_task)
            # Registered after `_stop_control`, so it runs before: open streams would use up the time of the stop.
            stack.callback(self.context.end_streams)
            if self.processes is not None:
                await stack.enter_async_context(self.processes.answer_vms(STOP_GRACE_S))
            else:
                await stack.enter_async_context(self.backend.answering([shared[0] for shared in metadata]))
            while not server.started and not control_task.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.005)
            if control_task.done():
                await control_task
                raise ServerError("the control API did not start")
            yield self

    async def _load_state(self) -> None:
        """Load the state from the store, and apply the inventory file if it has changed since the last start."""
        await self.engine.restore_state()
        mark = await self.engine.read(lambda reader: reader.get_inventory_fingerprint())
        if self._inventory is not None:
            if mark != compute_fingerprint(self._inventory):
                await self._apply_file(self._inventory, is_first=mark is None)
        elif mark is None:
            await self.engine.inventory.apply(_SAMPLE, SAMPLE_FINGERPRINT, actor=SERVICE, is_first=True)

    async def _apply_file(self, text: bytes, *, is_first: bool) -> None:
        """Apply the inventory file; on a conflict, keep the earlier inventory and start anyway.

        Raises:
            ConfigError: The file is not a valid inventory.
            Conflict: The first inventory is refused.
        """
        path = self.settings.inventory
        try:
            inventory = parse_inventory(text)
        except InvalidRequest as error:
            raise ConfigError(format_file_error(error, str(path)), setting="inventory") from error
        actor, removals = "operator:inventory", self.settings.removals
        try:
            await self.engine.inventory.apply(inventory, compute_fingerprint(text), actor=actor, removals=removals)
        except Conflict as error:
            if is_first:
                raise
            _log.warning(
                "the inventory file was not applied and the earlier inventory stays in force; see what it would change "
                "with 'forewarn inventory diff', then apply it with 'forewarn inventory apply'",
                file=str(path),
                reason=error.message,
            )

    def _check_callers(self) -> None:
        name = self.settings.any_caller_is
        if name and self.identity.find_caller(name) is None:
            raise ConfigError(f"any_caller_is: vm {name!r} is not declared in the inventory", setting="any_caller_is")

    async def _check_ready(self) -> None:
        """Check that the store takes changes and that VMs are shown the newest documents.

        The store is probed once a second at most, since each probe writes to the disk.

        Raises:
            ClockOff: This machine's clock differs too much from the database's.
            StoreUnavailable: The store takes no changes, or its pages are damaged.
            StoreCorrupt: The store is damaged.
            EndpointBehind: The process that answers VMs is down, or has not yet received what was committed.
        """
        self.engine.leadership.check_clock()
        # Concurrent checks wait here and then share the result of the first.
        async with self._probing:
            if self.store.damage is not None or uptime_s() - self._probed_s >= _PROBE_EVERY_S:
                await self.engine.committer.probe_store()
                self._probed_s = uptime_s()
        if self.processes is not None and not await self.processes.sync():
            msg = "the metadata process does not answer: see the log, forewarn_metadata_process_restarts_total"
            raise EndpointBehind(msg)

    async def _check_pages(self) -> None:
        """Check for damaged pages at the start and then periodically, in a separate thread: it reads the whole file."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self._checker, self.store.check_pages, _CHECK_SPAN_S)
            except ForewarnError as error:
                _log.warning("cannot check the pages of the database", error=error.message)
            await asyncio.sleep(self.settings.database_check_every.total_seconds())


_SAMPLE = Inventory(hosts=(Host(name="host-1"),), vms=(VirtualMachine(name="vm-1", host="host-1"),))
"""Sample inventory, declared when there is none: one VM, assumed for every caller on this machine."""


def _make_whole_app(context: Context, telemetry: TelemetryConfig | None) -> ASGIApp:
    app = make_control_app(context, telemetry)
    add_dashboard(app, context)
    return app


def _make_throttle(settings: Settings) -> Throttle:
    return Throttle(
        per_address_max=settings.unknown_requests_per_address_minute_max,
        unknown_max=settings.unknown_requests_per_minute_max,
        proxies=parse_networks(settings.control_proxies),
    )


async def _stop_control(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    server.should_exit = True
    await asyncio.gather(task, return_exceptions=True)


def _make_issuer(settings: Settings) -> Issuer | None:
    """Return the issuer of signed tokens; None if the settings name none.

    Raises:
        ConfigError: The clock is virtual: by it, all tokens or none would have expired.
    """
    if settings.oidc is None:
        return None
    if settings.clock == "virtual":
        raise ConfigError("oidc needs a real clock: tokens expire by the issuer's time", setting="oidc")
    return Issuer(settings.oidc)


def _make_clock(settings: Settings, store: Store) -> Clock:
    """Return the real clock, or a virtual one that continues from the newest time in the database.

    Raises:
        ConfigError: The database was used with the other kind; real and virtual deadlines must not be mixed.
    """
    # Read and written in one transaction, so that two processes that start at once cannot disagree.
    with store.write() as tx:
        kind = tx.get_clock_kind()
        if kind not in (None, settings.clock):
            msg = f"database {settings.database_url} was used with a {kind} clock: use another, or --clock {kind}"
            raise ConfigError(msg)
        tx.save_clock_kind(settings.clock)
    if settings.clock == "real":
        return RealClock()
    start = settings.clock_start or VIRTUAL_START
    start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
    with store.read() as reader:
        newest = reader.list_entries(limit=1, newest=True).items
    return VirtualClock(max([start, *(entry.at for entry in newest)]))


def _read_inventory(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the inventory {path}: {error.strerror}") from error


def _check_exposure(settings: Settings, host: str) -> None:
    """Require TLS, or `insecure`, for the control API beyond loopback: tokens must not be sent in the clear.

    Raises:
        ConfigError: TLS is missing, or only one of certificate and key is given.
    """
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ConfigError("TLS needs both --tls-certificate and --tls-key")
    if is_loopback(host) or settings.tls_certificate is not None or settings.insecure:
        return
    raise ConfigError(f"the control API on {host} needs TLS: give --tls-certificate and --tls-key, or use --insecure")


# Running


async def serve(settings: Settings, ready: Callable[[Service], None]) -> None:
    """Run the service until SIGTERM or SIGINT; `ready` is called once it answers."""
    service = Service(settings, may_start_process=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with service.running():
        ready(service)
        await stop.wait()


def run_service(settings: Settings, ready: Callable[[Service], None]) -> None:
    """Run `serve` on uvloop, with a raised limit of file descriptors and a short thread switch interval."""
    import uvloop  # noqa: PLC0415 - not on every platform that runs the CLI

    settings = reserve_descriptors(settings)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    map_large_blocks()
    gc.disable()  # until the service is loaded

    def loaded(service: Service) -> None:
        begin_rare_collections()
        ready(service)

    uvloop.run(serve(settings, loaded))
