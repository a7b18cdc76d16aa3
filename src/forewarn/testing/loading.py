"""Scenario files, read: every fault is named with its line and with what was expected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from forewarn.config import said_settings
from forewarn.core.inventory import Inventory
from forewarn.errors import ConfigError, InvalidRequest, NotFound
from forewarn.testing.scenario import MODES, FaultStep, HostStep, Mode, ScenarioIn, Schedule, Step, VmStep
from forewarn.wire.inventory import parse_inventory

__all__ = ["Scenario", "load_scenario", "parse_scenario", "shipped_scenarios"]

_SIZE_BYTES_MAX = 1 << 20
_DEPTH_MAX = 12
_SETTINGS = frozenset(
    {
        "announce_delay",
        "cloud",
        "disable_after",
        "first_answer_delay",
        "initial_incarnation",
        "legacy_latest",
        "notbefore_2017_03_01",
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

Place = tuple[str | int, ...]


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
    source = _Source(where or name)
    data = source.read(content)
    try:
        parsed = ScenarioIn.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = tuple(part for part in first["loc"] if not _is_of_pydantic(part))
        raise source.error(place, _words(first, place)) from error
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
    )


class _Source:
    """A YAML file, and the line of every part of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[Place, int] = {}

    def error(self, place: Place, words: str) -> ConfigError:
        line = self.line(place)
        return ConfigError(f"{self._name}:{line}: {words}", line=line)

    def line(self, place: Place) -> int:
        """Where that part stands; what is missing, where it should."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def read(self, content: bytes) -> Any:  # noqa: ANN401 - whatever YAML holds
        if len(content) > _SIZE_BYTES_MAX:
            msg = f"{self._name}: {len(content)} bytes are more than the {_SIZE_BYTES_MAX} that a scenario may have"
            raise ConfigError(msg)
        try:
            # Aliases are how a small file becomes a large one, so they are refused before anything is put together.
            for event in yaml.parse(content, yaml.CSafeLoader):
                if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                    words = "anchors and aliases are not for scenarios: write it out"
                    raise self._at(event.start_mark, words)
            node = yaml.compose(content, yaml.CSafeLoader)
        except yaml.MarkedYAMLError as error:
            words = " ".join((error.problem or "no YAML").split())
            raise self._at(error.problem_mark, f"this is no YAML: {words}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            msg = f"{self._name}: this is no YAML: {' '.join(str(error).split())}"
            raise ConfigError(msg) from error
        return None if node is None else self._take(node, ())

    def _at(self, mark: Any, words: str) -> ConfigError:  # noqa: ANN401 - a mark of PyYAML
        line = 1 if mark is None else mark.line + 1
        return ConfigError(f"{self._name}:{line}: {words}", line=line)

    def _take(self, node: yaml.Node, place: Place) -> Any:  # noqa: ANN401 - whatever YAML holds
        self._lines[place] = node.start_mark.line + 1
        if len(place) > _DEPTH_MAX:
            raise self._at(node.start_mark, f"this is nested more than {_DEPTH_MAX} deep")
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node, place))
        if isinstance(node, yaml.SequenceNode):
            return [self._take(item, (*place, number)) for number, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - there is no fourth kind
        if node.tag == "tag:yaml.org,2002:timestamp":
            return node.value
        try:
            return yaml.CSafeLoader("").construct_object(node)
        except yaml.YAMLError as error:
            raise self._at(node.start_mark, f"{node.value!r} cannot be read as {node.tag}") from error

    def _pairs(self, node: yaml.MappingNode, place: Place) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._at(key_node.start_mark, "a name is expected before the colon")
            key = str(key_node.value)
            if key in seen:
                raise self._at(key_node.start_mark, f"{key!r} stands twice")
            seen.add(key)
            value = self._take(value_node, (*place, key))
            self._lines[*place, key] = key_node.start_mark.line + 1
            yield key, value


def _is_of_pydantic(part: str | int) -> bool:
    """Whether a part of a place is pydantic's word for a type, and not in the file."""
    return isinstance(part, str) and (part.startswith(("function-", "constrained-")) or "[" in part)


def _words(fault: Any, place: Place) -> str:  # noqa: ANN401 - a fault as pydantic tells it
    names = ".".join(str(part) for part in place if isinstance(part, str))
    if fault["type"] == "extra_forbidden":
        return f"{place[-1]!r} is not known here"
    if fault["type"] == "missing":
        return f"{place[-1]!r} is missing"
    message = str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{names}: {message}" if names else message


def _inventory(source: _Source, parsed: ScenarioIn) -> Inventory:
    try:
        inventory = parse_inventory(yaml.safe_dump(parsed.inventory).encode())
    except InvalidRequest as error:
        raise source.error(("inventory",), f"inventory: {error.message}") from error
    if not inventory.vms:
        raise source.error(("inventory",), "inventory: at least one VM is expected")
    if parsed.handler is not None and parsed.handler not in {vm.name for vm in inventory.vms}:
        raise source.error(("handler",), f"handler: there is no VM {parsed.handler!r} in the inventory")
    return inventory


def _settings(source: _Source, parsed: ScenarioIn) -> dict[str, Any]:
    for name in parsed.settings:
        if name not in _SETTINGS:
            expected = ", ".join(sorted(_SETTINGS))
            raise source.error(("settings", name), f"a scenario has no setting {name!r}: expected one of {expected}")
    try:
        said_settings(**parsed.settings)
    except ConfigError as error:
        raise source.error(("settings", str(error.details["setting"])), error.message) from error
    return dict(parsed.settings)


def _check_steps(source: _Source, parsed: ScenarioIn, inventory: Inventory) -> None:
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


def _check_operations(source: _Source, place: Place, step: Step, begun: set[str]) -> None:
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
