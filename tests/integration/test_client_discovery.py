"""Endpoint discovery against a real DHCP server, dnsmasq, and against answers that no server should give."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forewarn.client.discovery import VARIABLE
from tests.support.namespaces import Network, missing, network
from tests.support.processes import served, wait_for
from tests.support.spans import GUARD_S

VM = "10.9.0.11"
ENDPOINT = "168.63.129.16"
MAC = "02:00:00:00:00:11"

ASK = """
import json, os, sys
from forewarn.client import Client, EndpointError
from forewarn.client.discovery import discover, endpoint_url
asked = json.loads(sys.argv[1])
os.setuid(asked.pop("uid", 0))
fetches = asked.pop("fetches", False)
try:
    found = discover(**asked)
except EndpointError as error:
    print(json.dumps({"error": str(error)}))
else:
    made = Client(endpoint_url(found)).fetch().incarnation if fetches else None
    print(json.dumps({"found": found, "incarnation": made}))
"""

ANSWER = """
import json, socket, sys, time
replies, seconds = json.loads(sys.argv[1])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"br0")
sock.bind(("0.0.0.0", 67))
print("ready", flush=True)
asked = sock.recv(2048)
until = time.perf_counter() + seconds
while True:
    for xid, options in replies:
        head = b"\\x02" + asked[1:4] + (asked[4:8] if xid is None else bytes.fromhex(xid)) + asked[8:240]
        sock.sendto(head + bytes.fromhex(options), ("255.255.255.255", 68))
    if time.perf_counter() >= until:
        break
"""


def lacking() -> str | None:
    if (what := missing()) is not None:
        return f"network namespaces, which need {what}"
    return None if shutil.which("dnsmasq") else "dnsmasq (Debian's package dnsmasq-base)"


pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(lacking() is not None, reason=f"discovery is tested with {lacking()}"),
]


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=GUARD_S)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Network]:
    """A VM whose way to the endpoint leads over its gateway, as outside a virtual network."""
    with network([VM]) as made:
        run(*made.on_host("ip", "addr", "add", f"{ENDPOINT}/32", "dev", "br0"))
        run(*made.in_vm(VM, "ip", "link", "set", "eth0", "address", MAC))
        run(*made.in_vm(VM, "ip", "route", "add", "default", "via", "10.9.0.1"))
        yield made


@contextmanager
def dnsmasq(cloud: Network, folder: Path, *options: str) -> Iterator[None]:
    log = folder / "dnsmasq.log"
    command = cloud.on_host(
        "dnsmasq",
        *("--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--group=root", "--pid-file="),
        *("--port=0", "--interface=br0", "--bind-interfaces", "--no-ping", "--dhcp-authoritative"),
        *("--dhcp-range=10.9.0.50,10.9.0.60,1h", f"--dhcp-host={MAC},{VM}"),
        *(f"--dhcp-leasefile={folder}/leases", f"--log-facility={log}", "--log-dhcp", *options),
    )
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: log.exists() and "DHCP, sockets bound" in log.read_text())
            yield
        finally:
            process.terminate()


@contextmanager
def answering(cloud: Network, *replies: tuple[str | None, str], seconds: float = 0) -> Iterator[None]:
    """Answers made of an xid (None: the right one) and options, sent again and again for so long."""
    command = cloud.on_host(sys.executable, "-c", ANSWER, json.dumps([replies, seconds]))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


def ask(cloud: Network, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - what the command takes and prints
    command = cloud.in_vm(VM, sys.executable, "-c", ASK, json.dumps({"waits_s": [0], "timeout_s": 3} | options))
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environment)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("options", [{}, {"interface": "eth0"}], ids=["any interface", "eth0"])
def test_dnsmasq_says_where_the_endpoint_is(cloud: Network, tmp_path: Path, options: dict[str, Any]) -> None:
    """R94, R95: a server of everyday use takes the request, and its answer is read."""
    with dnsmasq(cloud, tmp_path, f"--dhcp-option-force=245,{ENDPOINT}"):
        assert ask(cloud, **options) == {"found": ENDPOINT, "incarnation": None}
    log = (tmp_path / "dnsmasq.log").read_text()
    assert f"DHCPDISCOVER(br0) {MAC}" in log
    assert f"DHCPOFFER(br0) {VM} {MAC}" in log


def test_the_endpoint_that_was_found_is_asked(cloud: Network, tmp_path: Path) -> None:
    """R94 to R96: from the broadcast to the document."""
    inventory = tmp_path / "inventory.json"
    vm = {"name": "one", "host": "host-1", "addresses": [VM]}
    inventory.write_text(json.dumps({"hosts": [{"name": "host-1"}], "vms": [vm]}))
    listen = f"{ENDPOINT}:80,{ENDPOINT}:8080"
    with (
        dnsmasq(cloud, tmp_path, f"--dhcp-option-force=245,{ENDPOINT}"),
        served(tmp_path, "--inventory", str(inventory), prefix=cloud.on_host(), metadata_listen=listen),
    ):
        assert ask(cloud, fetches=True) == {"found": ENDPOINT, "incarnation": 1}


def test_a_server_that_knows_no_endpoint_is_no_help(cloud: Network, tmp_path: Path) -> None:
    """R95: its answer is an answer, but not to this question."""
    with dnsmasq(cloud, tmp_path):
        said = ask(cloud, waits_s=[0, 0.1], timeout_s=3)
    assert said["error"].startswith("no DHCP server announced the metadata endpoint in 2 tries of 3 s")
    assert (tmp_path / "dnsmasq.log").read_text().count(f"DHCPOFFER(br0) {VM} {MAC}") == 2


def test_without_a_server_the_message_says_what_to_do(cloud: Network) -> None:
    """R94."""
    assert ask(cloud, waits_s=[0, 0.1, 0.1], timeout_s=0.2)["error"] == (
        "no DHCP server announced the metadata endpoint in 3 tries of 0.2 s (no answer): "
        "use 169.254.169.254 in a virtual network; elsewhere set the address of the endpoint"
    )


def test_answers_to_others_are_passed_over(cloud: Network) -> None:
    """R95: with another xid, without the option, cut off; the right one comes last."""
    replies = [("00000000", "f50401020304ff"), (None, "ff"), (None, "f504"), (None, "00f504a83f8110ff")]
    with answering(cloud, *replies):
        assert ask(cloud)["found"] == ENDPOINT


def test_a_flood_of_answers_to_others_ends_in_time(cloud: Network) -> None:
    """R94, R95: there is always another packet to read, and still the time is over."""
    with answering(cloud, ("00000000", "f50401020304ff"), seconds=8):
        assert "1 tries of 0.5 s" in ask(cloud, timeout_s=0.5)["error"]


def test_who_is_not_root_is_told(cloud: Network) -> None:
    """R94."""
    assert ask(cloud, uid=65534)["error"] == (
        "cannot listen for DHCP answers on UDP port 68 of every interface: Permission denied; "
        "run as root or with CAP_NET_BIND_SERVICE, and stop any other program that uses the port"
    )


def test_an_interface_that_is_not_there_is_named(cloud: Network) -> None:
    """R94."""
    said = ask(cloud, interface="eth9", mac=None)["error"]
    assert said.startswith("cannot listen for DHCP answers on UDP port 68 of interface eth9: No such device")


def test_a_network_that_is_down_is_named(cloud: Network) -> None:
    """R94: it may come up between two tries."""
    run(*cloud.in_vm(VM, "ip", "route", "del", "default"))
    try:
        assert "(Network is unreachable)" in ask(cloud, timeout_s=0.2)["error"]
    finally:
        run(*cloud.in_vm(VM, "ip", "route", "add", "default", "via", "10.9.0.1"))
