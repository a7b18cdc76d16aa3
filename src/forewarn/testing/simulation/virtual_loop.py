"""Event loop on virtual time, with processes that can be killed at any await.

When nothing is left to do, the loop's time jumps to the next timer, so an hour takes as long as its work. Everything
runs in the order in which it was scheduled, so two runs that are given the same input are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from forewarn.testing.simulation.connection import SimulatedSocket, SimulatedTransport
from forewarn.testing.simulation.machine_clock import MachineClock
from forewarn.testing.simulation.network import Network, Node

if TYPE_CHECKING:
    from _typeshed import HasFileno

__all__ = ["LoopStuck", "ProcessKilled", "SimulatedProcess", "VirtualLoop", "get_running_process", "read_uptime_s"]

T = TypeVar("T")

_PROCESS: ContextVar[SimulatedProcess | None] = ContextVar("simulated process", default=None)


class LoopStuck(AssertionError):
    """Virtual time cannot go on: everything waits and there is no timer, or something runs again and again."""


class ProcessKilled(BaseException):
    """Ends the code that runs in a process which has just been killed; no code under test may catch it."""


class SimulatedProcess:
    """Everything that belongs to one process of the simulation; `kill` ends it like ``kill -9``.

    A killed process is never scheduled again: its tasks stay where they are, and none of their cleanup runs.

    Args:
        name: Name for the trace.
        node: Machine that it runs on.
        clock: Clock of that machine.

    Attributes:
        is_alive: False once it was killed.
        on_failure: Called with the error if what `start` runs fails.
    """

    def __init__(self, name: str, node: Node, clock: MachineClock) -> None:
        self.name = name
        self.node = node
        self.clock = clock
        self.is_alive = True
        self.on_failure: Callable[[BaseException], None] = traceback.print_exception
        # Callbacks that wait while it is halted; None while it runs.
        self._waiting: list[asyncio.Handle] | None = None
        self._context = copy_context()
        self._context.run(_PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as part of this process, together with all tasks that it creates."""
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        task.add_done_callback(self._check_end)
        return task

    def _check_end(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_failure(error)

    def kill(self, *, is_power_loss: bool = False) -> None:
        """End it. Its connections are reset, unless the whole machine lost power: then no one notices."""
        self.is_alive = False
        for listening in list(self.node.listening.values()):
            listening.close()
        for transport in list(self.node.connections):
            transport.vanish(is_silent=is_power_loss)

    def halt(self) -> None:
        """Stop it like ``kill -STOP``: time goes on, and what happens to it meanwhile waits."""
        if self._waiting is None:
            self._waiting = []

    def resume(self) -> None:
        """Let it go on, first with what has waited."""
        waiting, self._waiting = self._waiting or [], None
        cast("VirtualLoop", asyncio.get_running_loop()).run_next(waiting)

    def may_run(self, handle: asyncio.Handle) -> bool:
        """Return whether a callback may run now: not after it was killed; while it is halted, the callback waits."""
        if not self.is_alive:
            return False
        if self._waiting is not None:
            self._waiting.append(handle)
            return False
        return True


class _Guarded:
    """Mixin for a callback that may be that of a process."""

    __slots__ = ()

    _context: Context

    def _run(self) -> None:
        process = self._context.get(_PROCESS)
        if process is None or process.may_run(cast("asyncio.Handle", self)):
            super()._run()  # type: ignore[misc] # of asyncio's class


class _Handle(_Guarded, asyncio.Handle):
    __slots__ = ()


class _TimerHandle(_Guarded, asyncio.TimerHandle):
    __slots__ = ()


_STILL_MAX = 20_000
"""Maximum number of iterations of the loop at one moment; in runs without a fault there are some hundred."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose time starts at 0 and moves only when nothing else can.

    Attributes:
        network: Network to which the processes are connected.
        draw_delay_s: Returns for how long blocking work travels to where it is done, or its result back, in seconds.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        self.network: Network
        self.draw_delay_s: Callable[[], float] = lambda: 0.0
        self._now_s = 0.0
        self._still = 0
        # By time, and at the same time in the order in which they were set.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_set = 0
        # asyncio holds tasks weakly. Those of a killed process would be collected, and their cleanup would run.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        super().__init__()

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._now_s

    # asyncio's own iteration asks the operating system for the time and for what has arrived, and compares timers by
    # methods written in Python. Here, nothing arrives from outside, and time is a number.

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready and not self._stopping:
            while timers and timers[0][2].cancelled():
                heappop(timers)
            if not timers:
                raise LoopStuck(f"after {self._now_s:.3f} s, everything waits for something else")
            if timers[0][0] > self._now_s:
                self._now_s = timers[0][0]
                self._still = 0
        self._still += 1
        if self._still > _STILL_MAX:
            raise LoopStuck(f"after {self._now_s:.3f} s, something runs again and again without waiting")
        while timers and timers[0][0] <= self._now_s:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - as asyncio does

    def _call_soon(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback for a time, unless its process is killed before."""
        handle = _TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def run_next(self, handles: Iterable[asyncio.Handle]) -> None:
        """Run these callbacks next, in this order."""
        self._ready.extend(handles)

    def create_task(  # type: ignore[override] # without the options that typeshed has for newer versions
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Create a task, and keep it until it is done."""
        task = super().create_task(coro, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def drop_tasks(self) -> None:
        """Drop everything that is still pending: what killed processes have left, and what never ends."""
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - asyncio has no other way
            if task.done() and not task.cancelled():
                task.exception()  # its process was killed by `ProcessKilled`, which no one needs to be shown
            # Runs the cleanup of the coroutine as far as it does not wait; the simulation is over, so no one sees it.
            with contextlib.suppress(BaseException):
                cast("Coroutine[Any, Any, Any]", task.get_coro()).close()
        self._tasks.clear()

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        """Run blocking work on the loop: there are no threads. If its result is awaitable, await that, too.

        It takes a moment, in which other things happen and the process may be killed.
        """
        del executor
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - it is passed to the caller
                self.call_later(self.draw_delay_s(), fail, error)
                return
            if isawaitable(result):
                self.create_task(wait(result))
            else:
                self.call_later(self.draw_delay_s(), succeed, result)

        async def wait(result: Awaitable[Any]) -> None:
            try:
                succeed(await result)
            except Exception as error:  # noqa: BLE001 - it is passed to the caller
                fail(error)

        def succeed(result: Any) -> None:  # noqa: ANN401 - whatever the function returns
            if not future.done():
                future.set_result(result)

        def fail(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        # Like a thread, it goes on if its caller no longer waits.
        self.call_later(self.draw_delay_s(), work)
        return future

    # Sockets

    def add_reader(self, fd: int | HasFileno, callback: Callable[..., object], *args: object) -> None:
        """Call a function when a simulated listening socket has a connection to accept."""
        sock = fd if isinstance(fd, SimulatedSocket) else self._find_listening(fd)
        if sock is None:
            super().add_reader(fd, callback, *args)
            return
        context = copy_context()

        def wake() -> None:
            self.call_soon(run, context=context)

        def run() -> None:
            if sock.on_readable is wake and sock.waiting:
                callback(*args)
                if sock.waiting:
                    wake()

        sock.on_readable = wake
        if sock.waiting:
            wake()

    def remove_reader(self, fd: int | HasFileno) -> bool:
        """End `add_reader`."""
        sock = fd if isinstance(fd, SimulatedSocket) else self._find_listening(fd)
        if sock is None:
            return super().remove_reader(fd)
        had, sock.on_readable = sock.on_readable is not None, None
        return had

    def _find_listening(self, fd: int | HasFileno) -> SimulatedSocket | None:
        network: Network | None = getattr(self, "network", None)
        return None if network is None or not isinstance(fd, int) else network.listening.get(fd)

    async def connect_accepted_socket(  # type: ignore[override] # the options for TLS are not used
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], sock: object, **_options: object
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Give an accepted connection its protocol."""
        transport = cast("SimulatedSocket", sock).transport
        assert transport is not None  # noqa: S101 - accepted sockets have one
        protocol = protocol_factory()
        transport.begin(protocol)
        return transport, protocol

    async def sock_connect(self, sock: object, address: object) -> None:
        """Refuse: a real socket would leave the simulation.

        Raises:
            RuntimeError: Always.
        """
        del sock
        raise RuntimeError(f"no real socket can connect to {address}: use a client such as httpx")

    async def create_server(  # type: ignore[override] # as above
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        sock: Any = None,  # noqa: ANN401 - a simulated socket
        **_options: object,
    ) -> _SimulatedServer:
        """Serve on a simulated socket, or on a port of the calling process's node."""
        if sock is None:
            process = _get_process()
            sock = self.network.listen(process.node, host or process.node.address, port or 0)
        return _SimulatedServer(self, sock, protocol_factory)

    async def create_connection(  # type: ignore[override] # as above
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        local_addr: tuple[str, int] | None = None,
        **_options: object,
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect to a simulated server."""
        address = self.network.names.get(host or "", host or "")
        source_address = "" if local_addr is None else local_addr[0]
        transport = await self.network.connect(_get_process().node, address, port or 0, source_address)
        protocol = protocol_factory()
        transport.begin(protocol)
        return transport, protocol

    async def getaddrinfo(  # type: ignore[override] # as above
        self, host: str | bytes | None, port: str | int | None, **_options: object
    ) -> list[tuple[Any, ...]]:
        """Look a name up among the simulated nodes.

        Raises:
            socket.gaierror: It is unknown.
        """
        name = host.decode() if isinstance(host, bytes) else host or ""
        address = self.network.names.get(name, name)
        if not address[:1].isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]


class _SimulatedServer:
    """Server on a simulated socket, with the interface of `asyncio.Server`."""

    def __init__(
        self, loop: VirtualLoop, sock: SimulatedSocket, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self.sockets = (sock,)
        self._loop = loop
        self._sock = sock
        self._protocol_factory = protocol_factory
        loop.add_reader(sock, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted, _ = self._sock.accept()
                assert accepted.transport is not None  # noqa: S101 - accepted sockets have one
                accepted.transport.begin(self._protocol_factory())

    def is_serving(self) -> bool:
        """Return True until it is closed."""
        return not self._sock.is_closed

    def close(self) -> None:
        """Stop accepting."""
        self._loop.remove_reader(self._sock)
        self._sock.close()

    async def wait_closed(self) -> None:
        """Do nothing: closing takes no time."""


def get_running_process() -> SimulatedProcess | None:
    """Return the process whose code is running; None outside of the processes."""
    return _PROCESS.get()


def _get_process() -> SimulatedProcess:
    process = _PROCESS.get()
    if process is None:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
    return process


def read_uptime_s() -> float:
    """Return the uptime of the machine on which the running process runs, in virtual seconds."""
    process = _PROCESS.get()
    return asyncio.get_running_loop().time() if process is None else process.clock.uptime_s()
