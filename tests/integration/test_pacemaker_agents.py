"""Pacemaker's agents for Scheduled Events, as Debian ships them, go through a whole event.

`azure-events-az` and the older `azure-events` are handlers that nobody here wrote, unmodified. They run as Pacemaker
would run them: their monitor action, again and again, on each node. Only the cluster's own commands (``crm_*``) are
stood in for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.namespaces import METADATA_ADDRESS, Network, missing, network
from tests.support.processes import Served, served, wait_for

OCF_ROOT = Path("/usr/lib/ocf")
AGENTS = [OCF_ROOT / "resource.d/heartbeat" / name for name in ("azure-events-az", "azure-events")]
_MISSING = missing() or ("resource-agents" if not all(agent.exists() for agent in AGENTS) else None)

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.slow,
    pytest.mark.skipif(_MISSING is not None, reason=f"Pacemaker's agents need {_MISSING}"),
]

NODES = {"node-0": ("WestNO_0", "10.9.0.11"), "node-1": ("WestNO_1", "10.9.0.12")}
INVENTORY = {
    "hosts": [{"name": "host-1"}, {"name": "host-2"}],
    "scopes": [{"name": "web", "kind": "availability-set"}],
    "vms": [
        {"name": "WestNO_0", "host": "host-1", "scope": "web", "fault_domain": 0, "addresses": ["10.9.0.11"]},
        {"name": "WestNO_1", "host": "host-2", "scope": "web", "fault_domain": 1, "addresses": ["10.9.0.12"]},
    ],
}


class Cluster:
    """Two nodes, each in its VM, and the attributes that they share."""

    def __init__(self, cloud: Network, folder: Path) -> None:
        self._cloud = cloud
        self._state = folder / "cluster.json"
        self._state.write_text(json.dumps({"nodes": list(NODES), "attributes": {}}))
        commands = folder / "bin"
        commands.mkdir()
        stand_in = Path(__file__).parents[1] / "support/cluster/crm"
        for name in ("crm_attribute", "crm_node", "crm_simulate", "crm_resource"):
            (commands / name).symlink_to(stand_in)
        self._environment = os.environ | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "CLUSTER_STATE": str(self._state),
            "OCF_ROOT": str(OCF_ROOT),
            "OCF_RESOURCE_INSTANCE": "rsc_azure-events",
            "OCF_RESKEY_eventTypes": "Freeze,Reboot,Redeploy",
            "HA_LOGFILE": str(folder / "agent.log"),
            "http_proxy": "",
        }

    def monitor(self, agent: Path, node: str) -> None:
        """Run the agent's monitor action once on a node, as Pacemaker does each ten seconds."""
        command = self._cloud.in_vm(NODES[node][1], "/usr/bin/python3", str(agent), "monitor", hostname=node)
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=self._environment)
        assert done.returncode == 0, done.stderr

    def attributes(self, node: str) -> dict[str, str]:
        """What the cluster knows of a node."""
        found: dict[str, str] = json.loads(self._state.read_text())["attributes"].get(node, {})
        return found

    def is_in_standby(self, node: str) -> bool:
        """Whether the agent put the node aside: the newer one by its health, the older one by its standby attribute."""
        attributes = self.attributes(node)
        return int(attributes.get("#health-azure", "0")) < 0 or attributes.get("standby") == "on"

    def state(self, node: str) -> str | None:
        """The agent's own word for where the node stands."""
        found = [word for name, word in self.attributes(node).items() if name.endswith("curNodeState")]
        return found[0] if found else None


@pytest.fixture(scope="module")
def cloud() -> Iterator[Network]:
    with network([address for _, address in NODES.values()]) as made:
        yield made


@pytest.fixture
def service(cloud: Network, tmp_path: Path) -> Iterator[Served]:
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps(INVENTORY))
    settings = ("--set", "simulate_impact_after=0s", "--set", "simulate_complete_after=4s")
    listen = f"{METADATA_ADDRESS}:80"
    arguments = ("--inventory", str(inventory), *settings)
    with served(tmp_path, *arguments, prefix=cloud.on_host(), metadata_listen=listen) as running:
        yield running


def _maintenance(service: Served, maintenance_id: str) -> dict[str, object]:
    shown: dict[str, object] = service.forewarn("maintenance", "show", maintenance_id)
    return shown


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_an_agent_of_pacemaker_prepares_approves_and_recovers(
    agent: Path, cloud: Network, service: Served, tmp_path: Path
) -> None:
    """R23, R51, W5, W6, W7, W10: instance name, standby, approval with its own api-version, and back online when it is
    over."""
    assert sys.platform == "linux"
    cluster = Cluster(cloud, tmp_path)
    for node in NODES:
        cluster.monitor(agent, node)  # the first look enables the service, and tells the cluster the VM's name
    assert cluster.attributes("node-0")["azName"] == "WestNO_0"

    made = service.forewarn("vm", "restart", "WestNO_0")
    maintenance_id = str((made["items"] if isinstance(made, dict) else made)[0]["id"])

    def step_until_approved() -> str | None:
        for node in NODES:
            cluster.monitor(agent, node)
        events = _maintenance(service, maintenance_id)["events"]
        assert isinstance(events, list)
        return str(events[0]["approved_by"]) if events[0]["approved_by"] else None

    # The newer agent approves on the node that is hit, the older one on whichever node looks first.
    assert wait_for(step_until_approved) in {"vm:WestNO_0", "vm:WestNO_1"}
    assert not cluster.is_in_standby("node-1"), "the other node is not hit and must not go into standby"
    assert cluster.is_in_standby("node-0"), "it approves only from standby"
    assert cluster.state("node-0") == "IN_EVENT"
    assert _maintenance(service, maintenance_id)["state"] in {"started", "completed"}

    wait_for(lambda: _maintenance(service, maintenance_id)["state"] == "completed")

    def step_until_online() -> bool:
        for node in NODES:
            cluster.monitor(agent, node)
        return not cluster.is_in_standby("node-0")

    wait_for(step_until_online)
    assert cluster.state("node-0") == "AVAILABLE"
