"""VMs in network namespaces of their own ask 169.254.169.254:80, as they would in a cloud."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.namespaces import METADATA_ADDRESS, Network, missing, network
from tests.support.processes import Served, served
from tests.support.spans import GUARD_S

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(missing() is not None, reason=f"network namespaces need {missing()}"),
]

WEB_0, WEB_1, DB, STRANGER = "10.9.0.11", "10.9.0.12", "10.9.0.13", "10.9.0.99"
URL = f"http://{METADATA_ADDRESS}/metadata/scheduledevents?api-version=2020-07-01"
INVENTORY = {
    "hosts": [{"name": "host-1"}],
    "scopes": [{"name": "web", "kind": "availability-set"}],
    "vms": [
        {"name": "WestNO_0", "host": "host-1", "scope": "web", "addresses": [WEB_0]},
        {"name": "WestNO_1", "host": "host-1", "scope": "web", "update_domain": 1, "addresses": [WEB_1]},
        {"name": "db", "host": "host-1", "addresses": [DB]},
    ],
}
URLLIB = """
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Metadata": "true"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""
RAW = """
import socket, sys
sock = socket.create_connection((sys.argv[1], 80), timeout=60)
request = f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\nMetadata: true\\r\\nConnection: close\\r\\n\\r\\n"
sock.sendall(request.encode())
answer = b""
while piece := sock.recv(65536):
    answer += piece
print(answer.partition(b"\\r\\n\\r\\n")[2].decode())
"""


@pytest.fixture(scope="module")
def cloud() -> Iterator[Network]:
    with network([WEB_0, WEB_1, DB, STRANGER]) as made:
        yield made


@pytest.fixture(scope="module")
def service(cloud: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("namespaces")
    inventory = folder / "inventory.json"
    inventory.write_text(json.dumps(INVENTORY))
    prefix = cloud.on_host()
    listen = f"{METADATA_ADDRESS}:80"
    with served(folder, "--inventory", str(inventory), prefix=prefix, metadata_listen=listen) as running:
        yield running


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=GUARD_S).stdout


def _curl(cloud: Network, address: str, *options: str, url: str = URL) -> str:
    command = ("curl", "-sS", "--max-time", "60", "--noproxy", "*", "-H", "Metadata:true", *options, url)
    return _output(cloud.in_vm(address, *command))


def _urllib(cloud: Network, address: str) -> str:
    return _output(cloud.in_vm(address, sys.executable, "-c", URLLIB, URL))


def _raw(cloud: Network, address: str) -> str:
    path = URL.removeprefix(f"http://{METADATA_ADDRESS}")
    return _output(cloud.in_vm(address, sys.executable, "-c", RAW, METADATA_ADDRESS, path))


@pytest.fixture(scope="module")
def announced(cloud: Network, service: Served) -> list[dict[str, object]]:
    """Every VM has asked once, then a live migration of their host was announced; its maintenance's events."""
    for address in (WEB_0, WEB_1, DB):
        assert json.loads(_curl(cloud, address)) == {"DocumentIncarnation": 1, "Events": []}
    made = service.forewarn("maintenance", "schedule", "--host", "host-1", "--type", "Freeze")
    items: list[dict[str, object]] = (made["items"] if isinstance(made, dict) else made)[0]["events"]
    return items


@pytest.mark.parametrize("ask", [_curl, _urllib, _raw], ids=["curl", "urllib", "raw socket"])
def test_each_client_sees_the_events_of_its_own_scope_and_no_others(
    cloud: Network, announced: list[dict[str, object]], ask: object
) -> None:
    """R1, R2, R58, R85: curl, urllib and a raw socket, each in its VM, on the address and port of the real endpoint."""
    assert callable(ask)
    web = {str(e["id"]) for e in announced if e["scope"] == "web"}
    db = {str(e["id"]) for e in announced if e["scope"] == "db"}
    assert len(web) == 2
    assert len(db) == 1
    for address, expected in ((WEB_0, web), (WEB_1, web), (DB, db)):
        events = json.loads(ask(cloud, address))["Events"]
        assert {e["EventId"] for e in events} == expected
        names = {name for e in events for name in e["Resources"]}
        assert ("db" in names) == (address == DB)


def test_an_address_of_no_vm_gets_404(cloud: Network, announced: list[dict[str, object]]) -> None:
    """R2: whoever is not in the inventory sees nothing."""
    status = _curl(cloud, STRANGER, "-o", "/dev/null", "-w", "%{http_code}")
    assert status == "404"


def test_no_header_makes_a_vm_pass_for_another(cloud: Network, announced: list[dict[str, object]]) -> None:
    """R2, R13, invariant 8: a forwarded address is refused, and so is another name in Host."""
    forwarded = _curl(cloud, DB, "-H", f"X-Forwarded-For: {WEB_0}", "-o", "/dev/null", "-w", "%{http_code}")
    assert forwarded == "400"
    assert _curl(cloud, DB, "-H", "Host: WestNO_0", "-o", "/dev/null", "-w", "%{http_code}") == "400"
    renamed = json.loads(_curl(cloud, DB, "-H", f"Host: {WEB_0}"))
    assert {name for e in renamed["Events"] for name in e["Resources"]} == {"db"}


def test_a_vm_cannot_approve_the_event_of_another_tenant(cloud: Network, announced: list[dict[str, object]]) -> None:
    """R55, R85."""
    foreign = next(str(e["id"]) for e in announced if e["scope"] == "web")
    body = json.dumps({"StartRequests": [{"EventId": foreign}]})
    assert _curl(cloud, DB, "-d", body, "-o", "/dev/null", "-w", "%{http_code}") == "400"
    events = json.loads(_curl(cloud, WEB_0))["Events"]
    assert {e["EventStatus"] for e in events} == {"Scheduled"}
