"""The installed agent under a real systemd: its unit, its journal, and what its hooks may do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from tests.support.booted import Booted, booted, missing
from tests.support.processes import FOREWARN, Served, is_written, served, wait_for

_MISSING = missing()
P = ParamSpec("P")


def under_systemd(test: Callable[P, None]) -> Callable[P, None]:
    """Mark a test that boots a systemd."""
    has_all = pytest.mark.skipif(_MISSING is not None, reason=f"a systemd of one's own needs {_MISSING}")
    marked: Callable[P, None] = pytest.mark.slow(has_all(test))
    return marked


UNIT = "forewarn-agent.service"
TARGETS = ("sysinit", "basic", "network", "sockets", "multi-user", "shutdown", "umount", "final")
SYSTEM = Path("/lib/systemd/system")
COPIED = (
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-journald-dev-log.socket",
    "dbus.service",
    "dbus.socket",
)
PLACE = '/run/a place, 100% $HOME "quoted" \\'
"""Where the configuration lies: nothing in it may mean anything to systemd."""

QUICK = """
[Service]
RestartSec=200ms
TimeoutStopSec=4s
"""
SHORT_WATCHDOG = """
[Service]
WatchdogSec=2s
"""


class Box:
    """A systemd with a journal and a cloud beside it, in which the agent is installed.

    Args:
        booted: The systemd.
        service: Runs in the same network.
    """

    def __init__(self, booted: Booted, service: Served) -> None:
        self.booted = booted
        self.service = service
        self._lines_before = 0

    @property
    def folder(self) -> Path:
        """Where the configuration is, as it is seen from outside."""
        return Path(f"/proc/{self.booted.pid}/root{PLACE}")

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command where that systemd is PID 1."""
        enter = ["nsenter", "--target", str(self.booted.pid), "--mount", "--pid", "--net", "--"]
        return subprocess.run([*enter, *command], check=False, capture_output=True, text=True, timeout=60)

    def install(self, rest: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Write a configuration and install the agent; in `rest`, ``{folder}`` is the folder, as it is seen inside."""
        self._lines_before += len(self.journal())
        self.folder.mkdir(exist_ok=True)
        rest = f'endpoint = "{self.service.metadata_url}"\nwait = "2s"\n{rest}'.replace("{folder}", "/run/hooks")
        (self.folder / "agent.toml").write_text(rest)
        return self.forewarn("install", "--config", f"{PLACE}/agent.toml", *arguments)

    def forewarn(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.inside(*FOREWARN, "agent", *arguments)

    def show(self, name: str) -> str:
        """A property of the agent's unit."""
        return self.booted.systemctl("show", UNIT, "--value", "--property", name).strip()

    def main_pid(self) -> str:
        """Wait until the agent runs, and return its process id.

        Until then systemd shows 0, and `kill` would take that for the process group of this test.
        """
        pid: str = wait_for(lambda: (shown := self.show("MainPID")) != "0" and shown)
        return pid

    def hooks(self, name: str) -> Path:
        """A file of the folder in which hooks write."""
        return Path(f"/proc/{self.booted.pid}/root/run/hooks/{name}")

    def drop_in(self, name: str, text: str) -> None:
        """Change the agent's unit, before it is installed."""
        folder = Path(f"/proc/{self.booted.pid}/root/run/systemd/system/{UNIT}.d")
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.conf").write_text(text)

    def announce(self) -> None:
        asked = ["--vm", "vm-1", "--type", "Freeze", "--notice", "5m", "--force", "--reason", "test"]
        self.service.forewarn("maintenance", "schedule", *asked)

    def journal(self) -> list[dict[str, Any]]:
        """What the agent has written into the journal since it was installed."""
        done = self.inside("journalctl", "--quiet", "--unit", UNIT, "--output", "json")
        return [json.loads(line) for line in done.stdout.splitlines()][self._lines_before :]


# An empty folder in the place of another; Python itself stays, also where somebody keeps it in there.
_HIDE = """
set -eu
case "$2" in "$1"/*)
    mkdir /run/python
    mount --bind "$2" /run/python
esac
mount -t tmpfs none "$1"
case "$2" in "$1"/*)
    mkdir -p "$2"
    mount --bind /run/python "$2"
esac
"""


@pytest.fixture(scope="module")
def systemd_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    units = {f"{name}.target": "[Unit]\nDefaultDependencies=no\n" for name in TARGETS}
    units |= {name: (SYSTEM / name).read_text() for name in COPIED if (SYSTEM / name).exists()}
    units["other.service"] = "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sleep infinity\n"
    folder = tmp_path_factory.mktemp("box")
    with booted(folder, units, {}) as made:
        enter = ("nsenter", "--target", str(made.pid), "--net", "--")
        with served(tmp_path_factory.mktemp("cloud"), prefix=enter) as service:
            box = Box(made, service)
            box.inside("mount", "--bind", "/run/systemd/system", "/etc/systemd/system")
            for place in ("/var/lib", "/var/log", "/root", "/usr/src"):
                box.inside("sh", "-c", _HIDE, "hide", place, sys.base_prefix)
            box.inside("umount", "/proc/sys")  # so that it is the unit that forbids to write there
            box.inside("mkdir", "/run/mounted")
            made.systemctl("start", "systemd-journald.service", "other.service")
            yield box


@pytest.fixture
def box(systemd_box: Box) -> Iterator[Box]:
    """One in which no agent is installed and nothing is announced."""
    box = systemd_box
    box.drop_in("quick", QUICK)
    box.inside("sh", "-c", "mkdir /run/hooks; mountpoint /run/mounted || mount -t tmpfs none /run/mounted")
    yield box
    box.forewarn("uninstall")
    for each in box.service.forewarn("maintenance", "list", "--active"):
        try:
            box.service.forewarn("maintenance", "cancel", each["id"])
        except AssertionError:  # it has started
            box.service.forewarn("maintenance", "complete", each["id"])
    box.inside("sh", "-c", f"rm -r /run/hooks /var/lib/forewarn /run/systemd/system/{UNIT}.d")


@under_systemd
def test_what_was_installed_starts_is_watched_and_goes_without_a_trace(box: Box) -> None:
    done = box.install("")
    assert (done.returncode, done.stderr) == (0, "")
    assert box.booted.states(UNIT) == {UNIT: "active"}
    assert box.show("UnitFileState").startswith("enabled")
    wait_for(lambda: box.show("StatusText") == "vm-1: in service, 0 events")
    assert box.forewarn("status", "--config", f"{PLACE}/agent.toml").returncode == 0
    assert box.inside("stat", "--format", "%a", "/var/lib/forewarn").stdout.strip() == "700"
    pid = box.show("MainPID")
    again = box.forewarn("install", "--config", f"{PLACE}/agent.toml")
    assert "is up to date" in again.stdout
    assert box.show("MainPID") == pid
    assert box.forewarn("uninstall").returncode == 0
    assert box.booted.states(UNIT) == {UNIT: "inactive"}
    assert not box.inside("ls", f"/etc/systemd/system/{UNIT}").stdout
    assert (box.folder / "agent.toml").exists()
    assert "nothing is installed" in box.forewarn("uninstall").stdout


@under_systemd
def test_the_journal_has_every_line_with_its_priority(box: Box) -> None:
    box.install("[[rule]]\nprepare = [['/bin/sh', '-c', 'echo no rng; false']]")
    box.announce()
    wait_for(lambda: "3" in {line["PRIORITY"] for line in box.journal()})
    box.booted.systemctl("stop", UNIT)
    told = [(line["PRIORITY"], json.loads(line["MESSAGE"])) for line in box.journal() if line["_COMM"] != "systemd"]
    levels = {"6": "info", "4": "warning", "3": "error"}
    assert all(entry["level"] == levels[priority] for priority, entry in told)
    (failed,) = [entry for priority, entry in told if priority == "3"]
    assert "no rng" in failed["event"]


@under_systemd
def test_an_agent_that_is_stuck_is_started_again(box: Box) -> None:
    box.drop_in("watchdog", SHORT_WATCHDOG)
    box.install("")
    stuck = box.main_pid()
    box.inside("kill", "-STOP", stuck)
    wait_for(lambda: box.main_pid() != stuck and box.booted.states(UNIT) == {UNIT: "active"})
    assert int(box.show("NRestarts")) >= 1


@under_systemd
def test_an_agent_that_was_killed_is_started_again_and_its_hook_does_not_run_twice_at_a_time(box: Box) -> None:
    hook = "echo $$ >> {folder}/pids; exec sleep 120"
    box.install(f"[[rule]]\nprepare = [{{ shell = '{hook}' }}]")
    box.announce()
    wait_for(lambda: is_written(box.hooks("pids")))
    box.inside("kill", "-KILL", box.main_pid())
    wait_for(lambda: len(box.hooks("pids").read_text().split()) == 2)
    assert box.show("NRestarts") == "1"
    first, second = box.hooks("pids").read_text().split()
    assert box.inside("kill", "-0", first).returncode != 0
    assert box.inside("kill", "-0", second).returncode == 0


@under_systemd
def test_it_stops_within_its_time_while_a_hook_runs(box: Box) -> None:
    box.install("[[rule]]\nprepare = [{ shell = 'touch {folder}/begun; exec sleep 120' }]")
    box.announce()
    wait_for(box.hooks("begun").exists)
    box.booted.systemctl("stop", UNIT)  # one that does not stop is killed, and its result is "timeout"
    assert (box.show("Result"), box.show("ExecMainStatus"), box.show("ActiveState")) == ("success", "0", "inactive")


@under_systemd
def test_a_configuration_that_is_wrong_is_not_installed(box: Box) -> None:
    done = box.install("[[rule]]\nprepair = []")
    assert done.returncode != 0
    assert f"{PLACE}/agent.toml: rule[0].prepair: " in done.stderr
    assert not box.inside("ls", f"/etc/systemd/system/{UNIT}").stdout


@under_systemd
def test_an_agent_that_does_not_come_up_is_told_of(box: Box) -> None:
    done = box.install('listen = "192.0.2.1:1"')
    assert done.returncode != 0
    assert "systemctl enable --now forewarn-agent.service ended with status 1: Job for" in done.stderr
    assert "journalctl -u forewarn-agent.service" in done.stderr
    wait_for(lambda: int(box.show("NRestarts")) >= 2)
    words = [line for line in box.journal() if line["MESSAGE"].startswith("forewarn: cannot listen on 192.0.2.1:1")]
    assert {line["PRIORITY"] for line in words} == {"3"}


@under_systemd
def test_an_agent_of_another_user_keeps_its_state_where_root_finds_it(box: Box) -> None:
    done = box.install("[[rule]]\nprepare = [{ shell = 'id -u > /var/lib/forewarn/id' }]", "--user", "nobody")
    assert (done.returncode, done.stderr) == (0, "")
    box.announce()
    state = Path(f"/proc/{box.booted.pid}/root/var/lib/forewarn")
    wait_for(lambda: is_written(state / "id"))
    assert (state / "id").read_text() == f"{(state / 'agent.json').stat().st_uid}\n" != "0\n"
    assert box.forewarn("status", "--config", f"{PLACE}/agent.toml").returncode == 0


MAY = {
    "systemctl": "systemctl stop other.service && systemctl start other.service",
    "home": "test $HOME = /root",
    "another user": "test $(runuser -u nobody -- id -u) = 65534",
    "packets": "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
    "addresses": "ip address add 192.0.2.7/32 dev lo && ip address show dev lo",
    "signals": "runuser -u nobody -- sleep 10 & sleep 0.5; kill $!",
    "messages": "logger hello",
}
MAY_NOT = {
    "mounts": ("umount /run/mounted", "superuser"),
    "namespaces": ("unshare --net true", "not permitted"),
    "kernel's log": ("dmesg", "not permitted"),
    "kernel's settings": ("echo 1 > /proc/sys/net/ipv4/ip_forward", "Read-only"),
    "control groups": ("mkdir /sys/fs/cgroup/test && rmdir /sys/fs/cgroup/test", "Read-only"),
    "programs": ("touch /usr/src/file", "Read-only"),
}
CLOCK = "date --set $(date --iso-8601=ns)"
"""Harmless where it is not forbidden."""


def deeds(box: Box, wanted: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """Exit status and output of commands that the agent runs as hooks."""
    for number, deed in enumerate(wanted.values()):
        box.hooks(f"{number}.sh").write_text(f"{deed}\n")
    each = "sh $each > $each.out 2>&1 < /dev/null; echo $? > $each.status"
    box.install(f"[[rule]]\nprepare = [{{ shell = 'cd {{folder}}; for each in *.sh; do {each}; done; touch done' }}]")
    box.announce()
    wait_for(box.hooks("done").exists)
    files = {name: box.hooks(f"{number}.sh.status") for number, name in enumerate(wanted)}
    return {name: (int(file.read_text()), file.with_suffix(".out").read_text()) for name, file in files.items()}


@under_systemd
def test_hooks_may_do_what_they_are_for_and_are_told_of_what_they_may_not(box: Box) -> None:
    done = deeds(box, MAY | {name: deed for name, (deed, _) in MAY_NOT.items()} | {"clock": CLOCK})
    assert {name: done[name] for name in MAY if done[name][0]} == {}
    for name, (_, words) in (MAY_NOT | {"clock": ("", "not permitted")}).items():
        status, output = done[name]
        assert (status != 0, words in output) == (True, True), (name, output)
    # It is the unit that forbids it.
    allowed = {name: box.inside("sh", "-c", deed) for name, (deed, _) in MAY_NOT.items()}
    assert {name: each.stderr for name, each in allowed.items() if each.returncode} == {}


@under_systemd
@pytest.mark.skipif(not (SYSTEM / "dbus.service").exists(), reason="systemd-run speaks by dbus-daemon")
def test_a_hook_that_must_do_more_runs_as_a_unit_of_its_own(box: Box) -> None:
    box.booted.systemctl("start", "dbus.service")
    run = "systemd-run --wait --pipe --collect --quiet --property=RuntimeMaxSec=60"
    done = deeds(box, {"umount": f"{run} umount /run/mounted"})
    assert done["umount"][0] == 0, done
    assert box.inside("mountpoint", "/run/mounted").returncode != 0


@under_systemd
def test_a_drop_in_gives_hooks_back_what_was_forbidden(box: Box) -> None:
    box.drop_in("hooks", "[Service]\nSystemCallFilter=@mount\nRestrictNamespaces=no\nNoNewPrivileges=no\n")
    done = deeds(box, {"namespaces": "unshare --net true", "mount": "mount -t tmpfs none /mnt && umount /mnt"})
    assert [status for status, _ in done.values()] == [0, 0], done


NGINX = "error_log /run/nginx.log; pid /run/nginx.pid; events {} http { access_log off; }"
HAPROXY = """
global
    stats socket /run/haproxy.sock user nobody mode 600 level admin
defaults
    mode tcp
    timeout connect 1s
    timeout client 1s
    timeout server 1s
listen web
    bind 127.0.0.1:8
    server a 127.0.0.1:9
"""
DRAIN = """
import socket
haproxy = socket.socket(socket.AF_UNIX)
haproxy.connect("/run/haproxy.sock")
haproxy.sendall(b"set server web/a state drain\\n")
assert haproxy.recv(9) == b"\\n"
"""


@under_systemd
@pytest.mark.parametrize(
    ("program", "conf", "run", "deed"),
    [
        (
            "nginx",
            NGINX,
            "/usr/sbin/nginx -c {conf} -g 'daemon off;'",
            "nginx -t -c {conf} && nginx -s reload -c {conf}",
        ),
        ("haproxy", HAPROXY, "/usr/sbin/haproxy -W -f {conf}", f"/usr/bin/python3 -c '{DRAIN}'"),
        # The daemon that holds the configuration, without a cluster: both speak with it as with any.
        ("crm", "", "/usr/lib/pacemaker/pacemaker-based --stand-alone", "cibadmin --query && crm configure show"),
        ("kubectl", "", "/bin/sleep infinity", "kubectl version --client"),
    ],
)
def test_hooks_reach_what_they_have_to_tell(box: Box, program: str, conf: str, run: str, deed: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    inside = Path(f"/proc/{box.booted.pid}/root/run")
    (inside / "told.conf").write_text(conf)
    unit = f"[Unit]\nDefaultDependencies=no\n[Service]\nExecStart={run.format(conf='/run/told.conf')}\n"
    (inside / "systemd" / "system" / "told.service").write_text(unit)
    box.inside("sh", "-c", "mkdir -p /var/log/crmsh /var/lib/pacemaker/cib; chown -R hacluster /var/lib/pacemaker")
    box.booted.systemctl("daemon-reload")
    box.booted.systemctl("start", "told")
    try:
        time.sleep(1)
        done = deeds(box, {program: deed.format(conf="/run/told.conf")})
        assert done[program][0] == 0, done
    finally:
        box.booted.systemctl("stop", "told")
