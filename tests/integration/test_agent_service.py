"""The agent's real process, against a real `forewarn serve`: its start and end, its addresses, crashes, its log."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_service import (
    AGENT,
    NOTING,
    START_S,
    STUCK,
    Cloud,
    announcing,
    configure,
    is_alive,
    lines,
    pid_of_hook,
    ran,
    refused,
    running,
)
from tests.support.ports import reserve_port
from tests.support.processes import FOREWARN, wait_for
from tests.support.spans import GUARD_S, lasts


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with announcing(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture
def cloud(shared: Cloud) -> Iterator[Cloud]:
    """A service in which nothing is announced."""
    yield shared
    shared.clear()


# Start and end


def test_it_starts_tells_how_it_is_and_ends_on_sigterm(tmp_path: Path, cloud: Cloud) -> None:
    configure(tmp_path, cloud.url)
    with running(tmp_path) as agent:
        assert agent.get("/healthz") == (200, "ok")
        agent.wait_ready()
        assert agent.get("/drainz") == (200, "in service")
        status, metrics = agent.get("/metrics")
        assert status == 200
        assert re.search(r'^forewarn_agent_polls_total\{outcome="ok"\} [1-9]', metrics, re.MULTILINE)
        assert agent.get("/status")[0] == 401
        assert (agent.status()["vm"], agent.status()["events"]) == ("vm-1", [])
        assert agent.end() == 0
    assert {line["level"] for line in lines(tmp_path)} == {"info"}


def test_an_event_takes_the_vm_out_of_service_and_its_end_puts_it_back(tmp_path: Path, cloud: Cloud) -> None:
    configure(tmp_path, cloud.url, NOTING)
    with running(tmp_path) as agent:
        event_id = cloud.announce()
        agent.wait_done(event_id, "started")
        assert agent.get("/drainz") == (503, f"out of service: Freeze {event_id}")
        cloud.clear()
        wait_for(lambda: agent.get("/drainz") == (200, "in service"))
        assert ran(tmp_path) == ["prepare", "before-approval", "started", "recover"]
        (finished,) = agent.status()["finished"]
        assert (finished["event"]["id"], finished["was_prepared"]) == (event_id, True)


def test_sigterm_ends_it_quickly_while_a_hook_runs_and_the_hook_with_it(tmp_path: Path, cloud: Cloud) -> None:
    configure(tmp_path, cloud.url, STUCK.replace("{interrupted}", "run-again"))
    with running(tmp_path) as agent:
        cloud.announce()
        pid = pid_of_hook(tmp_path)
        assert is_alive(pid)
        assert agent.end() == 0
        assert not is_alive(pid)
    (record,) = json.loads((tmp_path / "state" / "agent.json").read_text())["records"]
    assert record["runs"]["prepare"]["state"] == "running"
    with running(tmp_path):
        wait_for(lambda: ran(tmp_path) == ["prepare", "prepare"])


@pytest.mark.slow
def test_a_hook_that_does_not_want_to_end_is_killed_after_three_seconds(tmp_path: Path, cloud: Cloud) -> None:
    # It says that it runs when it has read its input: only then has the agent seen it start.
    says_so = "cat > {folder}/event; echo $$ > {folder}/pid.new; mv {folder}/pid.new {folder}/pid"
    stubborn = f'trap "" TERM; {says_so}; while :; do sleep 1; done'
    configure(tmp_path, cloud.url, f"[[rule]]\nprepare = [{{ shell = '''{stubborn}''' }}]")
    with running(tmp_path) as agent:
        cloud.announce()
        pid = pid_of_hook(tmp_path)
        with lasts(3):
            code = agent.end()
    was_alive = is_alive(pid)
    if was_alive:
        os.killpg(pid, signal.SIGKILL)
    assert (code, was_alive) == (0, False)


@pytest.mark.parametrize("command", [AGENT, (*FOREWARN, "agent", "run")], ids=["module", "command"])
def test_ctrl_c_ends_it_without_a_trace(tmp_path: Path, cloud: Cloud, command: tuple[str, ...]) -> None:
    configure(tmp_path, cloud.url)
    with running(tmp_path, command=command) as agent:
        agent.wait_ready()
        assert agent.end(signal.SIGINT) == 0
    assert lines(tmp_path)[-1]["event"] == "stopping"


@pytest.mark.namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace, so needs root")
def test_sigterm_ends_it_while_it_looks_for_the_endpoint(tmp_path: Path) -> None:
    config = configure(tmp_path, "discover", 'name = "vm-1"')
    network = "set -e; ip link add va type veth peer vb; ip link set va up; ip link set vb up"
    script = f'{network}; ip address add 192.0.2.1/24 dev va; ip route add default via 192.0.2.2; exec "$@"'
    command = ["unshare", "--net", "sh", "-c", script, "sh", *AGENT, "--config", str(config)]
    with (tmp_path / "stderr.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        wait_for(lambda: "by DHCP" in (tmp_path / "stderr.log").read_text())
        time.sleep(0.5)
        assert process.poll() is None, (tmp_path / "stderr.log").read_text()
        process.terminate()
        assert process.wait(GUARD_S) == 0
    finally:
        process.kill()
        process.wait()


# What it refuses


def test_a_second_agent_on_the_same_state_file_is_refused(tmp_path: Path, cloud: Cloud) -> None:
    configure(tmp_path, cloud.url)
    with running(tmp_path) as agent:
        assert refused(tmp_path) == f"forewarn: another agent uses the state file {tmp_path}/state/agent.json"
        assert agent.get("/healthz") == (200, "ok")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('log_level = "loud"\n', r": log_level: .*'loud'.*"),
        ("[[rule]]\nprepair = []\n", r": rule\[0\]\.prepair: .*"),
        ("name = x", r": not valid TOML: .* \(at line 7, column \d+\)"),
    ],
)
def test_a_wrong_configuration_is_told_with_its_file_and_key(tmp_path: Path, wrong: str, said: str) -> None:
    config = configure(tmp_path, "http://127.0.0.1:1", wrong)
    line = refused(tmp_path)
    assert re.fullmatch(f"forewarn: {re.escape(str(config))}{said}", line), line


def test_a_configuration_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert refused(tmp_path).startswith(f"forewarn: configuration file {tmp_path}/agent.toml does not exist")


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = configure(tmp_path, "http://127.0.0.1:1")
        config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        assert re.fullmatch(rf"forewarn: .*127\.0\.0\.1:{port}.*in use.*", refused(tmp_path), re.IGNORECASE)


# The service comes and goes


@pytest.mark.slow
def test_it_waits_for_a_service_that_is_away_when_it_starts(tmp_path: Path) -> None:
    port = reserve_port()
    configure(tmp_path, f"http://127.0.0.1:{port}", NOTING)
    with running(tmp_path) as agent:
        status, text = agent.get("/readyz")
        assert (status, agent.get("/healthz"), agent.get("/drainz")[0]) == (503, (200, "ok"), 200)
        assert text.startswith("not ready: ")
        with announcing(tmp_path, port) as cloud:
            agent.wait_ready()
            cloud.announce()
            wait_for(lambda: "started" in ran(tmp_path))
    assert ran(tmp_path) == ["prepare", "before-approval", "started"]


@pytest.mark.slow
def test_an_event_outlasts_a_restart_of_the_service(tmp_path: Path) -> None:
    port = reserve_port()
    configure(tmp_path, f"http://127.0.0.1:{port}", NOTING.replace("[[rule]]", '[[rule]]\napprove = "never"'))
    with running(tmp_path) as agent:
        with announcing(tmp_path, port) as cloud:
            event_id = cloud.announce()
            agent.wait_done(event_id, "prepare")
        wait_for(lambda: agent.status()["last_error"])
        assert agent.get("/drainz")[0] == 503
        with announcing(tmp_path, port) as again:
            wait_for(lambda: not agent.status()["last_error"])
            assert agent.state_of(event_id) == "prepared"
            again.adopt(cloud)
            again.clear()
            wait_for(lambda: agent.get("/drainz")[0] == 200)
    assert ran(tmp_path) == ["prepare", "canceled"]
    assert "the metadata endpoint answers again" in [line["event"] for line in lines(tmp_path)]


# Crashes and restarts


def killed_in_a_hook(folder: Path, cloud: Cloud, interrupted: str) -> str:
    """Kill the agent without a word while a hook runs; hands back the id of the event."""
    configure(folder, cloud.url, STUCK.replace("{interrupted}", interrupted))
    with running(folder) as agent:
        event_id = cloud.announce()
        pid = pid_of_hook(folder)
        assert agent.end(signal.SIGKILL) == -signal.SIGKILL
    assert is_alive(pid)  # Nobody ends the hooks of an agent that was killed; systemd does.
    os.kill(pid, signal.SIGKILL)
    return event_id


def test_a_step_in_which_the_agent_was_killed_is_run_again(tmp_path: Path, cloud: Cloud) -> None:
    event_id = killed_in_a_hook(tmp_path, cloud, "run-again")
    with running(tmp_path) as agent:
        wait_for(lambda: agent.state_of(event_id) in {"approved", "started"})
        (record,) = agent.status()["events"]
        assert (record["steps"]["prepare"]["state"], record["steps"]["prepare"]["tries"]) == ("done", 2)
    assert ran(tmp_path) == ["prepare", "prepare"]
    assert not (tmp_path / "alerts").exists()


def test_a_step_in_which_the_agent_was_killed_can_be_marked_as_failed(tmp_path: Path, cloud: Cloud) -> None:
    event_id = killed_in_a_hook(tmp_path, cloud, "mark")
    with running(tmp_path) as agent:
        wait_for(lambda: agent.state_of(event_id) == "failed")
        (record,) = agent.status()["events"]
        assert record["steps"]["prepare"]["reason"] == "the agent was interrupted"
        assert record["why"].startswith("held")
        cloud.clear()
        wait_for(lambda: ran(tmp_path) == ["prepare", "canceled"])


def test_what_was_done_is_not_done_again_after_a_restart(tmp_path: Path, cloud: Cloud) -> None:
    configure(tmp_path, cloud.url, NOTING.replace("[[rule]]", '[[rule]]\napprove = "by-hand"'))
    with running(tmp_path) as agent:
        event_id = cloud.announce()
        wait_for(lambda: agent.state_of(event_id) == "prepared")
        before = agent.status()["events"]
        token = (tmp_path / "state" / "agent.token").read_text()
        agent.end()
    with running(tmp_path) as agent:
        agent.wait_ready()
        (after,) = agent.status()["events"]
        assert after["seen_at"] == before[0]["seen_at"]
        assert after["steps"] == before[0]["steps"]
        assert (tmp_path / "state" / "agent.token").read_text() == token
    assert ran(tmp_path) == ["prepare"]


@pytest.mark.slow
def test_an_event_that_went_while_the_agent_was_down_is_recovered_from_once(tmp_path: Path, cloud: Cloud) -> None:
    configure(tmp_path, cloud.url, NOTING.replace("[[rule]]", '[[rule]]\napprove = "by-hand"'))
    with running(tmp_path) as agent:
        event_id = cloud.announce()
        wait_for(lambda: agent.state_of(event_id) == "prepared")
        agent.end(signal.SIGKILL)
    cloud.clear()
    for _ in range(2):
        with running(tmp_path) as agent:
            agent.wait_ready()
            wait_for(lambda agent=agent: agent.status()["finished"])
            assert agent.status()["events"] == []
            agent.end()
    assert ran(tmp_path) == ["prepare", "canceled"]


# Dry run and log


def test_a_dry_run_runs_nothing_approves_nothing_and_remembers_nothing(tmp_path: Path, cloud: Cloud) -> None:
    configure(tmp_path, cloud.url, NOTING)
    with running(tmp_path, "--dry-run") as agent:
        event_id = cloud.announce()
        wait_for(lambda: agent.state_of(event_id) == "approved")
        assert agent.status()["dry_run"]
        assert cloud.states() == ["scheduled"]
        assert agent.end() == 0
    said = [line["event"] for line in lines(tmp_path)]
    assert [line for line in said if line.startswith("dry run: prepare would run")]
    assert ran(tmp_path) == []
    assert not (tmp_path / "state" / "agent.json").exists()


def test_the_log_file_holds_a_json_object_a_line_and_stderr_nothing(tmp_path: Path, cloud: Cloud) -> None:
    configure(tmp_path, cloud.url, f'log_file = "{{folder}}/log/agent.log"\nlog_level = "debug"\n{NOTING}')
    log = tmp_path / "log" / "agent.log"
    with (tmp_path / "stderr.log").open("wb") as stderr:
        process = subprocess.Popen([*AGENT, "--config", str(tmp_path / "agent.toml")], stderr=stderr)
    try:
        event_id = cloud.announce()
        wait_for(lambda: ran(tmp_path)[:1] == ["prepare"])
    finally:
        process.terminate()
        assert process.wait(START_S) == 0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(entry["timestamp"].endswith("Z") and entry["level"] and entry["event"] for entry in entries)
    assert {entry["event_id"] for entry in entries if "event_id" in entry} == {event_id}
    assert (tmp_path / "stderr.log").read_text() == ""
    assert log.stat().st_mode & 0o777 == 0o640


def test_the_log_level_says_what_is_left_out(tmp_path: Path, cloud: Cloud) -> None:
    config = configure(tmp_path, cloud.url, f'log_file = "{{folder}}/agent.log"\nlog_level = "warning"\n{NOTING}')
    process = subprocess.Popen([*AGENT, "--config", str(config)])
    try:
        cloud.announce()
        wait_for(lambda: ran(tmp_path)[:1] == ["prepare"])
    finally:
        process.terminate()
        assert process.wait(START_S) == 0
    assert (tmp_path / "agent.log").read_text() == ""


# What it says to the service manager; the test plays systemd


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    """Where an agent that is told so sends its notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(START_S)
        yield sock


def test_it_tells_the_service_manager_when_it_is_ready_alive_and_stopping(
    tmp_path: Path, cloud: Cloud, heard: socket.socket
) -> None:
    configure(tmp_path, cloud.url, "[[rule]]\nprepare = [{ shell = 'env > {folder}/env' }]\napprove = 'never'")
    told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with running(tmp_path, environment=os.environ | told) as agent:
        words = [heard.recv(1000).decode()]
        assert words == ["READY=1"]
        while words[-1] != "STATUS=vm-1: in service, 0 events":
            words.append(heard.recv(1000).decode())
        cloud.announce()
        # How often is tested without a process: `SystemdNotifier.watchdog_s`.
        while words.count("WATCHDOG=1") < 8 or not (tmp_path / "env").exists():
            words.append(heard.recv(1000).decode())
        agent.end()
        while words[-1] != "STOPPING=1":
            words.append(heard.recv(1000).decode())
    assert "STATUS=vm-1: out of service, 1 event" in words
    assert "NOTIFY_SOCKET" not in (tmp_path / "env").read_text()
    assert "WATCHDOG" not in (tmp_path / "env").read_text()


# As if on Windows: what only POSIX has is taken away from the agent, and its branches for Windows run

WINDOWS = """
import importlib, pkgutil, signal, socket, os, subprocess, sys, types

def load():
    for package in ("forewarn.client", "forewarn.agent"):
        found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        for name in [package, *(module.name for module in found if not module.name.endswith("__main__"))]:
            importlib.import_module(name)

load()  # so that the libraries are there, which know where they run
for name in [name for name in sys.modules if name.startswith("forewarn")]:
    del sys.modules[name]

class Blocked:
    names = {"fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty", "pty", "posix", "readline"}
    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"there is no {name} on Windows")

for name in Blocked.names:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
pair, unix = socket.socketpair, socket.AF_UNIX
socket.socketpair = lambda *kind: pair(unix)  # of which this machine's event loop makes itself a pipe
for place, names in {
    os: "chown fchown fork forkpty geteuid getuid getgid getegid getpgid getpgrp killpg lchown setsid setpgid "
        "seteuid setuid uname sysconf O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK sched_getaffinity getloadavg",
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 pthread_sigmask sigwait",
    socket: "AF_UNIX AF_NETLINK AF_PACKET SO_REUSEPORT SCM_RIGHTS",
}.items():
    for name in names.split():
        delattr(place, name)
locked = []
msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK = 2
msvcrt.locking = lambda descriptor, mode, size: locked.append(size)
sys.modules["msvcrt"] = msvcrt
subprocess.CREATE_NEW_PROCESS_GROUP = 0  # other flags are refused here
os.environ.pop("NOTIFY_SOCKET", None)
sys.platform = "win32"
load()

from forewarn.agent.configuration import load_configuration
from forewarn.agent.run import run_agent
from pathlib import Path
load_configuration(Path({packaged!r}))
status = run_agent(Path(sys.argv[sys.argv.index("--config") + 1]))
assert locked == [1], locked
assert not Blocked.names & set(sys.modules), sys.modules
sys.exit(status)
"""


def test_the_life_of_an_agent_needs_nothing_that_windows_lacks(tmp_path: Path, cloud: Cloud) -> None:
    packaged = str(Path(__file__).parents[2] / "packaging" / "windows" / "agent.toml")
    script = tmp_path / "windows.py"
    script.write_text(WINDOWS.replace("{packaged!r}", repr(packaged)))
    configure(tmp_path, cloud.url, NOTING)
    with running(tmp_path, command=(sys.executable, str(script))) as agent:
        agent.wait_done(cloud.announce(), "started")
        cloud.clear()
        wait_for(lambda: agent.status()["finished"])
        assert agent.end(signal.SIGINT) == 0, (tmp_path / "stderr.log").read_text()
    assert ran(tmp_path) == ["prepare", "before-approval", "started", "recover"]
