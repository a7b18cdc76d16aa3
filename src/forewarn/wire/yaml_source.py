"""A reader of YAML files that people write: the error for every fault gives its line and the expected value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from forewarn.errors import ForewarnError
from forewarn.wire.suggestion import suggest_name
from forewarn.wire.yaml_line import SafeLoader

__all__ = ["DEPTH_MAX", "Place", "YamlSource"]

DEPTH_MAX = 12
"""Maximum nesting depth of a file."""

Place = tuple[str | int, ...]
"""Path to an element of a file: keys and positions, from the outside in."""

M = TypeVar("M", bound=BaseModel)


class YamlSource:
    """A YAML file, and the line of every part of it.

    Args:
        name: Name of the file in errors.
        size_bytes_max: Maximum size of the file.
        kind: Kind of the file, for errors: ``scenario``.
        error_class: The error to raise. ``details["line"]`` is the line, from 1.
    """

    def __init__(self, name: str, *, size_bytes_max: int, kind: str, error_class: type[ForewarnError]) -> None:
        self.name = name
        self._size_bytes_max = size_bytes_max
        self._kind = kind
        self._error_class = error_class
        self._lines: dict[Place, int] = {}

    def read(self, content: bytes) -> Any:  # noqa: ANN401 - whatever YAML holds
        """Parse the file to dicts, lists and scalars; dates remain text.

        Raises:
            ForewarnError: It is not YAML, too large, too deep, has aliases, or a duplicate key.
        """
        if len(content) > self._size_bytes_max:
            most = self._size_bytes_max
            raise self._error_class(f"{self.name}: {len(content)} bytes exceed the limit of {most} for a {self._kind}")
        try:
            self._refuse_bombs(content)
            node = yaml.compose(content, SafeLoader)
        except yaml.MarkedYAMLError as error:
            words = " ".join((error.problem or "unknown error").split())
            raise self._build_error_at(error.problem_mark, f"not valid YAML: {words}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise self._error_class(f"{self.name}: not valid YAML: {' '.join(str(error).split())}") from error
        return None if node is None else self._build_value(node, ())

    def validate(self, model: type[M], content: Any, place: Place = ()) -> M:  # noqa: ANN401 - whatever `read` gave
        """Validate the result of `read`, or its part at `place`, as a model.

        Raises:
            ForewarnError: One fault, with its line.
        """
        try:
            return model.model_validate(content)
        except ValidationError as error:
            raise self.list_errors(model, error, place)[0] from error

    def list_errors(self, model: type[BaseModel], error: ValidationError, place: Place = ()) -> list[ForewarnError]:
        """Return every fault of that part of the file, the most informative first; at least one."""
        # A missing key may be a misspelt one: then the error about the misspelt name is more useful.
        found = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
        found = [fault for fault in found if not _is_only_consequence(fault, found)]
        made = []
        for fault in found:
            below = tuple(part for part in fault["loc"] if not _is_pydantic_label(part))
            at = (*place, *below)
            made.append(self.build_error(at, _describe_fault(fault, at, _list_keys(model, below[:-1]))))
        return made

    def build_error(self, place: Place, words: str) -> ForewarnError:
        """Return an error about that part of the file, to be raised."""
        line = self.find_line(place)
        return self._error_class(f"{self.name}:{line}: {words}", line=line)

    def find_line(self, place: Place) -> int:
        """Return the line of that part, from 1; for a missing part, that of its nearest parent."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def _build_error_at(self, mark: Any, words: str) -> ForewarnError:  # noqa: ANN401 - a mark of PyYAML
        line = 1 if mark is None else mark.line + 1
        return self._error_class(f"{self.name}:{line}: {words}", line=line)

    def _refuse_bombs(self, content: bytes) -> None:
        """Refuse aliases, which make a small file large, and depth, which makes it slow, before anything is built.

        The parser yields its events one by one, so nothing after the first fault is read.
        """
        depth = 0
        for event in yaml.parse(content, SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise self._build_error_at(
                    event.start_mark, f"anchors and aliases are not allowed in a {self._kind}: write the value out"
                )
            if isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.NodeEvent) and depth > DEPTH_MAX:
                raise self._build_error_at(
                    event.start_mark, f"nested too deeply: at most {DEPTH_MAX} levels are allowed"
                )
            depth += isinstance(event, yaml.CollectionStartEvent)

    def _build_value(self, node: yaml.Node, place: Place) -> Any:  # noqa: ANN401 - whatever YAML holds
        self._lines[place] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            return dict(self._iter_pairs(node, place))
        if isinstance(node, yaml.SequenceNode):
            return [self._build_value(item, (*place, number)) for number, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - there is no fourth kind
        if node.tag == "tag:yaml.org,2002:timestamp":
            return node.value
        try:
            # An empty loader: only its conversion of scalars is needed, such as 1.5 to a float.
            return SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError) as error:
            raise self._build_error_at(node.start_mark, f"{node.value!r} cannot be read as {node.tag}") from error

    def _iter_pairs(self, node: yaml.MappingNode, place: Place) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._build_error_at(key_node.start_mark, "expected a name before the colon")
            key = str(key_node.value)
            if key in seen:
                raise self._build_error_at(key_node.start_mark, f"duplicate key {key!r}")
            seen.add(key)
            value = self._build_value(value_node, (*place, key))
            # After the value, which has noted its own line: errors about a member point to its key.
            self._lines[*place, key] = key_node.start_mark.line + 1
            yield key, value


def _is_pydantic_label(part: str | int) -> bool:
    """Return True if a part of a place is pydantic's name for a type, and not in the file."""
    return isinstance(part, str) and (part.startswith(("function-", "constrained-")) or "[" in part)


def _is_only_consequence(fault: Any, found: Sequence[Any]) -> bool:  # noqa: ANN401 - as below
    """Return True if a list is too short only because some of its elements are wrong."""
    place = fault["loc"]
    return fault["type"] == "too_short" and any(
        len(each["loc"]) > len(place) and each["loc"][: len(place)] == place for each in found
    )


def _describe_fault(fault: Any, place: Place, keys: Sequence[str]) -> str:  # noqa: ANN401 - an error from pydantic
    names = ".".join(str(part) for part in place if isinstance(part, str))
    if fault["type"] == "extra_forbidden" and place:
        return f"unknown key {place[-1]!r}{f': {suggest_name(str(place[-1]), keys)}' if keys else ''}"
    if fault["type"] == "missing" and place:
        return f"{place[-1]!r} is missing"
    if fault["type"] == "too_short" and place:
        return f"{names}: at least {fault['ctx']['min_length']} expected, found {fault['ctx']['actual_length']}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if fault["type"] in {"literal_error", "enum"} and isinstance(fault["input"], str):
        meant = suggest_name(fault["input"], _QUOTED.findall(fault["ctx"]["expected"]))
        message += f"; {meant}" if meant.endswith("?") else ""
    return f"{names}: {message}" if names else message


_QUOTED = re.compile("'([^']*)'")


def _list_keys(model: type[BaseModel], place: Place) -> list[str]:
    """Return the keys that a mapping at that place of a model may have; none if no model defines it."""
    models = [model]
    for part in place:
        if isinstance(part, str):
            fields = [
                field for each in models for name, field in each.model_fields.items() if part == _get_key(name, field)
            ]
            models = [found for field in fields for found in _models_in(field.annotation)]
    return [_get_key(name, field) for each in models for name, field in each.model_fields.items()]


def _get_key(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any annotation
    """Yield the models of a union, a list or a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)
