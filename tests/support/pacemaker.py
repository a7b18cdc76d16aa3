"""Clusters for tests, of Pacemaker's own programs: one on paper, that is in a CIB file, and one that really runs.

On paper, ``crm_simulate`` does what the cluster would do after each change. The real one has two nodes, each in
namespaces of its own (network, mounts, processes, host name), joined by corosync. It needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from forewarn.agent.handlers import CommandResult
from tests.support import namespaces
from tests.support.interrupted import Fragile, Fuse
from tests.support.occasion import Occurring
from tests.support.processes import wait_for

__all__ = ["NODES", "InNode", "Node", "OnPaper", "missing", "missing_for_real", "paper", "real_cluster", "where"]

NODES = {"node-1": "10.9.0.21", "node-2": "10.9.0.22"}
_TIMEOUT_S = 60


def missing(*programs: str) -> str | None:
    """What this machine lacks; None when all of the programs are there."""
    packages = {"crm": "crmsh", "pcs": "pcs", "corosync": "corosync", "pacemakerd": "pacemaker"}
    lacking = [packages.get(each, "pacemaker-cli-utils") for each in programs if shutil.which(each) is None]
    return f"needs Debian's {', '.join(dict.fromkeys(lacking))}" if lacking else None


def missing_for_real() -> str | None:
    """What this machine lacks for a cluster that runs."""
    lacking = namespaces.missing()
    return f"needs {lacking}" if lacking else missing("corosync", "pacemakerd", "crm_mon", "crm", "pcs")


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=_TIMEOUT_S)
    return done.stdout


def _parse(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - Pacemaker has written it


def where(mon: str) -> dict[str, str]:
    """On which node each resource runs, by what ``crm_mon --output-as=xml`` printed. Clones are left out."""
    return {
        resource.get("id", ""): node.get("name", "")
        for resource in _parse(mon).findall("resources/resource")
        for node in resource.findall("node")
    }


def _cib(*, is_paper: bool) -> str:
    """A CIB of two nodes with two resources, of the version that is installed."""
    root = _parse(_run(["cibadmin", "--empty"]))
    # A cluster that is only tested needs no fencing, and nobody has to be waited for.
    options = {"stonith-enabled": "false", "dc-deadtime": "2s", "no-quorum-policy": "ignore"}
    properties = ET.SubElement(_section(root, "crm_config"), "cluster_property_set", id="options")
    for name, value in options.items():
        ET.SubElement(properties, "nvpair", id=f"options-{name}", name=name, value=value)
    for resource in ("db", "ip"):
        described = {"class": "ocf", "provider": "pacemaker", "type": "Dummy"}
        ET.SubElement(_section(root, "resources"), "primitive", described, id=resource)
    for number, name in enumerate(NODES, 1):
        ET.SubElement(_section(root, "nodes"), "node", id=str(number), uname=name)
        if is_paper:
            root.set("have-quorum", "1")
            root.set("dc-uuid", "1")
            state = {"in_ccm": "true", "crmd": "online", "join": "member", "expected": "member"}
            status = ET.SubElement(_section(root, "status"), "node_state", state, id=str(number), uname=name)
            ET.SubElement(ET.SubElement(status, "lrm", id=str(number)), "lrm_resources")
    return ET.tostring(root, encoding="unicode")


def _section(root: ET.Element, name: str) -> ET.Element:
    found = root.find(f".//{name}")
    assert found is not None
    return found


# On paper


def paper(folder: Path) -> Path:
    """A CIB file of a cluster in which ``db`` runs on ``node-1``, and ``ip`` on ``node-2``."""
    cib = folder / "cib.xml"
    cib.write_text(_cib(is_paper=True))
    _settle(cib)
    return cib


def _settle(cib: Path) -> None:
    """Do what the cluster would do."""
    _run(["crm_simulate", "--xml-file", str(cib), "--simulate", "--save-output", str(cib)])


class OnPaper(Fragile):
    """A handler context whose commands work on a CIB file. Time moves by what is paused.

    Attributes:
        is_stuck: Whether resources stay where they are.
    """

    def __init__(self, cib: Path, fuse: Fuse | None = None, memory: dict[str, Any] | None = None) -> None:
        self.environment = {"PATH": os.environ["PATH"], "CIB_file": str(cib)}
        super().__init__(fuse, memory, self.environment)
        self.is_stuck = False
        self.cib = cib

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        try:
            return await super().run(*command, stdin=stdin, timeout_s=timeout_s, is_checked=is_checked)
        finally:
            # The cluster goes on, also when the agent is killed.
            if not self.is_stuck and command[0] not in {"crm_mon", "crm_node"}:
                _settle(self.cib)

    async def pause(self, seconds: float) -> None:
        self.fuse.burn()
        self.now += timedelta(seconds=seconds)

    def do(self, *command: str) -> str:
        """Run a command of an operator."""
        output = _run(command, self.environment)
        _settle(self.cib)
        return output

    @property
    def where(self) -> dict[str, str]:
        """On which node each resource runs."""
        return where(_run(["crm_mon", "--one-shot", "--output-as=xml"], self.environment))


# For real

_COROSYNC = """
totem {
  version: 2
  cluster_name: forewarn
  transport: knet
  crypto_cipher: none
  crypto_hash: none
}
nodelist {
%s
}
quorum {
  provider: corosync_votequorum
  two_node: 1
  wait_for_all: 0
}
logging {
  to_stderr: yes
  to_syslog: no
}
"""

_NODE = """  node {
    ring0_addr: %s
    name: %s
    nodeid: %d
  }"""

_BOOT = r"""
hostname "$1"
folders='/etc/corosync /var/lib/corosync /var/lib/pacemaker /var/log/pacemaker /var/log/corosync /run /dev/shm'
for folder in $folders; do mkdir -p "$folder"; mount -t tmpfs tmpfs "$folder"; done
mkdir -p /var/lib/pacemaker/cib /var/lib/pacemaker/pengine /var/lib/pacemaker/blackbox /var/lib/pacemaker/cores /run/crm
mkdir -p /run/resource-agents
cp corosync.conf /etc/corosync/
cp cib.xml /var/lib/pacemaker/cib/
cp hosts /run/hosts
mount --bind /run/hosts /etc/hosts
chown -R hacluster:haclient /var/lib/pacemaker /var/log/pacemaker /run/crm
chmod 600 /var/lib/pacemaker/cib/cib.xml
corosync -f &
until corosync-cfgtool -s >/dev/null 2>&1; do sleep 0.1; done
while :; do
  pacemakerd &
  echo $! > /run/pacemakerd.pid
  wait $!
  until [ -e /run/again ]; do sleep 0.1; done
  rm /run/again
done
"""


@dataclass(frozen=True)
class Node:
    """A node of a cluster that runs.

    Attributes:
        name: In the cluster, and as its host name.
        pid: Of its first process, as this machine sees it.
    """

    name: str
    pid: int

    def inside(self, *command: str) -> list[str]:
        """The command, to be run on the node."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--net", "--pid", "--ipc", *command]

    def do(self, *command: str) -> str:
        """Run a command there."""
        return _run(self.inside(*command))

    def stop(self) -> None:
        """End Pacemaker here, which stops its resources; corosync goes on."""
        self.do("sh", "-c", "kill $(cat /run/pacemakerd.pid)")
        wait_for(lambda: self.mon() is None, _TIMEOUT_S)

    def start(self) -> None:
        """Start Pacemaker again."""
        self.do("touch", "/run/again")

    def mon(self) -> str | None:
        """What ``crm_mon`` says; None when Pacemaker does not run here."""
        command = self.inside("crm_mon", "--one-shot", "--output-as=xml")
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
        return done.stdout if done.returncode == 0 else None

    @property
    def where(self) -> dict[str, str]:
        """On which node each resource runs."""
        mon = self.mon()
        return where(mon) if mon else {}

    @property
    def standby(self) -> set[str]:
        """Names of the nodes in standby."""
        mon = self.mon()
        found = _parse(mon).findall("nodes/node") if mon else ()
        return {node.get("name", "") for node in found if node.get("standby") == "true"}


class InNode(Occurring):
    """A handler context on a node of a cluster that runs, in real time."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        inside = self.node.inside(*command)
        return await super().run(*inside, stdin=stdin, timeout_s=timeout_s, is_checked=is_checked)


@contextmanager
def real_cluster(folder: Path) -> Iterator[list[Node]]:
    """Two nodes with corosync and Pacemaker, in which both resources run."""
    rows = [_NODE % (address, name, number) for number, (name, address) in enumerate(NODES.items(), 1)]
    (folder / "corosync.conf").write_text(_COROSYNC % "\n".join(rows))
    (folder / "cib.xml").write_text(_cib(is_paper=False))
    hosts = "".join(f"{address} {name}\n" for name, address in NODES.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    processes = []
    with namespaces.network(list(NODES.values())) as network:
        try:
            for name, address in NODES.items():
                apart = ("unshare", "--mount", "--uts", "--pid", "--ipc", "--fork", "--mount-proc", "--kill-child")
                command = network.in_vm(address, *apart, "bash", "-eu", "-c", _BOOT, "bash", name)
                with (folder / f"{name}.log").open("w") as log:
                    process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
                processes.append(process)
            nodes = [
                Node(name, wait_for(lambda process=process: _only_child(process)))
                for name, process in zip(NODES, processes, strict=True)
            ]
            wait_for(lambda: all(len(node.where) == len(NODES) for node in nodes), _TIMEOUT_S)
            yield nodes
        finally:
            for process in processes:
                process.kill()  # and with it everything on the node, whose first process it is the parent of
                process.wait()


def _only_child(process: subprocess.Popen[bytes]) -> int | None:
    """The first process of the node, once it is there."""
    assert process.poll() is None, f"{process.args!r} has ended"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else None
