"""What msgspec finds, in words. Every kind of mistake with its exact words: test_configuration."""

from __future__ import annotations

import msgspec
import pytest

from forewarn.agent.configuration import Configuration
from forewarn.agent.fault import Fault, fault_of

CONTENT = {"name": "db", "rule": [{"name": "x\ny"}]}


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("Something new", Fault(keys=(), message="Something new")),
        (
            "Something new - at `$.rule[0].name`",
            Fault(keys=("rule", 0, "name"), message="rule 1 'x\\ny': name: Something new"),
        ),
        (
            "Expected `int`, got `str` - at `$.name.x`",
            Fault(keys=("name", "x"), message="name: x: expected another value, got None"),
        ),
    ],
)
def test_what_msgspec_has_not_said_before_is_told_as_it_is(said: str, fault: Fault) -> None:
    assert fault_of(msgspec.ValidationError(said), CONTENT, Configuration) == fault
