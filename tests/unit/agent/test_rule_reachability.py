"""Rules that can never decide, and what is said of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.codec import Duration
from forewarn.agent.rule import Rule, find_first_match
from forewarn.agent.rule_reachability import UnreachableRule, find_unreachable_rules
from forewarn.agent.window import WeeklyWindow
from forewarn.wire.document import Event
from tests.support.occasion import an_event

MONDAY_NOON = datetime(2030, 1, 7, 12, 0)  # noqa: DTZ001 - local time
NIGHTS = (WeeklyWindow("22:00-06:00"),)


def named(*rules: Rule) -> tuple[Rule, ...]:
    return tuple(
        Rule(**({name: getattr(rule, name) for name in rule.__struct_fields__} | {"name": str(number)}))
        for number, rule in enumerate(rules, 1)
    )


@pytest.mark.parametrize(
    ("rules", "unreachable"),
    [
        ((), {}),
        ((Rule(), Rule(types=("Freeze",))), {2: "the earlier rule '1' matches every event that it would"}),
        ((Rule(types=("Freeze",)), Rule()), {}),
        (
            (Rule(affects="any"), Rule(affects="others"), Rule(affects="me")),
            {
                2: "the earlier rule '1' matches every event that it would",
                3: "the earlier rule '1' matches every event that it would",
            },
        ),
        ((Rule(affects="me"), Rule(affects="others")), {}),
        (
            (Rule(affects="me"), Rule(affects="others"), Rule(types=("Freeze",), affects="any")),
            {3: "the earlier rules '1', '2' together match every event that it would"},
        ),
        (
            (Rule(types=("Freeze", "Reboot")), Rule(types=("Reboot",)), Rule(types=("Redeploy",))),
            {2: "the earlier rule '1' matches every event that it would"},
        ),
        (
            (
                Rule(types=("Freeze",)),
                Rule(types=("Terminate",)),
                Rule(types=("Reboot", "Freeze")),
                Rule(types=("Reboot",)),
            ),
            {4: "the earlier rule '3' matches every event that it would"},
        ),
        (
            (Rule(types=("Freeze",)), Rule(types=("Reboot",)), Rule(types=("Reboot", "Freeze"))),
            {3: "the earlier rules '1', '2' together match every event that it would"},
        ),
        ((Rule(sources=("User",)), Rule(sources=("User", "Platform"))), {}),
        # An endpoint of an older api-version does not say who caused an event.
        ((Rule(sources=("User",)), Rule(sources=("Platform",)), Rule()), {}),
        (
            (Rule(max_duration=Duration(9)), Rule(max_duration=Duration(5)), Rule(max_duration=Duration(10))),
            {2: "the earlier rule '1' matches every event that it would"},
        ),
        (
            (Rule(min_duration=Duration(9)), Rule(min_duration=Duration(10)), Rule(min_duration=Duration(5))),
            {2: "the earlier rule '1' matches every event that it would"},
        ),
        (
            (
                Rule(max_duration=Duration(seconds=9)),
                Rule(min_duration=Duration(seconds=10)),  # no event has a part of a second in between
                Rule(min_duration=Duration(seconds=5), max_duration=Duration(seconds=15)),
            ),
            {3: "the earlier rules '1', '2' together match every event that it would"},
        ),
        ((Rule(min_duration=Duration(0)), Rule()), {}),  # an unknown duration is left over
        (
            (Rule(min_duration=Duration(milliseconds=1200), max_duration=Duration(milliseconds=1800)),),
            {1: "no whole number of seconds lies between min_duration and max_duration"},
        ),
        (
            (Rule(description="a"), Rule(description="a"), Rule(description="ab")),
            {2: "the earlier rule '1' matches every event that it would"},
        ),
        (
            (Rule(window=NIGHTS), Rule(window=NIGHTS), Rule()),
            {2: "the earlier rule '1' matches every event that it would"},
        ),
    ],
)
def test_rules_that_never_come_to_their_turn_are_named_with_the_reason(
    rules: tuple[Rule, ...], unreachable: dict[int, str]
) -> None:
    assert find_unreachable_rules(named(*rules)) == tuple(UnreachableRule(n - 1, why) for n, why in unreachable.items())


spans = st.none() | st.integers(0, 3).map(lambda seconds: Duration(seconds=seconds))
some_rules: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    types=st.sampled_from([(), ("Freeze",), ("Reboot",), ("Freeze", "Reboot")]),
    sources=st.sampled_from([(), ("User",), ("Platform", "User")]),
    min_duration=spans,
    max_duration=spans,
    description=st.sampled_from([None, "", "a", "ab"]),
    affects=st.sampled_from(["me", "others", "any"]),
    window=st.sampled_from(
        [(), (WeeklyWindow("11:00-13:00"),), (WeeklyWindow("11:00-13:00"), WeeklyWindow("22:00-06:00"))]
    ),
)
some_events = st.builds(
    an_event,
    type=st.sampled_from(["Freeze", "Reboot", "Defragment"]),
    source=st.sampled_from(["", "User", "Platform"]),
    duration_s=st.integers(-1, 4),
    description=st.sampled_from(["", "a", "ab"]),
    resources=st.sampled_from([(), ("db",), ("web",)]),
)


def built(members: dict[str, Any]) -> Rule:
    if None not in {members["min_duration"], members["max_duration"]}:
        least, most = sorted([members["min_duration"], members["max_duration"]])
        members = members | {"min_duration": least, "max_duration": most}
    return Rule(**members)


@given(
    rules=st.lists(some_rules.map(built), min_size=2, max_size=4),
    events=st.lists(some_events, min_size=1, max_size=4),
    hours=st.integers(0, 24 * 7),
)
def test_a_rule_that_is_named_unreachable_decides_nothing(rules: list[Rule], events: list[Event], hours: int) -> None:
    local = MONDAY_NOON + timedelta(hours=hours)
    places = {each.index for each in find_unreachable_rules(rules)}
    for place, rule in enumerate(rules):
        if place in places:
            for event in events:
                assert find_first_match(tuple(rules), event, "db", local) is not rule


@given(rules=st.lists(some_rules.map(lambda each: built(each | {"description": None, "window": ()})), max_size=4))
def test_without_descriptions_and_windows_every_unreachable_rule_is_found(rules: list[Rule]) -> None:
    """Every kind of event that these rules can tell apart is tried."""
    events = [
        an_event(type=kind, source=source, duration_s=seconds, resources=names)
        for kind in ("Freeze", "Reboot", "Defragment")
        for source in ("", "User", "Platform")
        for seconds in range(-1, 6)
        for names in (("db",), ("web",))
    ]
    decide = {id(find_first_match(tuple(rules), event, "db", MONDAY_NOON)) for event in events}
    silent = {place for place, rule in enumerate(rules) if id(rule) not in decide}
    assert {each.index for each in find_unreachable_rules(rules)} == silent
