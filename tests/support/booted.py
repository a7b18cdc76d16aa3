"""A real systemd, PID 1 of namespaces of its own, with units that a test writes.

It shares the kernel with this machine, but sees none of its processes and units, and can write nowhere but into folders
that end with it. It needs root, systemd and util-linux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.documents import ROOT
from tests.support.processes import wait_for

__all__ = ["Booted", "booted", "missing"]

_SYSTEMD = Path("/lib/systemd/systemd")
_TIMEOUT_S = 60

# First in the new mount namespace: the process goes into a control group of its own, so that the next script, in a
# namespace of control groups, sees that one as the root.
_ENTER = """
set -eu
mount --make-rprivate /
mount -t tmpfs none /run
mkdir /run/groups
mount -t cgroup2 none /run/groups
mkdir "/run/groups/$1"
echo $$ > "/run/groups/$1/cgroup.procs"
exec unshare --cgroup --mount bash -c "$2" boot "$3" "$4"
"""

# Everything is made anew or read-only: what systemd sets up when it boots is none of this machine's business. The
# checkout, with the interpreter in it, is to be seen also where it lies below /tmp.
_BOOT = """
set -eu
umount /run/groups
mkdir -p /run/systemd/system /run/units/user /run/user/0
cp "$1"/system/* /run/systemd/system/
cp "$1"/user/* /run/units/user/
mount -t cgroup2 none /sys/fs/cgroup
mkdir /run/checkout
mount --bind "$2" /run/checkout
mount -t tmpfs none /tmp
mkdir -p "$2"
mount --bind /run/checkout "$2"
mount -o remount,bind,ro "$2"
mkdir /run/dev
mount -t tmpfs none /run/dev
for name in null zero full random urandom tty; do
    touch "/run/dev/$name"
    mount --bind "/dev/$name" "/run/dev/$name"
done
mkdir /run/dev/pts /run/dev/shm
mount --move /run/dev /dev
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -o remount,bind,ro /
export container=forewarn-test SYSTEMD_UNIT_PATH=/run/systemd/system SYSTEMD_GENERATOR_PATH=/run/none
exec /lib/systemd/systemd --unit=test.target --log-target=null --show-status=no </dev/null
"""

_LEAVE = """
set -eu
mount -t cgroup2 none /mnt
find "/mnt/$1" -depth -type d -exec rmdir {} +
"""

_TARGET = "[Unit]\nDefaultDependencies=no\n"

# The manager of root's own units: they are looked for, and its socket is put, where nothing of this machine is.
_USER = """
[Unit]
DefaultDependencies=no
[Service]
Type=notify
Delegate=yes
Environment=XDG_RUNTIME_DIR=/run/user/0 HOME=/run/user/0 SYSTEMD_UNIT_PATH=/run/units/user
Environment=SYSTEMD_GENERATOR_PATH=/run/none
ExecStart=/lib/systemd/systemd --user --unit=test.target --log-target=null
"""

_SYSTEMCTL = """\
#!/bin/sh
XDG_RUNTIME_DIR=/run/user/0 exec nsenter --target {pid} --mount --pid -- systemctl "$@"
"""


def missing() -> str | None:
    """What this machine lacks; None when it has everything."""
    if os.name != "posix" or os.geteuid() != 0:
        return "root"
    if not _SYSTEMD.exists() or shutil.which("systemctl") is None:
        return "systemd"
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "util-linux"
    return None


@dataclass(frozen=True)
class Booted:
    """A systemd that runs.

    Attributes:
        pid: Its number outside.
        environment: In which ``systemctl`` speaks with it.
    """

    pid: int
    environment: dict[str, str]

    def systemctl(self, *arguments: str, is_checked: bool = True) -> str:
        """What the command printed; without `is_checked` it may fail."""
        done = subprocess.run(
            ["systemctl", *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=self.environment,
        )
        assert done.returncode == 0 or not is_checked, f"{arguments}: {done.stderr}"
        return done.stdout

    def states(self, *units: str, whose: str = "--system") -> dict[str, str]:
        """The ActiveState of units."""
        shown = self.systemctl(whose, "show", "--property=ActiveState", "--value", "--", *units)
        return dict(zip(units, shown.split(), strict=True))

    def read(self, path: str) -> str:
        """A file that it sees; empty when there is none."""
        file = Path(f"/proc/{self.pid}/root{path}")
        return file.read_text() if file.exists() else ""


@contextmanager
def booted(folder: Path, system: Mapping[str, str], user: Mapping[str, str]) -> Iterator[Booted]:
    """A systemd with these units, which ends with all that it has started.

    Args:
        folder: For what is needed to start it.
        system: Its unit files by name; none is started. They need ``DefaultDependencies=no``.
        user: Those of root's own systemd.
    """
    group = f"forewarn-{uuid.uuid4().hex[:8]}"
    for kind, units in (("system", {"user.service": _USER} | dict(system)), ("user", user)):
        (folder / kind).mkdir()
        for name, text in {"test.target": _TARGET, **units}.items():
            (folder / kind / name).write_text(text)
    namespaces = ["--mount", "--pid", "--net", "--uts", "--ipc"]
    command = ["unshare", *namespaces, "--fork", "--kill-child", "--mount-proc", "bash", "-c", _ENTER, "enter"]
    with (folder / "boot.log").open("wb") as log:
        process = subprocess.Popen([*command, group, _BOOT, str(folder), str(ROOT)], stdout=log, stderr=log)
    try:
        pid = wait_for(lambda: _booting(process, folder), timeout_s=_TIMEOUT_S)
        (folder / "bin").mkdir()
        (folder / "bin" / "systemctl").write_text(_SYSTEMCTL.format(pid=pid))
        (folder / "bin" / "systemctl").chmod(0o755)
        made = Booted(pid, os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})
        wait_for(lambda: made.systemctl("is-active", "test.target", is_checked=False).strip() == "active")
        made.systemctl("start", "user.service")
        yield made
    finally:
        process.kill()  # and with it, by --kill-child, systemd; and with that all in its namespace of processes
        process.wait(_TIMEOUT_S)
        wait_for(lambda: _is_left(group), timeout_s=_TIMEOUT_S)


def _booting(process: subprocess.Popen[bytes], folder: Path) -> int | None:
    """The number of the child that has become systemd."""
    assert process.poll() is None, (folder / "boot.log").read_text()
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
            return int(child)
    return None


def _is_left(group: str) -> bool:
    """Whether the control group could be removed; it cannot while processes in it are ending."""
    command = ["unshare", "--mount", "bash", "-c", _LEAVE, "leave", group]
    return subprocess.run(command, check=False, capture_output=True, timeout=_TIMEOUT_S).returncode == 0
