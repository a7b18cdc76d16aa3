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
import fcntl
import grp
import os
import re
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol, TypeAlias

import structlog
from pydantic import BaseModel, ConfigDict, Field

from forewarn.core.model import VirtualMachine
from forewarn.errors import ConfigError
from forewarn.net.listen_address import parse_listen
from forewarn.util.tasks import cancel_tasks
from forewarn.wire.yaml_source import YamlSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = [
    "IdentificationMethod",
    "Listen",
    "ListenAddress",
    "ListenerProblem",
    "ListenerSettings",
    "Listeners",
    "NetworkInterface",
    "OpenSocket",
    "assign_interfaces",
    "list_interfaces",
    "read_interface_file",
]

_log = structlog.get_logger("forewarn.host")

INTERFACE_NAME_MAX = 15
"""Maximum length of an interface's name, set by Linux."""

INTERFACES_FILE_BYTES_MAX = 1 << 20
"""Maximum size of the file that assigns interfaces to VMs."""

PATH_BYTES_MAX = 107
"""Maximum length of a Unix socket's path, set by Linux."""

POLL_INTERVAL_MIN_S, POLL_INTERVAL_MAX_S = 0.1, 3600.0
"""Range of the poll interval, in seconds."""

_SETTLE_S = 0.05  # changes that come together are handled in one pass
_NAMES_TOLD_MAX = 5
# Bounds one callback; messages that are left make the socket readable again.
_NEWS_READ_MAX = 1000
_VM = "{vm}"
_INTERFACES = Path("/sys/class/net")
_SIOCGIFHWADDR = 0x8927
_MAC_DIGITS = 12
_TAP_PREFIX = "fe"  # libvirt gives a tap the MAC of its guest, except for the first byte
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100


class IdentificationMethod(StrEnum):
    """Method of identifying VMs."""

    ADDRESS = "address"
    INTERFACE = "interface"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Settings for identifying the VMs of a host.

    Attributes:
        identify_by: One way or two; not both address and interface.
        listen: Addresses with ports, as ``169.254.169.254:80``; for address and interface.
        interface_pattern: Pattern for the name of a VM's interface, as ``tap-{vm}``; empty for none.
        interface_file: YAML file that assigns interfaces to VMs, as ``interfaces: {vnet0: web-0}``; takes precedence
            over the pattern; None if there is none.
        by_mac: True if a tap belongs to the VM with the same MAC except for the first byte ``fe``, as in libvirt; the
            file and the pattern take precedence.
        socket_folder: Folder for the Unix socket ``{vm}.sock`` of each VM, created if missing; None if there is none.
        socket_group: Group that may connect to the Unix sockets besides our own user; empty for none.
        poll_interval_s: Interval between checks without a hint, 0.1 to 3600 s.

    Raises:
        ConfigError: The settings contradict each other, or a value is invalid.
    """

    identify_by: tuple[IdentificationMethod, ...]
    listen: tuple[str, ...] = ("169.254.169.254:80",)
    interface_pattern: str = ""
    interface_file: Path | None = None
    by_mac: bool = False
    socket_folder: Path | None = None
    socket_group: str = ""
    poll_interval_s: float = 5.0

    def __post_init__(self) -> None:
        msg = next((words for is_wrong, words in self._list_rules() if is_wrong), None)
        if msg is not None:
            raise ConfigError(msg)
        _ = self.addresses, self.gid  # raise ConfigError for an invalid address or group

    def _list_rules(self) -> Iterator[tuple[bool, str]]:
        """Yield each condition that is an error, with its message."""
        names_interfaces = bool(self.interface_pattern or self.interface_file or self.by_mac)
        fixed = self.interface_pattern.replace(_VM, "", 1)
        yield not self.identify_by, "no way to identify VMs is set: choose address, interface or socket"
        yield (
            {IdentificationMethod.ADDRESS, IdentificationMethod.INTERFACE} <= set(self.identify_by),
            "cannot identify VMs by both address and interface: choose one",
        )
        yield (
            self.identify_by != (IdentificationMethod.SOCKET,) and not self.listen,
            "no address to listen on is set: expected for example 169.254.169.254:80",
        )
        yield (
            IdentificationMethod.INTERFACE in self.identify_by and not names_interfaces,
            "cannot assign interfaces to VMs: set a pattern such as tap-{vm}, a file, or matching by MAC",
        )
        yield (
            IdentificationMethod.INTERFACE not in self.identify_by and names_interfaces,
            "an interface pattern, an interface file and matching by MAC require identification by interface",
        )
        yield (
            bool(self.interface_pattern)
            and (_VM not in self.interface_pattern or re.search(r"[{}/:\s]", fixed) is not None),
            f"interface pattern {self.interface_pattern!r}: expected {_VM} once in an interface name, as in tap-{_VM}",
        )
        yield (
            len(fixed) >= INTERFACE_NAME_MAX,
            f"interface pattern {self.interface_pattern!r}: a name has at most {INTERFACE_NAME_MAX} characters",
        )
        yield (
            IdentificationMethod.SOCKET in self.identify_by and self.socket_folder is None,
            "no folder is set for the Unix sockets of the VMs",
        )
        yield (
            IdentificationMethod.SOCKET not in self.identify_by
            and (self.socket_folder is not None or bool(self.socket_group)),
            "a folder and a group for sockets require identification by socket",
        )
        yield (
            not POLL_INTERVAL_MIN_S <= self.poll_interval_s <= POLL_INTERVAL_MAX_S,
            (
                f"poll interval is {self.poll_interval_s:g} s: "
                f"expected {POLL_INTERVAL_MIN_S:g} to {POLL_INTERVAL_MAX_S:g} s"
            ),
        )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Addresses and ports to listen on."""
        return [parse_listen(text) for text in self.listen]

    @property
    def gid(self) -> int | None:
        """Id of the group that may connect to the Unix sockets; None if there is none."""
        if not self.socket_group:
            return None
        try:
            return grp.getgrnam(self.socket_group).gr_gid
        except KeyError as error:
            msg = f"group {self.socket_group!r} for the Unix sockets does not exist on this host"
            raise ConfigError(msg) from error


class _InterfacesIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    interfaces: dict[Annotated[str, Field(min_length=1, max_length=INTERFACE_NAME_MAX)], str]


def read_interface_file(path: Path) -> dict[str, str]:
    """Read the file that assigns interfaces to VMs; return the VM by the interface's name.

    Raises:
        ConfigError: The file cannot be read, or its content is invalid.
    """
    source = YamlSource(str(path), size_bytes_max=INTERFACES_FILE_BYTES_MAX, kind="mapping", error_class=ConfigError)
    try:
        with path.open("rb") as file:
            content = file.read(INTERFACES_FILE_BYTES_MAX + 1)
    except OSError as error:
        msg = f"cannot read {path}: {_describe_error(error)}"
        raise ConfigError(msg) from error
    said = source.read(content)
    if not isinstance(said, dict):
        raise source.build_error((), "expected a VM for each interface, as in 'interfaces: {vnet0: web-0}'")
    return source.validate(_InterfacesIn, said).interfaces


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """Network interface of this host.

    Attributes:
        index: Number of the interface; Linux reuses numbers only after it has used all.
        mac: Twelve hexadecimal digits; empty if not requested, or if it has none.
        is_bridge_port: True if it is a port of a bridge, so that its packets arrive at the bridge instead.
    """

    name: str
    index: int
    mac: str = ""
    is_bridge_port: bool = False


def list_interfaces(*, with_macs: bool = False) -> list[NetworkInterface]:
    """List the network interfaces of this network namespace.

    Raises:
        OSError: The system cannot list them.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return [
            NetworkInterface(
                name, index, _read_mac(control, name) if with_macs else "", (_INTERFACES / name / "brport").exists()
            )
            for index, name in socket.if_nameindex()
        ]


def _read_mac(control: socket.socket, name: str) -> str:
    with suppress(OSError):  # it has just disappeared
        answer = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("256s", os.fsencode(name)))
        return answer[18:24].hex()
    return ""


class ListenerProblem(NamedTuple):
    """Problem because of which a VM is not answered.

    Attributes:
        vm: Name of the VM; empty for all.
        reason: Cause and remedy.
    """

    vm: str
    reason: str


_BRIDGED = (
    "its interface is a bridge port, so its packets arrive at the bridge: "
    "identify VMs on a bridge by address, or make the bridge leave their packets to the interface (broute)"
)


def assign_interfaces(
    settings: ListenerSettings,
    vms: Iterable[VirtualMachine],
    interfaces: Iterable[NetworkInterface],
    named_vms: Mapping[str, str],
) -> tuple[dict[NetworkInterface, str], list[ListenerProblem]]:
    """Assign interfaces to VMs.

    Args:
        settings: Settings; the file takes precedence over the pattern, the pattern over MACs.
        vms: VMs of this host.
        interfaces: Interfaces of this host, with MACs if `ways.by_mac` is set.
        named_vms: Content of the file: names of VMs by interface name.

    Returns:
        Name of the VM by interface, and the problems found.
    """
    declared = list(vms)
    names = {vm.name for vm in declared}
    strange = f"{settings.interface_file} names it, but it is not in the inventory of this host"
    troubles = [ListenerProblem(vm, strange) for vm in named_vms.values() if vm not in names]
    by_name = (
        {settings.interface_pattern.replace(_VM, vm.name): vm.name for vm in declared}
        if settings.interface_pattern
        else {}
    )
    by_name = {name: vm for name, vm in by_name.items() if len(name) <= INTERFACE_NAME_MAX}
    # Merged last, so that the file takes precedence over the pattern.
    by_name |= {name: vm for name, vm in named_vms.items() if vm in names}
    by_mac: dict[str, str] = {}
    reached = set(by_name.values())
    if settings.by_mac:
        by_mac, more = _assign_by_mac(declared, reached)
        troubles += more
    elif settings.interface_pattern:
        too_long = (
            f"pattern {settings.interface_pattern} gives an interface name of more than {INTERFACE_NAME_MAX} characters"
        )
        too_long += ": assign the interface in a file"
        troubles += [ListenerProblem(vm.name, too_long) for vm in declared if vm.name not in reached]
    owners: dict[NetworkInterface, str] = {}
    for interface in interfaces:
        owner = by_name.get(interface.name) or by_mac.get(interface.mac)
        if owner is not None:
            owners[interface] = owner
            if interface.is_bridge_port:
                troubles.append(ListenerProblem(owner, _BRIDGED))
    return owners, troubles


def _assign_by_mac(vms: Iterable[VirtualMachine], assigned: set[str]) -> tuple[dict[str, str], list[ListenerProblem]]:
    """Return the VM by the MAC of its tap, and problems of VMs without a usable MAC that have no other interface."""
    found: dict[str, list[str]] = {}
    troubles = []
    for vm in vms:
        digits = re.sub(r"[:.\-]", "", vm.mac_address).lower()
        if len(digits) == _MAC_DIGITS:
            found.setdefault(_TAP_PREFIX + digits[2:], []).append(vm.name)
        elif vm.name not in assigned:
            troubles.append(ListenerProblem(vm.name, "its interface is unknown: set its mac_address in the inventory"))
    for mac, names in list(found.items()):
        if len(names) > 1:
            # Given to neither: either VM could otherwise see and approve the events of the other.
            del found[mac]
            reason = "its mac_address equals that of another VM, except perhaps in the first byte: change it"
            troubles += [ListenerProblem(name, reason) for name in names]
    return {mac: names[0] for mac, names in found.items()}, troubles


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Address of one listening socket.

    Attributes:
        vm: VM assumed for every connection; empty to find it by the source address.
        host, port: IP address and port; empty and 0 for a Unix socket.
        interface, index: Interface that it is bound to; empty and 0 for none.
        path: Path of a Unix socket; None for others.
    """

    vm: str = ""
    host: str = ""
    port: int = 0
    interface: str = ""
    index: int = 0
    path: Path | None = None


_ADVICE_TCP = {
    errno.EACCES: "run as root or with CAP_NET_BIND_SERVICE",
    errno.EPERM: "run as root or with CAP_NET_RAW, which Linux before 5.7 requires to bind to an interface",
    errno.EADDRINUSE: "run 'ss -ltnp' to find the process that listens there",
    errno.EADDRNOTAVAIL: "add it to this host, for example with 'ip address add {host}/{bits} dev lo'",
    errno.EMFILE: "raise the limit on open files",
}
_ADVICE_UNIX = {
    errno.EACCES: "give this user write access to the folder",
    errno.EADDRINUSE: "another process listens on its socket: stop it or choose another folder",
    errno.ENOTSOCK: "remove the file at the path of its socket",
    errno.ENAMETOOLONG: f"a socket path has at most {PATH_BYTES_MAX} bytes: choose a shorter folder",
    errno.EMFILE: "raise the limit on open files",
}


def _explain_error(place: ListenAddress, error: OSError) -> str:
    """Return the reason of an error, with a remedy; the same text for all VMs with the same problem."""
    number = error.errno or 0
    if place.path is not None:
        return f"{place.path.parent}: {_describe_error(error)}; {_ADVICE_UNIX.get(number, 'check the folder')}"
    is_v6 = ":" in place.host
    where = f"[{place.host}]:{place.port}" if is_v6 else f"{place.host}:{place.port}"
    advice = _ADVICE_TCP.get(number, "check the address").format(host=place.host, bits=128 if is_v6 else 32)
    return f"{where}: {_describe_error(error)}; {advice}"


def _describe_error(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _open_tcp(place: ListenAddress) -> socket.socket:
    """Open a listening TCP socket.

    Raises:
        OSError: It cannot be opened; ENODEV if the interface is gone, or another one has its name.
    """
    is_v6 = ":" in place.host
    sock = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if place.interface:
            # Before `bind`, which would fail for the second VM: all of them use the same address and port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(place.interface) + b"\0")
            # The name may have passed to another interface since the interfaces were listed.
            if _find_index(place.interface) != place.index:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))  # noqa: TRY301 - closed as after any other
        sock.bind((place.host, place.port, 0, place.index) if is_v6 else (place.host, place.port))
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


def _find_index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return 0


def _open_unix(path: Path, gid: int | None) -> socket.socket:
    """Open a listening Unix socket; replace one left by a dead process.

    Raises:
        OSError: It cannot be opened; EADDRINUSE if a process is listening there, ENOTSOCK if the path is no socket.
    """
    # Python reports this without an errno, on which the advice depends.
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
        with _lock_folder(path.parent):  # else two processes could each remove the other's socket before it listens
            _remove_stale(path)
            # The mode is set before `listen`, until which no one can connect.
            sock.bind(str(path))
            path.chmod(0o600 if gid is None else 0o660)
            if gid is not None:
                os.chown(path, -1, gid)
            sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder while the block runs, against other processes of this program."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Not waited for, which would block the event loop; the next check tries again.
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a dead process."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.ENOTSOCK, "not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # noqa: FBT003 - as above
            probe.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except BlockingIOError:  # its backlog is full, so it is alive
        pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _identify_file(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, to notice a replacement; None if it does not exist."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class OpenSocket(Protocol):
    """Acceptor of one socket."""

    def close(self) -> None:
        """Stop accepting, and end the connections accepted there."""
        ...


Listen: TypeAlias = Callable[[socket.socket, str], Awaitable[OpenSocket]]
"""Accepts on a listening socket, which it then owns; every connection counts as the VM with that name."""


class Listeners:
    """Reconciler of the listening sockets with the VMs of a host.

    Args:
        settings: Settings for identifying the VMs.
        vms: Returns the current VMs of this host.
        listen: Function that accepts on a socket.
        interfaces: Returns the network interfaces of this host; None for the system's.

    Attributes:
        problems: Current problems because of which VMs are not answered.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        vms: Callable[[], Iterable[VirtualMachine]],
        listen: Listen,
        interfaces: Callable[[], Iterable[NetworkInterface]] | None = None,
    ) -> None:
        self.settings = settings
        self.problems: list[ListenerProblem] = []
        self._vms = vms
        self._listen = listen
        self._interfaces = interfaces or (lambda: list_interfaces(with_macs=settings.by_mac))
        self._open: dict[ListenAddress, tuple[OpenSocket, tuple[int, int] | None]] = {}
        self._gid = settings.gid
        self._logged_problems: set[ListenerProblem] = set()
        self._hint = asyncio.Event()
        self._named_vms: dict[str, str] = {}
        self._file_version: tuple[int, ...] | None = None

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
            with self._subscribe_to_kernel():
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

    @contextmanager
    def _subscribe_to_kernel(self) -> Iterator[None]:
        """Request a check whenever the kernel reports a change of interfaces or addresses, while the block runs."""
        if self.settings.identify_by == (IdentificationMethod.SOCKET,):
            yield
            return
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            try:
                news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
                stack.enter_context(news).bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
            except OSError as error:
                every = f"every {self.settings.poll_interval_s:g} s"
                _log.warning(
                    f"the kernel does not report interface changes ({_describe_error(error)}): checking {every}"
                )
            else:
                loop.add_reader(news.fileno(), self._read_kernel_messages, news)
                stack.callback(loop.remove_reader, news.fileno())
            yield

    def _read_kernel_messages(self, netlink: socket.socket) -> None:
        self._hint.set()
        with suppress(OSError):  # nothing left to read, or messages were lost
            for _ in range(_NEWS_READ_MAX):
                netlink.recv(1)  # the kernel discards the rest of each message

    async def _reconcile_sockets(self) -> None:
        """Close and open sockets so that the open ones match the wanted ones."""
        troubles: list[ListenerProblem] = []
        wanted = self._list_wanted(troubles)
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
                        troubles.append(ListenerProblem(place.vm, _explain_error(place, error)))
        self._log_problems(troubles)

    def _list_wanted(self, problems: list[ListenerProblem]) -> dict[ListenAddress, None]:
        """Return the addresses to listen on, in order."""
        ways = self.settings
        vms = list(self._vms())
        wanted: list[ListenAddress] = []
        if IdentificationMethod.ADDRESS in ways.identify_by:
            wanted += [ListenAddress(host=host, port=port) for host, port in ways.addresses]
        if IdentificationMethod.INTERFACE in ways.identify_by:
            try:
                owners, more = assign_interfaces(ways, vms, self._interfaces(), self._load_interface_file(problems))
            except OSError as error:
                problems.append(ListenerProblem("", f"cannot list the network interfaces: {_describe_error(error)}"))
                # Keep what is open: a failed listing does not mean that the interfaces are gone.
                wanted += [place for place in self._open if place.interface]
            else:
                problems += more
                wanted += [
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

    def _load_interface_file(self, problems: list[ListenerProblem]) -> Mapping[str, str]:
        """Return the content of the file; while it is unreadable or invalid, the last valid content."""
        path = self.settings.interface_file
        if path is None:
            return {}
        with suppress(OSError):
            # Before the read, so that a change in between is noticed at the next check.
            found = path.stat()
            now = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if now == self._file_version:
                return self._named_vms
            self._file_version = None
        try:
            self._named_vms = read_interface_file(path)
        except ConfigError as error:
            problems.append(ListenerProblem("", error.message))
        else:
            self._file_version = now
        return self._named_vms

    def _is_replaced(self, place: ListenAddress) -> bool:
        """Return True if the path no longer leads to our socket."""
        return place.path is not None and _identify_file(place.path) != self._open[place][1]

    async def _open_socket(self, place: ListenAddress) -> None:
        path = place.path
        sock = _open_tcp(place) if path is None else _open_unix(path, self._gid)
        try:
            self._open[place] = await self._listen(sock, place.vm), None if path is None else _identify_file(path)
        except BaseException:
            sock.close()
            raise

    def _close_socket(self, place: ListenAddress) -> None:
        opened, identity = self._open.pop(place)
        opened.close()
        # Another process may have put its own socket at this path.
        if place.path is not None and _identify_file(place.path) == identity:
            with suppress(OSError):
                place.path.unlink()

    def _log_problems(self, problems: list[ListenerProblem]) -> None:
        """Log one line per reason, with the VMs newly affected."""
        new: dict[str, list[str]] = {}
        for vm, reason in dict.fromkeys(problems):
            # Checks run every few seconds, and a lasting problem must not fill the log.
            if (vm, reason) not in self._logged_problems:
                new.setdefault(reason, []).append(vm)
        self.problems = problems
        self._logged_problems = set(problems)
        for reason, vms in new.items():
            shown = ", ".join(vm or "VMs" for vm in vms[:_NAMES_TOLD_MAX])
            rest = f" and {len(vms) - _NAMES_TOLD_MAX} more" if len(vms) > _NAMES_TOLD_MAX else ""
            _log.warning(f"cannot serve {shown}{rest}, retrying: {reason}")
