"""The tutorial about a private cloud, followed as a reader would, on five machines that are namespaces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.guests.guest import Guest, define
from tests.guests.host import hosting, missing
from tests.guests.machines import CLOUD, Machine, address, cloud
from tests.support.databases import postgresql
from tests.support.documents import ROOT, files_in
from tests.support.processes import wait_for
from tests.support.terminal import Block, blocks

PAGE = ROOT / "docs/tutorial/private-cloud.md"
FILES = ROOT / "examples/cloud"
BOOT_S = 240


@pytest.mark.parametrize("name", sorted(files_in(PAGE)))
def test_a_file_that_the_page_shows_is_the_one_that_it_uses(name: str) -> None:
    assert files_in(PAGE)[name] == (FILES / name).read_text()


def test_everything_that_is_typed_is_typed_somewhere() -> None:
    typed = blocks(PAGE)
    assert len(typed) == PAGE.read_text().count("<!-- step ") + PAGE.read_text().count("<!-- look ")
    assert {machine for block in typed for machine in machines_of(block)} == set(CLOUD)
    assert len({block.name for block in typed}) == len(typed)


@pytest.mark.guests
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(missing() is not None, reason=f"real guests need {missing()}")
def test_a_private_cloud_in_an_afternoon() -> None:
    """All that the page promises is shown, and the guests have seen it too."""
    with hosting() as host_1, hosting() as host_2, postgresql() as server, server.database("template0") as database:
        web_0 = Guest(host_1, "web-0", "52:54:00:00:00:10")
        web_1 = Guest(host_2, "web-1", "52:54:00:00:00:11")
        define(host_1, web_0)
        define(host_2, web_1)
        with cloud({"host-1": host_1, "host-2": host_2}) as machines, _shown(machines, web_0, web_1):
            _write_files(machines, database.url)
            for block in blocks(PAGE):
                if block.name == "who asks":  # a reader has just seen it in the guests
                    wait_for(lambda: web_0.seen and web_1.seen, BOOT_S)
                for name in machines_of(block):
                    machines[name].reader.do(block)
        # A reboot and a rollout for both, a redeployment of web-0; while it was migrated it ran on.
        wait_for(lambda: len(web_0.lives) == 4, BOOT_S)
        assert len(web_1.lives) == 3
        assert "Freeze" in {e["EventType"] for doc in web_0.lives[2].documents for e in doc["Events"]}
        assert [web_0.lives[0].statuses[0], web_0.lives[0].statuses[-1]] == [[], ["Started"]]
        seen = {
            name for life in web_1.lives for doc in life.documents for e in doc["Events"] for name in e["Resources"]
        }
        assert seen == {"web-0", "web-1"}, "they are one availability set"


def machines_of(block: Block) -> list[str]:
    """Where it is to be typed."""
    return block.machine.split(", ")


def _write_files(machines: dict[str, Machine], database_url: str) -> None:
    """What a reader saves; with the ways to the database and to libvirt that there are here."""
    folder = machines["control-1"].root.parent
    settings = (FILES / "serve.env").read_text()
    libvirt = f"qemu+unix:///system?socket={folder}"
    for said, here in (
        ("postgresql://forewarn@control-1/forewarn", f"'{database_url}'"),
        ("qemu+ssh://root@{host}/system", f"{libvirt}/{{host}}.sock"),
        ("qemu+ssh://root@host-2/system|tcp://host-2", f"{libvirt}/host-2.sock|tcp://{address('host-2')}"),
        ("qemu+ssh://root@host-1/system|tcp://host-1", f"{libvirt}/host-1.sock|tcp://{address('host-1')}"),
    ):
        assert said in settings
        settings = settings.replace(said, here)
    (machines["control-1"].root / "etc/forewarn/serve.env").write_text(settings)
    for name in ("kernel.yaml", "hosts.yaml"):
        (machines["control-1"].root / "etc/forewarn" / name).write_text((FILES / name).read_text())


@contextmanager
def _shown(machines: dict[str, Machine], *guests: Guest) -> Iterator[None]:
    """What machines and guests have told, where the test has failed."""
    try:
        yield
    finally:
        for name, machine in machines.items():
            for file in sorted((machine.root / "log").glob("*.log")):
                sys.stdout.write(f"\n--- {name}: {file.name}\n{file.read_text(errors='replace')}")
        for guest in guests:
            sys.stdout.write(f"\n--- console of {guest.name}\n{guest.console}")
