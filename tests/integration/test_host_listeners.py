"""A host tells its VMs apart by interface, by Unix socket and by address; and says by DHCP where the endpoint is.

The endpoint is a whole service in a thread of the test that has entered the host's network namespace; guests are
namespaces of their own, with addresses that the host does not care for.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import grp
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from structlog.testing import capture_logs

from forewarn.client.discovery import VARIABLE
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventType, VirtualMachine
from forewarn.core.model import Host as Machine
from forewarn.endpoint.server import ListeningSockets
from forewarn.errors import ConfigError
from forewarn.host.dhcp import ANSWERS_PER_S_MAX, DhcpLease, DhcpResponder
from forewarn.host.listener_settings import IdentificationMethod, ListenerSettings
from forewarn.host.listeners import Listeners
from forewarn.host.listening_socket import ListenAddress
from forewarn.testing.lab import Lab
from tests.support.namespaces import METADATA_ADDRESS, missing
from tests.support.processes import wait_for
from tests.support.service import eventually
from tests.support.spans import GUARD_S

T = TypeVar("T")

WEB_0, WEB_1 = "web-0", "web-1"
ADDRESS = "10.0.0.2"
"""That every guest has."""

BELONGS_TO_WEB_1 = "10.0.0.9"
"""That the inventory says is web-1's, and no guest has by itself."""

URL = f"http://{METADATA_ADDRESS}/metadata/scheduledevents?api-version=2020-07-01"
CURL = ("curl", "-sS", "--max-time", "60", "--noproxy", "*", "-H", "Metadata:true")
BY_NAME = ListenerSettings(
    identify_by=(IdentificationMethod.INTERFACE,), interface_pattern="tap-{vm}", poll_interval_s=3600
)
"""Looks again in an hour: whatever a test sees before, the kernel has told."""

MANY = 200
_CLONE_NEWNET = 0x40000000

pytestmark = pytest.mark.slow
needs_namespaces = (
    pytest.mark.namespaces,
    pytest.mark.skipif(missing() is not None, reason=f"network namespaces need {missing()}"),
)


def in_namespace(test: Callable[..., None]) -> Callable[..., None]:
    for mark in needs_namespaces:
        test = mark(test)
    return test


def needs(command: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(command) is None, reason=f"needs {command} (Debian's package {package})")


# A host and its guests


def vm(name: str, **fields: Any) -> VirtualMachine:  # noqa: ANN401 - fields of a VM
    return VirtualMachine(name=name, host="host-1", **fields)


VMS = (vm(WEB_0), vm(WEB_1, addresses=(BELONGS_TO_WEB_1,)))


class Host(threading.Thread):
    """A service on an event loop in a namespace, whose VMs are told apart by `listeners`."""

    def __init__(
        self,
        namespace: str | None,
        ways: ListenerSettings,
        vms: Iterable[VirtualMachine],
        new_loop: Any,  # noqa: ANN401 - two kinds
    ) -> None:
        super().__init__(daemon=True)
        self.vms = list(vms)
        self.lab = Lab(Inventory(hosts=(Machine(name="host-1"),), vms=tuple(self.vms)))
        self.listeners = Listeners(ways, lambda: self.vms, self.listen)
        self._namespace = namespace
        self._new_loop = new_loop
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()

    async def listen(self, sockets: Sequence[socket.socket], vm: str) -> ListeningSockets:
        return await self.lab.backend.endpoint.listen(sockets, vm)

    def run(self) -> None:
        try:
            if self._namespace is not None:
                with Path(f"/run/netns/{self._namespace}").open() as file:
                    assert ctypes.CDLL(None).setns(file.fileno(), _CLONE_NEWNET) == 0
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        async with self._stack as stack:
            await stack.enter_async_context(self.lab.running())
            await stack.enter_async_context(self.listeners.running())
            self._ready.set_result(asyncio.get_running_loop())
            await self._stopping.wait()

    def wait_ready(self) -> None:
        self._ready.result(GUARD_S)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._ready.result()).result(GUARD_S)

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter it on the service's loop, until the service stops."""
        return self.do(self._stack.enter_async_context(context))

    def stop(self) -> None:
        if not self._ready.exception():
            self._ready.result().call_soon_threadsafe(self._stopping.set)
        self.join(GUARD_S)
        assert not self.is_alive()

    # What it is told, and what it shows

    def schedule(self, name: str) -> str:
        """Announce a maintenance of that VM; the id of its event."""
        request = MaintenanceRequest(cause="host-maintenance", type=EventType.FREEZE, vms=(name,))
        return self.do(self.lab.carry_out(request))[0][1][0].id

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop its event loop while the block runs."""
        is_paused, goes_on = threading.Event(), threading.Event()

        def pause() -> None:
            is_paused.set()
            goes_on.wait(GUARD_S)

        self._ready.result().call_soon_threadsafe(pause)
        assert is_paused.wait(GUARD_S)
        try:
            yield
        finally:
            goes_on.set()

    def look_again(self) -> None:
        self._ready.result().call_soon_threadsafe(self.listeners.request_check)

    @property
    def answered(self) -> set[str]:
        """Names of the VMs that have a socket."""
        return {place.vm for place in self.listeners.open_addresses}


@contextmanager
def hosting(
    ways: ListenerSettings,
    namespace: str | None = None,
    vms: Iterable[VirtualMachine] = VMS,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Iterator[Host]:
    host = Host(namespace, ways, vms, new_loop)
    host.start()
    try:
        host.wait_ready()
        yield host
    finally:
        host.stop()


def run(*command: str, stdin: str | None = None, check: bool = True) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, input=stdin)
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@dataclass
class Wires:
    """A host's namespace, and one for each guest at the other end of a veth pair.

    Attributes:
        host: Name of the host's namespace.
        guests: Namespace of each guest by the VM's name.
    """

    host: str
    guests: dict[str, str] = field(default_factory=dict)

    def on_host(self, *command: str) -> str:
        return run("ip", "netns", "exec", self.host, *command)

    def command(self, name: str, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.guests[name], *command]

    def in_guest(self, name: str, *command: str, check: bool = True) -> str:
        return run(*self.command(name, *command), check=check)

    def plug_in(self, name: str, interface: str = "", *, address: str | None = ADDRESS) -> None:
        """Give that guest a network card that the host knows by the interface."""
        there = interface or f"tap-{name}"
        self.on_host("ip", "link", "add", there, "type", "veth", "peer", "name", "eth0", "netns", self.guests[name])
        self.on_host("ip", "link", "set", there, "up")
        self.in_guest(name, "ip", "link", "set", "eth0", "up")
        if address is not None:
            self.in_guest(name, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
            self.in_guest(name, "ip", "route", "add", METADATA_ADDRESS, "dev", "eth0")

    def index(self, interface: str) -> int:
        (link,) = json.loads(self.on_host("ip", "-json", "link", "show", interface))
        return int(link["ifindex"])

    def document(self, name: str, *options: str) -> Any:  # noqa: ANN401 - a document
        return json.loads(self.in_guest(name, *CURL, *options, URL))

    def resources(self, name: str, *options: str) -> list[str]:
        """Whose events that guest is shown."""
        return [vm for event in self.document(name, *options)["Events"] for vm in event["Resources"]]

    def is_answered(self, name: str, within_s: int = 60) -> bool:
        command = self.command(name, *CURL, "--max-time", str(within_s), "-o", "/dev/null", URL)
        return subprocess.run(command, check=False, capture_output=True, timeout=GUARD_S).returncode == 0


@contextmanager
def wires(*names: str, has_address: bool = True) -> Iterator[Wires]:
    """A host that has the metadata address on no interface but loopback, and guests without a network card."""
    tag = uuid.uuid4().hex[:6]
    made = Wires(f"fw-{tag}-h")
    made.guests = {name: f"fw-{tag}-{number}" for number, name in enumerate(names)}
    with ExitStack() as stack:
        for namespace in (made.host, *made.guests.values()):
            run("ip", "netns", "add", namespace)
            stack.callback(run, "ip", "netns", "del", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        if has_address:
            made.on_host("ip", "addr", "add", f"{METADATA_ADDRESS}/32", "dev", "lo")
        made.on_host("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")
        yield made


@pytest.fixture
def twins() -> Iterator[Wires]:
    """Two guests with the same address."""
    with wires(WEB_0, WEB_1) as made:
        made.plug_in(WEB_0)
        made.plug_in(WEB_1)
        yield made


# By interface


@in_namespace
def test_guests_with_the_same_address_each_get_their_own_document(twins: Wires) -> None:
    """R1, R2: the host tells them apart by the interface that they come in by."""
    with hosting(BY_NAME, twins.host) as host:
        mine = host.schedule(WEB_0)
        assert twins.resources(WEB_0) == [WEB_0]
        assert twins.resources(WEB_1) == []
        host.schedule(WEB_1)
        assert twins.resources(WEB_1) == [WEB_1]
        body = json.dumps({"StartRequests": [{"EventId": mine}]})
        status = ("-d", body, "-o", "/dev/null", "-w", "%{http_code}")
        assert twins.in_guest(WEB_1, *CURL, *status, URL) == "400"
        assert twins.in_guest(WEB_0, *CURL, *status, URL) == "200"
        assert {exchange.vm for exchange in host.lab.list_requests()} == {WEB_0, WEB_1}


@in_namespace
@pytest.mark.parametrize("forged", [BELONGS_TO_WEB_1, "8.8.8.8", "169.254.1.1"])
def test_a_forged_source_address_changes_nothing(twins: Wires, forged: str) -> None:
    """R2: not even the address that the inventory says is another's."""
    twins.in_guest(WEB_0, "ip", "addr", "add", f"{forged}/32", "dev", "eth0")
    with hosting(BY_NAME, twins.host) as host:
        host.schedule(WEB_0)
        assert twins.resources(WEB_0, "--interface", forged) == [WEB_0]
        assert host.lab.list_requests()[-1].source_address == forged
        assert host.lab.list_requests()[-1].vm == WEB_0


@in_namespace
def test_who_is_on_no_interface_of_a_vm_is_not_answered(twins: Wires) -> None:
    """R2: neither the host itself nor its other networks."""
    with hosting(BY_NAME, twins.host, [VMS[0]]):
        assert twins.is_answered(WEB_0)
        assert not twins.is_answered(WEB_1, within_s=1)
        done = subprocess.run(
            ["ip", "netns", "exec", twins.host, *CURL, URL], check=False, capture_output=True, timeout=GUARD_S
        )
        assert done.returncode == 7  # refused


HOLD = """
import socket, sys
sock = socket.create_connection((sys.argv[1], 80), timeout=60)
sock.sendall(b"GET /metadata/versions HTTP/1.1\\r\\nHost: 169.254.169.254\\r\\nMetadata: true\\r\\n\\r\\n")
print(sock.recv(4096)[9:12].decode(), flush=True)
sock.settimeout(60)
while sock.recv(4096):
    pass
"""


@in_namespace
def test_an_interface_may_go_and_come_back(twins: Wires) -> None:
    """R2: its connections end with it, the other VM's do not; the new one has another index."""
    with hosting(BY_NAME, twins.host) as host, ExitStack() as stack:
        for name in (WEB_0, WEB_1):
            command = twins.command(name, sys.executable, "-c", HOLD, METADATA_ADDRESS)
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "200\n"
        endpoint = host.lab.backend.endpoint
        assert endpoint.connection_count == 2
        before = twins.index(f"tap-{WEB_0}")
        twins.on_host("ip", "link", "del", f"tap-{WEB_0}")
        assert eventually(lambda: host.answered == {WEB_1})
        assert eventually(lambda: endpoint.connection_count == 1)
        assert [connection._vm for connection in endpoint.open_connections] == [WEB_1]
        twins.plug_in(WEB_0)
        assert eventually(lambda: host.answered == {WEB_0, WEB_1})
        assert twins.index(f"tap-{WEB_0}") != before
        host.schedule(WEB_0)
        assert twins.resources(WEB_0) == [WEB_0]
        assert host.listeners.interfaces == {f"tap-{WEB_0}", f"tap-{WEB_1}"}


@in_namespace
def test_an_interface_with_another_name_is_another_vm_s(twins: Wires) -> None:
    """R2: the kernel would go on handing its guest to the socket of the VM that had it."""
    with hosting(BY_NAME, twins.host) as host:
        host.schedule(WEB_1)
        assert twins.resources(WEB_0) == []
        for command in (["del", f"tap-{WEB_1}"], ["set", f"tap-{WEB_0}", "name", f"tap-{WEB_1}"]):
            twins.on_host("ip", "link", *command)
        assert eventually(lambda: host.answered == {WEB_1})
        assert twins.resources(WEB_0) == [WEB_1]


class Deaf(Listeners):
    """Does not hear what the kernel tells."""

    def _read_kernel_messages(self, netlink: socket.socket) -> None:
        netlink.recv(1)


@in_namespace
def test_looking_alone_finds_everything(twins: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 9: what the kernel tells is a hint, and may be lost."""
    monkeypatch.setattr(sys.modules[__name__], "Listeners", Deaf)
    ways = ListenerSettings(
        identify_by=(IdentificationMethod.INTERFACE,), interface_pattern="tap-{vm}", poll_interval_s=0.2
    )
    with hosting(ways, twins.host) as host:
        twins.on_host("ip", "link", "del", f"tap-{WEB_0}")
        assert eventually(lambda: host.answered == {WEB_1})
        twins.plug_in(WEB_0)
        assert eventually(lambda: host.answered == {WEB_0, WEB_1})


@in_namespace
def test_a_file_or_the_mac_says_which_interface_is_whose(tmp_path: Path) -> None:
    """R2: as libvirt leaves them, interfaces are called vnet0 and vnet1; a file that is changed is read again."""
    path = tmp_path / "interfaces.yaml"
    path.write_text(f"interfaces: {{vnet0: {WEB_0}}}")
    with wires(WEB_0, WEB_1) as made:
        made.plug_in(WEB_0, "vnet0")
        made.plug_in(WEB_1, "vnet1")
        made.on_host("ip", "link", "set", "vnet1", "address", "fe:54:00:12:34:56")
        vms = [vm(WEB_0), vm(WEB_1, mac_address="52:54:00:12:34:56")]
        ways = ListenerSettings(
            identify_by=(IdentificationMethod.INTERFACE,), interface_file=path, by_mac=True, poll_interval_s=0.2
        )
        with hosting(ways, made.host, vms) as host:
            host.schedule(WEB_1)
            assert host.answered == {WEB_0, WEB_1}
            assert made.resources(WEB_0) == []
            assert made.resources(WEB_1) == [WEB_1]
            path.write_text(f"interfaces: {{vnet0: {WEB_1}, vnet9: web-9}}")
            assert eventually(lambda: host.answered == {WEB_1})
            assert made.resources(WEB_0) == [WEB_1]
            path.write_text("interfaces: ]")
            assert eventually(lambda: any("not valid YAML" in reason for _, reason in host.listeners.problems))
            # The file cannot be read; it has named a VM that is not there; one that is there has no interface.
            assert [name for name, _ in host.listeners.problems] == ["", "web-9", WEB_0]
            assert made.resources(WEB_0) == [WEB_1]


@in_namespace
def test_a_vm_that_comes_is_answered_and_one_that_goes_is_not(twins: Wires) -> None:
    """R2."""
    with hosting(BY_NAME, twins.host) as host:
        host.vms.pop(0)
        host.look_again()
        assert eventually(lambda: host.answered == {WEB_1})
        assert not twins.is_answered(WEB_0, within_s=1)
        host.vms.append(VMS[0])
        host.look_again()
        assert eventually(lambda: host.answered == {WEB_0, WEB_1})
        assert twins.is_answered(WEB_0)


@in_namespace
def test_an_address_that_the_host_lacks_is_told_of_once_and_listened_on_when_it_comes() -> None:
    """One line, however many VMs it concerns and however often it is tried."""
    names = [f"vm-{number}" for number in range(7)]
    with wires() as made, capture_logs() as logs:
        made.on_host("ip", "addr", "del", f"{METADATA_ADDRESS}/32", "dev", "lo")
        for name in names:
            made.on_host("ip", "link", "add", f"tap-{name}", "type", "veth", "peer", "name", f"{name}-peer")
        ways = ListenerSettings(
            identify_by=(IdentificationMethod.INTERFACE,), interface_pattern="tap-{vm}", poll_interval_s=0.1
        )
        with hosting(ways, made.host, [vm(name) for name in names]) as host:
            assert eventually(lambda: len(host.listeners.problems) == 7)
            time.sleep(0.5)
            said = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
            assert said == [
                (
                    "cannot serve vm-0, vm-1, vm-2, vm-3, vm-4 and 2 more, retrying: "
                    "169.254.169.254:80: cannot assign requested address; "
                    "add it to this host, for example with 'ip address add 169.254.169.254/32 dev lo'"
                )
            ]
            made.on_host("ip", "addr", "add", f"{METADATA_ADDRESS}/32", "dev", "lo")
            assert eventually(lambda: host.answered == set(names))
            assert eventually(lambda: host.listeners.problems == [])


LOOK = """
import json
from forewarn.host.network_interfaces import list_interfaces
print(json.dumps({i.name: [i.index, i.mac, i.is_bridge_port] for i in list_interfaces(with_macs=True)}))
"""


@in_namespace
def test_interfaces_are_listed_with_what_matters_of_them() -> None:
    with wires() as made:
        made.on_host("ip", "link", "add", "br0", "type", "bridge")
        made.on_host("ip", "link", "add", "tap-a", "address", "fe:54:00:00:00:01", "type", "veth")
        made.on_host("ip", "link", "set", "tap-a", "master", "br0")
        found = json.loads(made.on_host(sys.executable, "-c", LOOK))
        assert found["tap-a"] == [made.index("tap-a"), "fe5400000001", True]
        assert found["lo"] == [1, "000000000000", False]
        assert found["br0"][2] is False


MANY_VMS = [f"vm-{number}" for number in range(MANY)]
PLUG_IN_MANY = "".join(
    f"link add tap-{name} type veth peer name p{number} netns {{guest}}\nlink set tap-{name} up\n"
    for number, name in enumerate(MANY_VMS)
)
UNPLUG_MANY = "".join(f"link del tap-{name}\n" for name in MANY_VMS)


@in_namespace
def test_more_reports_of_the_kernel_than_it_keeps_do_not_end_them() -> None:
    """R2: on a busy host, interfaces change faster than the process reads; it hears of every later change."""
    with wires("guests") as made, hosting(BY_NAME, made.host, [vm(name) for name in MANY_VMS]) as host:
        for _ in range(2):
            with host.paused():
                run("ip", "-n", made.host, "-batch", "-", stdin=PLUG_IN_MANY.format(guest=made.guests["guests"]))
            assert eventually(lambda: host.answered == set(MANY_VMS))
            with host.paused():
                run("ip", "-n", made.host, "-batch", "-", stdin=UNPLUG_MANY)
            assert eventually(lambda: host.answered == set())


@in_namespace
def test_hundreds_of_interfaces_are_listened_on() -> None:
    """R2: all that are there at the start, and all that come at once while it runs."""
    names, plug = MANY_VMS, PLUG_IN_MANY
    up = "".join(f"link set p{n} up\naddr add {ADDRESS}/32 dev p{n}\n" for n in range(MANY))
    with wires("guests") as made:
        run("ip", "-n", made.host, "-batch", "-", stdin=plug.format(guest=made.guests["guests"]))
        with hosting(BY_NAME, made.host, [vm(name) for name in names]) as host:
            assert host.answered == set(names)
            run("ip", "-n", made.host, "-batch", "-", stdin=UNPLUG_MANY)
            assert eventually(lambda: not host.listeners.open_addresses)
            run("ip", "-n", made.host, "-batch", "-", stdin=plug.format(guest=made.guests["guests"]))
            assert eventually(lambda: host.answered == set(names))
            run("ip", "-n", made.guests["guests"], "-batch", "-", stdin=up)
            chosen = random.Random(1).sample(range(MANY), 5)
            for number in chosen:
                host.schedule(names[number])
                assert made.resources("guests", "--interface", f"if!p{number}") == [names[number]]
            assert host.listeners.problems == []


# By address


def test_by_address_one_socket_is_for_all() -> None:
    """R2: who calls is then said by the source address."""
    ways = ListenerSettings(identify_by=(IdentificationMethod.ADDRESS,), listen=("127.0.0.1:0",))
    vms = [vm(WEB_0, addresses=("127.0.0.11",)), vm(WEB_1, addresses=("127.0.0.12",))]
    with hosting(ways, vms=vms) as host:
        (place,) = host.listeners.open_addresses
        assert place == ListenAddress(host="127.0.0.1")
        assert host.listeners.problems == []
        host.schedule(WEB_1)
        port = host.lab.backend.endpoint._servers[-1].sockets[0].getsockname()[1]
        url = URL.replace(METADATA_ADDRESS, f"127.0.0.1:{port}")
        shown = {n: json.loads(run(*CURL, "--interface", f"127.0.0.1{n}", url))["Events"] for n in (1, 2)}
        assert shown[1] == []
        assert shown[2][0]["Resources"] == [WEB_1]


def test_a_port_that_is_taken_is_told_of_and_taken_when_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with hosting(
            ListenerSettings(identify_by=(IdentificationMethod.ADDRESS,), listen=(listen,), poll_interval_s=0.1)
        ) as host:
            ((vm_name, reason),) = host.listeners.problems
            assert vm_name == ""
            assert reason == f"{listen}: address already in use; run 'ss -ltnp' to find the process that listens there"
            other.close()
            assert eventually(lambda: len(host.listeners.open_addresses) == 1)
            assert eventually(lambda: host.listeners.problems == [])


@pytest.mark.anyio
async def test_who_may_not_listen_is_told_once() -> None:
    async def listen(sockets: Sequence[socket.socket], vm: str) -> ListeningSockets:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    ways = ListenerSettings(
        identify_by=(IdentificationMethod.ADDRESS,), listen=("127.0.0.1:0", "127.0.0.2:0"), poll_interval_s=0.1
    )
    with capture_logs() as logs:
        async with Listeners(ways, lambda: VMS, listen).running() as listeners:
            await asyncio.sleep(0.5)
            assert listeners.open_addresses == []
    assert [entry["event"] for entry in logs] == [
        ("cannot serve VMs, retrying: 127.0.0.1:0: permission denied; run as root or with CAP_NET_BIND_SERVICE"),
        ("cannot serve VMs, retrying: 127.0.0.2:0: permission denied; run as root or with CAP_NET_BIND_SERVICE"),
    ]


# By Unix socket


def sockets(folder: Path, group: str = "") -> ListenerSettings:
    return ListenerSettings(
        identify_by=(IdentificationMethod.SOCKET,), socket_folder=folder, socket_group=group, poll_interval_s=0.1
    )


def ask(path: Path) -> list[str]:
    """Whose events are shown to who connects there."""
    url = URL.replace(METADATA_ADDRESS, "metadata")
    shown = json.loads(run(*CURL, "--unix-socket", str(path), url))
    return [name for event in shown["Events"] for name in event["Resources"]]


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_each_vm_has_a_unix_socket(tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """R2."""
    folder = tmp_path / "vms"
    with hosting(sockets(folder), new_loop=new_loop) as host:
        host.schedule(WEB_0)
        assert ask(folder / "web-0.sock") == [WEB_0]
        assert ask(folder / "web-1.sock") == []
        assert stat.S_IMODE((folder / "web-0.sock").stat().st_mode) == 0o600
        host.vms.pop(0)
        host.look_again()
        assert eventually(lambda: not (folder / "web-0.sock").exists())
        assert ask(folder / "web-1.sock") == []
    assert list(folder.iterdir()) == []


def test_a_group_may_use_the_sockets(tmp_path: Path) -> None:
    nobody = grp.getgrnam("nogroup")
    with hosting(sockets(tmp_path, group="nogroup")):
        found = (tmp_path / "web-0.sock").stat()
        assert stat.S_IMODE(found.st_mode) == 0o660
        assert found.st_gid == nobody.gr_gid


def test_the_socket_of_a_dead_process_is_replaced_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    """R2."""
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as living:
        dead.bind(str(tmp_path / "web-0.sock"))
        dead.listen()
        dead.close()
        living.bind(str(tmp_path / "web-1.sock"))
        living.listen()
        with hosting(sockets(tmp_path)) as host:
            assert ask(tmp_path / "web-0.sock") == []
            assert host.answered == {WEB_0}
            reason = "another process listens on its socket: stop it or choose another folder"
            assert host.listeners.problems == [(WEB_1, f"{tmp_path}: address already in use; {reason}")]
            living.close()
            assert eventually(lambda: host.answered == {WEB_0, WEB_1})
            assert ask(tmp_path / "web-1.sock") == []


def test_two_services_in_one_folder_do_not_take_each_other_s_sockets(tmp_path: Path) -> None:
    """R2."""
    with hosting(sockets(tmp_path)) as first:
        with hosting(sockets(tmp_path)) as second:
            assert second.answered == set()
            assert first.answered == {WEB_0, WEB_1}
        assert ask(tmp_path / "web-0.sock") == []


def test_a_socket_that_is_removed_or_replaced_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "web-0.sock"
    with hosting(sockets(tmp_path)) as host:
        path.unlink()
        assert eventually(path.exists)
        assert ask(path) == []
        path.unlink()
        path.write_text("mine")
        assert eventually(lambda: host.answered == {WEB_1})
        reason = f"{tmp_path}: not a socket; remove the file at the path of its socket"
        assert eventually(lambda: [each for _, each in host.listeners.problems] == [reason])
    assert path.read_text() == "mine"


def test_a_path_that_is_too_long_is_told_of(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with hosting(sockets(folder)) as host:
        reason = "file name too long; a socket path has at most 107 bytes: choose a shorter folder"
        assert host.listeners.problems == [(name, f"{folder}: {reason}") for name in (WEB_0, WEB_1)]


def test_a_name_that_leads_out_of_the_folder_gets_no_socket(tmp_path: Path) -> None:
    """R2: the control plane checks names; who owns the folder need not believe it."""
    folder = tmp_path / "vms"
    with hosting(sockets(folder)) as host:
        host.vms.append(vm("../db"))
        host.look_again()
        assert eventually(
            lambda: host.listeners.problems == [("../db", "a '/' in its name would put its socket outside the folder")]
        )
        assert host.answered == {WEB_0, WEB_1}
    assert not (tmp_path / "db.sock").exists()


def test_what_breaks_once_does_not_end_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A source of VMs that raises is asked again; meanwhile everything stays as it is."""
    with capture_logs() as logs, hosting(sockets(tmp_path)) as host:
        vms = host.vms
        host.vms = None  # type: ignore[assignment] # so that it raises
        assert eventually(lambda: any(entry["log_level"] == "error" for entry in logs))
        assert ask(tmp_path / "web-0.sock") == []
        host.vms = [*vms, vm("db")]
        assert eventually(lambda: "db" in host.answered)


# By DHCP

ASK = """
import json, sys
from forewarn.client import Client, EndpointError
from forewarn.client.discovery import discover, endpoint_url
try:
    found = discover(interface="eth0", waits_s=[0], timeout_s=float(sys.argv[1]))
except EndpointError as error:
    print(json.dumps(str(error)))
else:
    print(json.dumps([found, sys.argv[2:] and Client(endpoint_url(found)).fetch().incarnation]))
"""


def discover(made: Wires, name: str, *fetch: str, timeout_s: float = GUARD_S) -> Any:  # noqa: ANN401 - what it prints
    command = made.command(name, "env", "-u", VARIABLE, sys.executable, "-c", ASK, str(timeout_s), *fetch)
    return json.loads(run(*command))


@pytest.fixture
def cloud() -> Iterator[tuple[Wires, Host]]:
    """Two guests, of which one has an address."""
    with wires(WEB_0, WEB_1) as made:
        made.plug_in(WEB_0, address=None)
        made.plug_in(WEB_1)
        with hosting(BY_NAME, made.host) as host:
            yield made, host


def respond(host: Host, **options: Any) -> DhcpResponder:  # noqa: ANN401 - of a responder
    return host.enter(DhcpResponder(METADATA_ADDRESS, lambda: host.listeners.interfaces, **options).running())


@in_namespace
def test_the_client_finds_the_endpoint_and_asks_it(cloud: tuple[Wires, Host]) -> None:
    """R94 to R96: from the broadcast of a guest without an address; and from one with, to its document."""
    made, host = cloud
    responder = respond(host)
    assert discover(made, WEB_0) == [METADATA_ADDRESS, []]
    assert discover(made, WEB_1, "fetch") == [METADATA_ADDRESS, 1]
    assert responder.answered == 2


@in_namespace
def test_who_is_on_no_interface_of_a_vm_is_told_nothing(cloud: tuple[Wires, Host]) -> None:
    """R95."""
    made, host = cloud
    responder = respond(host)
    host.vms.pop(0)
    host.look_again()
    assert eventually(lambda: host.answered == {WEB_1})
    assert "no answer" in discover(made, WEB_0, timeout_s=0.5)
    assert (responder.answered, responder.dropped) == (0, 1)


FLOOD = """
import os, socket, sys
from forewarn.client.discovery import encode_discover
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
sock.bind(("0.0.0.0", 68))
good = encode_discover(b"abcd", bytes.fromhex("525400000001"))
for number in range(2000):
    sock.sendto(good if number % 2 else good[:number % 240] + os.urandom(number % 900), ("255.255.255.255", 67))
"""


@in_namespace
def test_a_flood_is_answered_in_measure_and_told_of_in_few_lines(cloud: tuple[Wires, Host]) -> None:
    """R94: one guest cannot keep the endpoint busy, fill the log, or keep another from its answer."""
    made, host = cloud
    with capture_logs() as logs:
        responder = respond(host)
        began = time.perf_counter()
        made.in_guest(WEB_0, sys.executable, "-c", FLOOD)
        assert discover(made, WEB_1) == [METADATA_ADDRESS, []]
        seconds = time.perf_counter() - began
        assert eventually(lambda: responder.answered + responder.dropped > 200)
    assert 0 < responder.answered <= ANSWERS_PER_S_MAX * (seconds + 2) + 1
    assert len(logs) <= seconds + 2


SCRIPT = "#!/bin/sh\nenv\n"
DHCPCD = """
define 245 ipaddress metadata_endpoint
option metadata_endpoint
noipv6rs
noarp
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """For a DHCP client to run with what it was told: prints that, and changes nothing."""
    path = tmp_path / "script"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return str(path)


def facts(text: str) -> dict[str, str]:
    """Variables that a DHCP client handed to its script; of several calls, the last."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@in_namespace
@needs("dhcpcd", "dhcpcd-base")
def test_a_real_client_that_has_an_address_is_told_the_endpoint(
    cloud: tuple[Wires, Host], tmp_path: Path, script: str
) -> None:
    """R95: dhcpcd asks by DHCPINFORM."""
    made, host = cloud
    responder = respond(host)
    (tmp_path / "dhcpcd.conf").write_text(DHCPCD)
    own_files = "mount -t tmpfs none /run && mount -t tmpfs none /var/lib && mkdir -p /run/dhcpcd /var/lib/dhcpcd"
    options = f"-f {tmp_path}/dhcpcd.conf -c {script} -4 -1 -B -t 60 --inform={ADDRESS}/24"
    said = facts(made.in_guest(WEB_1, "sh", "-c", f"{own_files} && exec timeout 60 dhcpcd {options} eth0"))
    assert said["reason"] == "INFORM"
    assert said["new_metadata_endpoint"] == METADATA_ADDRESS
    assert responder.answered == 1


def udhcpc(made: Wires, name: str, script: str) -> dict[str, str]:
    """What a client of everyday use is told that wants an address, and to know the endpoint."""
    command = ("udhcpc", "-f", "-q", "-n", "-t", "2", "-T", "1", "-i", "eth0", "-O", "245", "-s", script)
    return facts(made.in_guest(name, "timeout", "60", *command, check=False))


@contextmanager
def dnsmasq(made: Wires, interface: str, log: Path) -> Iterator[None]:
    """The network's own DHCP server, at 10.0.0.1."""
    made.on_host("ip", "addr", "add", "10.0.0.1/24", "dev", interface)
    command = (
        *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--group=root", "--pid-file="),
        *("--port=0", f"--interface={interface}", "--bind-interfaces", "--no-ping", "--dhcp-authoritative"),
        *("--dhcp-range=10.0.0.50,10.0.0.60,1h", f"--dhcp-leasefile={log}.leases", f"--log-facility={log}"),
    )
    with subprocess.Popen(["ip", "netns", "exec", made.host, *command]) as process:
        try:
            wait_for(lambda: log.exists() and "DHCP, sockets bound" in log.read_text())
            yield
        finally:
            process.terminate()


INFORM = """
import socket, sys
from forewarn.client.discovery import encode_discover
packet = bytearray(encode_discover(b"abcd", bytes.fromhex("525400000001")))
packet[12:16] = socket.inet_aton(sys.argv[1])
packet[242] = 8
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.bind((sys.argv[1], 68))
    sock.sendto(packet, (sys.argv[2], 67))
"""


@in_namespace
@needs("udhcpc", "udhcpc")
@needs("dnsmasq", "dnsmasq-base")
def test_a_real_client_gets_its_address_from_the_network_s_own_server(
    cloud: tuple[Wires, Host], tmp_path: Path, script: str
) -> None:
    """R95: although it asks for option 245, too; and what is sent to that server alone, we do not take away from it."""
    made, host = cloud
    responder = respond(host)
    log = tmp_path / "dnsmasq.log"
    with dnsmasq(made, f"tap-{WEB_0}", log):
        said = udhcpc(made, WEB_0, script)
        assert said["serverid"] == "10.0.0.1"
        made.in_guest(WEB_0, "ip", "addr", "add", f"{said['ip']}/24", "dev", "eth0")
        made.in_guest(WEB_0, sys.executable, "-c", INFORM, said["ip"], "10.0.0.1")
        assert eventually(lambda: f"DHCPINFORM(tap-{WEB_0}) {said['ip']}" in log.read_text())
    assert responder.answered == 0


@in_namespace
@needs("udhcpc", "udhcpc")
def test_a_real_client_that_wants_an_address_is_not_led_astray(cloud: tuple[Wires, Host], script: str) -> None:
    """R95: it would take an offer of 0.0.0.0, and go on asking for that."""
    made, host = cloud
    responder = respond(host)
    assert "ip" not in udhcpc(made, WEB_0, script)
    assert eventually(lambda: responder.dropped == 2)
    assert responder.answered == 0


@in_namespace
@needs("udhcpc", "udhcpc")
def test_where_a_lease_was_told_a_real_client_takes_it(cloud: tuple[Wires, Host], script: str) -> None:
    """R95: address, gateway and endpoint are from us alone; then the guest asks the endpoint by its gateway."""
    made, host = cloud
    gateway = IPv4Address("10.0.0.1")
    lease = DhcpLease(address=IPv4Address("10.0.0.77"), prefix=24, gateway=gateway)
    respond(host, lease=lambda interface, mac: lease if interface == f"tap-{WEB_0}" and len(mac) == 17 else None)
    said = udhcpc(made, WEB_0, script)
    assert {name: said[name] for name in ("ip", "subnet", "router", "lease", "opt245")} == {
        "ip": "10.0.0.77",
        "subnet": "255.255.255.0",
        "router": "10.0.0.1",
        "lease": "3600",
        "opt245": "a9fea9fe",
    }
    made.on_host("ip", "addr", "add", f"{gateway}/32", "dev", "lo")
    made.in_guest(WEB_0, "ip", "addr", "add", "10.0.0.77/24", "dev", "eth0")
    made.in_guest(WEB_0, "ip", "route", "add", "default", "via", str(gateway))
    host.schedule(WEB_0)
    assert made.resources(WEB_0) == [WEB_0]


@in_namespace
def test_an_answer_that_cannot_be_sent_is_told_of(cloud: tuple[Wires, Host]) -> None:
    """R95: the host has no such address."""
    made, host = cloud
    with capture_logs() as logs:
        responder = respond(host, server="10.99.0.1")
        assert "no answer" in discover(made, WEB_0, timeout_s=0.5)
    ((entry),) = logs
    assert entry["event"] == "cannot send a DHCP answer"
    assert (entry["server"], responder.answered, responder.dropped) == ("10.99.0.1", 0, 1)


@in_namespace
def test_a_port_that_another_program_keeps_is_told_of(cloud: tuple[Wires, Host]) -> None:
    """R95."""
    _, host = cloud

    async def try_it() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("0.0.0.0", 67))
            with pytest.raises(ConfigError) as caught:
                async with DhcpResponder(METADATA_ADDRESS, frozenset).running():
                    pass
        return str(caught.value)

    words = "run as root or with CAP_NET_BIND_SERVICE, and stop any other program that uses the port"
    assert host.do(try_it()) == f"cannot answer DHCP on UDP port 67: Address already in use; {words}"
