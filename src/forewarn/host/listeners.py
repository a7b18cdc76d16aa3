"""Listening sockets for the VMs of a host, which identify the caller.

There are three ways. By `address`, all VMs share the sockets, and the source address identifies the caller. By
`interface`, each VM has a socket bound to the host's end of its network card: forged packets change nothing, and two
guests may have the same address. By `socket`, each VM has a Unix socket, for guests that share no network with the
host.

VMs and interfaces come and go. So the wanted sockets are compared with the open ones every few seconds, and at once
when the kernel reports a change. The report is only a hint, and its content is not read (invariant 9).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TypeAlias

import structlog

from forewarn.core.model import VirtualMachine
from forewarn.endpoint.server import ListeningSockets
from forewarn.errors import ConfigError
from forewarn.host.interface_assignment import assign_interfaces
from forewarn.host.interface_file import InterfaceFile
from forewarn.host.listener_problem import ListenerProblem, ProblemLog, describe_os_error, explain_error
from forewarn.host.listener_settings import IdentificationMethod, ListenerSettings
from forewarn.host.listening_socket import ListenAddress, identify_file, open_socket
from forewarn.host.network_interfaces import list_interfaces, watch_interfaces
from forewarn.util.tasks import cancel_tasks

__all__ = ["Listen", "Listeners"]

_log = structlog.get_logger("forewarn.host")

_SETTLE_S = 0.05  # changes that come together are handled in one pass


Listen: TypeAlias = Callable[[Sequence[socket.socket], str], Awaitable[ListeningSockets]]
"""Accepts on listening sockets, which it then owns; every connection counts as the VM with that name."""


class Listeners:
    """Reconciler of the listening sockets with the VMs of a host.

    Args:
        settings: Settings for identifying the VMs.
        vms: Returns the current VMs of this host.
        listen: Function that accepts on sockets.

    Attributes:
        problems: Current problems because of which VMs are not answered.
    """

    def __init__(self, settings: ListenerSettings, vms: Callable[[], Iterable[VirtualMachine]], listen: Listen) -> None:
        self.settings = settings
        self.problems: list[ListenerProblem] = []
        self._vms = vms
        self._listen = listen
        self._open: dict[ListenAddress, tuple[ListeningSockets, tuple[int, int] | None]] = {}
        self._gid = settings.gid
        self._problem_log = ProblemLog()
        self._interface_file = InterfaceFile(settings.interface_file)
        self._hint = asyncio.Event()

    @property
    def open_addresses(self) -> list[ListenAddress]:
        """Addresses of the open sockets."""
        return list(self._open)

    @property
    def interfaces(self) -> frozenset[str]:
        """Names of the interfaces with an open socket."""
        return frozenset(place.interface for place in self._open if place.interface)

    def request_check(self) -> None:
        """Request a check soon, after the inventory has changed."""
        self._hint.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Listeners]:
        """Keep the sockets open until the block ends, following changes of VMs and interfaces."""
        try:
            with ExitStack() as stack:
                self._subscribe_to_kernel(stack)
                # The first check runs at once, so that the endpoint is ready when the block begins.
                await self._reconcile_sockets()
                task = asyncio.create_task(self._check_repeatedly())
                try:
                    yield self
                finally:
                    await cancel_tasks(task)
        finally:
            for place in self.open_addresses:
                self._close_socket(place)

    async def _check_repeatedly(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.poll_interval_s):
                    await self._hint.wait()
            await asyncio.sleep(_SETTLE_S)
            self._hint.clear()  # before the check: a change during it must cause another one
            try:
                await self._reconcile_sockets()
            except Exception:  # noqa: BLE001 - the other VMs must be answered; the log has the trace
                _log.exception("checking the sockets of VMs failed, retrying")

    def _subscribe_to_kernel(self, stack: ExitStack) -> None:
        """Request a check whenever the kernel reports a change of interfaces or addresses, until the stack is left."""
        if self.settings.identify_by != (IdentificationMethod.SOCKET,):
            try:
                stack.enter_context(watch_interfaces(self.request_check))
            except OSError as error:
                reason, every = describe_os_error(error), f"every {self.settings.poll_interval_s:g} s"
                _log.warning(f"the kernel does not report interface changes ({reason}): checking {every}")

    async def _reconcile_sockets(self) -> None:
        """Close and open sockets so that the open ones match the wanted ones."""
        problems: list[ListenerProblem] = []
        wanted = self._list_wanted(problems)
        # Close before opening: a new socket may need the address or the path of an old one.
        closing = [place for place in self._open if place not in wanted or self._is_replaced(place)]
        for place in closing:
            self._close_socket(place)
        if closing:
            await asyncio.sleep(0)  # an event loop may close a socket one iteration later
        for place in wanted:
            if place not in self._open:
                try:
                    await self._open_socket(place)
                except OSError as error:
                    if error.errno != errno.ENODEV:  # the interface has just disappeared
                        problems.append(ListenerProblem(place.vm, explain_error(place, error)))
        self.problems = problems
        self._problem_log.write(problems)

    def _list_wanted(self, problems: list[ListenerProblem]) -> dict[ListenAddress, None]:
        """Return the addresses to listen on, in order."""
        ways = self.settings
        vms = list(self._vms())
        wanted: list[ListenAddress] = []
        if IdentificationMethod.ADDRESS in ways.identify_by:
            wanted += [ListenAddress(host=host, port=port) for host, port in ways.addresses]
        if IdentificationMethod.INTERFACE in ways.identify_by:
            try:
                self._interface_file.refresh()
            except ConfigError as error:
                problems.append(ListenerProblem("", error.message))
            try:
                interfaces = list_interfaces(with_macs=ways.by_mac)
                owners, more = assign_interfaces(ways, vms, interfaces, self._interface_file.named_vms)
            except OSError as error:
                problems.append(ListenerProblem("", f"cannot list the network interfaces: {describe_os_error(error)}"))
                # Keep what is open: a failed listing does not mean that the interfaces are gone.
                wanted += [place for place in self._open if place.interface]
            else:
                problems += more
                wanted += [
                    # With the index, an interface that was made again under the same name counts as another address.
                    ListenAddress(vm=vm, host=host, port=port, interface=interface.name, index=interface.index)
                    for interface, vm in owners.items()
                    for host, port in ways.addresses
                ]
        if ways.socket_folder is not None:
            outside = "a '/' in its name would put its socket outside the folder"
            problems += [ListenerProblem(vm.name, outside) for vm in vms if "/" in vm.name]
            wanted += [
                ListenAddress(vm=vm.name, path=ways.socket_folder / f"{vm.name}.sock")
                for vm in vms
                if "/" not in vm.name
            ]
        return dict.fromkeys(wanted)

    def _is_replaced(self, place: ListenAddress) -> bool:
        """Return True if the path no longer leads to our socket."""
        return place.path is not None and identify_file(place.path) != self._open[place][1]

    async def _open_socket(self, place: ListenAddress) -> None:
        path = place.path
        sock = open_socket(place, self._gid)
        try:
            self._open[place] = await self._listen([sock], place.vm), None if path is None else identify_file(path)
        except BaseException:
            sock.close()
            raise

    def _close_socket(self, place: ListenAddress) -> None:
        opened, identity = self._open.pop(place)
        opened.close()
        # Another process may have put its own socket at this path.
        if place.path is not None and identify_file(place.path) == identity:
            with suppress(OSError):
                place.path.unlink()
