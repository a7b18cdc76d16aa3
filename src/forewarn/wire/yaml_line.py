"""The line of an element in a YAML or JSON text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # pragma: no cover - PyYAML without libyaml, as on some platforms
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

__all__ = ["SafeLoader", "find_line"]

_OPENS = yaml.MappingStartEvent | yaml.SequenceStartEvent
_CLOSES = yaml.MappingEndEvent | yaml.SequenceEndEvent


class SafeLoader(_SafeLoader):
    """PyYAML's safe loader: that of libyaml where it is installed, which is many times faster."""


def find_line(text: bytes, path: Sequence[str | int]) -> int | None:
    """Return the line, from 1, of the element at a path of keys and indexes; of its nearest parent if it is missing.

    The text is read as events up to the element and no further, and nothing is built from it. None: it is not YAML, or
    its top is a scalar.
    """
    try:
        events = yaml.parse(text, Loader=SafeLoader)
        for event in events:
            if isinstance(event, _OPENS):
                return _find_line_below(event, list(path), iter(events))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return None


def _find_line_below(start: Any, path: list[str | int], events: Iterator[Any]) -> int:  # noqa: ANN401 - PyYAML has no types
    """Return the line of the element at `path`, below the collection that `start` has opened."""
    line = _get_line(start)
    while path:
        found = _enter_element(start, path.pop(0), events)
        if found is None:
            break
        start, line = found
        if not isinstance(start, _OPENS):
            break
    return line


def _enter_element(start: Any, part: str | int, events: Iterator[Any]) -> tuple[Any, int] | None:  # noqa: ANN401 - as above
    """Return the event that begins the element with that key or index, and the line that names it."""
    is_mapping = isinstance(start, yaml.MappingStartEvent)
    # A key does not fit a sequence, nor an index a mapping: then the nearest parent is the place.
    if is_mapping is isinstance(part, int):
        return None
    for index, event in enumerate(events):
        if isinstance(event, _CLOSES):
            return None
        if is_mapping:
            _skip_element(event, events)
            value = next(events)
            if isinstance(event, yaml.ScalarEvent) and event.value == part:
                return value, _get_line(event)
            _skip_element(value, events)
        elif index == part:
            return event, _get_line(event)
        else:
            _skip_element(event, events)
    return None


def _skip_element(event: Any, events: Iterator[Any]) -> None:  # noqa: ANN401 - as above
    """Skip the element that begins with this event."""
    depth = int(isinstance(event, _OPENS))
    while depth:
        event = next(events)
        depth += isinstance(event, _OPENS)
        depth -= isinstance(event, _CLOSES)


def _get_line(event: Any) -> int:  # noqa: ANN401 - as above
    return int(event.start_mark.line) + 1
