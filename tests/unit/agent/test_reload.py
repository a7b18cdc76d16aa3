"""What takes effect at once of a configuration that was read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from forewarn.agent.agreement import TogetherSettings
from forewarn.agent.codec import Duration
from forewarn.agent.configuration import LIVE_KEYS, Configuration, merge_live_settings
from forewarn.agent.record import ApprovalState, StepRunState
from forewarn.agent.registry import EventRegistry
from forewarn.agent.rule import EventStep, Rule
from tests.support.occasion import an_event
from tests.support.records import DRAIN, NOW, InMemory, a_book, a_record, document

OTHER: dict[str, Any] = {
    "endpoint": "http://127.0.0.1:1",
    "name": "other",
    "scale_set": "other",
    "source_address": "127.0.0.2",
    "poll_interval": Duration(seconds=7),
    "wait": Duration(seconds=7),
    "state_file": "/other",
    "listen": "127.0.0.1:7",
    "log_file": "/other",
    "log_level": "debug",
    "timezone": "UTC",
    "margin": Duration(seconds=7),
    "output_size_bytes_max": 7,
    "events_max": 7,
    "history_max": 7,
    "dry_run": True,
    "together": TogetherSettings(mode="each"),
    "rule": (Rule(name="other"),),
}


def test_every_key_is_tried() -> None:
    assert set(OTHER) == set(Configuration.__struct_fields__)


@pytest.mark.parametrize("key", OTHER)
def test_a_key_takes_effect_at_once_or_is_said_to_wait(key: str) -> None:
    running = Configuration()
    read = msgspec.structs.replace(running, **{key: OTHER[key]})
    merged, waiting = merge_live_settings(running, read)
    if key in LIVE_KEYS:
        assert (merged, waiting) == (read, ())
    else:
        assert (merged, waiting) == (running, (key,))


@dataclass
class Choice:
    """The rule that the registry would choose now."""

    rule: Rule


@pytest.mark.parametrize(
    ("members", "is_matched_anew"),
    [
        ({}, True),
        ({"approval_failures": 2}, True),
        ({"runs": {EventStep.PREPARE: StepRunState.FAILED}}, False),
        ({"runs": {EventStep.PREPARE: StepRunState.DONE}}, False),
        ({"approval": ApprovalState.SENDING}, False),
        ({"approval": ApprovalState.ACCEPTED}, False),
        ({"by_hand_at": NOW}, False),
        ({"started_at": NOW}, False),
        ({"gone_at": NOW}, False),
    ],
)
def test_only_an_announced_event_about_which_nothing_was_done_gets_another_rule(
    members: dict[str, Any], is_matched_anew: bool
) -> None:
    choice = Choice(Rule(name="old", prepare=(DRAIN,)))
    book = EventRegistry(InMemory(), lambda _event, _now: choice.rule, records_max=10, history_max=3)
    record = a_record(choice.rule, **members)
    book.observe_document(document(record.event), NOW)
    book.update_record(record.event.id, **{name: getattr(record, name) for name in record.__struct_fields__})
    choice.rule = Rule(name="new")
    book.reconfigure(NOW, records_max=10, history_max=3)
    assert book[record.event.id].rule.name == ("new" if is_matched_anew else "old")


def test_fewer_events_leave_those_that_are_there() -> None:
    book = a_book()
    book.observe_document(document(an_event(id="A"), an_event(id="B")), NOW)
    book.reconfigure(NOW, records_max=1, history_max=0)
    assert len(book.records) == 2
