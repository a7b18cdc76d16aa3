"""Errors of a configuration in words: the place, the value found, and what was expected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

from forewarn.agent.codec import InvalidValue

__all__ = ["describe_problem"]

_Keys: TypeAlias = Sequence[str | int]
_SAID = re.compile(r"(.*?)(?: - at `\$\.?([^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
# msgspec writes this in paths for any value of a table with free keys, without naming the key.
_VALUE_OF_TABLE = "[...]"
_MISFIT = re.compile(r"Expected `.+`, got `(.+)`|Invalid (?:enum )?value .+", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_BARE = re.compile(r"[A-Za-z0-9_-]{1,80}")
_LENGTH_MAX = 80
_SAID_LENGTH_MAX = 400


def describe_problem(error: msgspec.ValidationError, content: dict[str, Any], expected_type: type) -> str:
    """Return one line: the path of the value that msgspec rejects, the value, and what was expected.

    Args:
        error: Error raised by the conversion.
        content: Content that was converted: parsed TOML.
        expected_type: Type that was expected.
    """
    match = _SAID.fullmatch(str(error))
    assert match is not None  # noqa: S101 - the pattern matches every text
    said, path = match[1], match[2] or ""
    keys: list[str | int] = [name or int(place) for name, place in _STEP.findall(path.removesuffix(_VALUE_OF_TABLE))]
    if isinstance(error.__cause__, InvalidValue):
        # msgspec knows only the table whose check failed; the check itself knows the key.
        keys += error.__cause__.keys
    elif misfit := _MISFIT.fullmatch(said):
        if path.endswith(_VALUE_OF_TABLE):
            keys.append(_find_misfit_key(_look_up(content, expected_type, keys)[1], misfit[1]))
        said = _describe_misfit(*_look_up(content, expected_type, keys), keys)
    elif missing := _MISSING.fullmatch(said):
        kind = _find_inner_type(*_look_up(content, expected_type, keys), missing[1])
        said = f"{missing[1]} is missing: expected {_describe_type(kind)}"
    elif unknown := _UNKNOWN.fullmatch(said):
        names = _list_keys(_narrow_union(*_look_up(content, expected_type, keys)))
        # For a key at the top itself, the advice to move it there would make no sense.
        said = _describe_unknown_key(unknown[1], names, _list_keys(inspect.type_info(expected_type)) if keys else ())
        keys.append(unknown[1])
    place = _format_path(keys)
    said = said if len(said) <= _SAID_LENGTH_MAX else f"{said[:_SAID_LENGTH_MAX]}..."
    return f"{place}: {said}" if place else said


# Messages


def _describe_misfit(kind: inspect.Type | None, value: Any, keys: _Keys) -> str:  # noqa: ANN401 - parsed TOML
    shown = _format_value(value)
    match kind:
        case inspect.VarTupleType(inspect.StructType()) if isinstance(value, dict):
            # TOML accepts [rule] as well as [[rule]], and reads a single table.
            return f"expected [[{keys[-1]}]], because there may be several, got [{keys[-1]}]"
        case inspect.VarTupleType(item) if isinstance(value, str):
            return f"expected an array, for example [{f'[{shown}]' if _is_command(item) else shown}], got {shown}"
        case inspect.LiteralType() if isinstance(value, str):
            return f"unknown value {shown}: expected {_describe_type(kind)}"
        case inspect.UnionType() if _is_command(kind):
            return f"expected a command, for example ['/bin/drain', '--now'], or a table, got {shown}"
        case _:
            return f"expected {_describe_type(kind)}, got {shown}"


def _describe_unknown_key(name: str, names: Sequence[str], names_at_top: Sequence[str]) -> str:
    close = get_close_matches(name, names, n=1)
    if close:
        return f"unknown key; did you mean {close[0]}?"
    # In TOML, a key after the first table belongs to that table, which is a common mistake.
    if name in names_at_top:
        return "unknown key here: it belongs at the top of the file, before the first table"
    return f"unknown key: expected {_join_alternatives(sorted(names))}"


def _describe_type(kind: inspect.Type | None) -> str:
    match kind:
        case inspect.LiteralType(values):
            return _join_alternatives([repr(value) for value in values])
        case inspect.UnionType(kinds):
            return _join_alternatives(
                list(dict.fromkeys(_describe_type(each) for each in kinds if type(each) in _EXPECTED))
            )
        case _:
            return _EXPECTED.get(type(kind), "another value")


_EXPECTED: dict[type, str] = {
    inspect.StructType: "a table",
    inspect.DictType: "a table",
    inspect.VarTupleType: "an array",
    inspect.BoolType: "true or false",
    inspect.IntType: "an integer",
    inspect.StrType: "a string",
}


def _join_alternatives(words: Sequence[str]) -> str:
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _format_value(value: Any) -> str:  # noqa: ANN401 - parsed TOML
    match value:
        case dict():
            return "a table"
        case list():
            return "an array"
        case bool():
            return str(value).lower()
        case str():
            shown = repr(value)
        case _:
            shown = str(value)
    return shown if len(shown) <= _LENGTH_MAX else f"{shown[:_LENGTH_MAX]}..."


def _format_path(keys: _Keys) -> str:
    """Return the path as ``rule[1].prepare[0].timeout``, with quotes where TOML needs them."""
    parts = (
        f"[{key}]" if isinstance(key, int) else f".{key if _BARE.fullmatch(key) else _format_value(key)}"
        for key in keys
    )
    return "".join(parts).removeprefix(".")


# Lookups in the content and in the expected types


def _find_misfit_key(table: dict[str, Any], got: str) -> str:
    """Return the key of the value that msgspec means; it reports only the type."""
    names = {bool: "bool", int: "int", float: "float", list: "array", dict: "object"}
    return next((key for key, value in table.items() if names.get(type(value), type(value).__name__) == got), "")


def _look_up(content: Any, expected_type: type, keys: _Keys) -> tuple[inspect.Type | None, Any]:  # noqa: ANN401 - parsed TOML
    """Return the type expected at that path, None if no value is, and the value there, None if there is none."""
    kind: inspect.Type | None = inspect.type_info(expected_type)
    for key in keys:
        kind = _find_inner_type(kind, content, key)
        try:
            content = content[key]
        except (LookupError, TypeError):
            content = None
    return kind, content


def _find_inner_type(kind: inspect.Type | None, content: Any, key: str | int) -> inspect.Type | None:  # noqa: ANN401 - parsed TOML
    """Return the type that is expected for a key of that content."""
    if isinstance(kind, inspect.UnionType):
        tags = tuple(k.tag for k in kind.types if isinstance(k, inspect.StructType) and k.tag_field == key)
        # The key that selects a member of the union is not a field; its values are the tags of the members.
        if tags:
            return inspect.LiteralType(tags)
    match _narrow_union(kind, content):
        case inspect.StructType(fields=fields):
            return next((field.type for field in fields if field.encode_name == key), None)
        case inspect.VarTupleType(item):
            return item
        case inspect.DictType(_, value):
            return value
        case _:
            return None


def _narrow_union(kind: inspect.Type | None, content: Any) -> inspect.Type | None:  # noqa: ANN401 - parsed TOML
    """Return the member of a union that the content fits."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    return next((each for each in kind.types if _fits_content(each, content)), None)


def _fits_content(kind: inspect.Type, content: Any) -> bool:  # noqa: ANN401 - parsed TOML
    if isinstance(kind, inspect.StructType):
        return isinstance(content, dict) and (kind.tag_field is None or content.get(kind.tag_field) == kind.tag)
    return isinstance(kind, inspect.VarTupleType) and isinstance(content, list)


def _is_command(kind: inspect.Type) -> bool:
    """Return True if the type is a union that includes an array: a list of strings, or a table instead."""
    return isinstance(kind, inspect.UnionType) and any(isinstance(each, inspect.VarTupleType) for each in kind.types)


def _list_keys(kind: inspect.Type | None) -> list[str]:
    """Return the keys of a table."""
    assert isinstance(kind, inspect.StructType)  # noqa: S101 - msgspec reports unknown keys only in tables
    return [*([kind.tag_field] if kind.tag_field else []), *(field.encode_name for field in kind.fields)]
