"""Connections to libvirt, each with its own thread: its calls block, and a broken host never answers.

Each call has a deadline. When it passes, the thread is abandoned with its call, and the next call gets a new thread and
a new connection. An abandoned job changes nothing more: before each step it checks if it is still wanted.
"""

# ruff: noqa: N802 - the names are libvirt's

from __future__ import annotations

import asyncio
import contextlib
import importlib
import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from forewarn.actuators.payload import make_printable
from forewarn.errors import ActuatorError, ConfigError

__all__ = ["Connect", "Domain", "LibvirtConnection", "LibvirtSession", "load_libvirt", "open_connection"]

T = TypeVar("T")

HANGING_MAX = 4
"""Maximum number of hanging threads per connection; beyond it calls are refused."""

# libvirt drops a connection after `_KEEPALIVE_S` times `_KEEPALIVE_COUNT` + 1 seconds without an answer.
_KEEPALIVE_S = 5
_KEEPALIVE_COUNT = 3
_JOIN_S = 2.0
_LOOK_S = 0.005


class Domain(Protocol):
    """The part of ``libvirt.virDomain`` that is used."""

    def name(self) -> str: ...
    def ID(self) -> int: ...
    def UUIDString(self) -> str: ...
    def state(self, flags: int = 0) -> list[int]: ...
    def isPersistent(self) -> int: ...
    def isActive(self) -> int: ...
    def suspend(self) -> int: ...
    def resume(self) -> int: ...
    def shutdown(self) -> int: ...
    def destroy(self) -> int: ...
    def create(self) -> int: ...
    def undefine(self) -> int: ...
    def undefineFlags(self, flags: int = 0) -> int: ...
    def XMLDesc(self, flags: int = 0) -> str: ...
    def metadata(self, type: int, uri: str, flags: int = 0) -> str: ...
    def setMetadata(self, type: int, metadata: str | None, key: str, uri: str, flags: int = 0) -> int: ...
    def jobInfo(self) -> list[int]: ...
    def jobStats(self, flags: int = 0) -> dict[str, int]: ...
    def abortJob(self) -> int: ...
    def migrateToURI3(self, dconnuri: str, params: dict[str, str], flags: int = 0) -> int: ...


class Connect(Protocol):
    """The part of ``libvirt.virConnect`` that is used."""

    def lookupByName(self, name: str) -> Domain: ...
    def listAllDomains(self, flags: int = 0) -> list[Domain]: ...
    def defineXML(self, xml: str) -> Domain: ...
    def getLibVersion(self) -> int: ...
    def getHostname(self) -> str: ...
    def isAlive(self) -> int: ...
    def setKeepAlive(self, interval: int, count: int) -> int: ...
    def domainEventRegisterAny(self, dom: None, eventID: int, cb: Callable[..., None], opaque: None) -> int: ...  # noqa: N803
    def domainEventDeregisterAny(self, callbackID: int) -> int: ...  # noqa: N803
    def close(self) -> int: ...


_loading = threading.Lock()
_loaded: list[Any] = []


def load_libvirt() -> Any:  # noqa: ANN401 - the library has no types
    """Return the library with its event loop running; without one it neither notices dead peers nor reports events.

    Raises:
        ConfigError: It is not installed.
    """
    with _loading:
        if not _loaded:
            try:
                library = importlib.import_module("libvirt")
            except ImportError as error:
                raise ConfigError("libvirt's library for Python is missing: pip install 'forewarn[libvirt]'") from error
            library.registerErrorHandler(lambda *_: None, None)  # errors are raised as well; stderr is for our log
            # libvirt requires this before the first connection; later ones only would have keepalive and events.
            library.virEventRegisterDefaultImpl()
            threading.Thread(
                target=_run_event_loop, args=(library,), name="forewarn-libvirt-events", daemon=True
            ).start()
            _loaded.append(library)
        return _loaded[0]


def _run_event_loop(library: Any) -> None:  # noqa: ANN401 - the library has no types
    while True:
        with contextlib.suppress(library.libvirtError):
            library.virEventRunDefaultImpl()


def open_connection(uri: str) -> Connect:
    """Open a connection that notices when the other side dies. Blocks.

    Raises:
        ActuatorError: libvirt cannot be reached.
    """
    library = load_libvirt()
    try:
        connect: Connect = library.open(uri)
    except library.libvirtError as error:
        raise ActuatorError(f"cannot connect to libvirt at {uri}: {make_printable(str(error))}") from error
    with contextlib.suppress(library.libvirtError):  # a local driver has no peer that could die
        connect.setKeepAlive(_KEEPALIVE_S, _KEEPALIVE_COUNT)
    return connect


class Abandoned(Exception):
    """The job has taken too long; its result is no longer wanted."""


class LibvirtSession:
    """Connection and library for one job.

    Attributes:
        connect: The connection.
        library: libvirt's module, for its constants and its error.
    """

    def __init__(self, connect: Connect, is_abandoned: threading.Event) -> None:
        self.connect = connect
        self.library = load_libvirt()
        self._is_abandoned = is_abandoned

    def ensure_wanted(self) -> None:
        """Check that the job is still wanted; call this before each change.

        Raises:
            Abandoned: Another thread may be working on the domain by now.
        """
        if self._is_abandoned.is_set():
            raise Abandoned

    def find_domain(self, name: str) -> Domain | None:
        """Return the domain of that name; None if there is none."""
        try:
            return self.connect.lookupByName(name)
        except self.library.libvirtError as error:
            if self.means_absence(error):
                return None
            raise

    def means_absence(self, error: Any) -> bool:  # noqa: ANN401 - libvirt's error
        """Return True if the error means that the domain does not exist; it may have moved since it was found."""
        return bool(error.get_error_code() == self.library.VIR_ERR_NO_DOMAIN)


class LibvirtConnection:
    """One connection to one libvirt, used by one job at a time.

    Args:
        uri: URI of the libvirt, for example ``qemu:///system``.
        deadline: Time limit for one job, counted from its turn; None for no limit.
    """

    def __init__(self, uri: str, deadline: timedelta | None) -> None:
        self.uri = uri
        self._deadline_s = None if deadline is None else deadline.total_seconds()
        self._worker: _Worker | None = None
        self._hanging: list[_Worker] = []

    async def run_job(self, work: Callable[[LibvirtSession], T]) -> T:
        """Run `work` on the thread, and once more on a new connection if that broke: it must be repeatable.

        If cancelled before its turn, it is not run; later, it goes on to its end.

        Raises:
            ActuatorError: libvirt refuses, cannot be reached, or does not answer in time.
        """
        worker = self._worker or self._start_worker()
        loop = asyncio.get_running_loop()
        job: _Job[T] = _Job(work, loop.create_future(), partial(self._start_deadline, worker))
        worker.jobs.put(job)
        return await job.future

    def _start_deadline(self, worker: _Worker, job: _Job[Any]) -> None:
        """Start the deadline of a job at its turn. It also applies if the caller no longer waits."""
        if self._deadline_s is not None and not job.has_ended:
            job.timer = asyncio.get_running_loop().call_later(self._deadline_s, self._abandon_worker, worker, job)

    def _abandon_worker(self, worker: _Worker, job: _Job[Any]) -> None:
        if self._worker is worker:
            self._worker = None
        # A blocked call cannot be ended; its thread counts as hanging until the call returns.
        self._hanging.append(worker)
        worker.abandon()
        job.set_failure(ActuatorError(f"libvirt at {self.uri} did not answer within {self._deadline_s:g} s"))

    def _start_worker(self) -> _Worker:
        self._hanging = [worker for worker in self._hanging if worker.is_alive()]
        if len(self._hanging) >= HANGING_MAX:
            raise ActuatorError(f"libvirt at {self.uri} does not answer: {HANGING_MAX} calls hang")
        self._worker = _Worker(self.uri)
        self._worker.start()
        return self._worker

    async def close(self) -> None:
        """Close the connection once the queued jobs have ended; one that hangs is abandoned."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.jobs.put(None)
            # Polled, since `join` would block the event loop.
            for _ in range(round(_JOIN_S / _LOOK_S)):
                if not worker.is_alive():
                    break
                await asyncio.sleep(_LOOK_S)


class _Job(Generic[T]):
    """A job for the thread of a line; the caller waits in the event loop."""

    def __init__(
        self, work: Callable[[LibvirtSession], T], future: asyncio.Future[T], on_turn: Callable[[_Job[T]], None]
    ) -> None:
        self.work = work
        self.future = future
        self.has_ended = False
        self.timer: asyncio.TimerHandle | None = None
        self._on_turn = on_turn
        self._loop = future.get_loop()

    def start_turn(self) -> bool:
        """On the thread: start the deadline, and return True if the job is still wanted."""
        if self.future.cancelled():
            return False
        self._call_in_loop(self._on_turn, self)
        return True

    def report(self, result: T | None, error: BaseException | None = None) -> None:
        """On the thread: report the result, or the failure."""
        self._call_in_loop(self._finish, result, error)

    def set_failure(self, error: BaseException) -> None:
        """In the loop: fail the job, unless it is done."""
        if not self.future.done():
            self.future.set_exception(error)

    def _finish(self, result: T, error: BaseException | None) -> None:
        self.has_ended = True
        if self.timer is not None:
            self.timer.cancel()
        if error is not None:
            self.set_failure(error)
        elif not self.future.done():
            self.future.set_result(result)

    def _call_in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is left
            self._loop.call_soon_threadsafe(function, *arguments)


class _Worker(threading.Thread):
    """The thread of a line, with its connection. It does not keep the process alive.

    Attributes:
        jobs: Queue of its jobs; None ends the thread after the jobs before it.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(name=f"forewarn-libvirt {uri}", daemon=True)
        self._uri = uri
        self.jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._connect: Connect | None = None
        self._is_abandoned = threading.Event()

    def abandon(self) -> None:
        """In the loop: refuse the waiting jobs, and end once the current one returns."""
        self._is_abandoned.set()
        with contextlib.suppress(queue.Empty):
            while True:
                job = self.jobs.get_nowait()
                if job is not None:
                    job.set_failure(ActuatorError(f"libvirt at {self._uri} did not answer the previous call"))
        self.jobs.put(None)

    def run(self) -> None:
        """Run one job after the other."""
        while (job := self.jobs.get()) is not None:
            if job.start_turn():
                try:
                    job.report(self._run_job(job.work))
                except BaseException as error:  # noqa: BLE001 - it is passed to the caller
                    job.report(None, error)
        self._close_connection()

    def _run_job(self, work: Callable[[LibvirtSession], T]) -> T:
        library = load_libvirt()
        for is_last in (False, True):
            if self._connect is None or not self._is_connected():
                self._close_connection()
                self._connect = open_connection(self._uri)
            try:
                return work(LibvirtSession(self._connect, self._is_abandoned))
            except library.libvirtError as error:
                # On a working connection the error is libvirt's answer; only a broken connection is worth a second try.
                if is_last or self._is_connected():
                    raise ActuatorError(f"libvirt at {self._uri}: {make_printable(str(error))}") from error
        raise AssertionError  # pragma: no cover - the second time returns or raises

    def _is_connected(self) -> bool:
        library = load_libvirt()
        try:
            return self._connect is not None and self._connect.isAlive() == 1
        except library.libvirtError:
            return False

    def _close_connection(self) -> None:
        connect, self._connect = self._connect, None
        if connect is not None:
            with contextlib.suppress(load_libvirt().libvirtError):
                connect.close()
