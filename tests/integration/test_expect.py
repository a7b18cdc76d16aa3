"""Source and resources of an event, as a scenario may expect them."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.testing.trial.player import ScenarioPlayer, StepOutcome, create_lab
from tests.support.parsed_scenario import parse_scenario

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


def played(expected: str, before: str = "") -> StepOutcome:
    content = SCENARIO.format(expected=expected).replace("  - expect", f"{before}  - expect")
    scenario = parse_scenario(content.encode(), "test")

    async def play() -> list[StepOutcome]:
        async with create_lab(scenario).running() as lab:
            return await ScenarioPlayer(scenario, lab).play()

    return asyncio.run(play())[-1]


@pytest.mark.parametrize("expected", ["source: User", "resources: web-0", "resources: [web-0], source: User"])
def test_what_is_so_is_taken(expected: str) -> None:
    assert played(expected).failure == ""


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        ("source: Platform", "source of restart is User, expected Platform"),
        ("resources: [web-0, web-1]", "resources of restart is ('web-0',), expected ('web-0', 'web-1')"),
    ],
)
def test_what_is_not_is_told(expected: str, fault: str) -> None:
    assert played(expected).failure == fault


def test_an_event_that_is_gone_has_no_notice() -> None:
    outcome = played("notice_at_least: 1s", before="  - cancel: restart\n")
    assert outcome.failure == "restart is gone"
