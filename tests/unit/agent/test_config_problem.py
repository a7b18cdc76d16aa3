"""What msgspec finds, in words. Every kind of mistake with its exact words: test_configuration."""

from __future__ import annotations

import msgspec
import pytest

from forewarn.agent.config_problem import ConfigProblem, describe_problem
from forewarn.agent.configuration import Configuration

CONTENT = {"name": "db", "rule": [{"name": "x\ny"}]}


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("Something new", ConfigProblem(keys=(), message="Something new")),
        (
            "Something new - at `$.rule[0].name`",
            ConfigProblem(keys=("rule", 0, "name"), message="rule 1 'x\\ny': name: Something new"),
        ),
        (
            "Expected `int`, got `str` - at `$.name.x`",
            ConfigProblem(keys=("name", "x"), message="name: x: expected another value, got None"),
        ),
    ],
)
def test_what_msgspec_has_not_said_before_is_told_as_it_is(said: str, fault: ConfigProblem) -> None:
    assert describe_problem(msgspec.ValidationError(said), CONTENT, Configuration) == fault
