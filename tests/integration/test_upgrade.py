"""Two versions of Forewarn beside each other: replicas on one database, endpoints on hosts, and agents in VMs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.integration.test_host_endpoint import endpoint
from tests.integration.test_kill import Verdict, client_of
from tests.support.agent_process import agent_process
from tests.support.databases import PostgreSql, postgresql
from tests.support.documents import ROOT
from tests.support.earlier import EARLIER
from tests.support.load import Load, Remembered, inventory
from tests.support.processes import Served, served, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(250), pytest.mark.timeout(600)]

REPLICAS = 3

INVENTORY = """
hosts: [{name: host-1}]
vms: [{name: vm-1, host: host-1, addresses: [127.0.0.1]}]
"""
RULES = """
[[rule]]
prepare = [["sh", "-c", "echo prepare >> {folder}/done"]]
recover = [["sh", "-c", "echo recover >> {folder}/done"]]
"""
QUICK = {"FOREWARN_SIMULATE_IMPACT_AFTER": "0.1s", "FOREWARN_SIMULATE_COMPLETE_AFTER": "0.4s"}
NOTICES_S = (0.2, 5)
"""With the longer one, there is time for an approval by way of a replica that follows, on a slow machine too."""

Version = dict[str, str]
"""The environment of a process of that version."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Version:
    folder = tmp_path_factory.mktemp("earlier")
    packed = subprocess.run(["git", "archive", EARLIER, "src"], check=True, capture_output=True, cwd=ROOT).stdout
    # By the command: tarfile of Python 3.11.2, which Debian 12 has, knows no filters, and later ones warn without one.
    subprocess.run(["tar", "--extract", "--directory", folder], check=True, input=packed)
    version = {"PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-c", "import forewarn; print(forewarn.__file__)"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | version).stdout
    assert found.startswith(str(folder)), "it would be this version"
    return version


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


class Replica:
    """A replica that is started as one version and then as another."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder = folder
        self._arguments = arguments
        self._stack = ExitStack()
        self.service: Served
        folder.mkdir()

    def start(self, version: Version) -> None:
        self.stop()
        self.service = self._stack.enter_context(served(self.folder, *self._arguments, settings=QUICK | version))

    def stop(self) -> None:
        self._stack.close()

    def check(self, told: Remembered) -> None:
        # While another replica takes the lead, a request may have to be repeated.
        told.faults = [text for text in told.faults if ": 503" not in text]
        with client_of(self.service, self.folder) as client:
            Verdict(client).check(told)

    @contextmanager
    def under_load(self, told: Remembered, seed: int) -> Iterator[None]:
        token = (self.folder / "operator.token").read_text().strip()
        load = Load(self.service.metadata_url, self.service.control_url, token, told, seed, NOTICES_S)

        def is_busy(since: int) -> bool:
            assert load.gone == [], "the replica that nobody stops has closed a connection"
            return len(told.approved) > since + 5

        load.start()
        try:
            wait_for(partial(is_busy, len(told.approved)))
            yield
            wait_for(partial(is_busy, len(told.approved)))
        finally:
            load.stop()


def test_replicas_are_upgraded_one_after_the_other_and_back(
    server: PostgreSql, tmp_path: Path, earlier: Version
) -> None:
    """Under load: nothing that was acknowledged is lost or done twice, in either direction."""
    told = Remembered()
    (tmp_path / "inventory.json").write_text(inventory())
    with server.database() as database, ExitStack() as stack:
        words = ["--database-url", database.url, "--inventory", str(tmp_path / "inventory.json")]
        replicas = [Replica(tmp_path / f"replica-{number}", words) for number in range(REPLICAS)]
        for replica in replicas:
            stack.callback(replica.stop)
            replica.start(earlier)
        for seed, (version, number) in enumerate(itertools.product(({}, earlier), range(REPLICAS))):
            with replicas[(number + 1) % REPLICAS].under_load(told, seed):
                replicas[number].start(version)
            replicas[number].check(told)


@pytest.mark.parametrize(
    "is_earlier",
    [each for each in itertools.product((False, True), repeat=3) if len(set(each)) > 1],
    ids=lambda each: "-".join("earlier" if one else "this" for one in each),
)
def test_service_endpoint_and_agent_may_be_of_two_versions(
    tmp_path: Path, earlier: Version, is_earlier: tuple[bool, bool, bool]
) -> None:
    """A whole event, from the announcement to the recovery."""
    of_service, of_endpoint, of_agent = [earlier if each else {} for each in is_earlier]
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    arguments = ["--inventory", str(tmp_path / "inventory.yaml")]
    with (
        served(tmp_path, *arguments, settings=QUICK | of_service) as service,
        endpoint(service, tmp_path, environment=of_endpoint) as host,
        agent_process(tmp_path, f"http://127.0.0.1:{host.address[1]}", RULES, of_agent) as agent,
    ):
        wait_for(lambda: agent.status()["ready"])
        [made] = service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze", "--notice", "1h")
        done = tmp_path / "done"
        wait_for(lambda: done.exists() and done.read_text() == "prepare\nrecover\n")
        [found] = [each for each in service.forewarn("maintenance", "list") if each["id"] == made["id"]]
        assert found["state"] == "completed"
