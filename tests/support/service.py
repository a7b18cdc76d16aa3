"""A whole service in a thread of the test's process: real sockets, real store, and uvloop unless a test says otherwise.

Tests stay plain functions and talk to it as VMs and operators do. What they look at inside (counts, the memo, who
waits) is read across threads, which is safe for single attributes; whatever changes something runs on the service's own
loop, by `Running.run`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import uvloop

from forewarn.actuators import Actuator
from forewarn.config.loading import load_settings
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventType, Maintenance
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.server import ListeningSockets
from forewarn.publishing.feed import Channel
from forewarn.server.service import Service
from tests.support.spans import GUARD_S
from tests.support.wire import LATEST, Wire, get

__all__ = ["POOL", "Running", "Vm", "eventually", "inventory", "running"]

T = TypeVar("T")
NewLoop = Callable[[], asyncio.AbstractEventLoop]

POOL = 400
_START_S = GUARD_S
_ANSWER_S = GUARD_S
_TICK_S = 0.05
_LOOK_S, _LOOK_S_MAX = 0.005, 0.05

# All tests that share a service call from the same address and with the same tokens. Unless they are about these
# limits, how many calls they get into a minute, and how long a change takes between two parts of a request, is the
# machine's matter.
_PER_MINUTE = 1_000_000
_LIMITS: dict[str, Any] = {
    "request_timeout": 2 * GUARD_S,
    "auth_failures_max": _PER_MINUTE,
    "unknown_requests_per_address_minute_max": _PER_MINUTE,
    "unknown_requests_per_minute_max": _PER_MINUTE,
    "budgets": {
        role: {f"{what}_per_minute_max": _PER_MINUTE for what in ("changes", "watch_starts", "refusals")}
        for role in ("operator", "read_only", "tenant", "host")
    },
}


@dataclass(frozen=True)
class Vm:
    """One VM of the inventory, and where it calls from."""

    name: str
    address: str


def _pool() -> list[Vm]:
    return [Vm(f"vm-{n}", f"127.0.{1 + n // 200}.{1 + n % 200}") for n in range(POOL)]


def _web() -> list[Vm]:
    return [Vm(f"Web_{n}", f"127.0.9.{1 + n}") for n in range(3)]


def _wide() -> list[Vm]:
    return [Vm(f"Wide_{n}", f"127.0.10.{1 + n}") for n in range(30)]


def inventory() -> dict[str, Any]:
    """Standalone VMs, an availability set of three, a cloud service of thirty update domains; a host for each VM."""
    vms = [_declared(vm) for vm in _pool()]
    vms += [_declared(vm) | {"scope": "web", "fault_domain": n} for n, vm in enumerate(_web())]
    vms[-1]["priority"] = "Spot"
    vms += [_declared(vm) | {"scope": "wide", "update_domain": n} for n, vm in enumerate(_wide())]
    return {
        "hosts": [{"name": vm["host"]} for vm in vms],
        "scopes": [{"name": "web", "kind": "availability-set"}, {"name": "wide", "kind": "cloud-service"}],
        "vms": vms,
    }


def _declared(vm: Vm) -> dict[str, Any]:
    return {"name": vm.name, "host": f"host-{vm.name}", "addresses": [vm.address]}


@dataclass
class Running:
    """A service that answers.

    Attributes:
        web: VMs of one availability set; the last one is a Spot VM.
        wide: VMs of one cloud service.
        stranger: An address of no VM.
        stop: Begins to end the service; to be called on its loop.
    """

    service: Service
    loop: asyncio.AbstractEventLoop
    web: list[Vm] = field(default_factory=_web)
    wide: list[Vm] = field(default_factory=_wide)
    stranger: str = "127.0.8.8"
    stop: Callable[[], None] = lambda: None
    _fresh: Iterator[Vm] = field(default_factory=lambda: iter(_pool()))

    @property
    def address(self) -> tuple[str, int]:
        """Where VMs ask."""
        parts = urlsplit(self.service.metadata_urls[0])
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @property
    def url(self) -> str:
        """Where VMs ask, as a URL."""
        return self.service.metadata_urls[0]

    def vm(self) -> Vm:
        """A VM that no test has used yet."""
        return next(self._fresh)

    def wire(self, vm: Vm | str) -> Wire:
        """A connection of that VM, or from that address."""
        return Wire(self.address, vm if isinstance(vm, str) else vm.address)

    def listen_for(self, vm: Vm, sock: socket.socket | None = None) -> tuple[ListeningSockets, tuple[str, int]]:
        """Listen on another socket, whose connections are all of that VM; returns where."""
        sock = sock or socket.socket()
        sock.bind(("127.0.0.1", 0))
        listening = self.run(self.service.endpoint.listen([sock], vm.name))
        return listening, sock.getsockname()

    def operator(self) -> httpx.Client:
        """A client of the control API, with the operator's token."""
        headers = {"authorization": f"Bearer {self.service.tokens.operator_token}"}
        return httpx.Client(base_url=self.service.control_url, headers=headers, timeout=_ANSWER_S, trust_env=False)

    # What happens

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the service's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_ANSWER_S)

    def do(self, function: Callable[[], T]) -> T:
        """Call a function on the service's loop."""

        async def call() -> T:
            return function()

        return self.run(call())

    def enable(self, vm: Vm) -> None:
        """Let the VM ask for the first time."""
        with self.wire(vm) as wire:
            assert wire.ask(get()).status == 200

    def schedule(
        self, vm: Vm, event_type: EventType | None = EventType.FREEZE, cause: str = "host-maintenance"
    ) -> Maintenance:
        """A maintenance for that VM, announced."""
        request = MaintenanceRequest(cause=cause, type=event_type, vms=(vm.name,))
        return self.run(self.service.engine.maintenances.schedule(request, actor="operator:test"))[0]

    def event(self, vm: Vm) -> str:
        """The id of an event that the VM, enabled for it if need be, is shown; it can have one at a time."""
        if not self.channel(vm).is_enabled:
            self.enable(vm)
        self.schedule(vm)
        with self.wire(vm) as wire:
            events = wire.ask(get()).json["Events"]
        return str(events[-1]["EventId"])

    def is_approved(self, event_id: str) -> bool:
        """Whether somebody approved that event."""
        with self.operator() as operator:
            page = operator.get("/v1/events", params={"all": True, "limit": 1000}).json()
        return any(item["id"] == event_id and item["approved_at"] is not None for item in page["items"])

    def fill(self) -> bytes:
        """Give the cloud service a long document, of an event for each VM; returns its bytes."""
        self.enable(self.wide[0])
        with self.wire(self.wide[0]) as wire:
            is_empty = not wire.ask(get()).json["Events"]
        if is_empty:
            request = MaintenanceRequest(cause="host-maintenance", vms=tuple(vm.name for vm in self.wide))
            self.run(self.service.engine.maintenances.schedule(request, actor="operator:test"))
        with self.wire(self.wide[0]) as wire:
            return wire.ask(get()).body

    def complete(self, vm: Vm) -> None:
        """End what has started on that VM."""
        with self.operator() as operator:
            started = operator.get("/v1/maintenance", params={"state": "started", "limit": 1000}).json()["items"]
        for maintenance in started:
            if maintenance["vms"] == [vm.name]:
                self.run(self.service.engine.maintenances.complete(maintenance["id"], actor="operator:test"))

    # What is inside

    def channel(self, vm: Vm) -> Channel:
        """What the VM is shown."""
        return self.do(lambda: self._channel(vm))

    def _channel(self, vm: Vm) -> Channel:
        caller = self.service.identity.resolve_caller(vm.address, "")
        assert caller is not None
        return caller.channel

    def held(self, vm: Vm) -> int:
        """How many requests wait for a change of what the VM is shown."""
        channel = self.channel(vm)
        return self.do(lambda: len(channel._waiters or ()))

    def fast(self, version: str = LATEST) -> int:
        """How many GETs of that version the hot path answered."""
        names = [row.name for row in self.service.feed.versions]
        return self.service.traffic.fast_path_counts[names.index(version)]

    def forget(self) -> None:
        """Empty the memo of the hot path."""
        self.do(self.service.traffic.clear_memo)

    def connections(self) -> list[VmConnection]:
        """Those that are open and have a transport."""
        return self.do(lambda: self.service.endpoint.open_connections)

    def connection_count(self) -> int:
        """How many are open, with a transport or without."""
        return self.do(lambda: self.service.endpoint.connection_count)

    def counted(self, vm: Vm) -> int:
        """How many open connections are counted for the VM, with a transport or without."""

        def count() -> int:
            caller = self.service.identity.find_caller(vm.name)
            return 0 if caller is None else caller.usage.connections

        return self.do(count)

    def is_connected(self, vm: Vm) -> bool:
        """Whether the VM has an open connection, with a transport or without."""
        return self.counted(vm) > 0


def eventually(is_so: Callable[[], bool]) -> bool:
    """Return whether it becomes so; it is asked again and again, with a guard against hanging."""
    slept_s, pause_s = 0.0, _LOOK_S
    while slept_s < GUARD_S:
        if is_so():
            return True
        time.sleep(pause_s)
        slept_s += pause_s
        pause_s = min(pause_s * 1.5, _LOOK_S_MAX)
    return is_so()


class _Runner(threading.Thread):
    """Runs the service until `stop`."""

    def __init__(self, folder: Path, settings: dict[str, Any], actuator: Actuator | None, new_loop: NewLoop) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._settings = settings
        self._actuator = actuator
        self._new_loop = new_loop
        self._stopping: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._running: Running | None = None

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        path = self._folder / "inventory.json"
        path.write_text(json.dumps(inventory()))
        settings: dict[str, Any] = {
            "database_url": f"sqlite:///{self._folder}/forewarn.db",
            "state_dir": self._folder,
            "inventory": path,
            "metadata_listen": "127.0.0.1:0",
            "control_listen": "127.0.0.1:0",
        } | _LIMITS
        service = Service(load_settings(**(settings | self._settings)), actuator=self._actuator)
        service.endpoint.tick_s = _TICK_S
        service.control_tick_s = _TICK_S
        self._stopping = asyncio.Event()
        async with service.running():
            self._running = Running(service, asyncio.get_running_loop(), stop=self._stopping.set)
            self._ready.set()
            await self._stopping.wait()

    def wait_ready(self) -> Running:
        assert self._ready.wait(_START_S), "the service did not start in time"
        if self._error is not None:
            raise self._error
        assert self._running is not None
        return self._running

    def stop(self) -> None:
        if self._running is not None and self._stopping is not None and self.is_alive():
            self._running.loop.call_soon_threadsafe(self._stopping.set)
        self.join(_START_S)
        assert not self.is_alive(), "the service did not stop in time"
        if self._error is not None:
            raise self._error


@contextmanager
def running(
    folder: Path,
    *,
    actuator: Actuator | None = None,
    new_loop: NewLoop = uvloop.new_event_loop,
    **settings: Any,  # noqa: ANN401 - settings are of any kind
) -> Iterator[Running]:
    """A service with its files in `folder`, stopped at the end."""
    runner = _Runner(folder, settings, actuator, new_loop)
    runner.start()
    try:
        yield runner.wait_ready()
    finally:
        runner.stop()
