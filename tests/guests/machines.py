"""Machines that reach each other by name: each a network of its own, with its own ``/etc``, ``/run`` and logs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.guests.host import LIKE_TESTS, Host
from tests.support.spans import GUARD_S
from tests.support.terminal import Terminal, terminal

__all__ = ["CLOUD", "Machine", "address", "cloud"]

CLOUD = {"control-1": 11, "control-2": 12, "control-3": 13, "host-1": 21, "host-2": 22}
"""Names of the machines, and the last part of their addresses."""

_PATIENCE_S = 300.0
"""For an emulated guest to boot where others use the processors as well."""

_SWITCH = """
set -eu
ip link add name br0 type bridge
ip link set br0 up
echo ready
exec sleep infinity
"""

_ALONE = """
set -eu
ip link set lo up
echo ready
exec sleep infinity
"""

_BEGINNING = """
exec 2>&1
export HOSTNAME={name}
mount -t overlay overlay -o lowerdir=/etc,upperdir={root}/etc.upper,workdir={root}/etc.work /etc
mkdir -p /etc/forewarn
mount --bind {root}/etc/forewarn /etc/forewarn
mount --bind {root}/log /var/log
mount --bind {folder}/hosts /etc/hosts
{libvirt}
scp() {{ # between these machines, without a network
  shift
  local to="${{@: -1}}"
  cp -p "${{@:1:$#-1}}" "{folder}/${{to%%:*}}${{to#*:}}"
}}
"""

_LIBVIRT = """
mount -t tmpfs tmpfs /run
mkdir /run/libvirt
mount --bind {folder}/run/libvirt /run/libvirt
"""


def address(name: str) -> str:
    """Where that machine is."""
    return f"10.20.0.{CLOUD[name]}"


class Machine:
    """One of the machines, and who sits at it.

    Attributes:
        root: What is in its folders: ``etc/forewarn``, ``log``.
        reader: Types there.
    """

    def __init__(self, root: Path, reader: Terminal) -> None:
        self.root = root
        self.reader = reader


@contextmanager
def cloud(hosts: Mapping[str, Host]) -> Iterator[dict[str, Machine]]:
    """All machines of `CLOUD`, until the block ends.

    Args:
        hosts: Those among them that have a libvirt.
    """
    folder = Path(tempfile.mkdtemp(prefix="forewarn-cloud-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{address(name)} {name}\n" for name in CLOUD))
    for name, host in hosts.items():
        (folder / f"{name}.sock").symlink_to(host.folder / "run/libvirt/libvirt-sock")
    try:
        with ExitStack() as stack:
            switch = stack.enter_context(_network(_SWITCH))
            machines = {}
            for name, number in CLOUD.items():
                found = hosts.get(name)
                pid = found.network_pid if found is not None else stack.enter_context(_network(_ALONE))
                _plug_in(pid, switch, number)
                if found is not None:  # the page gives it one
                    _run(
                        "nsenter", f"--target={pid}", "--net", "ip", "address", "del", "169.254.169.254/32", "dev", "lo"
                    )
                machines[name] = stack.enter_context(_machine(folder, name, pid, found))
            yield machines
    finally:
        shutil.rmtree(folder)


@contextmanager
def _network(script: str) -> Iterator[int]:
    """A network that nobody else has; the id of a process in it."""
    command = [*LIKE_TESTS, "unshare", "--net", "sh", "-c", script]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait(GUARD_S)
        if process.stdout is not None:
            process.stdout.close()


def _plug_in(pid: int, switch: int, number: int) -> None:
    """Give that network an interface at the switch."""
    _run(
        "ip",
        "link",
        "add",
        "lan",
        "netns",
        str(pid),
        "type",
        "veth",
        "peer",
        "name",
        f"p{number}",
        "netns",
        str(switch),
    )
    _run("nsenter", f"--target={switch}", "--net", "ip", "link", "set", f"p{number}", "master", "br0", "up")
    inside = ("nsenter", f"--target={pid}", "--net", "ip")
    _run(*inside, "address", "add", f"10.20.0.{number}/24", "dev", "lan")
    _run(*inside, "link", "set", "lan", "up")


@contextmanager
def _machine(folder: Path, name: str, pid: int, host: Host | None) -> Iterator[Machine]:
    root = folder / name
    for part in ("etc/forewarn", "etc.upper", "etc.work", "log"):
        (root / part).mkdir(parents=True)
    libvirt = "" if host is None else _LIBVIRT.format(folder=host.folder)
    beginning = _BEGINNING.format(name=name, root=root, folder=folder, libvirt=libvirt)
    prefix = [*LIKE_TESTS, "nsenter", f"--target={pid}", "--net"]
    with terminal(root, prefix=prefix, beginning=beginning, logs="log/*.log", patience_s=_PATIENCE_S) as reader:
        yield Machine(root, reader)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 0, f"{command}: {done.stderr}"
