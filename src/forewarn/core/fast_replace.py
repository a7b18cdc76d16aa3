"""Fast replacement of fields in frozen values, and setters to build many of them.

`dataclasses.replace` examines each field every time; for the largest values that takes longer than most decisions
about them. This one does the same for frozen dataclasses with slots, in a third of the time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["find_setters", "replace"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import replace  # so that type checkers check names and types
else:

    def replace(value: T, /, **changes: object) -> T:
        """Return a copy of the value with different values in some fields.

        Raises:
            AttributeError: It has no such field.
        """
        kind = type(value)
        read, fields = _get_field_accessors(kind)
        # `__init__` is skipped: `_get_field_accessors` has checked that it only stores the fields.
        made = object.__new__(kind)
        for write, content in zip(fields, read(value), strict=True):
            write(made, content)
        for name, content in changes.items():
            object.__setattr__(made, name, content)
        return made


@cache
def find_setters(kind: type[Any], names: tuple[str, ...]) -> list[Callable[[Any, Any], None]]:
    """Return a function for each of these fields that sets it in a new, empty value of a frozen dataclass.

    Args:
        kind: Dataclass with slots and without `__post_init__`.
        names: All its fields, in any order: a field that is not set would be missing.

    Raises:
        TypeError: The class is another kind of class, or the names are not those of its fields.
    """
    _get_field_accessors(kind)  # type: ignore[arg-type] # a class is hashable
    if sorted(names) != sorted(field.name for field in dataclasses.fields(kind)):
        raise TypeError(f"{', '.join(names)} are not the fields of {kind.__name__}")
    return [getattr(kind, name).__set__ for name in names]


@cache
def _get_field_accessors(kind: type[Any]) -> tuple[attrgetter[tuple[Any, ...]], list[Any]]:
    """Return a getter of all fields of a class, and a setter for each."""
    names = [field.name for field in dataclasses.fields(kind)]
    if "__slots__" not in kind.__dict__ or hasattr(kind, "__post_init__") or len(names) < _LEAST:
        raise TypeError(f"{kind.__name__} must be a dataclass with slots, several fields and no __post_init__")
    return attrgetter(*names), [getattr(kind, name).__set__ for name in names]


_LEAST = 2
"""Minimum number of fields: for a single field `attrgetter` returns no tuple."""
