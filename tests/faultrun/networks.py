"""What lies between hosts and control plane: proxies on loopback, or network namespaces joined by a bridge.

On loopback everything is told apart by address, and a cut is made by the proxy that a link is. With namespaces each
host is one of its own, as is the control plane, and a cut is silent loss of packets, as from a cable or a switch.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.faultrun.links import Link

__all__ = ["Loopback", "Namespaces", "Network", "Way", "enter", "inside"]

_TIMEOUT_S = 60
_NEW_NET = 0x40000000
"""CLONE_NEWNET."""

_FOLDER = Path("/run/netns")
_VMS = "10.128.0.0/9"
_METADATA = "169.254.169.254"


class Way(Protocol):
    """Something that packets go through, and that can be cut.

    Attributes:
        name: For people.
        cuts: The ways in which it can be cut.
    """

    name: str
    cuts: tuple[str, ...]

    async def cut(self, how: str) -> None:
        """From now on."""
        ...

    async def slow(self, delay_s: float) -> None:
        """Everything comes through late from now on."""
        ...

    async def heal(self) -> None:
        """As if nothing had been."""
        ...


class Network(Protocol):
    """Where the parts of a run have their addresses."""

    @property
    def control(self) -> str | None:
        """The namespace of the control plane; None: there are none."""
        ...

    def namespace(self, host: int) -> str | None:
        """Of a host."""
        ...

    def replica(self, number: int) -> str:
        """Address of a replica."""
        ...

    def endpoint(self, host: int) -> tuple[str, int]:
        """Where VMs of that host ask."""
        ...

    def vm(self, number: int) -> str:
        """Address of a VM."""
        ...

    async def link(self, host: int, replica: int, port: int) -> tuple[Way, str]:
        """The way from a host to a replica, and the URL there."""
        ...

    def whole(self, host: int, links: Sequence[Way]) -> list[Way]:
        """What is cut when a host is cut off altogether."""
        ...


class Loopback:
    """Addresses of 127.0.0.0/8 that nobody else is likely to use."""

    control: str | None = None

    def __init__(self) -> None:
        rng = random.SystemRandom()
        self._prefix = f"127.{rng.randint(32, 250)}.{rng.randint(0, 255)}"

    def namespace(self, host: int) -> str | None:
        """There are none."""

    def replica(self, number: int) -> str:
        """Address of a replica."""
        return f"{self._prefix}.{number + 1}"

    def endpoint(self, host: int) -> tuple[str, int]:
        """Where VMs of that host ask."""
        return f"{self._prefix}.{host + 10}", 18168

    def vm(self, number: int) -> str:
        """Address of a VM."""
        return f"127.7.{number // 200}.{number % 200 + 1}"

    async def link(self, host: int, replica: int, port: int) -> tuple[Way, str]:
        """A proxy."""
        link = Link(f"host-{host} to replica {replica}", lambda: (self.replica(replica), port))
        return link, f"http://127.0.0.1:{await link.listen()}"

    def whole(self, host: int, links: Sequence[Way]) -> list[Way]:
        """All of its proxies."""
        return list(links)


class Namespaces:
    """A namespace for each host, and one with the bridge, where the control plane is.

    VMs' addresses are local in all of them, and routed nowhere: whose they are is settled on each host.
    """

    def __init__(self, host_count: int) -> None:
        tag = uuid.uuid4().hex[:6]
        self.control = f"fwr-{tag}-c"
        self._hosts = [f"fwr-{tag}-{number}" for number in range(host_count)]

    def make(self) -> None:
        """Make all of it."""
        _ip("netns", "add", self.control)
        self._in(self.control, "link set lo up", "link add br0 type bridge", "link set br0 up")
        self._in(self.control, *(f"addr add {self.replica(number)}/16 dev br0" for number in range(8)))
        # Rules that lead nowhere must come before the one that knows what is local.
        self._in(self.control, f"route add local {_VMS} dev lo", "rule add pref 100 lookup local", "rule del pref 0")
        for number, name in enumerate(self._hosts):
            _ip("netns", "add", name)
            self._in(self.control, f"link add port{number} type veth peer name eth0 netns {name}")
            self._in(self.control, f"link set port{number} master br0", f"link set port{number} up")
            self._in(name, "link set lo up", f"addr add {host_address(number)}/16 dev eth0", "link set eth0 up")
            self._in(name, f"addr add {_METADATA}/32 dev lo", f"route add local {_VMS} dev lo")

    def remove(self) -> None:
        """Remove all of it, also what was made in part."""
        for name in (self.control, *self._hosts):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=_TIMEOUT_S)

    def _in(self, name: str, *commands: str) -> None:
        """Several commands of ip at once."""
        text = "\n".join(commands)
        subprocess.run(
            ["ip", "-n", name, "-batch", "-"],
            input=text,
            text=True,
            check=True,
            capture_output=True,
            timeout=_TIMEOUT_S,
        )

    def namespace(self, host: int) -> str | None:
        """Of a host."""
        return self._hosts[host]

    def replica(self, number: int) -> str:
        """Address of a replica."""
        return f"10.77.0.{number + 1}"

    def endpoint(self, host: int) -> tuple[str, int]:
        """The same address on every host, as on a real one."""
        return _METADATA, 80

    def vm(self, number: int) -> str:
        """Address of a VM."""
        return f"10.{128 + number // 40_000}.{number // 200 % 200}.{number % 200 + 1}"

    async def link(self, host: int, replica: int, port: int) -> tuple[Way, str]:
        """Packets between two addresses."""
        address = self.replica(replica)
        return _Pair(self.control, host, replica, address), f"http://{address}:{port}"

    def whole(self, host: int, links: Sequence[Way]) -> list[Way]:
        """Its port of the bridge."""
        return [_Port(self.control, host)]


class _Pair:
    """Packets between a host and a replica, in one direction or both."""

    cuts: tuple[str, ...] = ("no packets to the host", "no packets to the replica", "no packets")

    def __init__(self, control: str, host: int, replica: int, address: str) -> None:
        self.name = f"host-{host} to replica {replica}"
        self._control = control
        self._far = host_address(host)
        self._near = address
        self._rules: list[str] = []

    async def cut(self, how: str) -> None:
        """Rules that lead nowhere; nobody is told."""
        back, forth = f"from {self._near} to {self._far}", f"from {self._far} to {self._near}"
        self._rules = [
            rule
            for rule, word in ((back, "host"), (forth, "replica"))
            if how in (f"no packets to the {word}", "no packets")
        ]
        for rule in self._rules:
            await _ip_soon("-n", self._control, "rule", "add", "pref", "1", *rule.split(), "blackhole")

    async def slow(self, delay_s: float) -> None:
        """A pair of addresses has no queue of its own: its packets get lost for so long instead."""
        await self.cut("no packets")
        await asyncio.sleep(delay_s)
        await self.heal()

    async def heal(self) -> None:
        """Remove the rules."""
        rules, self._rules = self._rules, []
        for rule in rules:
            await _ip_soon("-n", self._control, "rule", "del", "pref", "1", *rule.split(), "blackhole")


class _Port:
    """A host's port of the bridge: its cable."""

    cuts: tuple[str, ...] = ("down",)

    def __init__(self, control: str, host: int) -> None:
        self.name = f"the port of host-{host}"
        self._control = control
        self._device = f"port{host}"
        self._is_slow = False

    async def cut(self, how: str) -> None:
        """Take it down."""
        await _ip_soon("-n", self._control, "link", "set", self._device, how)

    async def slow(self, delay_s: float) -> None:
        """Less comes through: a queue of up to that time."""
        self._is_slow = True
        words = (
            f"-n {self._control} qdisc add dev {self._device} root tbf rate 256kbit burst 4kb latency {delay_s:.2f}s"
        )
        await _run_soon("tc", *words.split())

    async def heal(self) -> None:
        """Take it up, and its queue away."""
        if self._is_slow:
            await _run_soon("tc", "-n", self._control, "qdisc", "del", "dev", self._device, "root")
            self._is_slow = False
        await _ip_soon("-n", self._control, "link", "set", self._device, "up")


def host_address(number: int) -> str:
    """Of a host, on the bridge."""
    return f"10.77.1.{number + 1}"


def enter(namespace: str) -> None:
    """Go into a network namespace with this thread, and those that it starts from now on."""
    descriptor = os.open(_FOLDER / namespace, os.O_RDONLY)
    try:
        _set(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def inside(namespace: str | None) -> Iterator[None]:
    """Be in that namespace until the block ends; None: stay."""
    if namespace is None:
        yield
        return
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(namespace)
        yield
    finally:
        _set(before)
        os.close(before)


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=_TIMEOUT_S)


async def _ip_soon(*words: str) -> None:
    await _run_soon("ip", *words)


async def _run_soon(*command: str) -> None:
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=_TIMEOUT_S)
