"""Scenario files, read: every fault is named with its line and with what was expected."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from forewarn.config import said_settings
from forewarn.core.inventory import Inventory
from forewarn.errors import ConfigError, InvalidRequest, NotFound
from forewarn.testing.scenario import MODES, FaultStep, HostStep, Mode, ScenarioIn, Schedule, Step, VmStep
from forewarn.wire.inventory import parse_inventory
from forewarn.wire.yaml_source import Place, YamlSource

__all__ = ["Scenario", "load_scenario", "parse_scenario", "shipped_scenarios"]

_SIZE_BYTES_MAX = 1 << 20
_SETTINGS = frozenset(
    {
        "announce_delay",
        "cloud",
        "deferrals_max",
        "disable_after",
        "first_answer_delay",
        "initial_incarnation",
        "legacy_latest",
        "notbefore_2017_03_01",
        "policy_delay",
        "post_body",
        "rate_limit_per_s",
        "require_metadata_2017_03_01",
        "simulate_complete_after",
        "simulate_impact_after",
        "start_delay",
        "unknown_event",
        "user_operations_max",
    }
)
"""Settings that a scenario may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario that can be played.

    Attributes:
        name: That of its file, without the suffix.
        inventory: Hosts, scopes and VMs.
        handler: The VM whose handler is tried.
        steps: The timeline.
        lines: Where each step stands in its file, from 1.
        event_ids: Ids of the first events.
        settings: Settings of the service.
        only: Whether it is for playing only, or only for trying handlers; None: for both.
        reboot: Whether a Reboot or Redeploy that hits the handler's VM kills the handler, and starts it again.
        environment: Variables that the handler finds.
    """

    name: str
    title: str
    description: str
    inventory: Inventory
    handler: str
    steps: tuple[Step, ...]
    lines: tuple[int, ...]
    event_ids: tuple[str, ...]
    settings: dict[str, Any]
    only: Mode | None = None
    reboot: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def shipped_scenarios() -> list[str]:
    """The names of those that come with Forewarn, in alphabetical order."""
    folder = resources.files("forewarn.testing") / "scenarios"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_scenario(name_or_file: str) -> Scenario:
    """A scenario that comes with Forewarn, by its name, or one of a file.

    Raises:
        NotFound: There is no such name, and no such file.
        ConfigError: The file cannot be read, or its scenario cannot be played; with the line.
    """
    if name_or_file in shipped_scenarios():
        entry = resources.files("forewarn.testing") / "scenarios" / f"{name_or_file}.yaml"
        return parse_scenario(entry.read_bytes(), name_or_file)
    path = Path(name_or_file)
    if not path.is_file():
        msg = f"there is no scenario {name_or_file!r}, and no such file: see 'forewarn scenario list'"
        raise NotFound(msg, name=name_or_file)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _SIZE_BYTES_MAX:
            msg = f"{path}: {size_bytes} bytes are more than the {_SIZE_BYTES_MAX} that a scenario may have"
            raise ConfigError(msg)
        content = path.read_bytes()
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise ConfigError(msg) from error
    return parse_scenario(content, path.stem, str(path))


def parse_scenario(content: bytes, name: str, where: str = "") -> Scenario:
    """A scenario from the content of its file.

    Args:
        content: YAML.
        name: What it is called.
        where: The file, for errors; empty: the name.

    Raises:
        ConfigError: It cannot be played; with the line, and what was expected.
    """
    source = YamlSource(where or name, size_bytes_max=_SIZE_BYTES_MAX, kind="scenario", fault=ConfigError)
    parsed = source.validate(ScenarioIn, source.read(content))
    inventory = _inventory(source, parsed)
    _check_steps(source, parsed, inventory)
    settings = _settings(source, parsed)
    return Scenario(
        name=name,
        title=parsed.title,
        description=parsed.description.strip(),
        inventory=inventory,
        handler=parsed.handler or inventory.vms[0].name,
        steps=parsed.timeline,
        lines=tuple(source.line(("timeline", number)) for number in range(len(parsed.timeline))),
        event_ids=parsed.event_ids,
        settings=settings,
        only=parsed.only,
        reboot=parsed.reboot,
        environment=parsed.environment,
    )


def _inventory(source: YamlSource, parsed: ScenarioIn) -> Inventory:
    try:
        inventory = parse_inventory(yaml.safe_dump(parsed.inventory).encode())
    except InvalidRequest as error:
        raise source.error(("inventory",), f"inventory: {error.message}") from error
    if not inventory.vms:
        raise source.error(("inventory",), "inventory: at least one VM is expected")
    if parsed.handler is not None and parsed.handler not in {vm.name for vm in inventory.vms}:
        raise source.error(("handler",), f"handler: there is no VM {parsed.handler!r} in the inventory")
    return inventory


def _settings(source: YamlSource, parsed: ScenarioIn) -> dict[str, Any]:
    for name in parsed.settings:
        if name not in _SETTINGS:
            expected = ", ".join(sorted(_SETTINGS))
            raise source.error(("settings", name), f"a scenario has no setting {name!r}: expected one of {expected}")
    try:
        said_settings(**parsed.settings)
    except ConfigError as error:
        raise source.error(("settings", str(error.details["setting"])), error.message) from error
    return dict(parsed.settings)


def _check_steps(source: YamlSource, parsed: ScenarioIn, inventory: Inventory) -> None:
    """What a step names must be there, operations begin once and before they are named, and time does not go back."""
    declared = {
        "VM": {vm.name for vm in inventory.vms},
        "host": {host.name for host in inventory.hosts},
    }
    begun: dict[Mode, set[str]] = {mode: set() for mode in MODES}
    least = timedelta(0)
    for number, step in enumerate(parsed.timeline):
        place: Place = ("timeline", number)
        for what, names in (("VM", _vms_of(step)), ("host", _hosts_of(step))):
            missing = [name for name in names if name not in declared[what]]
            if missing:
                raise source.error((*place, step.verb), f"there is no {what} {missing[0]!r} in the inventory")
        for mode in MODES if step.only is None else (step.only,):
            _check_operations(source, place, step, begun[mode])
        if step.at is not None and not step.at.is_relative and step.at.span < least:
            words = f"at: this is before the step above it, which is at {least.total_seconds():g} s at the earliest"
            raise source.error((*place, "at"), words)
        if step.at is not None:
            least = least + step.at.span if step.at.is_relative else step.at.span


def _check_operations(source: YamlSource, place: Place, step: Step, begun: set[str]) -> None:
    for operation in step.refers:
        if operation not in begun:
            words = f"no step before this one begins an operation {operation!r}: name it there with 'as'"
            raise source.error(place, words)
    if step.makes is None:
        return
    if step.makes in begun:
        words = f"an operation {step.makes!r} began before: name this one otherwise, for example 'as: {step.makes}-2'"
        raise source.error((*place, step.verb), words)
    begun.add(step.makes)


def _vms_of(step: Step) -> tuple[str, ...]:
    action = step.action
    if step.verb == "poll":
        return step.poll or ()
    if isinstance(action, VmStep):
        return (action.name,)
    if isinstance(action, Schedule | FaultStep):
        return action.vms or ()
    named = getattr(action, "by", None) or getattr(action, "vm", None)
    return (named,) if isinstance(named, str) else ()


def _hosts_of(step: Step) -> tuple[str, ...]:
    if isinstance(step.action, HostStep):
        return (step.action.name,)
    return (step.action.hosts or ()) if isinstance(step.action, Schedule) else ()
