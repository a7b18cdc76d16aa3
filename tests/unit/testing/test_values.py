"""What a test may write, and what the kit hands back."""

from __future__ import annotations

import inspect
from enum import StrEnum
from typing import Any, get_args

import pytest

from forewarn import testing
from forewarn.core.fault import FAULTS
from forewarn.core.model import EventSource, EventType
from forewarn.testing.values import EventTypeName, FaultName, SourceName


@pytest.mark.parametrize(("names", "words"), [(EventTypeName, EventType), (SourceName, EventSource)])
def test_the_words_for_type_checkers_are_those_of_the_service(names: Any, words: type[StrEnum]) -> None:  # noqa: ANN401 - a Literal
    assert get_args(names) == tuple(word.value for word in words)


def test_the_faults_for_type_checkers_are_those_of_the_service() -> None:
    """R66."""
    assert get_args(FaultName) == tuple(FAULTS)


def test_everything_that_the_kit_takes_and_hands_back_can_be_named() -> None:
    made = {name: getattr(testing, name) for name in testing.__all__}
    classes = {name for name, value in made.items() if inspect.isclass(value)}
    assert set(made) - classes == {"EventTypeName", "FaultName", "simulate"}
    assert all(made[name].__name__ == name for name in classes)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = testing.Nothing
