"""The text of an inventory file: YAML or JSON to dicts, lists and scalars, with the place of every fault."""

from __future__ import annotations

import json
from typing import Any

import yaml

from forewarn.errors import InvalidRequest
from forewarn.wire.yaml_line import SafeLoader

__all__ = ["load_text"]

_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(SafeLoader):
    """YAML without dates, which are names here, and without duplicate keys, of which one would be lost."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML declares it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _RepeatedKey(ValueError):
    """A duplicate key in one object of JSON."""


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKey(f"duplicate key {next(n for n in names if names.count(n) > 1)!r}")
    return content


def load_text(text: bytes) -> Any:  # noqa: ANN401 - whatever YAML or JSON holds
    """Parse an inventory file.

    Raises:
        InvalidRequest: It is neither YAML nor JSON, or has a duplicate key; the details have its line and column.
    """
    try:
        # JSON is YAML as well, but its own parser is many times faster on a large inventory.
        if text.lstrip()[:1] != b"{":
            return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
        return _load_json(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        words = error.problem or "not YAML"
        if mark is None:
            raise InvalidRequest(f"inventory: {words}") from error
        msg = f"inventory: line {mark.line + 1}, column {mark.column + 1}: {words}"
        raise InvalidRequest(msg, line=mark.line + 1, column=mark.column + 1) from error
    except json.JSONDecodeError as error:
        msg = f"inventory: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        raise InvalidRequest(msg, line=error.lineno, column=error.colno) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"inventory: neither YAML nor JSON in UTF-8: {' '.join(str(error).split())}") from error


def _load_json(text: bytes) -> Any:  # noqa: ANN401 - whatever JSON holds
    try:
        return json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    except _RepeatedKey:
        yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader; it refuses the same, and knows the line
        raise
