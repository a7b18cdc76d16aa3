"""The agent's real process, against a real `forewarn serve`: its start and end, its addresses, crashes, its log."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec

import httpx
import pytest

from tests.support.booted import Booted, booted, missing
from tests.support.processes import FOREWARN, Served, is_written, served, wait_for
from tests.support.provider import free_port
from tests.support.spans import GUARD_S, lasts

METADATA = {"Metadata": "true"}
AGENT = (sys.executable, "-m", "forewarn.agent")
START_S = GUARD_S
LISTENS = re.compile(r"status, metrics and health at (http://[^\s\"]+)")

COMMON = """
endpoint = "{endpoint}"
wait = "5m"
poll_interval = "100ms"
listen = "127.0.0.1:0"
state_file = "{folder}/state/agent.json"
"""


class Agent:
    """An agent's process.

    Attributes:
        process: It.
        folder: Where its configuration, state and log are, and what its hooks write.
        url: Where it listens.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, url: str) -> None:
        self.process = process
        self.folder = folder
        self.url = url

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer to anybody."""
        answer = httpx.get(f"{self.url}{path}", trust_env=False, timeout=GUARD_S)
        return answer.status_code, answer.text.strip()

    def status(self) -> dict[str, Any]:
        """What it tells operators."""
        token = (self.folder / "state" / "agent.token").read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        told: dict[str, Any] = httpx.get(f"{self.url}/status", headers=headers, trust_env=False, timeout=GUARD_S).json()
        return told

    def wait_ready(self) -> None:
        wait_for(lambda: self.get("/readyz") == (200, "ready"))

    def state_of(self, event_id: str) -> str:
        """Where an event stands; empty when there is none."""
        return next((e["state"] for e in self.status()["events"] if e["event"]["id"] == event_id), "")

    def wait_done(self, event_id: str, step: str) -> None:
        """Wait until a step is done; what its hooks write is there before that."""

        def is_done() -> bool:
            steps = [event["steps"] for event in self.status()["events"] if event["event"]["id"] == event_id]
            return bool(steps) and steps[0].get(step, {}).get("state") == "done"

        wait_for(is_done)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Return the exit status after that signal. What it waits for meanwhile would take minutes."""
        self.process.send_signal(number)
        return self.process.wait(GUARD_S)


def configure(folder: Path, endpoint: str, rest: str = "") -> Path:
    """Write a configuration. In `rest`, ``{folder}`` is that folder."""
    config = folder / "agent.toml"
    config.write_text((COMMON + rest).replace("{endpoint}", endpoint).replace("{folder}", str(folder)))
    return config


@contextmanager
def running(
    folder: Path, *arguments: str, command: tuple[str, ...] = AGENT, environment: Mapping[str, str] | None = None
) -> Iterator[Agent]:
    """The agent with the configuration of that folder, started and listening; killed at the end."""
    log = folder / "stderr.log"
    begins_at = log.stat().st_size if log.exists() else 0
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "--config", str(folder / "agent.toml"), *arguments], stderr=file, env=environment
        )
    try:

        def listens() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()
            return LISTENS.search(log.read_text()[begins_at:])

        yield Agent(process, folder, wait_for(listens, START_S)[1])
    finally:
        process.kill()
        process.wait(START_S)


def lines(folder: Path) -> list[dict[str, Any]]:
    """What the agent has logged."""
    return [json.loads(line) for line in (folder / "stderr.log").read_text().splitlines()]


def ran(folder: Path) -> list[str]:
    """Which steps ran hooks, in order."""
    done = folder / "ran"
    return done.read_text().split() if done.exists() else []


def refused(folder: Path) -> str:
    """The one line with which an agent gives up at its start."""
    done = subprocess.run(
        [*AGENT, "--config", str(folder / "agent.toml")], check=False, capture_output=True, text=True, timeout=START_S
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    return line


def is_alive(pid: int) -> bool:
    """Whether that process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pid_of_hook(folder: Path) -> int:
    """The process of the hook that stays in the middle, once it runs."""
    wait_for((folder / "pid").exists)
    return int((folder / "pid").read_text())


def noting(*steps: str) -> str:
    """Hooks that write their step into the file ``ran``."""
    return "\n".join(f"{step} = [{{ shell = 'echo $FOREWARN_STEP >> {{folder}}/ran' }}]" for step in steps)


NOTING = f"""
[[rule]]
name = "noting"
{noting("prepare", "before_approval", "started", "recover", "canceled", "alert")}
"""

# The first run of the hook stays in the middle; the second one succeeds.
STUCK = """
[[rule]]
name = "stuck"
interrupted = "{interrupted}"
prepare = [{ shell = '''
echo $FOREWARN_STEP >> {folder}/ran
if [ ! -e {folder}/pid ]; then echo $$ > {folder}/pid.new; mv {folder}/pid.new {folder}/pid; exec sleep 120; fi
''' }]
recover = [{ shell = 'echo $FOREWARN_STEP >> {folder}/ran' }]
alert = [{ shell = 'echo $FOREWARN_STEP $FOREWARN_REASON >> {folder}/alerts' }]
"""


class Cloud:
    """A running service with one VM, for which maintenance is announced.

    Args:
        service: It.
        folder: With its token.

    Attributes:
        url: Where the VM asks.
    """

    def __init__(self, service: Served, folder: Path) -> None:
        token = (folder / "operator.token").read_text().strip()
        self.url = service.metadata_url
        self._announced: list[str] = []
        # Who has never asked is not told of anything (R67).
        httpx.get(
            f"{self.url}/metadata/scheduledevents?api-version=2020-07-01",
            headers=METADATA,
            trust_env=False,
            timeout=GUARD_S,
        )
        self._operator = httpx.Client(
            base_url=service.control_url, headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=GUARD_S
        )

    def announce(self, notice_s: float = 300) -> str:
        """Announce a freeze; hands back the id of the event."""
        wanted = {"vms": ["vm-1"], "type": "Freeze", "notice_s": notice_s, "force": True, "reason": "test"}
        answer = self._operator.post("/v1/maintenance", json=wanted)
        assert answer.status_code == 201, answer.text
        (made,) = answer.json()["items"]
        self._announced.append(made["id"])
        return str(wait_for(lambda: self._maintenance(made["id"])["events"])[0]["id"])

    def _maintenance(self, id_: str) -> dict[str, Any]:
        told: dict[str, Any] = self._operator.get(f"/v1/maintenance/{id_}").json()
        return told

    def states(self) -> list[str]:
        """Of every maintenance that was announced here and not ended."""
        return [self._maintenance(id_)["state"] for id_ in self._announced]

    def adopt(self, before: Cloud) -> None:
        """Answer for what was announced before the service was started anew."""
        self._announced += before._announced

    def clear(self) -> None:
        """End all maintenance: what has started completes, the rest is cancelled."""
        while self._announced:
            path = f"/v1/maintenance/{self._announced.pop()}"
            # It may start at any moment, and what has started cannot be cancelled.
            if self._operator.post(f"{path}/cancel").status_code != 200:
                answer = self._operator.post(f"{path}/complete")
                assert answer.status_code == 200, answer.text

    def close(self) -> None:
        """Close connections."""
        self._operator.close()


@contextmanager
def announcing(folder: Path, port: int = 0) -> Iterator[Cloud]:
    """A service with its files in that folder."""
    with served(folder, metadata_listen=f"127.0.0.1:{port}") as service:
        cloud = Cloud(service, folder)
        try:
            yield cloud
        finally:
            cloud.close()


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
    port = free_port()
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
    port = free_port()
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


# Under a real systemd

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
WatchdogSec=2s
TimeoutStopSec=4s
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
    box.install("")
    stuck = box.show("MainPID")
    box.inside("kill", "-STOP", stuck)
    wait_for(lambda: box.show("NRestarts") == "1" and box.booted.states(UNIT) == {UNIT: "active"})
    assert box.show("MainPID") != stuck


@under_systemd
def test_an_agent_that_was_killed_is_started_again_and_its_hook_does_not_run_twice_at_a_time(box: Box) -> None:
    hook = "echo $$ >> {folder}/pids; exec sleep 120"
    box.install(f"[[rule]]\nprepare = [{{ shell = '{hook}' }}]")
    box.announce()
    wait_for(lambda: is_written(box.hooks("pids")))
    box.inside("kill", "-KILL", box.show("MainPID"))
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
