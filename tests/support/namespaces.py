"""Network namespaces: a host that serves 169.254.169.254:80, and VMs that each have an address of their own.

Every namespace, bridge and veth pair is made here and removed again. It needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["METADATA_ADDRESS", "Network", "missing", "network"]

METADATA_ADDRESS = "169.254.169.254"
_TIMEOUT_S = 60


def missing() -> str | None:
    """What this machine lacks for network namespaces; None when it has everything."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "iproute2"
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)


@dataclass
class Network:
    """A host namespace and one for each VM.

    Attributes:
        host: Name of the host's namespace.
        vms: Namespace of each VM by its address.
    """

    host: str
    vms: dict[str, str] = field(default_factory=dict)

    def on_host(self, *command: str) -> list[str]:
        """The command, to be run on the host."""
        return ["ip", "netns", "exec", self.host, *command]

    def in_vm(self, address: str, *command: str, hostname: str | None = None) -> list[str]:
        """The command, to be run in a VM; with a host name of its own if one is given."""
        if hostname is not None:
            script = f'hostname {hostname} && exec "$@"'
            command = ("unshare", "--uts", "sh", "-c", script, "sh", *command)
        return ["ip", "netns", "exec", self.vms[address], *command]


@contextmanager
def network(addresses: Sequence[str]) -> Iterator[Network]:
    """A host at 10.9.0.1 that also has the metadata address, and VMs at `addresses` in 10.9.0.0/24."""
    tag = uuid.uuid4().hex[:6]
    made = Network(host=f"fw-{tag}-h")
    names = [made.host]
    try:
        _run("ip", "netns", "add", made.host)
        _run(*made.on_host("ip", "link", "set", "lo", "up"))
        _run(*made.on_host("ip", "link", "add", "br0", "type", "bridge"))
        _run(*made.on_host("ip", "addr", "add", "10.9.0.1/24", "dev", "br0"))
        _run(*made.on_host("ip", "addr", "add", f"{METADATA_ADDRESS}/32", "dev", "br0"))
        _run(*made.on_host("ip", "link", "set", "br0", "up"))
        for number, address in enumerate(addresses):
            name = f"fw-{tag}-{number}"
            _run("ip", "netns", "add", name)
            names.append(name)
            made.vms[address] = name
            _plug_in(made, address, number)
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=_TIMEOUT_S)


def _plug_in(made: Network, address: str, number: int) -> None:
    """Join a VM to the host's bridge, with a route to the metadata address as a cloud's DHCP would give."""
    port = f"vm{number}"
    vm = made.vms[address]
    _run(*made.on_host("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", vm))
    _run(*made.on_host("ip", "link", "set", port, "master", "br0"))
    _run(*made.on_host("ip", "link", "set", port, "up"))
    _run(*made.in_vm(address, "ip", "link", "set", "lo", "up"))
    _run(*made.in_vm(address, "ip", "addr", "add", f"{address}/24", "dev", "eth0"))
    _run(*made.in_vm(address, "ip", "link", "set", "eth0", "up"))
    _run(*made.in_vm(address, "ip", "route", "add", METADATA_ADDRESS, "dev", "eth0"))
