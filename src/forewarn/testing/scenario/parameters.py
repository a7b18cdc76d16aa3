"""Parameters of a scenario: names with defaults at the top of its file, and values in place of ``${name}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import yaml
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from forewarn.wire.suggestion import suggest_name
from forewarn.wire.yaml_source import Place, YamlSource

__all__ = ["LENGTH_MAX", "PARAMETERS_MAX", "Parameters", "ParametersIn", "Scalar", "choose_value", "fill_parameters"]

PARAMETERS_MAX = 100
"""Maximum number of parameters of a scenario."""

LENGTH_MAX = 1000
"""Maximum length of a value, in characters."""

# A file of a few kilobytes that repeats a long parameter could otherwise fill the memory.
_FILLED_LENGTH_MAX = 1 << 20
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_PLACE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")

Scalar: TypeAlias = str | int | float | bool


def _check_scalar(value: object) -> object:
    if not isinstance(value, str | int | float | bool):
        msg = "a parameter must be text, a number, true or false"
        raise ValueError(msg)  # noqa: TRY004 - pydantic only reports ValueError
    if len(str(value)) > LENGTH_MAX:
        raise ValueError(f"a parameter may have at most {LENGTH_MAX} characters, not {len(str(value))}")
    # Parameters are filled in by a single pass, which would leave a nested one in the text as it is.
    if "${" in str(value):
        raise ValueError("a parameter cannot contain another parameter")
    return value


Parameters = Annotated[
    dict[
        Annotated[str, Field(pattern=f"^{_NAME}$")],
        Annotated[
            Any,
            AfterValidator(_check_scalar),
            WithJsonSchema({"type": ["string", "number", "boolean"], "maxLength": LENGTH_MAX}),
        ],
    ],
    Field(max_length=PARAMETERS_MAX),
]
"""Parameter names and values, as written in a file."""


class ParametersIn(BaseModel):
    """The part of a scenario that is read first."""

    parameters: Parameters = Field(default_factory=dict)


def choose_value(name: str, default: Scalar, given: Scalar) -> Scalar:
    """Return the given value in the type of the default: text, a whole number, a number, true or false.

    Raises:
        ValueError: It is of another type, or too long.
    """
    _check_scalar(given)
    if isinstance(default, str):
        return given if isinstance(given, str) else str(given)
    value = _parse_scalar(given) if isinstance(given, str) else given
    # Not isinstance: a bool is an int to Python, and `true` would pass for a whole number.
    if type(value) is type(default) or (type(value) is int and isinstance(default, float)):
        return value
    msg = f"parameter {name!r}: expected {_KINDS[type(default)]}, like its default {default!r}, not {given!r}"
    raise ValueError(msg)


_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}


def _parse_scalar(text: str) -> Any:  # noqa: ANN401 - any YAML value
    try:
        # Values from the command line are text. YAML's rules turn them into the same types as in a file.
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text


def fill_parameters(source: YamlSource, content: Any, values: Mapping[str, Scalar]) -> Any:  # noqa: ANN401 - any YAML value
    """Return the content with each ``${name}`` replaced by its value; ``$${`` becomes ``${``.

    A text that consists of one parameter becomes its value unchanged, so numbers stay numbers. Keys are not replaced.

    Raises:
        ForewarnError: A name is unknown, a parameter is unused, or the result is too long; with the line.
    """
    filling = _ParameterFiller(source, values)
    filled = {
        key: value if key == "parameters" else filling.fill_value(value, (key,)) for key, value in content.items()
    }
    # A parameter that is declared and not used is mostly a misspelled use of it.
    unused = [name for name in values if name not in filling.used]
    if unused:
        words = f"parameter {unused[0]!r} is not used: write ${{{unused[0]}}} where its value belongs, or remove it"
        raise source.build_error(("parameters", unused[0]), words)
    return filled


class _ParameterFiller:
    def __init__(self, source: YamlSource, values: Mapping[str, Scalar]) -> None:
        self._source = source
        self._values = values
        self._filled_length = 0
        self.used: set[str] = set()

    def fill_value(self, content: Any, place: Place) -> Any:  # noqa: ANN401 - any YAML value
        if isinstance(content, dict):
            return {key: self.fill_value(value, (*place, key)) for key, value in content.items()}
        if isinstance(content, list):
            return [self.fill_value(value, (*place, number)) for number, value in enumerate(content)]
        return self._fill_text(content, place) if isinstance(content, str) and "${" in content else content

    def _fill_text(self, text: str, place: Place) -> Scalar:
        whole = _PLACE.fullmatch(text)
        if whole is not None and whole[0] != "$${":
            return self._resolve_parameter(whole, place)
        return _PLACE.sub(lambda match: "${" if match[0] == "$${" else str(self._resolve_parameter(match, place)), text)

    def _resolve_parameter(self, match: re.Match[str], place: Place) -> Scalar:
        name = match[1]
        if not match[2]:
            raise self._source.build_error(
                place, f"{match[0][:40]!r} has no closing brace; write '$${{' for a literal '${{'"
            )
        if name not in self._values:
            meant = suggest_name(name, self._values) if self._values else "declare it under 'parameters' with a default"
            raise self._source.build_error(place, f"there is no parameter {name[:64]!r}: {meant}")
        self.used.add(name)
        value = self._values[name]
        self._filled_length += len(str(value))
        if self._filled_length > _FILLED_LENGTH_MAX:
            raise self._source.build_error(place, f"the parameters expand to more than {_FILLED_LENGTH_MAX} characters")
        return value
