"""Rollouts as text: the file, the JSON of the control API, what is stored, and the YAML under the file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from forewarn.core.inventory import Inventory
from forewarn.core.model import EventType, Host
from forewarn.core.rollout.rollout import (
    ENDED_STATES,
    HOSTS_MAX,
    HealthCheck,
    HealthResult,
    HostOrder,
    Rollout,
    RolloutHostState,
    RolloutSpec,
    RolloutState,
)
from forewarn.core.rollout.rollout_commands import create_rollout, start_rollout
from forewarn.core.rollout.rollout_decision import record_refused, record_scheduled
from forewarn.core.rollout.rollout_plan import plan_rollout
from forewarn.core.rollout.rollout_step_types import WaitForChange
from forewarn.errors import BelowMinimumNotice, CallerError, ConfigError, InvalidRequest, StoreCorrupt
from forewarn.wire.rollout import (
    AT_ONCE_MAX,
    FILE_SIZE_BYTES_MAX,
    RolloutHostOut,
    RolloutIn,
    RolloutOut,
    RolloutPlanOut,
    _RolloutFile,
    decode_rollout,
    encode_rollout,
    parse_rollout,
)
from forewarn.wire.yaml_source import YamlSource
from tests.support.world import NOW, minutes

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "rollouts" / "kernel.yaml"
PAGE = ROOT / "docs" / "how-to" / "roll-out.md"
HEAD = "name: kernel\ntype: Reboot\nhosts: all\n"
INVENTORY = Inventory(hosts=tuple(Host(name=f"host-{n}") for n in range(1, 5)))

spans = st.timedeltas(timedelta(0), timedelta(days=3660))
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,20}", fullmatch=True)
hosts = st.lists(names, min_size=1, max_size=5, unique=True).map(tuple)


@st.composite
def specs(draw: st.DrawFn) -> RolloutSpec:
    canary, pause = draw(hosts | st.just(())), draw(spans)
    commands = st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=3
    )
    timeouts = st.timedeltas(timedelta(microseconds=1), timedelta(hours=1))
    return RolloutSpec(
        name=draw(names),
        cause=draw(st.sampled_from(["host-maintenance", "live-migration"])),
        type=draw(st.none() | st.sampled_from(EventType)),
        description=draw(st.none() | st.just("größer")),
        duration_s=draw(st.none() | st.integers(-1, 10**6)),
        notice=draw(st.none() | spans),
        hosts=draw(st.none() | hosts),
        order=draw(st.sampled_from(HostOrder)),
        batch_size=draw(st.integers(1, HOSTS_MAX)),
        hosts_at_once=draw(st.integers(1, AT_ONCE_MAX)),
        canary=canary,
        canary_pause=draw(spans) if canary else pause,
        pause=pause,
        one_fault_domain=draw(st.booleans()),
        one_update_domain=draw(st.booleans()),
        failures_max=draw(st.integers(1, HOSTS_MAX)),
        health=draw(st.none() | st.builds(HealthCheck, command=commands.map(tuple), timeout=timeouts)),
        deadline=draw(st.none() | spans),
    )


def fault(text: str | bytes) -> str:
    with pytest.raises(CallerError) as caught:
        parse_rollout(text if isinstance(text, bytes) else text.encode(), "kernel.yaml")
    assert "\n" not in caught.value.message
    return caught.value.message


# The file


def test_the_example_says_what_it_says() -> None:
    assert parse_rollout(EXAMPLE.read_bytes()) == RolloutSpec(
        name="kernel-6.12",
        cause="host-maintenance",
        type=EventType.REBOOT,
        description="The host gets a new kernel.",
        duration_s=600,
        notice=minutes(30),
        hosts=None,
        order=HostOrder.SMALLEST_FIRST,
        batch_size=20,
        hosts_at_once=5,
        canary=("host-1",),
        canary_pause=timedelta(hours=2),
        pause=minutes(5),
        failures_max=2,
        health=HealthCheck(command=("/usr/local/bin/fleet-is-well", "--quick"), timeout=minutes(1)),
        deadline=timedelta(hours=2),
    )


def test_the_page_shows_the_example_and_tells_every_key_and_state() -> None:
    page = PAGE.read_text()
    assert f"```yaml\n{EXAMPLE.read_text()}```" in page
    told = set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
    assert told >= {*_RolloutFile.model_fields, *RolloutHostState}
    for word in (*HostOrder, *(state for state in RolloutState if state in ENDED_STATES)):
        assert f"`{word}`" in page


def test_what_is_left_out_is_careful() -> None:
    spec = parse_rollout(HEAD.encode())
    assert spec == RolloutSpec(name="kernel", cause="host-maintenance", type=EventType.REBOOT)
    assert (spec.batch_size, spec.hosts_at_once, spec.failures_max) == (1, 1, 1)
    assert (spec.one_fault_domain, spec.one_update_domain) == (True, True)


def test_json_is_yaml() -> None:
    content = {"name": "kernel", "cause": "live-migration", "hosts": ["host-1"], "health": {"command": ["true"]}}
    spec = parse_rollout(json.dumps(content).encode())
    assert (spec.cause, spec.type, spec.hosts) == ("live-migration", None, ("host-1",))
    assert spec.health == HealthCheck(command=("true",), timeout=minutes(1))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("batch_size: 20", (20, 20)),
        ("hosts_at_once: 5", (5, 5)),
        ("{batch_size: 20, hosts_at_once: 5}", (20, 5)),
        ("batch_size: 20000", (20000, AT_ONCE_MAX)),
    ],
)
def test_one_of_the_two_sizes_says_the_other(text: str, sizes: tuple[int, int]) -> None:
    spec = parse_rollout((HEAD + text.strip("{}").replace(", ", "\n")).encode())
    assert (spec.batch_size, spec.hosts_at_once) == sizes


@pytest.mark.parametrize(
    ("text", "pauses"),
    [
        ("pause: 5m", (minutes(5), minutes(5))),
        ("pause: 5m\ncanary: {hosts: [a]}", (minutes(5), minutes(5))),
        ("pause: 5m\ncanary: {hosts: [a], pause: 0s}", (minutes(5), minutes(0))),
        ("canary: {hosts: [a], pause: 60}", (minutes(0), minutes(1))),
    ],
)
def test_the_pause_after_the_canaries_is_the_usual_one_unless_it_is_said(
    text: str, pauses: tuple[timedelta, timedelta]
) -> None:
    spec = parse_rollout((HEAD + text).encode())
    assert (spec.pause, spec.canary_pause) == pauses


@pytest.mark.parametrize(("text", "duration_s"), [("10m", 600), ("0", 0), ("5", 5), ("unknown", -1)])
def test_a_duration_is_whole_seconds_or_unknown(text: str, duration_s: int) -> None:
    assert parse_rollout(f"{HEAD}duration: {text}".encode()).duration_s == duration_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "kernel.yaml:1: expected a mapping with at least name, type and hosts"),
        ("- a\n", "kernel.yaml:1: expected a mapping"),
        ("name: kernel\nhosts: all\n", "kernel.yaml:1: name a type or a cause"),
        ("name: kernel\ntype: Reboot\n", "kernel.yaml:1: list hosts, or use all, or give a selector"),
        (HEAD + "batch: 5\n", "kernel.yaml:4: unknown key 'batch'"),
        (HEAD + "health: {comand: [true]}\n", "kernel.yaml:4: unknown key 'comand'"),
        (HEAD + "name: other\n", "kernel.yaml:4: duplicate key 'name'"),
        ("name: a b\ntype: Reboot\nhosts: all\n", "kernel.yaml:1: name: string should match pattern"),
        ("name: k\ntype: Boot\nhosts: all\n", "kernel.yaml:2: type: input should be 'Freeze'"),
        ("name: k\ntype: Terminate\nhosts: all\n", "kernel.yaml:2: a rollout cannot be a Terminate"),
        (HEAD + "cause: live-migration\n", "kernel.yaml:2: cause live-migration means Freeze, not Reboot"),
        (HEAD + "cause: nonsense\n", "kernel.yaml:4: unknown cause 'nonsense'"),
        ("name: k\ntype: Reboot\nhosts:\n", "kernel.yaml:3: hosts: expected a list of hosts, or all"),
        ("name: k\ntype: Reboot\nhosts: some\n", "kernel.yaml:3: hosts: expected a list of hosts, or all"),
        ("name: k\ntype: Reboot\nhosts: []\n", "kernel.yaml:3: hosts: at least 1 expected, found 0"),
        ("name: k\ntype: Reboot\nhosts: [12]\n", "kernel.yaml:3: hosts: input should be a valid string"),
        ("name: k\ntype: Reboot\nhosts:\n- a\n- b\n- a\n", "kernel.yaml:6: hosts: host 'a' is listed twice"),
        (
            "name: k\ntype: Reboot\nhosts: [a]\ncanary:\n  hosts:\n  - a\n  - b\n",
            "kernel.yaml:7: canary: host 'b' is not among the hosts",
        ),
        (HEAD + "hosts_at_once: 5\nbatch_size: 3\n", "kernel.yaml:4: hosts_at_once of 5 exceeds batch_size of 3"),
        (HEAD + "hosts_at_once: 1001\n", "kernel.yaml:4: hosts_at_once: input should be less than or equal to 1000"),
        (HEAD + "batch_size: 0\n", "kernel.yaml:4: batch_size: input should be greater than or equal to 1"),
        (HEAD + "failures_max: none\n", "kernel.yaml:4: failures_max: input should be a valid integer"),
        (HEAD + "order: size\n", "kernel.yaml:4: order: input should be 'listed', 'name' or 'smallest-first'"),
        (HEAD + "one_fault_domain: maybe\n", "kernel.yaml:4: one_fault_domain: input should be a valid boolean"),
        (HEAD + "notice: yes\n", "kernel.yaml:4: notice: expected a span of time, for example 90s, 15m"),
        (HEAD + "notice: soon\n", "kernel.yaml:4: notice: 'soon' is not a span of time"),
        (HEAD + "notice: 5m\n", "kernel.yaml:4: notice of 5m: a Reboot needs at least 15m"),
        (HEAD + "pause: -5m\n", "kernel.yaml:4: pause: '-5m' is out of range: expected at least 0s and at most 3660d"),
        (
            HEAD + "pause: 9999d\n",
            "kernel.yaml:4: pause: '9999d' is out of range: expected at least 0s and at most 3660d",
        ),
        (HEAD + "duration: 1.5s\n", "kernel.yaml:4: duration: '1.5s' is not a duration: expected whole seconds"),
        (HEAD + "deadline: 10m\n", "kernel.yaml:4: deadline of 10m is too short"),
        (
            HEAD + "health: {command: [x], timeout: 2h}\n",
            "kernel.yaml:4: health.timeout: '2h' is out of range: expected more",
        ),
        (HEAD + "health:\n  command: x\n", "kernel.yaml:5: health.command: input should be a valid list"),
    ],
)
def test_a_fault_is_named_with_its_line(text: str, expected: str) -> None:
    assert fault(text).startswith(expected)


def test_the_kind_of_a_fault_stays_and_its_line_is_for_programs_too() -> None:
    with pytest.raises(BelowMinimumNotice) as caught:
        parse_rollout((HEAD + "notice: 5m\n").encode())
    assert caught.value.details == {"at": ["notice"], "minimum_s": 900, "line": 4}


def test_a_file_may_name_the_most_hosts_and_no_more() -> None:
    most = [f"host-{n}" for n in range(HOSTS_MAX)]
    spec = parse_rollout(json.dumps({"name": "k", "type": "Reboot", "hosts": most}).encode())
    assert spec.hosts is not None
    assert len(spec.hosts) == HOSTS_MAX
    more = json.dumps({"name": "k", "type": "Reboot", "hosts": [*most, "one-more"]})
    assert "list should have at most 20000 items" in fault(more)
    assert "bytes exceed the limit of 4194304 for a rollout" in fault(b" " * (FILE_SIZE_BYTES_MAX + 1))


# The control API


@given(specs())
@settings(max_examples=25)
def test_a_specification_as_json_reads_back_as_the_same(spec: RolloutSpec) -> None:
    shown = RolloutIn.from_spec(spec)
    assert shown.to_spec() == spec
    assert RolloutIn.model_validate_json(shown.model_dump_json()).to_spec() == spec


def test_json_takes_what_a_file_takes_in_seconds() -> None:
    content = {
        "name": "kernel-6.12",
        "type": "Reboot",
        "description": "The host gets a new kernel.",
        "duration_s": 600,
        "notice_s": 1800,
        "hosts": "all",
        "order": "smallest-first",
        "batch_size": 20,
        "hosts_at_once": 5,
        "canary": {"hosts": ["host-1"], "pause_s": 7200},
        "pause_s": 300,
        "failures_max": 2,
        "health": {"command": ["/usr/local/bin/fleet-is-well", "--quick"], "timeout_s": 60},
        "deadline_s": 7200,
    }
    assert RolloutIn.model_validate(content).to_spec() == parse_rollout(EXAMPLE.read_bytes())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"type": None}, "name a type or a cause"),
        ({"hosts": "some"}, "Input should be 'all'"),
        ({"hosts": []}, "at least 1 item"),
        ({"duration_s": -2}, "greater than or equal to -1"),
        ({"pause_s": float("inf")}, "finite number"),
        ({"health": {"command": []}}, "at least 1 item"),
        ({"health": {"command": ["a\0b"]}}, "match pattern"),
        ({"health": {"command": ["a"], "timeout_s": 0}}, "greater than 0"),
        ({"pause": "5m"}, "Extra inputs are not permitted"),
    ],
)
def test_json_that_makes_no_sense_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        RolloutIn.model_validate({"name": "k", "type": "Reboot", "hosts": "all"} | changes)


def planned(**changes: Any) -> Rollout:  # noqa: ANN401 - fields of the specification
    spec = replace(parse_rollout(EXAMPLE.read_bytes()), **changes)
    return create_rollout(plan_rollout(spec, INVENTORY, NOW), "r-1", NOW)


def test_a_plan_is_shown_in_batches_from_one() -> None:
    spec = replace(parse_rollout(EXAMPLE.read_bytes()), hosts_at_once=2)
    shown = json.loads(RolloutPlanOut.from_model(plan_rollout(spec, INVENTORY, NOW)).model_dump_json())
    assert {key: shown[key] for key in shown if key != "batches"} == {
        "dry_run": True,
        "name": "kernel-6.12",
        "hosts": 4,
        "begins_at": "2026-11-21T10:00:00Z",
        "ends_at": "2026-11-21T14:00:00Z",
        "is_at_least": False,
    }
    assert shown["batches"] == [
        {
            "number": 1,
            "is_canary": True,
            "rounds": [["host-1"]],
            "vms": 0,
            "unwarned": 0,
            "unwarned_vms": [],
            "moves": [],
            "begins_at": "2026-11-21T10:00:00Z",
            "ends_at": "2026-11-21T10:40:00Z",
        },
        {
            "number": 2,
            "is_canary": False,
            "rounds": [["host-2", "host-3"], ["host-4"]],
            "vms": 0,
            "unwarned": 0,
            "unwarned_vms": [],
            "moves": [],
            "begins_at": "2026-11-21T12:40:00Z",
            "ends_at": "2026-11-21T14:00:00Z",
        },
    ]


def test_a_rollout_is_shown_with_its_counts_and_what_it_waits_for() -> None:
    rollout = record_scheduled(start_rollout(planned(), NOW), "host-1", ("m-1",), NOW)
    wait = WaitForChange(until=NOW + minutes(5), reason="1 host is in flight")
    shown = json.loads(RolloutOut.from_model(rollout, wait).model_dump_json())
    assert (shown["id"], shown["name"], shown["state"]) == ("r-1", "kernel-6.12", "running")
    assert (shown["batch"], shown["batches"], shown["in_flight"]) == (1, 2, ["host-1"])
    assert shown["counts"] == {"pending": 3, "waiting": 1, "started": 0, "done": 0, "failed": 0, "skipped": 0}
    assert (shown["waits_for"], shown["waits_until"]) == ("1 host is in flight", "2026-11-21T10:05:00Z")
    assert RolloutIn.model_validate(shown["spec"]).to_spec() == rollout.spec
    assert (RolloutOut.from_model(rollout).waits_for, RolloutOut.from_model(rollout).waits_until) == (None, None)


def test_a_host_is_shown_with_its_maintenances() -> None:
    rollout = record_scheduled(start_rollout(planned(), NOW), "host-1", ("m-1", "m-2"), NOW)
    shown = RolloutHostOut.from_model(rollout.hosts[0])
    assert (shown.name, shown.batch, shown.state) == ("host-1", 1, RolloutHostState.WAITING)
    assert (shown.maintenance_ids, shown.scheduled_at, shown.ended_at, shown.reason) == (
        ["m-1", "m-2"],
        NOW,
        None,
        None,
    )


def test_the_batch_is_null_when_every_host_has_had_its_turn() -> None:
    rollout = planned(canary=(), hosts=("host-1",))
    over = record_refused(start_rollout(rollout, NOW), "host-1", "no", NOW)
    assert (RolloutOut.from_model(over).batch, RolloutOut.from_model(over).batches) == (None, 1)


# What is stored


def test_what_is_stored_reads_back_as_the_same_to_the_microsecond() -> None:
    moment = NOW + timedelta(microseconds=1)
    rollout = record_scheduled(
        start_rollout(planned(pause=timedelta(microseconds=1)), moment), "host-1", ("m-1", "m-2"), moment
    )
    rollout = record_refused(rollout, "host-2", "größer", moment)
    health = HealthResult(number=3, batch=0, is_healthy=False, detail="ill")
    rollout = replace(rollout, health=health, checks=3, failures_accepted=1, reason="why")
    assert decode_rollout(encode_rollout(rollout)) == rollout
    assert rollout.state is RolloutState.RUNNING


@given(specs())
@settings(max_examples=25)
def test_any_specification_is_stored_exactly(spec: RolloutSpec) -> None:
    rollout = Rollout(id="r-1", spec=spec, state=RolloutState.PLANNED, created_at=NOW, hosts=())
    assert decode_rollout(encode_rollout(rollout)) == rollout


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "invalid text"), ("{}", "invalid id"), (encode_rollout(planned()).replace("planned", "x"), "state")],
)
def test_what_is_stored_and_is_no_rollout_is_a_damage(text: str, expected: str) -> None:
    with pytest.raises(StoreCorrupt, match=expected):
        decode_rollout(text)


# The YAML under it


def source() -> YamlSource:
    return YamlSource("a.yaml", size_bytes_max=1 << 20, kind="scenario", error_class=ConfigError)


def test_every_part_of_a_file_has_its_line() -> None:
    read = source()
    assert read.read(b"a: 1\nb:\n- x\n- {c: 2020-01-01,\n   d: 0x10}\n") == {
        "a": 1,
        "b": ["x", {"c": "2020-01-01", "d": 16}],
    }
    assert [read.find_line(place) for place in ((), ("a",), ("b",), ("b", 1), ("b", 1, "d"))] == [1, 1, 2, 4, 5]
    assert read.find_line(("b", 1, "missing")) == 4
    assert read.build_error(("b", 1, "d"), "too hot").message == "a.yaml:5: too hot"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [\n", "a.yaml:2: not valid YAML"),
        (b"a: &x [1]\nb: *x\n", "a.yaml:1: anchors and aliases are not allowed in a scenario: write the value out"),
        (b"{[a]: b}", "a.yaml:1: expected a name before the colon"),
        (b"a: 1\na: 2\n", "a.yaml:2: duplicate key 'a'"),
        (b"a: !!python/object:os.system x\n", "a.yaml:1: 'x' cannot be read as"),
        (b"a: !!bool maybe\n", "a.yaml:1: 'maybe' cannot be read as"),
        (b"a: !!int ''\n", "a.yaml:1: '' cannot be read as"),
        (b"\n" + b"[" * 14, "a.yaml:2: nested too deeply: at most 12 levels"),
        (b"\xff\xfe\x00", "a.yaml: not valid YAML"),
        (b"a: 1\n--- \nb: 2\n", "a.yaml:2: not valid YAML"),
        (b"#" * (2 << 20), "a.yaml: 2097152 bytes exceed the limit of 1048576 for a scenario"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(content: bytes, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source().read(content)
    assert caught.value.message.startswith(expected)
    assert "\n" not in caught.value.message


def test_depth_is_refused_before_it_costs_time() -> None:
    """PyYAML takes minutes for so many brackets."""
    with pytest.raises(ConfigError, match="nested too deeply: at most 12 levels are allowed"):
        source().read(b"[" * (1 << 20))


def test_an_empty_file_holds_nothing() -> None:
    assert source().read(b"") is None


@given(st.binary(max_size=60) | st.text("abc:- \n[]{}\"'&*!|>#0123", max_size=60).map(str.encode))
def test_whatever_is_no_rollout_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_rollout(content)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("rollout:")
