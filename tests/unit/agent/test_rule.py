from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from forewarn.agent.codec import Duration, InvalidValue
from forewarn.agent.handlers import FileHandler
from forewarn.agent.rule import LOG_ONLY, EventStep, Hook, Rule, find_first_match, matches_event
from forewarn.agent.window import WeeklyWindow
from tests.support.occasion import an_event
from tests.support.records import DRAIN

MONDAY_NOON = datetime(2030, 1, 7, 12, 0)  # noqa: DTZ001 - local time
AT_ONCE = Rule(types=("Freeze",), max_duration=Duration(seconds=8), approve="at-once")
BY_USER = Rule(sources=("User",), approve="at-once")
CUSTOM = Rule(prepare=(DRAIN,), recover=(DRAIN,))


def a_line(text: str) -> Hook:
    return Hook(shell=text)


def does(rule: Rule, **event: Any) -> bool:  # noqa: ANN401 - members of an event
    return matches_event(rule, an_event(**event), "db", MONDAY_NOON)


def test_a_rule_without_conditions_is_about_every_event_of_this_vm() -> None:
    assert does(Rule())
    assert not does(Rule(), resources=("web", "DB"))  # W7: names are compared as they are written
    assert does(Rule(), type="Defragment", source="", duration_s=-1)


@pytest.mark.parametrize(
    ("rule", "event", "is_matched"),
    [
        (Rule(types=("Freeze",)), {"type": "Freeze"}, True),
        (Rule(types=("Reboot", "Redeploy")), {"type": "Freeze"}, False),
        (Rule(sources=("User",)), {"source": "User"}, True),
        (Rule(sources=("User",)), {"source": "Platform"}, False),
        (Rule(sources=("User",)), {"source": ""}, False),
        (Rule(min_duration=Duration(seconds=10)), {"duration_s": 10}, True),
        (Rule(min_duration=Duration(seconds=10)), {"duration_s": 9}, False),
        (Rule(min_duration=Duration(0)), {"duration_s": -1}, False),
        (Rule(max_duration=Duration(seconds=10)), {"duration_s": 10}, True),
        (Rule(max_duration=Duration(seconds=10)), {"duration_s": 11}, False),
        (Rule(max_duration=Duration(seconds=10)), {"duration_s": 10**30}, False),
        (Rule(description="live migration"), {"description": "a memory-preserving Live Migration."}, True),
        (Rule(description="^Host"), {"description": "Virtual host"}, False),
        (Rule(description=""), {"description": ""}, True),
        (Rule(affects="me"), {"resources": ("db", "web")}, True),
        (Rule(affects="others"), {"resources": ("db", "web")}, False),
        (Rule(affects="others"), {"resources": ("web",)}, True),
        (Rule(affects="any"), {"resources": ()}, True),
        (Rule(window=(WeeklyWindow("Tue 00:00-24:00"), WeeklyWindow("11:00-13:00"))), {}, True),
        (Rule(window=(WeeklyWindow("Tue 00:00-24:00"), WeeklyWindow("13:00-14:00"))), {}, False),
    ],
)
def test_every_condition_of_a_rule_has_to_hold(rule: Rule, event: dict[str, Any], is_matched: bool) -> None:
    assert does(rule, **event) is is_matched


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        ({"type": "Freeze", "duration_s": 0}, AT_ONCE),
        ({"type": "Freeze", "duration_s": 8}, AT_ONCE),
        ({"type": "Freeze", "duration_s": 9}, CUSTOM),
        ({"type": "Freeze", "duration_s": -1}, CUSTOM),
        ({"type": "Reboot", "duration_s": 5}, CUSTOM),
        ({"type": "Reboot", "duration_s": -1, "source": "User"}, BY_USER),
        ({"type": "Redeploy", "duration_s": -1, "source": "User"}, BY_USER),
        ({"type": "Terminate", "resources": ("web",)}, LOG_ONLY),
    ],
)
def test_the_sample_policy_can_be_said(event: dict[str, Any], rule: Rule) -> None:
    """R102: what users want and short freezes are approved at once, but for those of unknown length."""
    assert find_first_match((BY_USER, AT_ONCE, CUSTOM), an_event(**event), "db", MONDAY_NOON) is rule


def test_the_first_rule_that_matches_decides() -> None:
    first, second = Rule(name="first", types=("Reboot",)), Rule(name="second")
    assert find_first_match((first, second), an_event(type="Reboot"), "db", MONDAY_NOON) is first
    assert find_first_match((second, first), an_event(type="Reboot"), "db", MONDAY_NOON) is second
    assert find_first_match((), an_event(), "db", MONDAY_NOON) is LOG_ONLY


def test_what_no_rule_matches_is_only_logged() -> None:
    assert LOG_ONLY.approve == "never"
    assert not LOG_ONLY.has_preparation
    assert [hook for step in EventStep for hook in LOG_ONLY.get_hooks(step)] == []


# Steps


def test_a_plain_list_is_a_command() -> None:
    rule = Rule(prepare=(("drain", "--now"), a_line("sync")))
    assert rule.get_hooks(EventStep.PREPARE) == (Hook(command=("drain", "--now")), a_line("sync"))


def test_each_step_has_its_hooks() -> None:
    rule = Rule(
        prepare=(("a",),),
        before_approval=(("b",),),
        started=(("c",),),
        recover=(("d",),),
        canceled=(("e",),),
        alert=(("f",),),
    )
    assert "".join(hook.command[0] for step in EventStep for hook in rule.get_hooks(step)) == "abcdef"


def test_what_was_cancelled_is_recovered_from_unless_there_are_hooks_for_it() -> None:
    """R77."""
    assert Rule(recover=(DRAIN,)).get_hooks(EventStep.CANCELED) == (DRAIN,)
    assert Rule(recover=(DRAIN,), canceled=(("other",),)).get_hooks(EventStep.CANCELED) == (Hook(command=("other",)),)


@pytest.mark.parametrize(
    ("rule", "prepares", "drains"),
    [
        (Rule(), False, False),
        (Rule(recover=(DRAIN,)), False, False),
        (Rule(prepare=(DRAIN,)), True, True),
        (Rule(handlers=(FileHandler(touch="/run/drain"),)), True, True),
        (Rule(prepare=(DRAIN,), drain=False), True, False),
        (Rule(drain=True), False, True),
    ],
)
def test_who_prepares_gets_no_work_unless_the_rule_says_otherwise(rule: Rule, prepares: bool, drains: bool) -> None:
    assert (rule.has_preparation, rule.drains_vm) == (prepares, drains)


@pytest.mark.parametrize(
    ("hook", "label"),
    [
        (Hook(command=("/bin/drain", "--now")), "/bin/drain --now"),
        (a_line("set -e\n  sync"), "set -e sync"),
        (a_line("x" * 500), "x" * 117 + "..."),
        (Hook(webhook="https://hooks.example/T1/secret?key=secret"), "webhook hooks.example"),
    ],
)
def test_a_label_is_one_line_without_what_may_be_secret(hook: Hook, label: str) -> None:
    assert hook.label == label


# Mistakes


@pytest.mark.parametrize(
    ("members", "keys", "message"),
    [
        ({}, (), "a hook needs exactly one of command, shell and webhook"),
        ({"command": ("a",), "shell": "b"}, (), "a hook needs exactly one of command, shell and webhook"),
        ({"command": ("", "b")}, ("command",), "a command must begin with the name of a program"),
        ({"command": ("a", "b\0")}, ("command",), "a command cannot contain a NUL character"),
        ({"shell": "a\0"}, ("shell",), "a command cannot contain a NUL character"),
        ({"command": ("a",), "headers": {"A": "b"}}, ("headers",), "only a webhook can have headers"),
        ({"command": ("a",), "retries": -1}, ("retries",), "-1 is out of range: expected 0 to 100"),
        ({"command": ("a",), "retries": 101}, ("retries",), "101 is out of range: expected 0 to 100"),
        ({"command": ("a",), "timeout": Duration(0)}, ("timeout",), "expected more than 0s"),
        *(
            (
                {"webhook": url},
                ("webhook",),
                "expected a URL without user and password, for example https://example.com/maintenance",
            )
            for url in (
                "example.com",
                "ftp://example.com",
                "http://",
                "https://user:secret@example.com/",
                "http://example.com/a b",
                "http://example.com/\u00fc",
                "http://example.com/a\r\nb",
                "http://[::1/",
                "http://example.com:99999/",
            )
        ),
        *(
            ({"webhook": "http://a", "headers": {name: value}}, ("headers", name), message)
            for name, value, message in (
                ("A B", "c", "'A B' is not a header name"),
                ("", "c", "'' is not a header name"),
                ("content-LENGTH", "3", "'content-LENGTH' cannot be set"),
                ("Transfer-Encoding", "chunked", "'Transfer-Encoding' cannot be set"),
                ("A", "b\r\nC: d", "expected printable ASCII characters, without spaces around them"),
                ("A", "\u00fc", "expected printable ASCII characters, without spaces around them"),
                ("A", " b", "expected printable ASCII characters, without spaces around them"),
            )
        ),
    ],
)
def test_a_hook_that_could_never_run_is_refused(members: dict[str, Any], keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Hook(**members)
    assert (caught.value.keys, str(caught.value)) == (keys, message)


@pytest.mark.parametrize(
    "members",
    [
        {"webhook": "https://example.com"},
        {"webhook": "http://127.0.0.1:8080/a?b=c#d"},
        {"webhook": "http://[::1]:8080/"},
        {"webhook": "http://a", "headers": {"Authorization": "Bearer a b", "X-Empty": "", "X": "y"}},
        {"command": ("a", "")},
        {"shell": "a\nb"},
    ],
)
def test_a_hook_that_can_run_is_taken(members: dict[str, Any]) -> None:
    assert Hook(**members).label


@pytest.mark.parametrize(
    ("members", "keys", "message"),
    [
        (
            {"approve": "at-once", "prepare": (DRAIN,)},
            ("approve",),
            "'at-once' does not wait for preparation: use 'when-prepared', or remove the preparation",
        ),
        (
            {"approve": "at-once", "handlers": (FileHandler(touch="/a"),)},
            ("approve",),
            "'at-once' does not wait for preparation: use 'when-prepared', or remove the preparation",
        ),
        (
            {"min_duration": Duration(2), "max_duration": Duration(1)},
            ("min_duration",),
            "greater than max_duration, so no event would match",
        ),
        ({"description": "("}, ("description",), "not a valid regular expression: missing ), unterminated subpattern"),
        (
            {"description": "a{99999999999999999999}"},
            ("description",),
            "not a valid regular expression: the repetition number is too large",
        ),
        ({"description": "(" * 5000}, ("description",), "not a valid regular expression: "),
        (
            {"handlers": (FileHandler(touch="/a", timeout=Duration(0)),)},
            ("handlers", 0, "timeout"),
            "expected more than 0s",
        ),
        ({"prepare": (DRAIN, ())}, ("prepare", 1), "a hook needs exactly one of command, shell and webhook"),
        ({"recover": (("",),)}, ("recover", 0), "a command must begin with the name of a program"),
        ({"canceled": (("",),)}, ("canceled", 0), "a command must begin with the name of a program"),
        ({"before_approval": (("a\0",),)}, ("before_approval", 0), "a command cannot contain a NUL character"),
    ],
)
def test_a_rule_that_could_never_be_carried_out_is_refused(
    members: dict[str, Any], keys: tuple[str | int, ...], message: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        Rule(**members)
    assert caught.value.keys == keys
    assert str(caught.value).startswith(message)
