"""The JSON Schema of scenario files takes every scenario that Forewarn takes, and refuses what is wrong in its form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from forewarn.errors import ConfigError
from forewarn.testing.scenario.scenario_model import SCHEMA_LINE
from forewarn.testing.scenario.scenario_schema import scenario_schema
from forewarn.wire.yaml_source import YamlSource
from tests.support.parsed_scenario import parse_scenario

ROOT = Path(__file__).parents[3]
FILES = sorted([*ROOT.glob("src/forewarn/testing/scenarios/*.yaml"), *ROOT.glob("examples/scenarios/*.yaml")])
SCHEMA = jsonschema.Draft202012Validator(scenario_schema())
HEAD = """\
title: A test
inventory:
  hosts: [{name: host-1}]
  vms: [{name: web-0, host: host-1}, {name: web-1, host: host-1}]
"""


def _read(content: bytes) -> Any:  # noqa: ANN401 - whatever YAML holds
    return YamlSource("a.yaml", size_bytes_max=1 << 20, kind="scenario", error_class=ConfigError).read(content)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(scenario_schema())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_scenario_and_example_fits_the_schema_that_its_first_line_names(path: Path) -> None:
    assert path.read_text().splitlines()[0] == SCHEMA_LINE
    assert (path.parent / SCHEMA_LINE.partition("$schema=")[2]).is_file()
    SCHEMA.validate(_read(path.read_bytes()))


@pytest.mark.parametrize(
    "more",
    [
        "timeline: [{poll: web-0}]",
        "timeline: [{at: 5, poll: [web-0, web-1]}, {at: +250ms, restart: web-0}, {after: completed restart, poll: a}]",
        "timeline: [{fault: 503}, {fault: {kind: '410', for: 5s, rate: 0.5}}, {fault: reset}, {clear_faults: true}]",
        "timeline: [{include: drain.yaml, set: {vm: web-1, count: 3}}]",
        """
parameters: {vm: web-0, s: 5, kind: Freeze}
timeline:
- schedule: {vms: '${vm}', type: '${kind}', duration: '${s}', notice: '${s}m'}
- poll: 'web-${s}'
""",
    ],
)
def test_every_form_that_a_value_may_have_fits(more: str) -> None:
    SCHEMA.validate(_read((HEAD + more).encode()))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("", id="no timeline"),
        pytest.param("timeline: []", id="no steps"),
        pytest.param("timeline: [{pole: web-0}]", id="unknown action"),
        pytest.param("timeline: [{poll: web-0, restart: web-0}]", id="two actions"),
        pytest.param("timeline: [{at: 5s}]", id="no action"),
        pytest.param("timeline: [{at: 5s, after: started x, poll: web-0}]", id="two times"),
        pytest.param("timeline: [{at: soon, poll: web-0}]", id="no span"),
        pytest.param("timeline: [{at: -5s, poll: web-0}]", id="negative"),
        pytest.param("timeline: [{after: eaten web, poll: web-0}]", id="no happening"),
        pytest.param("timeline: [{fault: sloth}]", id="fault"),
        pytest.param("timeline: [{schedule: {vms: web-0, type: Melt}}]", id="type"),
        pytest.param("timeline: [{schedule: {vms: web-0, type: Freeze, howlong: 5}}]", id="key"),
        pytest.param("timeline: [{expect: {event: a, status: Eaten}}]", id="status"),
        pytest.param("timeline: [{poll: web-0, set: {vm: a}}]", id="set without include"),
        pytest.param("timeline: [{poll: web-0}]\nsettings: {state_dir: /etc}", id="setting"),
        pytest.param("timeline: [{poll: web-0}]\nparameters: {a: [1]}", id="parameter that is a list"),
        pytest.param("timeline: [{poll: web-0}]\nparameters: {a b: 1}", id="name of a parameter"),
        pytest.param("timeline: [{poll: web-0}]\nhandlers: web-0", id="key at the top"),
    ],
)
def test_what_is_wrong_is_refused_by_the_schema_and_by_us(more: str) -> None:
    content = (HEAD + more).encode()
    assert not SCHEMA.is_valid(_read(content))
    with pytest.raises(ConfigError):
        parse_scenario(content, "wrong")
