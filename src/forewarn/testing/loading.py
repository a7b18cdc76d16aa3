"""Loading of scenario files: every fault is reported with its line and the expected value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from forewarn.config import said_settings
from forewarn.core.inventory import Inventory
from forewarn.errors import ConfigError, ForewarnError, InvalidRequest
from forewarn.testing.parameters import Scalar
from forewarn.testing.scenario import MODES, SETTINGS, FaultStep, HostStep, Mode, ScenarioIn, Schedule, Step, VmStep
from forewarn.testing.scenario_file import (
    Faulty,
    Placed,
    ScenarioFile,
    expand_includes,
    find_scenario,
    read_scenario,
    shipped_scenarios,
)
from forewarn.wire.inventory import InventoryIn, parse_inventory
from forewarn.wire.suggestion import suggest
from forewarn.wire.yaml_source import Place, YamlSource

__all__ = ["Scenario", "check_scenario", "load_scenario", "parse_scenario", "shipped_scenarios"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario that can be played.

    Attributes:
        name: Name of its file, without the suffix.
        inventory: Hosts, scopes and VMs.
        handler: Name of the VM whose handler is tried.
        steps: The timeline.
        lines: Line of each step in its file, from 1.
        files: The included file of each step; empty for a step of the scenario's own file.
        event_ids: Ids of the first events.
        settings: Settings of the service.
        only: The one mode it is for; None for both.
        reboot: True if a Reboot or Redeploy that affects the handler's VM kills and restarts the handler.
        environment: Environment variables for the handler.
    """

    name: str
    title: str
    description: str
    inventory: Inventory
    handler: str
    steps: tuple[Step, ...]
    lines: tuple[int, ...]
    files: tuple[str, ...]
    event_ids: tuple[str, ...]
    settings: dict[str, Any]
    only: Mode | None = None
    reboot: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def load_scenario(name_or_file: str, given: Mapping[str, Scalar] | None = None) -> Scenario:
    """Return a shipped scenario by its name, or the scenario in a file.

    Args:
        name_or_file: Name of a shipped scenario, or path of a file.
        given: Values of parameters that replace their defaults.

    Raises:
        NotFound: There is neither a scenario nor a file of that name.
        ConfigError: The file cannot be read, or its scenario cannot be played; with the line.
    """
    return _first_fault_raised(find_scenario(name_or_file), given or {})


def parse_scenario(
    content: bytes, name: str, where: str = "", *, folder: Path | None = None, given: Mapping[str, Scalar] | None = None
) -> Scenario:
    """Return a scenario from the content of its file.

    Args:
        content: YAML.
        name: Name of the scenario.
        where: The file, for errors; empty for the name.
        folder: Folder of the files that it includes; None if it may include only shipped ones.
        given: Values of parameters that replace their defaults.

    Raises:
        ConfigError: It cannot be played; with the line, and the expected value.
    """
    file = ScenarioFile(name=name, content=content, where=where or name, folder=folder)
    return _first_fault_raised(file, given or {})


def check_scenario(name_or_file: str, given: Mapping[str, Scalar] | None = None) -> list[ForewarnError]:
    """Return the faults that keep a scenario from being played; empty if there are none.

    Faults in the form of a file hide those in its references, which are found once the form is right.
    """
    try:
        _parse(find_scenario(name_or_file), given or {})
    except Faulty as faulty:
        return faulty.faults
    except ForewarnError as error:
        return [error]
    return []


def _first_fault_raised(file: ScenarioFile, given: Mapping[str, Scalar]) -> Scenario:
    try:
        return _parse(file, given)
    except Faulty as faulty:
        raise faulty.faults[0] from faulty


def _parse(file: ScenarioFile, given: Mapping[str, Scalar]) -> Scenario:
    source, parsed = read_scenario(file, given)
    inventory = _inventory(source, parsed)
    settings = _settings(source, parsed)
    placed = expand_includes(file, source, parsed)
    faults = list(_faults_of_steps(placed, inventory))
    if faults:
        raise Faulty(faults)
    return Scenario(
        name=file.name,
        title=parsed.title,
        description=parsed.description.strip(),
        inventory=inventory,
        handler=parsed.handler or inventory.vms[0].name,
        steps=tuple(each.step for each in placed),
        lines=tuple(each.source.line(each.place) for each in placed),
        files=tuple(each.file for each in placed),
        event_ids=parsed.event_ids,
        settings=settings,
        only=parsed.only,
        reboot=parsed.reboot,
        environment=parsed.environment,
    )


def _inventory(source: YamlSource, parsed: ScenarioIn) -> Inventory:
    source.validate(InventoryIn, parsed.inventory, ("inventory",))
    try:
        inventory = parse_inventory(yaml.safe_dump(parsed.inventory).encode())
    except InvalidRequest as error:
        # The error's line counts in the dump made here; its path leads to the line of the file.
        words = error.message.removeprefix("inventory: ").removeprefix(f"line {error.details.get('line')}: ")
        place = ("inventory", *error.details.get("path", ()))
        raise source.error(place, f"inventory: {words}") from error
    if not inventory.vms:
        raise source.error(("inventory",), "inventory: at least one VM is expected")
    names = [vm.name for vm in inventory.vms]
    if parsed.handler is not None and parsed.handler not in names:
        meant = suggest(parsed.handler, names)
        raise source.error(("handler",), f"handler: there is no VM {parsed.handler!r} in the inventory: {meant}")
    return inventory


def _settings(source: YamlSource, parsed: ScenarioIn) -> dict[str, Any]:
    for name in parsed.settings:
        if name not in SETTINGS:
            expected = suggest(name, sorted(SETTINGS))
            raise source.error(("settings", name), f"a scenario has no setting {name!r}: {expected}")
    try:
        said_settings(**parsed.settings)
    except ConfigError as error:
        raise source.error(("settings", str(error.details["setting"])), error.message) from error
    return dict(parsed.settings)


def _faults_of_steps(placed: Iterable[Placed], inventory: Inventory) -> Iterator[ForewarnError]:
    """Yield the faults of the steps: unknown names, operations begun twice or used too early, times that go back."""
    declared = {
        "VM": {vm.name: None for vm in inventory.vms},
        "host": {host.name: None for host in inventory.hosts},
    }
    begun: dict[Mode, dict[str, None]] = {mode: {} for mode in MODES}
    least = timedelta(0)
    for each in placed:
        source, place, step = each.source, each.place, each.step
        for what, names in (("VM", _vms_of(step)), ("host", _hosts_of(step))):
            for name in [name for name in names if name not in declared[what]][:1]:
                words = f"there is no {what} {name!r} in the inventory: {suggest(name, declared[what])}"
                yield source.error((*place, step.verb), words)
        for mode in MODES if step.only is None else (step.only,):
            faults = list(_faults_of_operations(source, place, step, begun[mode]))
            yield from faults
            if faults:
                break  # the other mode has the same faults
        if step.at is not None and not step.at.is_relative and step.at.span < least:
            words = f"at: this is before the step above it, which is at {least.total_seconds():g} s at the earliest"
            yield source.error((*place, "at"), words)
        elif step.at is not None:
            least = least + step.at.span if step.at.is_relative else step.at.span


def _faults_of_operations(
    source: YamlSource, place: Place, step: Step, begun: dict[str, None]
) -> Iterator[ForewarnError]:
    for operation in step.refers:
        if operation not in begun:
            meant = suggest(operation, begun)
            hint = meant if meant.endswith("?") else "name it there with 'as'"
            yield source.error(place, f"no step before this one begins an operation {operation!r}: {hint}")
    if step.makes is None:
        return
    if step.makes in begun:
        words = f"an operation {step.makes!r} began before: name this one otherwise, for example 'as: {step.makes}-2'"
        yield source.error((*place, step.verb), words)
    begun[step.makes] = None


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
