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
from forewarn.net.listen import parse_listen
from forewarn.wire.yaml_source import YamlSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = [
    "Interface",
    "Listen",
    "Listeners",
    "Opened",
    "Place",
    "Trouble",
    "Way",
    "Ways",
    "assign",
    "list_interfaces",
    "read_interfaces",
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
_NEWS_READ_MAX = 1000
_VM = "{vm}"
_INTERFACES = Path("/sys/class/net")
_SIOCGIFHWADDR = 0x8927
_MAC_DIGITS = 12
_TAP_PREFIX = "fe"  # libvirt gives a tap the MAC of its guest, except for the first byte
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100


class Way(StrEnum):
    """Means of telling VMs apart."""

    ADDRESS = "address"
    INTERFACE = "interface"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Settings for identifying the VMs of a host.

    Attributes:
        by: One way or two; not both address and interface.
        listen: Addresses with ports, as ``169.254.169.254:80``; for address and interface.
        pattern: Pattern for the name of a VM's interface, as ``tap-{vm}``; empty for none.
        file: YAML file that assigns interfaces to VMs, as ``interfaces: {vnet0: web-0}``; takes precedence over the
            pattern; None if there is none.
        by_mac: True if a tap belongs to the VM with the same MAC except for the first byte ``fe``, as in libvirt; the
            file and the pattern take precedence.
        folder: Folder for the Unix socket ``{vm}.sock`` of each VM, created if missing; None if there is none.
        group: Group that may connect to the Unix sockets besides our own user; empty for none.
        poll_interval_s: Interval between checks without a hint, 0.1 to 3600 s.

    Raises:
        ConfigError: The settings contradict each other, or a value is invalid.
    """

    by: tuple[Way, ...]
    listen: tuple[str, ...] = ("169.254.169.254:80",)
    pattern: str = ""
    file: Path | None = None
    by_mac: bool = False
    folder: Path | None = None
    group: str = ""
    poll_interval_s: float = 5.0

    def __post_init__(self) -> None:
        msg = next((words for is_wrong, words in self._rules() if is_wrong), None)
        if msg is not None:
            raise ConfigError(msg)
        _ = self.addresses, self.gid  # raise ConfigError for an invalid address or group

    def _rules(self) -> Iterator[tuple[bool, str]]:
        """Yield each condition that is an error, with its message."""
        names_interfaces = bool(self.pattern or self.file or self.by_mac)
        fixed = self.pattern.replace(_VM, "", 1)
        yield not self.by, "say how VMs are told apart: by address, interface or socket"
        yield (
            {Way.ADDRESS, Way.INTERFACE} <= set(self.by),
            "VMs cannot be told apart by address and by interface at once: choose one",
        )
        yield self.by != (Way.SOCKET,) and not self.listen, "say where to listen, for example 169.254.169.254:80"
        yield (
            Way.INTERFACE in self.by and not names_interfaces,
            "say which interface is whose: by a pattern such as tap-{vm}, by a file, or by MAC",
        )
        yield (
            Way.INTERFACE not in self.by and names_interfaces,
            "a pattern, a file or MACs of interfaces are of use only where VMs are told apart by interface",
        )
        yield (
            bool(self.pattern) and (_VM not in self.pattern or re.search(r"[{}/:\s]", fixed) is not None),
            f"interface pattern {self.pattern!r}: expected {_VM} once, and else what a name may hold, as in tap-{_VM}",
        )
        yield (
            len(fixed) >= INTERFACE_NAME_MAX,
            f"interface pattern {self.pattern!r}: an interface's name has at most {INTERFACE_NAME_MAX} characters",
        )
        yield Way.SOCKET in self.by and self.folder is None, "say in which folder the Unix sockets of the VMs are to be"
        yield (
            Way.SOCKET not in self.by and (self.folder is not None or bool(self.group)),
            "a folder or a group for sockets is of use only where VMs are told apart by socket",
        )
        yield (
            not POLL_INTERVAL_MIN_S <= self.poll_interval_s <= POLL_INTERVAL_MAX_S,
            f"the pause between two looks is expected from {POLL_INTERVAL_MIN_S:g} to {POLL_INTERVAL_MAX_S:g} s",
        )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Addresses and ports to listen on."""
        return [parse_listen(text) for text in self.listen]

    @property
    def gid(self) -> int | None:
        """Id of the group that may connect to the Unix sockets; None if there is none."""
        if not self.group:
            return None
        try:
            return grp.getgrnam(self.group).gr_gid
        except KeyError as error:
            msg = f"group {self.group!r}, which is to use the Unix sockets, does not exist on this host"
            raise ConfigError(msg) from error


class _InterfacesIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    interfaces: dict[Annotated[str, Field(min_length=1, max_length=INTERFACE_NAME_MAX)], str]


def read_interfaces(path: Path) -> dict[str, str]:
    """Read the file that assigns interfaces to VMs; return the VM by the interface's name.

    Raises:
        ConfigError: The file cannot be read, or its content is invalid.
    """
    source = YamlSource(str(path), size_bytes_max=INTERFACES_FILE_BYTES_MAX, kind="mapping", fault=ConfigError)
    try:
        with path.open("rb") as file:
            content = file.read(INTERFACES_FILE_BYTES_MAX + 1)
    except OSError as error:
        msg = f"{path}: cannot be read: {_words(error)}"
        raise ConfigError(msg) from error
    said = source.read(content)
    if not isinstance(said, dict):
        raise source.error((), "expected the VM of each interface, as in 'interfaces: {vnet0: web-0}'")
    return source.validate(_InterfacesIn, said).interfaces


@dataclass(frozen=True, slots=True)
class Interface:
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


def list_interfaces(*, with_macs: bool = False) -> list[Interface]:
    """List the network interfaces of this network namespace.

    Raises:
        OSError: The system cannot list them.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return [
            Interface(name, index, _mac(control, name) if with_macs else "", (_INTERFACES / name / "brport").exists())
            for index, name in socket.if_nameindex()
        ]


def _mac(control: socket.socket, name: str) -> str:
    with suppress(OSError):  # it has just disappeared
        answer = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("256s", os.fsencode(name)))
        return answer[18:24].hex()
    return ""


class Trouble(NamedTuple):
    """Problem because of which a VM is not answered.

    Attributes:
        vm: Name of the VM; empty for all.
        reason: Cause and remedy.
    """

    vm: str
    reason: str


_BRIDGED = (
    "its interface is a port of a bridge, and what it sends arrives at the bridge: "
    "tell VMs on a bridge apart by address, or have the bridge leave their packets to the interface (broute)"
)


def assign(
    ways: Ways, vms: Iterable[VirtualMachine], interfaces: Iterable[Interface], named: Mapping[str, str]
) -> tuple[dict[Interface, str], list[Trouble]]:
    """Assign interfaces to VMs.

    Args:
        ways: Settings; the file takes precedence over the pattern, the pattern over MACs.
        vms: VMs of this host.
        interfaces: Interfaces of this host, with MACs if `ways.by_mac` is set.
        named: Content of the file: names of VMs by interface name.

    Returns:
        Name of the VM by interface, and the problems found.
    """
    declared = list(vms)
    names = {vm.name for vm in declared}
    strange = f"{ways.file} names it, the inventory of this host does not"
    troubles = [Trouble(vm, strange) for vm in named.values() if vm not in names]
    by_name = {ways.pattern.replace(_VM, vm.name): vm.name for vm in declared} if ways.pattern else {}
    by_name = {name: vm for name, vm in by_name.items() if len(name) <= INTERFACE_NAME_MAX}
    by_name |= {name: vm for name, vm in named.items() if vm in names}
    by_mac: dict[str, str] = {}
    reached = set(by_name.values())
    if ways.by_mac:
        by_mac, more = _by_mac(declared, reached)
        troubles += more
    elif ways.pattern:
        too_long = f"by the pattern {ways.pattern} its interface's name is longer than {INTERFACE_NAME_MAX} characters"
        troubles += [Trouble(vm.name, f"{too_long}: name it in a file") for vm in declared if vm.name not in reached]
    owners: dict[Interface, str] = {}
    for interface in interfaces:
        owner = by_name.get(interface.name) or by_mac.get(interface.mac)
        if owner is not None:
            owners[interface] = owner
            if interface.is_bridge_port:
                troubles.append(Trouble(owner, _BRIDGED))
    return owners, troubles


def _by_mac(vms: Iterable[VirtualMachine], reached: set[str]) -> tuple[dict[str, str], list[Trouble]]:
    """Return the VM by the MAC of its tap, and problems of VMs without a usable MAC that have no other interface."""
    found: dict[str, list[str]] = {}
    troubles = []
    for vm in vms:
        digits = re.sub(r"[:.\-]", "", vm.mac_address).lower()
        if len(digits) == _MAC_DIGITS:
            found.setdefault(_TAP_PREFIX + digits[2:], []).append(vm.name)
        elif vm.name not in reached:
            troubles.append(Trouble(vm.name, "the inventory says no mac_address by which to know its interface"))
    for mac, names in list(found.items()):
        if len(names) > 1:
            del found[mac]
            reason = "its mac_address differs from that of another VM in the first byte at most: give it another"
            troubles += [Trouble(name, reason) for name in names]
    return {mac: names[0] for mac, names in found.items()}, troubles


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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
    errno.EACCES: "run this as root, or give it CAP_NET_BIND_SERVICE",
    errno.EPERM: "run this as root, or give it CAP_NET_RAW, without which Linux before 5.7 binds to no interface",
    errno.EADDRINUSE: "find out with 'ss -ltnp' what listens there",
    errno.EADDRNOTAVAIL: "give it to this host, for example with 'ip address add {host}/{bits} dev lo'",
    errno.EMFILE: "raise the limit on open files",
}
_ADVICE_UNIX = {
    errno.EACCES: "let this user write to the folder",
    errno.EADDRINUSE: "another process answers at its socket: stop that, or choose another folder",
    errno.ENOTSOCK: "remove what stands at the path of its socket",
    errno.ENAMETOOLONG: f"a path of a socket has at most {PATH_BYTES_MAX} bytes: choose a shorter folder",
    errno.EMFILE: "raise the limit on open files",
}


def _explain(place: Place, error: OSError) -> str:
    """Return the reason of an error, with a remedy; the same text for all VMs with the same problem."""
    number = error.errno or 0
    if place.path is not None:
        return f"{place.path.parent}: {_words(error)}; {_ADVICE_UNIX.get(number, 'see to the folder')}"
    is_v6 = ":" in place.host
    where = f"[{place.host}]:{place.port}" if is_v6 else f"{place.host}:{place.port}"
    advice = _ADVICE_TCP.get(number, "see to the address").format(host=place.host, bits=128 if is_v6 else 32)
    return f"{where}: {_words(error)}; {advice}"


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _open_tcp(place: Place) -> socket.socket:
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
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(place.interface) + b"\0")
            # The name may have passed to another interface since the interfaces were listed.
            if _index(place.interface) != place.index:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))  # noqa: TRY301 - closed as after any other
        sock.bind((place.host, place.port, 0, place.index) if is_v6 else (place.host, place.port))
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return 0


def _open_unix(path: Path, gid: int | None) -> socket.socket:
    """Open a listening Unix socket; replace one left by a dead process.

    Raises:
        OSError: It cannot be opened; EADDRINUSE if a process is listening there, ENOTSOCK if the path is no socket.
    """
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
        with _locked(path.parent):  # else two processes could each remove the other's socket before it listens
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
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder while the block runs, against other processes of this program."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a dead process."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.ENOTSOCK, "this is no socket")
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


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, to notice a replacement; None if it does not exist."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Opened(Protocol):
    """Acceptor of one socket."""

    def close(self) -> None:
        """Stop accepting, and end the connections accepted there."""
        ...


Listen: TypeAlias = Callable[[socket.socket, str], Awaitable[Opened]]
"""Accepts on a listening socket, which it then owns; every connection counts as the VM with that name."""


class Listeners:
    """Reconciler of the listening sockets with the VMs of a host.

    Args:
        ways: Settings for identifying the VMs.
        vms: Returns the current VMs of this host.
        listen: Function that accepts on a socket.
        interfaces: Returns the network interfaces of this host; None for the system's.

    Attributes:
        troubles: Current problems because of which VMs are not answered.
    """

    def __init__(
        self,
        ways: Ways,
        vms: Callable[[], Iterable[VirtualMachine]],
        listen: Listen,
        interfaces: Callable[[], Iterable[Interface]] | None = None,
    ) -> None:
        self.ways = ways
        self.troubles: list[Trouble] = []
        self._vms = vms
        self._listen = listen
        self._interfaces = interfaces or (lambda: list_interfaces(with_macs=ways.by_mac))
        self._open: dict[Place, tuple[Opened, tuple[int, int] | None]] = {}
        self._gid = ways.gid
        self._told: set[Trouble] = set()
        self._hint = asyncio.Event()
        self._named: dict[str, str] = {}
        self._file_was: tuple[int, ...] | None = None

    @property
    def places(self) -> list[Place]:
        """Addresses of the open sockets."""
        return list(self._open)

    @property
    def interfaces(self) -> frozenset[str]:
        """Names of the interfaces with an open socket."""
        return frozenset(place.interface for place in self._open if place.interface)

    def look_again(self) -> None:
        """Request a check soon, after the inventory has changed."""
        self._hint.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Listeners]:
        """Keep the sockets open until the block ends, following changes of VMs and interfaces."""
        try:
            with self._hearing():
                await self._look()
                task = asyncio.create_task(self._keep())
                try:
                    yield self
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
        finally:
            for place in self.places:
                self._close(place)

    async def _keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.ways.poll_interval_s):
                    await self._hint.wait()
            await asyncio.sleep(_SETTLE_S)
            self._hint.clear()  # before the check: a change during it must cause another one
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - the other VMs must be answered; the log has the trace
                _log.exception("looking after the sockets of VMs broke, trying again")

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """Request a check whenever the kernel reports a change of interfaces or addresses, while the block runs."""
        if self.ways.by == (Way.SOCKET,):
            yield
            return
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            try:
                news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
                stack.enter_context(news).bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
            except OSError as error:
                every = f"every {self.ways.poll_interval_s:g} s"
                _log.warning(f"the kernel does not tell of interfaces ({_words(error)}): they are looked at {every}")
            else:
                loop.add_reader(news.fileno(), self._hear, news)
                stack.callback(loop.remove_reader, news.fileno())
            yield

    def _hear(self, news: socket.socket) -> None:
        self._hint.set()
        with suppress(OSError):  # nothing left to read, or messages were lost
            for _ in range(_NEWS_READ_MAX):
                news.recv(1)  # the kernel discards the rest of each message

    async def _look(self) -> None:
        """Close and open sockets so that the open ones match the wanted ones."""
        troubles: list[Trouble] = []
        wanted = self._wanted(troubles)
        closing = [place for place in self._open if place not in wanted or self._is_replaced(place)]
        for place in closing:
            self._close(place)
        if closing:
            await asyncio.sleep(0)  # an event loop may close a socket one iteration later
        for place in wanted:
            if place not in self._open:
                try:
                    await self._begin(place)
                except OSError as error:
                    if error.errno != errno.ENODEV:  # the interface has just disappeared
                        troubles.append(Trouble(place.vm, _explain(place, error)))
        self._tell(troubles)

    def _wanted(self, troubles: list[Trouble]) -> dict[Place, None]:
        """Return the addresses to listen on, in order."""
        ways = self.ways
        vms = list(self._vms())
        wanted: list[Place] = []
        if Way.ADDRESS in ways.by:
            wanted += [Place(host=host, port=port) for host, port in ways.addresses]
        if Way.INTERFACE in ways.by:
            try:
                owners, more = assign(ways, vms, self._interfaces(), self._mapping(troubles))
            except OSError as error:
                troubles.append(Trouble("", f"the network interfaces cannot be listed: {_words(error)}"))
                wanted += [place for place in self._open if place.interface]
            else:
                troubles += more
                wanted += [
                    Place(vm=vm, host=host, port=port, interface=interface.name, index=interface.index)
                    for interface, vm in owners.items()
                    for host, port in ways.addresses
                ]
        if ways.folder is not None:
            troubles += [Trouble(vm.name, "a '/' in its name leads out of the folder") for vm in vms if "/" in vm.name]
            wanted += [Place(vm=vm.name, path=ways.folder / f"{vm.name}.sock") for vm in vms if "/" not in vm.name]
        return dict.fromkeys(wanted)

    def _mapping(self, troubles: list[Trouble]) -> Mapping[str, str]:
        """Return the content of the file; while it is unreadable or invalid, the last valid content."""
        path = self.ways.file
        if path is None:
            return {}
        with suppress(OSError):
            # Before the read, so that a change in between is noticed at the next check.
            found = path.stat()
            now = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if now == self._file_was:
                return self._named
            self._file_was = None
        try:
            self._named = read_interfaces(path)
        except ConfigError as error:
            troubles.append(Trouble("", error.message))
        else:
            self._file_was = now
        return self._named

    def _is_replaced(self, place: Place) -> bool:
        """Return True if the path no longer leads to our socket."""
        return place.path is not None and _identity(place.path) != self._open[place][1]

    async def _begin(self, place: Place) -> None:
        path = place.path
        sock = _open_tcp(place) if path is None else _open_unix(path, self._gid)
        try:
            self._open[place] = await self._listen(sock, place.vm), None if path is None else _identity(path)
        except BaseException:
            sock.close()
            raise

    def _close(self, place: Place) -> None:
        opened, identity = self._open.pop(place)
        opened.close()
        # Another process may have put its own socket at this path.
        if place.path is not None and _identity(place.path) == identity:
            with suppress(OSError):
                place.path.unlink()

    def _tell(self, troubles: list[Trouble]) -> None:
        """Log one line per reason, with the VMs newly affected."""
        new: dict[str, list[str]] = {}
        for vm, reason in dict.fromkeys(troubles):
            if (vm, reason) not in self._told:
                new.setdefault(reason, []).append(vm)
        self.troubles = troubles
        self._told = set(troubles)
        for reason, vms in new.items():
            shown = ", ".join(vm or "VMs" for vm in vms[:_NAMES_TOLD_MAX])
            rest = f" and {len(vms) - _NAMES_TOLD_MAX} more" if len(vms) > _NAMES_TOLD_MAX else ""
            _log.warning(f"{shown}{rest} cannot be answered, trying again: {reason}")
