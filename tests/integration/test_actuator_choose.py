"""Which actuator the settings make; and that the page about actuators shows what works."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import pytest

from forewarn.actuators import Simulate
from forewarn.actuators.exec import EXIT_NEVER_BEGUN, EXIT_RUN_AGAIN, EXIT_STILL_RUNNING, VARIABLES, Exec
from forewarn.actuators.factory import make_actuator
from forewarn.actuators.libvirt_inventory import read_inventory
from forewarn.actuators.webhook import Webhook
from forewarn.clock import RealClock
from forewarn.config.loading import make_settings
from forewarn.config.settings import Settings
from forewarn.errors import ActuationFailed, ActuatorError, ConfigError
from forewarn.util.duration import parse_duration
from tests.support.actuated import started
from tests.support.documents import ROOT, files_in
from tests.support.hypervisor import NEEDS_LIBVIRT, URI, domain_xml, hypervisor
from tests.support.operator_service import answer, operator_service

pytestmark = pytest.mark.anyio

PAGE = ROOT / "docs/how-to/actuators.md"
CLOCK = RealClock()


@dataclass(frozen=True, kw_only=True)
class Said:
    """Settings as the service has them, with their defaults."""

    state_dir: Path
    actuator: Literal["simulate", "exec", "webhook", "libvirt"] = "simulate"
    actuator_look_every: timedelta = timedelta(milliseconds=20)
    simulate_impact_after: timedelta = timedelta(seconds=7)
    simulate_complete_after: timedelta | None = timedelta(minutes=10)
    exec_command: str = ""
    exec_observe_command: str = ""
    exec_abort_command: str = ""
    exec_deadline: timedelta = timedelta(hours=1)
    exec_observe_deadline: timedelta = timedelta(seconds=30)
    exec_output_size_bytes_max: int = 64 << 10
    exec_runs_max: int = 1000
    exec_on_lost: Literal["fail", "repeat"] = "fail"
    webhook_url: str = ""
    webhook_secret_file: Path | None = None
    webhook_deadline: timedelta = timedelta(seconds=20)
    webhook_answer_size_bytes_max: int = 64 << 10
    libvirt_uri: str = "qemu:///system"
    libvirt_destination: str = ""
    libvirt_freeze: timedelta = timedelta(seconds=5)
    libvirt_shutdown_timeout: timedelta = timedelta(minutes=2)
    libvirt_migration_timeout: timedelta = timedelta(minutes=30)
    libvirt_call_timeout: timedelta = timedelta(seconds=30)


def said(folder: Path, **values: Any) -> Settings:  # noqa: ANN401 - settings of any kind
    return cast("Settings", Said(state_dir=folder, **values))


def shown(name: str, folder: Path, **changed: Any) -> Settings:  # noqa: ANN401 - settings of any kind
    """The settings that the page shows in a file, with what a test has elsewhere."""
    values: dict[str, Any] = tomllib.loads(files_in(PAGE)[name])
    spans = {field.name for field in fields(Said) if field.type == "timedelta"}
    read = {key: parse_duration(value) if key in spans else value for key, value in values.items()}
    return said(folder, **(read | changed))


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def refusal(settings: Settings) -> str:
    with pytest.raises(ConfigError) as caught:
        make_actuator(settings, CLOCK)
    assert caught.value.message.isprintable()
    return caught.value.message


# Choosing


def test_nothing_said_is_simulate(tmp_path: Path) -> None:
    assert isinstance(make_actuator(said(tmp_path), CLOCK), Simulate)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "exec_command" in refusal(said(tmp_path, actuator="exec"))
    assert "exec_command" in refusal(said(tmp_path, actuator="exec", exec_command="'open"))
    secret = tmp_path / "secret"
    secret.write_text("shared\n")
    assert "webhook_secret_file" in refusal(said(tmp_path, actuator="webhook", webhook_url="https://example.org"))
    assert "webhook_url" in refusal(said(tmp_path, actuator="webhook", webhook_secret_file=secret))
    absent = tmp_path / "absent"
    assert str(absent) in refusal(said(tmp_path, actuator="webhook", webhook_url="", webhook_secret_file=absent))


@pytest.mark.slow
@NEEDS_LIBVIRT
def test_a_destination_that_is_none_is_named(tmp_path: Path) -> None:
    assert "libvirt_destination" in refusal(said(tmp_path, actuator="libvirt", libvirt_destination="host-9"))


WITHOUT = """
import sys
sys.path.insert(0, {root!r})
sys.modules["libvirt"] = None
from pathlib import Path
from forewarn.clock import RealClock
from forewarn.errors import ActuationFailed, ConfigError
from forewarn.actuators.factory import make_actuator
from tests.integration.test_actuator_choose import Said
make_actuator(Said(state_dir=Path("."), actuator="exec", exec_command="true"), RealClock())
try:
    make_actuator(Said(state_dir=Path("."), actuator="libvirt"), RealClock())
except ConfigError as error:
    print(error.message)
"""


def test_without_its_library_the_one_that_needs_it_says_what_to_install() -> None:
    code = WITHOUT.format(root=str(ROOT))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "libvirt's library for Python is missing: pip install 'forewarn[libvirt]'\n"


def test_the_service_has_the_settings_that_are_asked_for(tmp_path: Path) -> None:
    settings = make_settings(state_dir=tmp_path)
    expected = Said(state_dir=tmp_path)
    names = {field.name for field in fields(Said)} - {"actuator_look_every"}
    assert {name: getattr(settings, name) for name in names} == {name: getattr(expected, name) for name in names}


# The page


async def test_the_command_of_the_page_carries_a_maintenance_out(tmp_path: Path) -> None:
    command = program(tmp_path, "carry-out", files_in(PAGE)["carry-out"])
    actuator = make_actuator(shown("exec.toml", tmp_path, exec_command=command), CLOCK)
    await actuator.check()
    maintenance = started("web-0", "web-1")
    progress = await actuator.execute(maintenance, CLOCK.now())
    while not progress.is_complete:
        await asyncio.sleep(0.01)
        progress = await actuator.observe(maintenance, CLOCK.now()) or progress
    assert isinstance(actuator, Exec)
    assert actuator._get_run(maintenance).read_outcome().output == "pausing web-0\npausing web-1\n"


async def test_the_commands_of_the_page_are_all_used(tmp_path: Path) -> None:
    commands = {
        "exec_command": program(tmp_path, "carry-out", files_in(PAGE)["carry-out"]),
        "exec_observe_command": program(tmp_path, "how-far", f"#!/bin/sh\nexit {EXIT_NEVER_BEGUN}\n"),
        "exec_abort_command": program(tmp_path, "take-back", f"#!/bin/sh\ntouch {tmp_path}/taken-back\n"),
    }
    actuator = make_actuator(shown("exec-observed.toml", tmp_path, **commands), CLOCK)
    await actuator.check()
    assert actuator.is_observable
    assert await actuator.observe(started("web-0"), CLOCK.now()) is None
    await actuator.execute(started("web-0"), CLOCK.now())
    await actuator.abort(started("web-0"), CLOCK.now())
    assert (tmp_path / "taken-back").exists()


def test_the_page_tells_every_variable_and_exit_status_as_they_are() -> None:
    rows = re.findall(r"^\| `?([^`|]+?)`? \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: what for name, what in rows if name.startswith("FOREWARN_")} == VARIABLES
    told = {name for name, _ in rows}
    assert {str(EXIT_RUN_AGAIN), str(EXIT_STILL_RUNNING), str(EXIT_NEVER_BEGUN)} <= told


@contextmanager
def receiver(folder: Path, secret: Path) -> Iterator[int]:
    """The service of the page, as a process; its port."""
    (folder / "receiver.py").write_text(files_in(PAGE)["receiver.py"])
    command = [sys.executable, str(folder / "receiver.py"), str(secret), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def test_the_service_of_the_page_carries_a_maintenance_out_and_refuses_who_has_another_secret(
    tmp_path: Path,
) -> None:
    secret, other = tmp_path / "secret", tmp_path / "other"
    secret.write_text("shared\n")
    other.write_text("another\n")
    with receiver(tmp_path, secret) as port:
        settings = shown("webhook.toml", tmp_path, webhook_secret_file=secret)
        url = settings.webhook_url.replace("https://cloud.example.org", f"http://127.0.0.1:{port}")
        assert urlsplit(url).path == "/maintenances"
        wrong = make_actuator(shown("webhook.toml", tmp_path, webhook_url=url, webhook_secret_file=other), CLOCK)
        with pytest.raises(ActuatorError, match="answered 401"):
            await wrong.check()
        await wrong.close()
        actuator = make_actuator(shown("webhook.toml", tmp_path, webhook_url=url, webhook_secret_file=secret), CLOCK)
        assert isinstance(actuator, Webhook)
        await actuator.check()
        maintenance = started("web-0")
        assert await actuator.observe(maintenance, CLOCK.now()) is None
        progress = await actuator.execute(maintenance, CLOCK.now())
        while not progress.is_complete:
            await asyncio.sleep(0.05)
            progress = await actuator.observe(maintenance, CLOCK.now()) or progress
        assert progress.impact_s is not None
        assert progress.impact_s > 0.2
        await actuator.abort(maintenance, CLOCK.now())
        await actuator.close()


@pytest.mark.parametrize("line", files_in(PAGE)["answers.jsonl"].splitlines())
async def test_the_answers_of_the_page_mean_what_it_says(tmp_path: Path, line: str) -> None:
    state = json.loads(line)["state"]
    async with operator_service() as service:
        service.script = lambda _asked: answer(200, line.encode())
        actuator = Webhook(service.url, "shared")
        if state in {"failed", "unknown"}:
            with pytest.raises(ActuatorError, match=json.loads(line)["reason"]) as told:
                await actuator.observe(started("web-0"), CLOCK.now())
            assert isinstance(told.value, ActuationFailed) == (state == "failed")
        else:
            progress = await actuator.observe(started("web-0"), CLOCK.now())
            assert progress is not None
            assert progress.is_complete == (state == "completed")
        await actuator.close()


@pytest.mark.slow
@NEEDS_LIBVIRT
async def test_the_libvirt_settings_of_the_page_are_understood(tmp_path: Path) -> None:
    actuator = make_actuator(shown("libvirt.toml", tmp_path), CLOCK)
    lines = [line for host in ("host-1", "host-2") for line in actuator.plan(started("web-0", host=host))]
    assert lines == [
        "migrate web-0 from qemu+ssh://root@host-1/system to qemu+tls://host-9/system while it runs",
        "migrate web-0 from qemu+ssh://root@host-2/system to qemu+tls://spare/system while it runs",
    ]
    await actuator.close()


@pytest.mark.slow
@NEEDS_LIBVIRT
def test_the_metadata_of_the_page_is_read() -> None:
    with hypervisor() as world:
        world.connect.defineXML(domain_xml("web-0", files_in(PAGE)["metadata.xml"]))
        (vm,) = read_inventory(URI, "host-1").vms
    assert (vm.scope, vm.fault_domain, vm.update_domain, vm.addresses) == ("web", 0, 1, ("10.9.0.11",))
