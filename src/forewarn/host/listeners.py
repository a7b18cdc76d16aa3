"""A listening socket for each VM of a host, so that the socket says who calls.

Three ways. By `address` there is one socket for all, and the source address says who calls. By `interface` each VM has
a socket that is bound to the host's end of its network card: what the guest writes into its packets changes nothing,
and two guests may have the same address. By `socket` each VM has a Unix socket, for guests without a network of the
host's.

VMs and interfaces come and go. So the sockets that should be there are compared, again and again, with those that are:
every few seconds, and at once when the kernel says that something has changed. What it says is a hint and is not read
(invariant 9).
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
"""Characters of an interface's name; Linux's own limit."""

INTERFACES_FILE_BYTES_MAX = 1 << 20
"""Largest file that says which interface is whose."""

PATH_BYTES_MAX = 107
"""Longest path of a Unix socket; Linux's own limit."""

POLL_INTERVAL_MIN_S, POLL_INTERVAL_MAX_S = 0.1, 3600.0
"""From how often to how seldom one may look without being told, in seconds."""

_SETTLE_S = 0.05  # what changes together is looked at once
_NAMES_TOLD_MAX = 5
_NEWS_READ_MAX = 1000
_VM = "{vm}"
_INTERFACES = Path("/sys/class/net")
_SIOCGIFHWADDR = 0x8927
_MAC_DIGITS = 12
_TAP_PREFIX = "fe"  # libvirt gives a tap its guest's MAC, but for the first byte
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100


class Way(StrEnum):
    """What tells VMs apart."""

    ADDRESS = "address"
    INTERFACE = "interface"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How the VMs of a host are told apart.

    Attributes:
        by: One way or two; not both address and interface.
        listen: Addresses with ports, as ``169.254.169.254:80``; for address and interface.
        pattern: Name of a VM's interface, as ``tap-{vm}``; empty: none.
        file: YAML that says which interface is whose: ``interfaces: {vnet0: web-0}``. Goes before the pattern. None:
            there is none.
        by_mac: Whether an interface whose MAC is a VM's with ``fe`` as first byte is that VM's, as with libvirt. The
            file and the pattern go before it.
        folder: Where each VM gets ``{vm}.sock``; made if it is not there.
        group: Who may connect there besides our own user; empty: nobody.
        poll_interval_s: How often to look without being told, 0.1 to 3600 s.

    Raises:
        ConfigError: What is said makes no sense together.
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
        _ = self.addresses, self.gid  # these say so when there is no such address or group

    def _rules(self) -> Iterator[tuple[bool, str]]:
        """What must not be, and what to say then."""
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
        """Where to listen."""
        return [parse_listen(text) for text in self.listen]

    @property
    def gid(self) -> int | None:
        """Number of the group that may connect to Unix sockets; None: there is none."""
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
    """The VM of each interface, by the interface's name, as a file says it.

    Raises:
        ConfigError: It cannot be read, or says something else.
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
    """A network interface of this host.

    Attributes:
        index: Linux counts them up, and gives none twice before it has given all.
        mac: Twelve hexadecimal digits; empty where nobody asked, or it has none.
        is_bridge_port: Whether what comes in there comes in at a bridge instead.
    """

    name: str
    index: int
    mac: str = ""
    is_bridge_port: bool = False


def list_interfaces(*, with_macs: bool = False) -> list[Interface]:
    """Those that this network namespace has now.

    Raises:
        OSError: The system does not say.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return [
            Interface(name, index, _mac(control, name) if with_macs else "", (_INTERFACES / name / "brport").exists())
            for index, name in socket.if_nameindex()
        ]


def _mac(control: socket.socket, name: str) -> str:
    with suppress(OSError):  # it is gone again
        answer = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("256s", os.fsencode(name)))
        return answer[18:24].hex()
    return ""


class Trouble(NamedTuple):
    """Why a VM is not answered.

    Attributes:
        vm: Which; empty: all.
        reason: What is wrong, and what to do.
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
    """Which interface is whose.

    Args:
        ways: The file goes before the pattern, the pattern before MACs.
        vms: Those of this host.
        interfaces: With MACs, where these count.
        named: What the file says: names of VMs by those of interfaces.

    Returns:
        The VM's name by its interface, and VMs that cannot have one.
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
    """The VM by the MAC that its tap has; and those that have none, unless they are reached otherwise."""
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
    """Where one socket listens.

    Attributes:
        vm: Whoever connects there is that VM; empty: the source address says who it is.
        host, port: Its address; empty and 0 for a Unix socket.
        interface, index: What it is bound to; empty and 0: nothing.
        path: Of a Unix socket; None for others.
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
    """One reason for all VMs that have it, with what to do."""
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
    """A socket that listens there.

    Raises:
        OSError: It cannot; ENODEV when the interface is gone, or another one has its name.
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
    """A socket that listens there, in the place of one whose process is dead.

    Raises:
        OSError: It cannot; EADDRINUSE when somebody answers there, ENOTSOCK when there is something else.
    """
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
        with _locked(path.parent):  # or two processes might each take the other's, which does not answer yet, for dead
            _remove_stale(path)
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
    """No other process does this in that folder."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a process that is dead."""
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
    except BlockingIOError:  # it has no time, so it lives
        pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another that has taken its place; None when there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Opened(Protocol):
    """What accepts on one socket."""

    def close(self) -> None:
        """Accept no more, and end the connections that came in there."""
        ...


Listen: TypeAlias = Callable[[socket.socket, str], Awaitable[Opened]]
"""Accepts on a socket that listens; whoever connects there is the VM of that name. It owns the socket from then on."""


class Listeners:
    """Keeps a socket open for each VM of a host.

    Args:
        ways: How VMs are told apart.
        vms: The VMs that this host has now.
        listen: Accepts on a socket.
        interfaces: The host's network interfaces.

    Attributes:
        troubles: Why some VM is not answered now.
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
        """Where is listened now."""
        return list(self._open)

    @property
    def interfaces(self) -> frozenset[str]:
        """Names of the interfaces that are listened on."""
        return frozenset(place.interface for place in self._open if place.interface)

    def look_again(self) -> None:
        """The inventory has changed."""
        self._hint.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Listeners]:
        """Sockets are open from the beginning of the block to its end, as VMs and interfaces come and go."""
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
            self._hint.clear()
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - the other VMs must be answered; the log has the trace
                _log.exception("looking after the sockets of VMs broke, trying again")

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """The kernel's word that interfaces or addresses have changed is a hint to look."""
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
        with suppress(OSError):  # nothing left to read, or so much that something was lost
            for _ in range(_NEWS_READ_MAX):
                news.recv(1)  # the rest of each message is thrown away

    async def _look(self) -> None:
        """Make what is open equal to what should be."""
        troubles: list[Trouble] = []
        wanted = self._wanted(troubles)
        closing = [place for place in self._open if place not in wanted or self._is_replaced(place)]
        for place in closing:
            self._close(place)
        if closing:
            await asyncio.sleep(0)  # an event loop may close a socket a turn later
        for place in wanted:
            if place not in self._open:
                try:
                    await self._begin(place)
                except OSError as error:
                    if error.errno != errno.ENODEV:  # the interface is gone again
                        troubles.append(Trouble(place.vm, _explain(place, error)))
        self._tell(troubles)

    def _wanted(self, troubles: list[Trouble]) -> dict[Place, None]:
        """Where to listen, in order."""
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
        """What the file says; while it says nothing that can be understood, what it said before."""
        path = self.ways.file
        if path is None:
            return {}
        with suppress(OSError):
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
        """Whether its path leads no more to our socket."""
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
        if place.path is not None and _identity(place.path) == identity:
            with suppress(OSError):
                place.path.unlink()

    def _tell(self, troubles: list[Trouble]) -> None:
        """One line for each reason, naming whom it newly concerns."""
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
