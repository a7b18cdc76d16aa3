"""Loading of scenario files: every fault is reported with its line and the expected value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import yaml

from forewarn.config.loading import make_settings
from forewarn.core.inventory import Inventory
from forewarn.errors import ConfigError, ForewarnError, InvalidRequest
from forewarn.testing.scenario.parameters import Scalar
from forewarn.testing.scenario.scenario_file import (
    InvalidScenario,
    PlacedStep,
    ScenarioFile,
    expand_includes,
    find_scenario,
    read_scenario,
    shipped_scenarios,
)
from forewarn.testing.scenario.scenario_model import (
    MODES,
    SETTINGS,
    FaultStep,
    HostStep,
    Mode,
    ScenarioIn,
    ScheduleStep,
    TimelineStep,
    VmStep,
)
from forewarn.wire.inventory import InventoryIn, parse_inventory
from forewarn.wire.suggestion import suggest_name
from forewarn.wire.yaml_source import Place, YamlSource

__all__ = ["Scenario", "check_scenario", "load_scenario", "parse_file", "shipped_scenarios"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario that can be played.

    Attributes:
        name: Name of its file, without the suffix.
        handler: Name of the VM whose handler is tried.
        lines: Line of each step in its file, from 1.
        files: The included file of each step; empty for a step of the scenario's own file.
        event_ids: Ids of the first events.
        only: The one mode it is for; None for both.
        restarts_handler: True if a Reboot or Redeploy that affects the handler's VM kills and restarts the handler.
    """

    name: str
    title: str
    description: str
    inventory: Inventory
    handler: str
    steps: tuple[TimelineStep, ...]
    lines: tuple[int, ...]
    files: tuple[str, ...]
    event_ids: tuple[str, ...]
    settings: dict[str, Any]
    only: Mode | None = None
    restarts_handler: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def load_scenario(name_or_file: str, given: Mapping[str, Scalar] | None = None) -> Scenario:
    """Return a shipped scenario by its name, or the scenario in a file; `given` replaces defaults of parameters.

    Raises:
        NotFound: There is neither a scenario nor a file of that name.
        ConfigError: The file cannot be read, or its scenario cannot be played; with the line.
    """
    return parse_file(find_scenario(name_or_file), given)


def check_scenario(name_or_file: str, given: Mapping[str, Scalar] | None = None) -> list[ForewarnError]:
    """Return the faults that keep a scenario from being played; empty if there are none.

    Faults in the form of a file hide those in its references, which are found once the form is right.
    """
    try:
        _parse_file(find_scenario(name_or_file), given or {})
    except InvalidScenario as faulty:
        return faulty.faults
    except ForewarnError as error:
        return [error]
    return []


def parse_file(file: ScenarioFile, given: Mapping[str, Scalar] | None = None) -> Scenario:
    """Return the scenario of a file.

    Raises:
        ConfigError: It cannot be played; with the line, and the expected value.
    """
    try:
        return _parse_file(file, given or {})
    except InvalidScenario as faulty:
        raise faulty.faults[0] from faulty


def _parse_file(file: ScenarioFile, given: Mapping[str, Scalar]) -> Scenario:
    source, parsed = read_scenario(file, given)
    inventory = _parse_inventory_part(source, parsed)
    settings = _check_settings(source, parsed)
    placed = expand_includes(file, source, parsed)
    faults = list(_find_step_faults(placed, inventory))
    if faults:
        raise InvalidScenario(faults)
    return Scenario(
        name=file.name,
        title=parsed.title,
        description=parsed.description.strip(),
        inventory=inventory,
        handler=parsed.handler or inventory.vms[0].name,
        steps=tuple(each.step for each in placed),
        lines=tuple(each.source.find_line(each.place) for each in placed),
        files=tuple(each.file for each in placed),
        event_ids=parsed.event_ids,
        settings=settings,
        only=parsed.only,
        restarts_handler=parsed.reboot,
        environment=parsed.environment,
    )


def _parse_inventory_part(source: YamlSource, parsed: ScenarioIn) -> Inventory:
    # The model first: its errors carry the line of this file, those of the parser below the line of a copy.
    source.validate(InventoryIn, parsed.inventory, ("inventory",))
    try:
        inventory = parse_inventory(yaml.safe_dump(parsed.inventory).encode())
    except InvalidRequest as error:
        # The error's line counts in the dump made here; its path leads to the line of the file.
        words = error.message.removeprefix("inventory: ").removeprefix(f"line {error.details.get('line')}: ")
        place = ("inventory", *error.details.get("path", ()))
        raise source.build_error(place, f"inventory: {words}") from error
    if not inventory.vms:
        raise source.build_error(("inventory",), "inventory: expected at least one VM")
    names = [vm.name for vm in inventory.vms]
    if parsed.handler is not None and parsed.handler not in names:
        meant = suggest_name(parsed.handler, names)
        raise source.build_error(("handler",), f"handler: there is no VM {parsed.handler!r} in the inventory: {meant}")
    return inventory


def _check_settings(source: YamlSource, parsed: ScenarioIn) -> dict[str, Any]:
    for name in parsed.settings:
        if name not in SETTINGS:
            expected = suggest_name(name, sorted(SETTINGS))
            raise source.build_error(("settings", name), f"a scenario has no setting {name!r}: {expected}")
    try:
        make_settings(**parsed.settings)
    except ConfigError as error:
        raise source.build_error(("settings", str(error.details["setting"])), error.message) from error
    return dict(parsed.settings)


def _find_step_faults(placed: Iterable[PlacedStep], inventory: Inventory) -> Iterator[ForewarnError]:
    """Yield the faults of the steps: unknown names, operations begun twice or used too early, times that go back."""
    declared = {
        "VM": {vm.name: None for vm in inventory.vms},
        "host": {host.name: None for host in inventory.hosts},
    }
    # By mode: a step for one mode only must not satisfy, or conflict with, a step of the other.
    begun: dict[Mode, dict[str, None]] = {mode: {} for mode in MODES}
    # Earliest time of a step. A step with `after` may take any time, so it leaves this bound as it is.
    least = timedelta(0)
    for each in placed:
        source, place, step = each.source, each.place, each.step
        for what, names in (("VM", _get_named_vms(step)), ("host", _get_named_hosts(step))):
            for name in [name for name in names if name not in declared[what]][:1]:
                words = f"there is no {what} {name!r} in the inventory: {suggest_name(name, declared[what])}"
                yield source.build_error((*place, step.action_name), words)
        for mode in MODES if step.only is None else (step.only,):
            faults = list(_find_operation_faults(source, place, step, begun[mode]))
            yield from faults
            if faults:
                break  # the other mode has the same faults
        if step.at is not None and not step.at.is_relative and step.at.span < least:
            words = f"at: this is before the previous step, which begins at {least.total_seconds():g} s at the earliest"
            yield source.build_error((*place, "at"), words)
        elif step.at is not None:
            least = least + step.at.span if step.at.is_relative else step.at.span


def _find_operation_faults(
    source: YamlSource, place: Place, step: TimelineStep, begun: dict[str, None]
) -> Iterator[ForewarnError]:
    for operation in step.operations_required:
        if operation not in begun:
            meant = suggest_name(operation, begun)
            hint = meant if meant.endswith("?") else "name it there with 'as'"
            yield source.build_error(place, f"no earlier step begins an operation {operation!r}: {hint}")
    if step.operation_begun is None:
        return
    if step.operation_begun in begun:
        name = step.operation_begun
        words = f"an earlier step begins an operation {name!r}: choose another name, as in 'as: {name}-2'"
        yield source.build_error((*place, step.action_name), words)
    begun[step.operation_begun] = None


def _get_named_vms(step: TimelineStep) -> tuple[str, ...]:
    action = step.action
    if step.action_name == "poll":
        return step.poll or ()
    if isinstance(action, VmStep):
        return (action.name,)
    if isinstance(action, ScheduleStep | FaultStep):
        return action.vms or ()
    named = getattr(action, "by", None) or getattr(action, "vm", None)
    return (named,) if isinstance(named, str) else ()


def _get_named_hosts(step: TimelineStep) -> tuple[str, ...]:
    if isinstance(step.action, HostStep):
        return (step.action.name,)
    return (step.action.hosts or ()) if isinstance(step.action, ScheduleStep) else ()
