"""What a run takes place in: PostgreSQL and its standby, replicas, an endpoint on each host, and what can be cut."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from forewarn.util.secrets import load_or_create_token
from tests.faultrun.actuator import actuator_settings
from tests.faultrun.agents import AgentVm
from tests.faultrun.clients import NAMES, ask_once
from tests.faultrun.crowd import Crowd
from tests.faultrun.fleet import Fleet
from tests.faultrun.links import Link
from tests.faultrun.networks import Loopback, Namespaces, Network, Way, inside
from tests.faultrun.nursery import Nursery, set_ahead
from tests.faultrun.parts import Part
from tests.faultrun.postgres import DATABASE, Cluster, Template
from tests.faultrun.records import Showing, Step
from tests.support.databases import Database
from tests.support.spans import GUARD_S

__all__ = ["LEASE_S", "REPLICAS", "Base", "World", "base", "world"]

REPLICAS = 3
LEASE_S = 4.0
_METADATA_PORT, _CONTROL_PORT = 18169, 18170
_REQUESTS_PER_S_MAX = 250
_PAUSE_S_MIN = 0.33


class Base:
    """What several runs share.

    Attributes:
        nursery: Makes processes.
        template: A PostgreSQL to copy.
    """

    def __init__(self, folder: Path) -> None:
        self.template = Template(folder)
        self.nursery = Nursery()

    def close(self) -> None:
        """Let go of it."""
        self.nursery.close()


class World:
    """All parts and links.

    Attributes:
        cluster: The databases.
        fleet: The inventory that was acknowledged last.
        addresses: Of every VM that ever was.
        replicas: The processes of `serve`.
        endpoints: The processes of `forewarn endpoint`, by host.
        crowds: The VMs of each host.
        agents: The VMs with an agent.
        to_database: The links of the replicas to the database.
        to_replica: The ways from hosts to replicas, by host and number of the replica.
        to_host: What is cut when a host is cut off altogether.
        clocks: A file for each replica, by which its clock is set.
    """

    def __init__(self, folder: Path, shared: Base, network: Network, host_count: int, vm_count: int) -> None:
        self.folder = folder
        self.network = network
        self.cluster = Cluster(folder, shared.template)
        self.fleet = Fleet([f"host-{number}" for number in range(host_count)], vm_count)
        self.addresses = {name: network.vm(number) for name, number in self.fleet.numbers.items()}
        self.replicas: list[Part] = []
        self.endpoints: dict[str, Part] = {}
        self.crowds: dict[str, Crowd] = {}
        self.agents: list[AgentVm] = []
        self.to_database: list[Link] = []
        self.to_replica: dict[tuple[str, int], Way] = {}
        self.to_host: dict[str, list[Way]] = {}
        self.clocks = [folder / f"r{number}.clock" for number in range(REPLICAS)]
        self.token = load_or_create_token(folder / "operator.token")
        self._nursery = shared.nursery
        self._settings = actuator_settings(folder)
        self._pause_s = max(_PAUSE_S_MIN, vm_count / _REQUESTS_PER_S_MAX)

    @property
    def hosts(self) -> list[str]:
        """Their names."""
        return self.fleet.hosts

    @property
    def database(self) -> Database:
        """On the primary of now."""
        return Database(self.cluster.url)

    @property
    def parts(self) -> list[Part]:
        """All of them."""
        return [*self.replicas, *self.endpoints.values()]

    @property
    def steps(self) -> list[Step]:
        """Steps of all agents until now."""
        return [step for agent in self.agents for step in agent.steps]

    def operator(self, number: int, timeout_s: float = GUARD_S) -> httpx.AsyncClient:
        """A client of that replica; the caller closes it."""
        return httpx.AsyncClient(
            base_url=f"http://{self.network.replica(number)}:{_CONTROL_PORT}",
            headers={"authorization": f"Bearer {self.token}"},
            timeout=timeout_s,
            trust_env=False,
            verify=False,  # noqa: S501 - there is no TLS, and making its context takes time
        )

    async def begin(self) -> None:
        """Start everything, and wait until it is ready."""
        await self.cluster.start()
        await asyncio.gather(*(self._begin_replica(number) for number in range(REPLICAS)))
        async with self.operator(0) as client:
            inventory = self.fleet.inventory(self.addresses)
            (await client.put("/v1/inventory", json=inventory)).raise_for_status()
        await asyncio.gather(*(self._begin_host(number, host) for number, host in enumerate(self.hosts)))
        for vm in sorted(self.fleet.with_agents):
            await self._begin_agent(vm)

    async def _begin_replica(self, number: int) -> None:
        mine = self.folder / f"r{number}"
        mine.mkdir()
        shutil.copy(self.folder / "operator.token", mine / "operator.token")
        link = Link(f"replica {number} to the database", lambda: self.cluster.socket)
        await link.listen(mine / self.cluster.socket.name)
        self.to_database.append(link)
        set_ahead(self.clocks[number], 0.0)
        address = self.network.replica(number)
        words = ["serve", "--database-url", f"postgresql://postgres@/{DATABASE}?host={mine}", "--insecure"]
        words += ["--metadata-listen", f"{address}:{_METADATA_PORT}", "--control-listen", f"{address}:{_CONTROL_PORT}"]
        settings = self._settings | {"FOREWARN_STATE_DIR": str(mine), "REPLICA": str(number)}
        part = Part(
            f"replica-{number}",
            self._nursery,
            self.folder,
            words,
            settings,
            self.network.control,
            self.clocks[number],
        )
        self.replicas.append(part)
        await part.start()

    async def _begin_host(self, number: int, host: str) -> None:
        async with self.operator(0) as client:
            answer = await client.post(f"/v1/hosts/{host}/tokens")
            (self.folder / f"{host}.token").write_text(answer.raise_for_status().json()["token"])
        words = ["endpoint", "--host", host, "--token-file", str(self.folder / f"{host}.token"), "--listen", ""]
        for replica in range(REPLICAS):
            way, url = await self.network.link(number, replica, _CONTROL_PORT)
            self.to_replica[host, replica] = way
            words += ["--control-url", url]
        self.to_host[host] = self.network.whole(number, [self.to_replica[host, each] for each in range(REPLICAS)])
        address, port = self.network.endpoint(number)
        words += ["--metadata-listen", f"{address}:{port}", "--state-file", str(self.folder / f"{host}.json")]
        namespace = self.network.namespace(number)
        self.endpoints[host] = Part(f"endpoint-{host}", self._nursery, self.folder, words, {}, namespace)
        self.crowds[host] = await Crowd.begin(self._nursery, self.folder / f"vms-{host}.log", namespace)
        await self.endpoints[host].start()

    async def _begin_agent(self, vm: str) -> None:
        number = self.hosts.index(self.fleet.places[vm].host)
        endpoint, namespace = self.network.endpoint(number), self.network.namespace(number)
        agent = AgentVm(vm, self.addresses[vm], endpoint, self._nursery, self.folder, namespace)
        self.agents.append(agent)
        await agent.part.start()

    async def admit(self, vm: str, seed: int, known: list[str], votes: list[str]) -> None:
        """Have a VM ask where it is now.

        Args:
            known: Events that it has seen elsewhere.
            votes: Those of them that it wants to approve.
        """
        host = self.fleet.places[vm].host
        endpoint = self.network.endpoint(self.hosts.index(host))
        more = {"seed": seed, "pause_s": self._pause_s, "known": known, "votes": votes}
        await self.crowds[host].arrive(vm, self.addresses[vm], endpoint, **more)

    async def show_all(self) -> list[Showing]:
        """What every VM is answered now: by its endpoint, and by each replica, in several versions."""
        fleet, shown = self.fleet, []
        for host, crowd in self.crowds.items():
            here = [name for name in fleet.names if fleet.places[name].host == host]
            for versions in (dict.fromkeys(here, NAMES[-1]), {vm: _version(fleet.numbers[vm]) for vm in here}):
                shown += await self._show(crowd, host, versions)
        for vm, number in fleet.numbers.items():
            asked = [
                ask_once(
                    part.name, (self.network.replica(n), _METADATA_PORT), vm, self.addresses[vm], _version(number + n)
                )
                for n, part in enumerate(self.replicas)
            ]
            shown += await asyncio.gather(*asked)
        return shown

    async def show_strangers(self) -> list[Showing]:
        """What VMs that came, went or moved are answered on a host where they are not."""
        fleet, shown = self.fleet, []
        for host, crowd in self.crowds.items():
            others = {vm for vm in fleet.passing if vm not in fleet.numbers or fleet.places[vm].host != host}
            shown += await self._show(crowd, host, dict.fromkeys(sorted(others), NAMES[-1]))
        return shown

    async def has_forgotten(self, vm: str, host: str) -> bool:
        """Whether that host's endpoint says that it knows no such VM."""
        shown = await self._show(self.crowds[host], host, {vm: NAMES[-1]})
        return [each.status for each in shown] == [HTTPStatus.NOT_FOUND]

    async def _show(self, crowd: Crowd, host: str, versions: dict[str, str]) -> list[Showing]:
        endpoint = self.network.endpoint(self.hosts.index(host))
        asked = {vm: (self.addresses[vm], endpoint, version) for vm, version in versions.items()}
        return await crowd.show(self.endpoints[host].name, asked, self.folder / f"{host}.shown")

    async def end(self) -> None:
        """Kill everything that was started."""
        for part in (*self.parts, *(agent.part for agent in self.agents)):
            part.kill()
        for crowd in self.crowds.values():
            crowd.kill()
        for link in (*self.to_database, *self.to_replica.values()):
            if isinstance(link, Link):
                await link.close()
        self.cluster.end()


def _version(number: int) -> str:
    return NAMES[number % len(NAMES)]


@contextmanager
def base() -> Any:  # noqa: ANN401 - an iterator of `Base`, which contextmanager wraps
    """What runs share, gone at the end."""
    with _folder() as folder:
        shared = Base(folder)
        try:
            yield shared
        finally:
            shared.close()


@asynccontextmanager
async def world(shared: Base, host_count: int, vm_count: int, *, namespaces: bool) -> AsyncIterator[World]:
    """A world that has begun, gone at the end.

    Args:
        namespaces: Whether each host is a network namespace, for which it takes root; this thread is in that of the
            control plane until the block ends.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())
        network: Network = Loopback()
        if namespaces:
            network = made_network = Namespaces(host_count)
            stack.callback(made_network.remove)
            made_network.make()
        stack.enter_context(inside(network.control))
        made = World(folder, shared, network, host_count, vm_count)
        try:
            await made.begin()
            yield made
        finally:
            await made.end()


@contextmanager
def _folder() -> Any:  # noqa: ANN401 - as `base`
    folder = Path(tempfile.mkdtemp(prefix="fwr-"))
    folder.chmod(0o755)  # PostgreSQL may be run by another user
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
