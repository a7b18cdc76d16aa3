"""What a libvirt runs, as an inventory; and word of what changes there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from forewarn.actuators.libvirt_events import DomainEvent, follow_domains, keep_declared
from forewarn.actuators.libvirt_inventory import read_host, read_inventory
from forewarn.cli import inventory
from forewarn.core.inventory import Inventory
from forewarn.core.model import Host, Scope, ScopeKind, VirtualMachine
from forewarn.errors import ActuatorError, ConfigError, InvalidRequest, ServerUnreachable, Unauthorized
from forewarn.testing.lab import Lab
from forewarn.wire.inventory import (
    HostDeclarationIn,
    InventoryIn,
    VmIn,
    parse_inventory,
    to_host_declaration,
    to_inventory,
)
from tests.support.actuated import until
from tests.support.hypervisor import NEEDS_LIBVIRT, URI, Hypervisor, domain_xml, hypervisor
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.anyio, pytest.mark.slow, NEEDS_LIBVIRT]

MAC = "52:54:00:00:00:11"
WEB = (
    '<forewarn:vm xmlns:forewarn="urn:forewarn:vm" scope="web" kind="availability-set" fault_domain="1"'
    ' update_domain="3" priority="Spot"><forewarn:address>10.9.0.11</forewarn:address>'
    "<forewarn:address> fd00::11 </forewarn:address></forewarn:vm>"
)


def vm_element(attributes: str, inside: str = "") -> str:
    return f'<f:vm xmlns:f="urn:forewarn:vm" {attributes}>{inside}</f:vm>'


@pytest.fixture
def world() -> Iterator[Hypervisor]:
    with hypervisor() as made:
        yield made


# Reading


def test_domains_are_vms_with_what_libvirt_and_their_metadata_know(world: Hypervisor) -> None:
    world.connect.defineXML(domain_xml("web-0", WEB, mac=MAC)).create()
    world.connect.defineXML(domain_xml("db"))
    web, db = world.domain("web-0"), world.domain("db")
    assert read_inventory(URI, "host-1") == Inventory(
        hosts=(Host(name="host-1"),),
        scopes=(Scope(name="web", kind=ScopeKind.AVAILABILITY_SET),),
        vms=(
            VirtualMachine(name="db", host="host-1", vm_id=db.UUIDString(), size="2 vCPU, 4096 MiB"),
            VirtualMachine(
                name="web-0",
                host="host-1",
                scope="web",
                fault_domain=1,
                update_domain=3,
                addresses=("10.9.0.11", "fd00::11"),
                vm_id=web.UUIDString(),
                size="2 vCPU, 4096 MiB",
                priority="Spot",
                mac_address=MAC,
            ),
        ),
    )


def test_the_host_is_called_as_it_calls_itself_unless_told(world: Hypervisor) -> None:
    assert [host.name for host in read_inventory(URI).hosts] == [world.connect.getHostname()]


def test_a_size_that_somebody_has_named_is_kept(world: Hypervisor) -> None:
    world.connect.defineXML(domain_xml("gpu", vm_element('size="Standard_NC6" scope="s" kind="scale-set"')))
    (vm,) = read_inventory(URI, "host-1").vms
    assert vm.size_series == "NC"


@pytest.mark.parametrize(
    ("domains", "words"),
    [
        ({"a b": ""}, "domain a b: name: "),
        ({"web": vm_element('fault_domain="one"')}, "domain web: fault_domain: "),
        ({"web": vm_element('colour="red"')}, "domain web: unknown metadata attribute 'colour': expected one of "),
        ({"web": vm_element('scope="s" kind="circle"')}, "domain web: scope s: kind: "),
        (
            {"web": vm_element("", "<f:address>here</f:address>")},
            "domain web: addresses.0: 'here' is not an IP address",
        ),
        (
            {"a": vm_element('scope="s" kind="scale-set"'), "b": vm_element('scope="s"')},
            "domain b: scope s is of kind availability-set, and scale-set elsewhere",
        ),
        (
            {name: vm_element("", "<f:address>10.0.0.1</f:address>") for name in ("a", "b")},
            "inventory: duplicate address '10.0.0.1'",
        ),
    ],
)
def test_what_cannot_be_declared_is_named(world: Hypervisor, domains: dict[str, str], words: str) -> None:
    for name, metadata in domains.items():
        world.connect.defineXML(domain_xml(name, metadata))
    with pytest.raises(InvalidRequest) as caught:
        read_inventory(URI, "host-1")
    assert caught.value.message.startswith(words)
    assert caught.value.message.isprintable()


def test_a_libvirt_that_is_not_there_is_said() -> None:
    with pytest.raises(ActuatorError, match="cannot connect to libvirt at qemu"):
        read_inventory("qemu+unix:///system?socket=/no/such/socket")


def test_only_what_runs_is_claimed_from_another_host(world: Hypervisor) -> None:
    """A guest that is arriving by a live migration is there already, paused."""
    world.define("here", "arriving")
    world.define("off", is_running=False)
    world.domain("arriving").suspend()
    name, said = read_host(URI, "host-1")
    assert (name, [vm.name for vm in said.vms], said.idle) == (
        "host-1",
        ["arriving", "here", "off"],
        ["arriving", "off"],
    )


# Following


async def test_what_is_there_is_told_and_then_what_changes(world: Hypervisor) -> None:
    world.define("db")
    world.define("old", is_running=False)
    heard: list[DomainEvent] = []
    following = asyncio.create_task(follow_domains(URI, heard.append))
    await until(lambda: len(heard) >= 2)
    assert {(news.vm, news.kind, news.is_running) for news in heard[:2]} == {
        ("db", "present", True),
        ("old", "present", False),
    }
    world.domain("old").create()
    world.domain("db").suspend()
    world.domain("db").resume()
    world.domain("db").destroy()
    await until(lambda: heard[-1].kind == "stopped")
    # A busy libvirt may report the definitions, which it had queued, to those who registered after them.
    assert [(news.vm, news.kind, news.is_running) for news in heard[-4:]] == [
        ("old", "started", True),
        ("db", "suspended", False),
        ("db", "resumed", True),
        ("db", "stopped", False),
    ]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_libvirt_that_is_away_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "node.xml"
    heard: list[DomainEvent] = []
    following = asyncio.create_task(follow_domains(f"test://{file}", heard.append, reconnect_s=0.01))
    await asyncio.sleep(0.05)
    assert heard == []
    file.write_text(f"<node>{domain_xml('web-0')}</node>")
    await until(lambda: bool(heard))
    assert heard == [DomainEvent(vm="web-0", kind="present", is_running=True)]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_what_is_declared_follows_what_libvirt_runs(world: Hypervisor) -> None:
    """The whole way but the network: libvirt, its events, and the engine of a real service."""
    world.connect.defineXML(domain_xml("web-0", WEB, mac=MAC)).create()
    async with Lab(to_inventory(InventoryIn())).running() as lab:
        engine = lab.backend.engine

        async def declare(host: str, said: HostDeclarationIn) -> None:
            await engine.inventory.apply_host(to_host_declaration(host, said), actor="test")

        async def declared() -> dict[str, str]:
            found = await engine.read(lambda reader: reader.get_inventory())
            return {vm.name: vm.host for vm in found.vms}

        async def becomes(expected: dict[str, str]) -> None:
            async with asyncio.timeout(GUARD_S):
                while await declared() != expected:  # noqa: ASYNC110 - nobody tells when
                    await asyncio.sleep(0.02)

        following = asyncio.create_task(keep_declared(URI, declare, "host-1", settle_s=0.01))
        await becomes({"web-0": "host-1"})
        world.define("db")
        await becomes({"web-0": "host-1", "db": "host-1"})
        await declare("host-2", HostDeclarationIn(vms=[VmIn(name="db", host="host-2")]))  # it moved away
        assert await declared() == {"web-0": "host-1", "db": "host-2"}
        world.domain("db").destroy()
        world.define("other")
        await becomes({"web-0": "host-1", "db": "host-2", "other": "host-1"})
        world.domain("web-0").destroy()
        world.domain("web-0").undefine()
        await becomes({"db": "host-2", "other": "host-1"})
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_service_that_is_away_is_told_when_it_is_back(world: Hypervisor) -> None:
    world.define("db")
    told: list[list[str]] = []

    async def declare(_host: str, said: HostDeclarationIn) -> None:
        told.append([vm.name for vm in said.vms])
        if len(told) == 1:
            raise ServerUnreachable("it is away")

    following = asyncio.create_task(keep_declared(URI, declare, "host-1", retry_s=0.01))
    await until(lambda: len(told) >= 2)
    assert told[:2] == [["db"], ["db"]]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_wrong_token_ends_it(world: Hypervisor) -> None:
    world.define("db")

    async def declare(_host: str, _said: HostDeclarationIn) -> None:
        raise Unauthorized("this token is none")

    with pytest.raises(Unauthorized, match="this token is none"):
        await keep_declared(URI, declare, "host-1")


# The command


def command(*words: str) -> None:
    app = typer.Typer()
    app.add_typer(inventory.app)
    app(args=["inventory", "from-libvirt", *words], standalone_mode=False)


def test_the_command_prints_a_file_that_can_be_applied(world: Hypervisor, capsys: pytest.CaptureFixture[str]) -> None:
    world.connect.defineXML(domain_xml("web-0", WEB, mac=MAC))
    world.connect.defineXML(domain_xml("db"))
    command(URI, "--host", "host-1")
    printed = capsys.readouterr().out
    assert parse_inventory(printed.encode()) == read_inventory(URI, "host-1")
    assert printed.startswith("hosts:\n- name: host-1\nscopes:\n- name: web\n  kind: availability-set\n")
    command(URI, "--host", "host-1", "--json")
    assert parse_inventory(capsys.readouterr().out.encode()) == read_inventory(URI, "host-1")


def test_the_command_writes_a_file(world: Hypervisor, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.connect.defineXML(domain_xml("db"))
    command(URI, "--host", "host-1", "--out", str(tmp_path / "inventory.yaml"))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"1 VM of host-1 written to {tmp_path}/inventory.yaml\n")
    assert parse_inventory((tmp_path / "inventory.yaml").read_bytes()) == read_inventory(URI, "host-1")
    with pytest.raises(ConfigError, match="cannot write /no/such"):
        command(URI, "--out", "/no/such/folder/inventory.yaml")


WITHOUT = """
import sys
sys.modules["libvirt"] = None
from forewarn.errors import ConfigError
from forewarn.actuators.libvirt_inventory import read_inventory
from tests.support.spans import GUARD_S
try:
    read_inventory("test:///default")
except ConfigError as error:
    print(error.message)
"""


def test_without_the_library_it_says_what_to_install() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "libvirt's library for Python is missing: pip install 'forewarn[libvirt]'\n"
