"""Source and resources of an event, as a scenario may expect them."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.testing.loading import parse_scenario
from forewarn.testing.player import Outcome, Player, lab_of

SCENARIO = """\
title: A test
inventory:
  hosts: [{{name: host-1}}]
  vms: [{{name: web-0, host: host-1}}]
timeline:
  - poll: web-0
  - restart: web-0
  - expect: {{event: restart, {expected}}}
"""


def played(expected: str) -> Outcome:
    scenario = parse_scenario(SCENARIO.format(expected=expected).encode(), "test")

    async def play() -> list[Outcome]:
        async with lab_of(scenario).running() as lab:
            return await Player(scenario, lab).play()

    return asyncio.run(play())[-1]


@pytest.mark.parametrize("expected", ["source: User", "resources: web-0", "resources: [web-0], source: User"])
def test_what_is_so_is_taken(expected: str) -> None:
    assert played(expected).fault == ""


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        ("source: Platform", "source of restart is User, and Platform was expected"),
        ("resources: [web-0, web-1]", "resources of restart is ('web-0',), and ('web-0', 'web-1') was expected"),
    ],
)
def test_what_is_not_is_told(expected: str, fault: str) -> None:
    assert played(expected).fault == fault
