"""What `forewarn agent check` says of a configuration."""

from __future__ import annotations

from datetime import UTC, datetime

from forewarn.agent.configuration import Configuration, parse_configuration
from forewarn.agent.explanation import TYPICAL, EventExplanation, TypicalEvent, explain_configuration
from forewarn.core.causes import CAUSES

MONDAY_NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)


def explained(text: str, cause: str, local: datetime = MONDAY_NOON) -> EventExplanation:
    told = explain_configuration(parse_configuration(text), local)
    return next(each for each in told if each.case.cause == cause)


RULES = """
[[rule]]
name = "short"
types = ["Freeze"]
max_duration = "8s"
approve = "at-once"

[[rule]]
name = "asked for"
sources = ["User"]
approve = "by-hand"

[[rule]]
name = "rest"
handlers = [{ use = "file", touch = "/run/drain" }]
prepare = [["sync"], { shell = "echo hi | wall" }]
recover = [{ webhook = "https://chat.example/back" }]
"""


def test_every_cause_of_the_protocol_is_explained_once() -> None:
    told = explain_configuration(Configuration(), MONDAY_NOON)
    assert [each.case for each in told] == list(TYPICAL)
    assert {case.type for case in TYPICAL} == {"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}


def test_what_is_explained_is_what_the_causes_of_forewarn_make() -> None:
    made = {(cause.type, cause.source, cause.description, cause.duration_s) for cause in CAUSES.values()}
    assert {(case.type, case.source, case.description, case.duration_s) for case in TYPICAL} <= made


def test_without_rules_everything_is_left_to_notbefore() -> None:
    for each in explain_configuration(Configuration(), MONDAY_NOON):
        assert (each.rule, each.prepares, each.recovers) == ("none", (), ())
        assert each.approves in {"never: NotBefore decides", "no: it has started"}


def test_a_short_freeze_is_approved_at_once() -> None:
    """R102."""
    told = explained(RULES, "live migration")
    assert (told.rule, told.prepares, told.approves) == ("short", (), "at once, if first in Resources")


def test_what_is_prepared_and_undone_is_listed_in_its_order() -> None:
    told = explained(RULES, "host maintenance")
    assert told.rule == "rest"
    assert told.prepares == ("create the file /run/drain", "sync", "echo hi | wall")
    assert told.approves == "when prepared, if first in Resources"
    assert told.recovers == ("webhook chat.example", "undo file")


def test_what_an_operator_has_to_approve_says_how() -> None:
    assert explained(RULES, "restart by a user").approves == "manually: forewarn agent approve"


def test_what_has_started_already_is_prepared_for_and_not_approved() -> None:
    """R73, R78."""
    told = explained(RULES, "hardware failure")
    assert told.prepares == ("create the file /run/drain", "sync", "echo hi | wall")
    assert told.approves == "no: it has started"
    assert told.recovers == ("webhook chat.example", "undo file")


def test_an_event_of_another_vm_is_only_logged() -> None:
    """R60."""
    assert explained(RULES, "another VM's migration").rule == "none"


def test_windows_are_judged_at_the_given_time() -> None:
    text = '[[rule]]\nname = "night"\nwindow = ["22:00-06:00"]\napprove = "at-once"\n'
    assert explained(text, "live migration").rule == "none"
    assert explained(text, "live migration", MONDAY_NOON.replace(hour=23)).rule == "night"


def test_the_way_in_which_vms_agree_is_told() -> None:
    """R103."""
    secondary = '[together]\nmode = "secondary"\nsecondary_after = "90s"\n[[rule]]\napprove = "at-once"\n'
    assert explained(secondary, "live migration").approves == "at once, if the primary has not within 90 s"
    each = '[together]\nmode = "each"\n[[rule]]\n'
    assert explained(each, "live migration").approves == "at once"


def test_a_case_of_ones_own_can_be_asked_about() -> None:
    case = TypicalEvent(cause="as asked", type="Freeze", source="Platform", duration_s=8)
    (told,) = explain_configuration(parse_configuration(RULES), MONDAY_NOON, (case,))
    assert told.rule == "short"
