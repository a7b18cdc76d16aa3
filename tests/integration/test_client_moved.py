"""A VM that is moved to another host while its request is held: the new host knows nothing of the connection."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.drivers import DRIVERS
from tests.support.namespaces import METADATA_ADDRESS, missing, network
from tests.support.processes import served
from tests.support.spans import GUARD_S

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.timeout(120),
    pytest.mark.skipif(missing() is not None, reason=f"network namespaces need {missing()}"),
]

VM, NEW_HOST = "10.9.0.11", "10.9.0.12"
FOLLOW = f"""
import sys
sys.path.insert(0, sys.argv[1])
from forewarn.client import Pace
from tests.support.drivers import DRIVERS
with DRIVERS[sys.argv[2]]("http://{METADATA_ADDRESS}", Pace(wait_s=300, first_timeout_s=60)) as client:
    for told in client.follow():
        print(type(told).__name__, flush=True)
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_held_request_of_a_vm_that_was_moved_is_soon_given_up(tmp_path: Path, driver: str) -> None:
    """X1, R104: within seconds, not when the five minutes for which it was to be held are over."""
    inventory = tmp_path / "inventory.json"
    vm = {"name": "one", "host": "host-1", "addresses": [VM]}
    inventory.write_text(json.dumps({"hosts": [{"name": "host-1"}], "vms": [vm]}))
    listen = f"{METADATA_ADDRESS}:80"
    root = str(Path(__file__).parents[2])
    with (
        network([VM, NEW_HOST]) as cloud,
        served(tmp_path, "--inventory", str(inventory), prefix=cloud.on_host(), metadata_listen=listen),
        subprocess.Popen(
            cloud.in_vm(VM, sys.executable, "-c", FOLLOW, root, driver), stdout=subprocess.PIPE, text=True
        ) as client,
    ):
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "PollAnswered\n"
            time.sleep(0.5)
            for command in (
                cloud.on_host("ip", "addr", "del", f"{METADATA_ADDRESS}/32", "dev", "br0"),
                cloud.in_vm(NEW_HOST, "ip", "addr", "add", f"{METADATA_ADDRESS}/32", "dev", "eth0"),
                cloud.in_vm(VM, "ip", "neigh", "flush", "dev", "eth0"),
            ):
                subprocess.run(command, check=True, capture_output=True, timeout=GUARD_S)
            assert client.stdout.readline() == "PollFailed\n"  # the test's time-out is shorter than the hold
        finally:
            client.kill()
