"""`forewarn scenario from-transcript`: what was recorded is played by a service of its own, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx
from hypothesis import given, settings

from forewarn.clock import VIRTUAL_START
from forewarn.testing import ScheduledEvents
from forewarn.testing.transcript.transcript import Transcript, TranscriptEntry
from forewarn.testing.transcript.transcript_conversion import convert_transcript
from forewarn.testing.trial.player import ScenarioPlayer, StepOutcome, create_lab
from tests.support.parsed_scenario import parse_scenario
from tests.support.service import Running
from tests.support.showings import transcripts
from tests.support.spans import GUARD_S
from tests.support.transcripts import live
from tests.support.wire import LATEST

T = TypeVar("T")


async def play(text: str) -> list[StepOutcome]:
    scenario = parse_scenario(text.encode(), "recorded")
    lab = create_lab(scenario)
    async with lab.running():
        return await ScenarioPlayer(scenario, lab).play()


def faults_of(text: str) -> list[str]:
    """What is not as the scenario expects when it is played."""
    return [f"{outcome.line}: {outcome.failure}" for outcome in asyncio.run(play(text)) if outcome.failure]


def test_a_recorded_life_can_be_played_as_a_scenario(service: Running, tmp_path: Path) -> None:
    transcript, event_id = live(service, service.vm(), tmp_path / "t.jsonl")
    text = convert_transcript(transcript)
    scenario = parse_scenario(text.encode(), "recorded")
    assert scenario.event_ids == (event_id,)
    assert [step.action_name for step in scenario.steps if step.action_name != "expect"] == [
        "poll",
        "schedule",
        "start",
        "complete",
    ]
    assert "Left out" not in text
    assert faults_of(text) == []


@settings(max_examples=20)
@given(transcripts())
def test_whatever_was_recorded_is_played_to_its_end_and_as_expected(recorded: Transcript) -> None:
    assert faults_of(convert_transcript(recorded)) == []


class _Watched:
    """A service on virtual time, and the transcript of what it shows."""

    def __init__(self, *vms: str) -> None:
        hosts = [{"name": f"host-{vm}"} for vm in vms]
        declared = [{"name": vm, "host": f"host-{vm}", "scope": "set"} for vm in vms]
        scope = {"name": "set", "kind": "scale-set", "terminate_notification": {"enable": True}}
        self.events = ScheduledEvents({"hosts": hosts, "scopes": [scope], "vms": declared})
        self._entries: list[TranscriptEntry] = []

    def after(self, span: str, act: Callable[[], T]) -> T:
        """Let time pass, act, and ask."""
        self.events.advance(span)
        result = act()
        self.look()
        return result

    def look(self) -> None:
        """Ask, as the recorder does."""
        at_s = (self.events.now - VIRTUAL_START).total_seconds()
        answer = httpx.get(
            f"{self.events.url}/metadata/scheduledevents?api-version={LATEST}",
            headers={"Metadata": "true"},
            timeout=GUARD_S,
        )
        headers = {"date": answer.headers["date"]}
        self._entries.append(TranscriptEntry(at_s=at_s, status=200, headers=headers, body=answer.content))

    def advance(self, by: str) -> None:
        self.events.advance(by)
        self.look()

    def transcript(self) -> Transcript:
        """What was seen, without what says the same."""
        kept = [
            e
            for e, before in zip(self._entries, [None, *self._entries], strict=False)
            if not e.has_same_content(before)
        ]
        end_s = self._entries[-1].at_s
        return Transcript(api_version=LATEST, began=VIRTUAL_START, interval_s=1.0, entries=tuple(kept), end_s=end_s)


def test_a_day_with_everything_in_it_is_played_as_it_was_seen() -> None:
    """The same events with the same members, and the same incarnations, at each moment."""
    watched = _Watched("a", "b", "c")
    with watched.events as events:
        watched.advance("0s")
        freeze = watched.after("61500ms", lambda: events.schedule("Freeze", ["a", "b"]))
        watched.after("2500ms", lambda: events.approve(freeze))
        watched.after("1s", lambda: events.complete(freeze))
        restart = watched.after("1s", lambda: events.restart("b"))
        redeploy = watched.after("250ms", lambda: events.redeploy("c"))
        watched.advance("10m")
        watched.advance("5m")
        watched.after("1s", lambda: events.complete(restart))
        watched.after("1s", lambda: events.complete(redeploy))
        predicted = watched.after("1ms", lambda: events.predict_failure("host-a"))
        watched.after("1s", lambda: events.cancel(predicted[0]))
        failed = watched.after("10ms", lambda: events.fail_host("host-a"))
        watched.after("5m", lambda: events.complete(failed[0]))
        deleted = watched.after("20h", lambda: events.delete("c"))
        watched.advance("6m")
        watched.after("1s", lambda: events.complete(deleted))
        watched.after("1m", lambda: events.evict("b"))
        watched.advance("31s")
        recorded = watched.transcript()
    text = convert_transcript(recorded)
    assert faults_of(text) == []
    assert "Left out" not in text
    assert text.count(", incarnation: ") == len(recorded.entries)
