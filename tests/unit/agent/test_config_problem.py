"""What msgspec finds, in words. Every kind of mistake with its exact words: test_configuration."""

from __future__ import annotations

import msgspec
import pytest

from forewarn.agent.config_problem import describe_problem
from forewarn.agent.configuration import Configuration

CONTENT = {"name": "db", "rule": [{"name": "x\ny"}]}


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("Something new", "Something new"),
        (
            "Something new - at `$.rule[0].name`",
            "rule[0].name: Something new",
        ),
        (
            "Expected `int`, got `str` - at `$.name.x`",
            "name.x: expected another value, got None",
        ),
    ],
)
def test_what_msgspec_has_not_said_before_is_told_as_it_is(said: str, fault: str) -> None:
    assert describe_problem(msgspec.ValidationError(said), CONTENT, Configuration) == fault
