"""The Debian package: built with Debian's tools, installed over a copy of this system, used, and removed again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn import __version__
from tests.support.documents import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.begins_first(150),
    pytest.mark.skipif(os.geteuid() != 0, reason="it needs root, for a file system of its own"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("dpkg-buildpackage", "dh_virtualenv", "unshare", "ip", "curl")),
        reason="it needs dpkg-dev, debhelper, dh-virtualenv, util-linux, iproute2 and curl",
    ),
    pytest.mark.timeout(3600),
]

# The build takes a minute or two, an installation some seconds: these only end what hangs.
_BUILD_S = 2400
_INSTALL_S = 900

# An overlay in a mount namespace: the package is installed into memory, and the system stays as it is. The namespaces
# end with the script, however it ends, and take the mounts and every process that was started there with them.
_INSIDE = """
set -eu
mount --make-rprivate /
mkdir -p "$1/over" && mount -t tmpfs none "$1/over"
mkdir "$1/over/upper" "$1/over/work" "$1/over/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/over/upper,workdir=$1/over/work" none "$1/over/root"
mount -t proc none "$1/over/root/proc"
mount --rbind /dev "$1/over/root/dev"
cp "$1/forewarn.deb" "$1/script" "$1/over/root/"
exec chroot "$1/over/root" bash -euo pipefail /script
"""

_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("deb")
    command = [sys.executable, str(ROOT / "tools" / "build_deb.py"), "--out", str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_BUILD_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (built,) = out.glob("forewarn_*.deb")
    return built


def installed(package: Path, folder: Path, script: str) -> str:
    """Install the package in a copy of this system, run a script there, and return what it printed."""
    shutil.copy(package, folder / "forewarn.deb")
    (folder / "script").write_text(f"export {_PATH}\ndpkg --install /forewarn.deb > /dev/null\n{script}")
    namespaces = ("--mount", "--net", "--pid", "--fork", "--kill-child")
    command = ["unshare", *namespaces, "bash", "-c", _INSIDE, "inside", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_INSTALL_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_command_serves_and_announces(package: Path, tmp_path: Path) -> None:
    printed = installed(
        package,
        tmp_path,
        """
        ip link set lo up
        forewarn version
        cd /tmp
        forewarn serve > /serve.log 2>&1 &
        for _ in $(seq 600); do forewarn vm list > /dev/null 2>&1 && break; sleep 0.2; done
        forewarn vm list > /dev/null || { cat /serve.log >&2; exit 1; }
        curl -sS -H Metadata:true 'http://127.0.0.1:8169/metadata/scheduledevents?api-version=2020-07-01' > /dev/null
        forewarn maintenance schedule --vm vm-1 --type Freeze > /dev/null
        curl -sS -H Metadata:true 'http://127.0.0.1:8169/metadata/scheduledevents?api-version=2020-07-01'
        kill %1
        wait || true
        """,
    )
    assert printed.startswith(f"forewarn {__version__}")
    assert '"EventType":"Freeze"' in printed.replace(" ", "")


def test_units_are_installed_and_none_is_enabled(package: Path, tmp_path: Path) -> None:
    printed = installed(
        package,
        tmp_path,
        """
        ls /lib/systemd/system/forewarn-*
        ls /etc/systemd/system/*.wants/ | grep forewarn || echo none enabled
        ls /usr/share/bash-completion/completions/forewarn /usr/share/doc/forewarn/copyright
        ls /usr/share/man/man1/forewarn-maintenance.1.gz
        """,
    )
    lines = printed.split("\n")
    units = [Path(line).name for line in lines if line.endswith(".service")]
    assert units == [f"forewarn-{name}.service" for name in ("agent", "endpoint", "follow-libvirt", "serve")]
    assert "none enabled" in lines
    assert "/usr/share/bash-completion/completions/forewarn" in lines
    assert "/usr/share/man/man1/forewarn-maintenance.1.gz" in lines


def test_the_agents_unit_finds_its_libraries_and_its_example_is_valid(package: Path, tmp_path: Path) -> None:
    printed = installed(
        package,
        tmp_path,
        """
        start=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/forewarn-agent.service)
        ${start%% --config *} --help
        install -D -m 600 /usr/share/doc/forewarn/examples/agent.toml /etc/forewarn/agent.toml
        forewarn agent check
        """,
    )
    assert "Run the agent" in printed
    assert "anything else" in printed


def test_removal_leaves_nothing(package: Path, tmp_path: Path) -> None:
    printed = installed(
        package,
        tmp_path,
        """
        /usr/lib/forewarn/bin/python -O -m forewarn scenario list > /dev/null  # writes bytecode of its own
        dpkg --purge forewarn > /dev/null
        find /usr/lib/forewarn /usr/bin/forewarn /lib/systemd/system/forewarn-* /usr/share/doc/forewarn \\
            /usr/share/man/man1/forewarn* 2> /dev/null || true
        echo purged
        """,
    )
    assert printed.split() == ["purged"]


def test_the_licences_of_bundled_libraries_are_in_the_package(package: Path) -> None:
    done = subprocess.run(["dpkg-deb", "--contents", package], check=True, capture_output=True, text=True)
    for name in ("htmx.LICENSE.txt", "vis-timeline.LICENSE.txt", "swagger-ui.NOTICE.txt"):
        assert f"/{name}" in done.stdout
