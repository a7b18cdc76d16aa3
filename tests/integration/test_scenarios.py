"""The scenarios that come with Forewarn, and those of the documentation: each goes as its file says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.clock import ScaledClock
from forewarn.testing.scenario.scenario_loader import Scenario, load_scenario, shipped_scenarios
from forewarn.testing.scenario.scenario_model import ACTIONS, FaultStep
from forewarn.testing.trial.player import ScenarioPlayer, StepOutcome, create_lab
from tests.support.documents import ROOT

EXAMPLES = sorted((ROOT / "examples/scenarios").glob("*.yaml"))
PAGE = ROOT / "docs/how-to/write-a-scenario.md"

EXPECTED = {
    "a-bad-day",
    "cancellation",
    "disabled-after-24-h",
    "extra-impacts",
    "fault-domains",
    "hardware-failure",
    "host-maintenance-reboot",
    "live-migration",
    "os-image-upgrade",
    "policies",
    "predicted-failure",
    "reboot-as-freeze",
    "scale-set-delete",
    "spot-eviction",
    "two-tenants",
    "update-domains",
    "user-redeploy",
    "user-restart",
}


async def played(scenario: Scenario, clock: ScaledClock | None = None) -> tuple[list[StepOutcome], set[str]]:
    """What came of each step, and the faults that struck a request."""
    async with create_lab(scenario, clock).running() as lab:
        outcomes = await ScenarioPlayer(scenario, lab).play()
        return outcomes, {exchange.fault for exchange in lab.list_requests() if exchange.fault}


def faults(outcomes: list[StepOutcome]) -> list[str]:
    return [f"line {outcome.line}, at {outcome.at}: {outcome.failure}" for outcome in outcomes if outcome.failure]


def counted_faults(scenario: Scenario) -> set[str]:
    """The faults that are meant for a number of requests."""
    actions = [step.action for step in scenario.steps if step.only != "try"]
    return {action.kind for action in actions if isinstance(action, FaultStep) and action.count is not None}


def test_a_bad_day_has_faults_of_most_kinds() -> None:
    assert len(counted_faults(load_scenario("a-bad-day"))) >= 15


def test_every_kind_of_trouble_has_its_scenario() -> None:
    assert set(shipped_scenarios()) >= EXPECTED


@pytest.mark.anyio
@pytest.mark.parametrize("name", shipped_scenarios())
async def test_a_scenario_goes_as_its_file_says(name: str) -> None:
    scenario = load_scenario(name)
    outcomes, struck = await played(scenario)
    assert faults(outcomes) == []
    assert len(outcomes) == sum(step.only in {None, "play"} for step in scenario.steps)
    # A poll that meets no fault proves nothing (R66). One that is refused before it is read is written down nowhere.
    assert struck >= counted_faults(scenario) - {"refused"}


@pytest.mark.parametrize("name", shipped_scenarios())
def test_a_scenario_says_what_it_is_about_and_expects_something(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.title
    assert scenario.description.count(".") >= 2
    assert sum(step.expect is not None for step in scenario.steps) >= 4


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["live-migration", "user-restart"])
async def test_a_scenario_goes_as_its_file_says_on_a_clock_that_runs(name: str) -> None:
    outcomes, _ = await played(load_scenario(name), ScaledClock(600))
    assert faults(outcomes) == []


@pytest.mark.anyio
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
async def test_an_example_goes_as_its_file_says(file: Path) -> None:
    outcomes, _ = await played(load_scenario(str(file)))
    assert faults(outcomes) == []


def test_the_page_shows_the_example_as_it_is_and_names_every_action() -> None:
    page = PAGE.read_text()
    shown = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert (ROOT / "examples/scenarios/rolling-restart.yaml").read_text() in shown
    assert [action for action in ACTIONS if f"| `{action}` |" not in page] == []
