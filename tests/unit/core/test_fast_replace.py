"""Making a value from another: the same as the standard library's, quicker."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from forewarn.core.fast_replace import find_setters, replace
from forewarn.core.model import Audience, AuditEntry, Claim, Event, Maintenance, Scope, VirtualMachine

KINDS = [Audience, Claim, AuditEntry, Event, Maintenance, Scope, VirtualMachine]


def made(kind: Any) -> Any:  # noqa: ANN401 - a value of any kind
    """A value with something else in each field."""
    return kind(**{field.name: object() for field in dataclasses.fields(kind) if field.init})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_does_what_the_standard_library_does(kind: Any) -> None:  # noqa: ANN401 - a class
    value = made(kind)
    for field in dataclasses.fields(kind):
        changes = {field.name: object()}
        assert replace(value, **changes) == dataclasses.replace(value, **changes)
    assert replace(value) == value
    assert replace(value) is not value
    assert type(replace(value)) is kind


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError):
        replace(made(Claim), colour="red")


@dataclass(frozen=True)
class Loose:
    """Without slots."""

    one: int = 1
    two: int = 2


@dataclass(frozen=True, slots=True)
class Checking:
    """Does more than to keep its fields."""

    one: int = 1
    two: int = 2

    def __post_init__(self) -> None:
        assert self.one < self.two


@pytest.mark.parametrize("value", [Loose(), Checking()])
def test_a_kind_for_which_it_is_not_made_is_refused(value: Any) -> None:  # noqa: ANN401 - of two kinds
    with pytest.raises(TypeError, match="must be a dataclass with slots"):
        replace(value, one=0)


def test_a_value_is_built_field_by_field_in_any_order() -> None:
    value = made(Claim)
    names = tuple(field.name for field in dataclasses.fields(Claim))[::-1]
    built = object.__new__(Claim)
    for write, name in zip(find_setters(Claim, names), names, strict=True):
        write(built, getattr(value, name))
    assert built == value


@pytest.mark.parametrize("names", [("vm",), ("vm", "host", "scope", "fault_domain", "color"), ("vm",) * 4])
def test_a_value_is_not_built_without_all_its_fields(names: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match="are not the fields of Claim"):
        find_setters(Claim, names)
