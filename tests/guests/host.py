"""A host with a network, a libvirt and 169.254.169.254 of its own, beside whatever else this machine does.

Its network is a namespace. Its libvirtd is a real one of root's, which finds private folders where ``/etc/libvirt``,
``/var`` and ``/run`` are, and whose processes have a namespace too: when its first one ends, so does every QEMU, and
the taps with them. All of it also ends when the process of the tests does, however that happens.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.guests.initramfs import BUSYBOX
from tests.guests.kernel import find
from tests.support.processes import wait_for

__all__ = ["LIKE_TESTS", "Host", "hosting", "missing"]

_TIMEOUT_S = 60
_QEMU_ID = 64055
"""Of Debian's user libvirt-qemu, whom a minimal libvirt wants and does not make."""

LIKE_TESTS = ("setpriv", "--pdeathsig", "KILL")
"""Begins a command that is to end with the process of the tests."""

_NETWORK = """
set -eu
mount -t sysfs sysfs /sys
ip link set lo up
ip address add 169.254.169.254/32 dev lo
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
echo 0 > /proc/sys/net/ipv4/conf/default/rp_filter
echo ready
exec sleep infinity
"""

# The shell stays: the first process of a namespace has to collect those whose parents have gone, and libvirtd does not.
_LIBVIRTD = """
set -eu
cd "$1"
mount --bind etc /etc/libvirt
mount --bind passwd /etc/passwd
mount --bind group /etc/group
mount --bind var /var
mount --bind run /run
libvirtd --config /etc/libvirt/libvirtd.conf --pid-file /run/libvirtd.pid
exit $?
"""

_LIBVIRTD_CONF = """
host_uuid = "{uuid}"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:file:{folder}/libvirtd.log"
"""

_QEMU_CONF = """
security_driver = "none"
dynamic_ownership = 0
remember_owner = 0
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
"""


def missing() -> str | None:
    """What this machine lacks for real guests; None: nothing."""
    if os.geteuid() != 0:
        return "root"
    wanted = {
        "ip": "iproute2",
        "libvirtd": "libvirt-daemon",
        "virsh": "libvirt-clients",
        "qemu-system-x86_64": "qemu-system-x86",
        "setpriv": "util-linux",
    }
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
    for program, package in wanted.items():
        if shutil.which(program, path=path) is None:
            return f"{program} (Debian: {package})"
    if not BUSYBOX:
        return "busybox (Debian: busybox)"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun"
    if find() is None:
        return "a kernel for them: make test-guests, or python -m tests.guests.kernel"
    return None


class Host:
    """A host that runs.

    Attributes:
        folder: Its files; whoever is libvirt-qemu may read there, and write to its `consoles`.
        network_pid: Id of a process in its network.
        prefix: Begins a command that is to be run on it. It ends with the process of the tests.
        uri: Where its libvirt answers, also to commands that are not run on it.
    """

    def __init__(self, folder: Path, network: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.network_pid = network.pid
        self.prefix = (*LIKE_TESTS, "nsenter", f"--target={network.pid}", "--net", "--mount", f"--wd={Path.cwd()}")
        self.uri = f"qemu+unix:///system?socket={folder}/run/libvirt/libvirt-sock"
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def consoles(self) -> Path:
        """Where QEMU has the consoles of guests."""
        return self.folder / "consoles"

    def virsh(self, *arguments: str) -> str:
        """What libvirt's command printed."""
        command = ["virsh", "--quiet", "--connect", self.uri, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def taps(self) -> list[str]:
        """Names of the interfaces that its guests have."""
        command = [*self.prefix, "ls", "/sys/class/net"]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S).stdout
        return [name for name in shown.split() if name.startswith("vnet")]

    def start_libvirtd(self) -> None:
        """Start it, and wait until it answers."""
        self._write_files()
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (self.folder / "libvirtd.out").open("wb") as log:
            self._daemon = subprocess.Popen(
                [*self.prefix, *namespaces, "sh", "-c", _LIBVIRTD, "libvirtd", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.folder)},
            )
        wait_for(self._is_answering, _TIMEOUT_S)

    def _is_answering(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, self.log()
        return (self.folder / "run/libvirt/libvirt-sock").exists()

    def _write_files(self) -> None:
        folders = ("etc", "run/libvirt", "var/lib/libvirt", "var/cache/libvirt", "var/log/libvirt", "consoles")
        for name in folders:
            (self.folder / name).mkdir(parents=True)
        os.chown(self.consoles, _QEMU_ID, _QEMU_ID)
        conf = _LIBVIRTD_CONF.format(uuid=uuid.uuid4(), folder=self.folder)
        (self.folder / "etc/libvirtd.conf").write_text(conf)
        (self.folder / "etc/qemu.conf").write_text(_QEMU_CONF)
        user = f"libvirt-qemu:x:{_QEMU_ID}:{_QEMU_ID}:QEMU:/nonexistent:/usr/sbin/nologin\n"
        for name, line in (("passwd", user), ("group", f"libvirt-qemu:x:{_QEMU_ID}:\n")):
            # First: where the machine has such a user as well, this one is found.
            (self.folder / name).write_text(line + Path("/etc", name).read_text())

    def stop_libvirtd(self) -> None:
        """End it, and every QEMU."""
        if self._daemon is None:
            return
        children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children")
        first = children.read_text().split() if self._daemon.poll() is None else []
        if first:
            os.kill(int(first[0]), signal.SIGKILL)  # `unshare` waits for it, and it for all in its namespace
        else:
            self._daemon.kill()
        self._daemon.wait(_TIMEOUT_S)

    def log(self) -> str:
        """What libvirtd has said."""
        return "\n".join(file.read_text() for file in self.folder.glob("libvirtd.*"))


@contextmanager
def hosting() -> Iterator[Host]:
    """A host until the block ends; with its guests."""
    # Below /tmp: neither /var nor /run, which libvirtd has from here, and short enough for the path of a socket.
    folder = Path(tempfile.mkdtemp(prefix="forewarn-guests-", dir="/tmp"))
    folder.chmod(0o755)
    command = [*LIKE_TESTS, "unshare", "--net", "--mount", "sh", "-c", _NETWORK]
    with (folder / "network.log").open("wb") as log:
        network = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
    host = Host(folder, network)
    try:
        assert network.stdout is not None
        assert network.stdout.readline() == "ready\n", (folder / "network.log").read_text()
        host.start_libvirtd()
        yield host
    finally:
        host.stop_libvirtd()
        network.kill()
        network.wait(_TIMEOUT_S)
        if network.stdout is not None:
            network.stdout.close()
        shutil.rmtree(folder)
