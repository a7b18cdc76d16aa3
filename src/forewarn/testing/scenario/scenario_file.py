"""Scenario files as written: found, read, with their parameters filled in and included timelines expanded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from forewarn.errors import ConfigError, ForewarnError, NotFound
from forewarn.testing.scenario.parameters import ParametersIn, Scalar, choose_value, fill_parameters
from forewarn.testing.scenario.scenario_model import STEPS_MAX, ScenarioIn, TimelineStep
from forewarn.wire.suggestion import suggest_name
from forewarn.wire.yaml_source import Place, YamlSource

__all__ = [
    "InvalidScenario",
    "PlacedStep",
    "ScenarioFile",
    "expand_includes",
    "find_scenario",
    "read_scenario",
    "shipped_scenarios",
]

_SIZE_BYTES_MAX = 1 << 20
_DEPTH_MAX = 5
_INCLUDES_MAX = 100
_SUFFIXES = (".yaml", ".yml")


class InvalidScenario(Exception):
    """The file cannot be read as a scenario.

    Attributes:
        faults: Every fault found in it; at least one.
    """

    def __init__(self, faults: list[ForewarnError]) -> None:
        super().__init__(faults[0].message)
        self.faults = faults


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFile:
    """One file, before its references to others are resolved.

    Attributes:
        name: Name of the scenario: the file name without its suffix.
        display_name: Name of the file in errors.
        folder: Folder of the files that it includes; None if it may include only shipped ones.
    """

    name: str
    content: bytes
    display_name: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStep:
    """A step with its place.

    Attributes:
        file: The included file; empty for the scenario's own file.
    """

    step: TimelineStep
    source: YamlSource
    place: Place
    file: str = ""


def shipped_scenarios() -> list[str]:
    """Return the names of the shipped scenarios, in alphabetical order."""
    folder = resources.files("forewarn.testing") / "scenarios"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def find_scenario(name_or_file: str) -> ScenarioFile:
    """Return a shipped scenario by its name, or the scenario in a file.

    Raises:
        NotFound: There is neither a scenario nor a file of that name.
        ConfigError: The file cannot be read.
    """
    # Shipped names win, so a file in the working directory cannot change what a documented command does.
    if name_or_file in shipped_scenarios():
        return _read_shipped(name_or_file)
    path = Path(name_or_file)
    if not path.is_file():
        meant = suggest_name(name_or_file, _find_candidates(path))
        hint = (
            f": {meant} 'forewarn scenario list' shows all" if meant.endswith("?") else ": see 'forewarn scenario list'"
        )
        raise NotFound(f"there is no scenario or file {name_or_file!r}{hint}", name=name_or_file)
    return _read_path(path, str(path))


def _find_candidates(path: Path) -> list[str]:
    """Return candidates for a missing file: the shipped scenarios, and the files in its folder."""
    beside = sorted(each for each in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
    return [*shipped_scenarios(), *(str(each) for each in beside)]


def _read_shipped(name: str) -> ScenarioFile:
    entry = resources.files("forewarn.testing") / "scenarios" / f"{name}.yaml"
    return ScenarioFile(name=name, content=entry.read_bytes(), display_name=name)


def _read_path(path: Path, where: str) -> ScenarioFile:
    try:
        size_bytes = path.stat().st_size
        # Checked before reading, so a file of any size cannot fill the memory.
        if size_bytes > _SIZE_BYTES_MAX:
            raise ConfigError(f"{where}: a scenario may have at most {_SIZE_BYTES_MAX} bytes, not {size_bytes}")
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {where}: {error.strerror}") from error
    return ScenarioFile(name=path.stem, content=content, display_name=where, folder=path.parent)


def read_scenario(file: ScenarioFile, given: Mapping[str, Scalar]) -> tuple[YamlSource, ScenarioIn]:
    """Return the content of the file, with its parameters filled in: those given, and the defaults of the others.

    Raises:
        InvalidScenario: It is not a valid scenario.
        ConfigError: It is not valid YAML, or its parameters are wrong.
    """
    source = YamlSource(file.display_name, size_bytes_max=_SIZE_BYTES_MAX, kind="scenario", error_class=ConfigError)
    content = source.read(file.content)
    if isinstance(content, dict):
        declared = source.validate(ParametersIn, content).parameters
        content = fill_parameters(source, content, _choose_values(source, declared, given))
    try:
        return source, ScenarioIn.model_validate(content)
    except ValidationError as error:
        raise InvalidScenario(source.list_errors(ScenarioIn, error)) from error


class _InvalidParameterValue(ConfigError):
    """The value given for a parameter is not allowed; ``details["name"]`` is the parameter."""


def _choose_values(
    source: YamlSource, declared: Mapping[str, Scalar], given: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    for name in given:
        if name not in declared:
            expected = suggest_name(name, declared) if declared else "it declares none"
            msg = f"{source.name}: the scenario has no parameter {name[:64]!r}: {expected}"
            raise _InvalidParameterValue(msg, name=name)
    values: dict[str, Scalar] = {}
    for name, default in declared.items():
        try:
            values[name] = choose_value(name, default, given.get(name, default))
        except ValueError as error:
            raise _InvalidParameterValue(f"{source.name}: {error}", name=name) from error
    return values


def expand_includes(file: ScenarioFile, source: YamlSource, parsed: ScenarioIn) -> list[PlacedStep]:
    """Return the steps of a scenario, with each include replaced by the steps of its timeline.

    Raises:
        InvalidScenario: An included file is not a valid scenario.
        ForewarnError: An included file is missing or includes itself, or a limit is exceeded; with file and line.
    """
    return list(_IncludeExpansion().expand_steps(file, source, parsed, (_get_identity(file),)))


class _IncludeExpansion:
    def __init__(self) -> None:
        self._includes = 0
        self._steps = 0

    def expand_steps(
        self, file: ScenarioFile, source: YamlSource, parsed: ScenarioIn, chain: tuple[str, ...]
    ) -> Iterator[PlacedStep]:
        is_included = len(chain) > 1
        for number, step in enumerate(parsed.timeline):
            place: Place = ("timeline", number)
            if step.include is not None:
                yield from self._expand_include(file, source, place, step, chain)
                continue
            self._steps += 1
            if self._steps > STEPS_MAX:
                raise source.build_error(place, f"more than {STEPS_MAX} steps, including those of included timelines")
            # The including timeline decides when the steps begin, so a time from the beginning makes no sense here.
            if is_included and step.at is not None and not step.at.is_relative:
                words = "at: a time in an included timeline is relative to the previous step: write '+', as in '+1m'"
                raise source.build_error((*place, "at"), words)
            yield PlacedStep(step=step, source=source, place=place, file=file.display_name if is_included else "")

    def _expand_include(
        self, file: ScenarioFile, source: YamlSource, place: Place, step: TimelineStep, chain: tuple[str, ...]
    ) -> Iterator[PlacedStep]:
        at = (*place, "include")
        self._includes += 1
        if self._includes > _INCLUDES_MAX or len(chain) > _DEPTH_MAX:
            words = f"include: too many: at most {_INCLUDES_MAX} timelines, nested at most {_DEPTH_MAX} deep"
            raise source.build_error(at, words)
        found = _find_included(file, source, at, step.include or "")
        identity = _get_identity(found)
        # Only the including files count: a timeline may be included twice, but not within itself.
        if identity in chain:
            raise source.build_error(at, f"include: {found.display_name} would include itself")
        try:
            inner, parsed = read_scenario(found, step.parameters)
        # The value is written in the including file, so the error names the line there.
        except _InvalidParameterValue as error:
            raise source.build_error((*place, "set", error.details["name"]), error.message) from error
        yield from self.expand_steps(found, inner, parsed, (*chain, identity))


def _find_included(file: ScenarioFile, source: YamlSource, place: Place, name: str) -> ScenarioFile:
    if not name.endswith(_SUFFIXES):
        if name in shipped_scenarios():
            return _read_shipped(name)
        meant = suggest_name(name, shipped_scenarios())
        words = f"include: there is no scenario {name!r}: {meant} The name of a file must end with .yaml"
        raise source.build_error(place, words)
    # A scenario without a folder, such as a shipped one, must not depend on files of this machine.
    if file.folder is None or PurePosixPath(name).is_absolute():
        raise source.build_error(place, f"include: {name!r} must be relative to the file that includes it")
    path = file.folder / name
    if not path.is_file():
        meant = suggest_name(name, sorted(each.name for each in path.parent.glob("*.y*ml")))
        raise source.build_error(place, f"include: there is no file {path}: {meant}")
    return _read_path(path, str(path))


def _get_identity(file: ScenarioFile) -> str:
    """Return a key that is equal for two files only if they are the same."""
    return file.name if file.folder is None else str(Path(file.display_name).resolve())
