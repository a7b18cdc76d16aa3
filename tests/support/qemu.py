"""Real libvirt daemons with real QEMU machines, without root's powers and without KVM."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.processes import wait_for

__all__ = ["Daemon", "daemon", "guest_xml", "missing"]

_NOBODY = 65534
_START_S = 60


def missing() -> str | None:
    """What this machine lacks; None: nothing."""
    wanted = {"libvirtd": "libvirt-daemon", "qemu-system-x86_64": "qemu-system-x86", "setpriv": "util-linux"}
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
    for program, package in wanted.items():
        if shutil.which(program, path=path) is None:
            return f"{program} (Debian: {package})"
    return None


def guest_xml(name: str) -> str:
    """A machine that runs nothing but its firmware, which does not care about being asked to shut down."""
    return (
        f"<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>"
        "<os><type arch='x86_64' machine='pc'>hvm</type></os><features><acpi/></features>"
        "<cpu mode='custom'><model>qemu64</model></cpu><devices>"
        "<emulator>/usr/bin/qemu-system-x86_64</emulator>"
        "<controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"
    )


class Daemon:
    """A libvirtd of a user's session, with a folder of its own.

    Attributes:
        uri: Where it answers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "run/libvirt/libvirt-sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.uri = f"qemu+unix:///session?socket={self._socket}"
        for name in ("run", "config", "cache", "data"):
            (folder / name).mkdir()
        (folder / "libvirtd.conf").write_text(f'host_uuid = "{uuid.uuid4()}"\nlog_outputs = "3:file:{folder}/log"\n')
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                os.chown(path, _NOBODY, _NOBODY)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self._folder)}
        environment |= {
            f"XDG_{name}": str(self._folder / folder)
            for name, folder in (
                ("RUNTIME_DIR", "run"),
                ("CONFIG_HOME", "config"),
                ("CACHE_HOME", "cache"),
                ("DATA_HOME", "data"),
            )
        }
        command = ["libvirtd", "--config", str(self._folder / "libvirtd.conf"), "--pid-file", str(self._folder / "pid")]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", *command]
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        wait_for(self._answers, _START_S)

    def _answers(self) -> bool:
        """Whether it takes connections; its socket is there a moment before."""
        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(str(self._socket)) == 0

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, and wait for its end where that is to be expected."""
        assert self._process is not None
        self._process.send_signal(number)
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self._process.wait(_START_S)
            self._socket.unlink(missing_ok=True)

    def end(self) -> None:
        """End it, and the machines that it has left running."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait(_START_S)
        for file in self._folder.glob("run/libvirt/qemu/run/*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@contextmanager
def daemon() -> Iterator[Daemon]:
    """One that answers until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="forewarn-libvirt-"))  # a socket's path has to be short
    made = Daemon(folder)
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)
