"""The agent between its registry, its steps and its peers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

import pytest

from forewarn.agent.agent import Agent
from forewarn.agent.agreement import PeerState
from forewarn.agent.configuration import Configuration
from forewarn.agent.rule import EventStep, Rule
from forewarn.agent.steps import VARIABLES
from forewarn.client import AsyncClient, EndpointError, Event, PollAnswered, PollFailed
from forewarn.clock import RealClock
from tests.support.occasion import an_event
from tests.support.quick_steps import QuickSteps
from tests.support.records import DRAIN, NOW, A, B, InMemory, a_run, document


def test_peers_are_sent_only_what_is_on_disk() -> None:
    """What a full disk has refused, a crash would undo."""
    storage = InMemory()
    agent = Agent(
        Configuration(name="web-0"), client=AsyncClient(), clock=RealClock(), steps=QuickSteps(), storage=storage
    )
    registry = agent._registry
    registry.observe_document(document(an_event(id=A, resources=("web-0", "web-1"))), NOW)
    storage.is_full = True
    agent._save_records()
    assert agent.get_reported_states() == {}
    storage.is_full = False
    agent._save_records()
    assert agent.get_reported_states() == {A: PeerState.HELD}
    registry.observe_document(document(an_event(id=B, resources=("web-0", "web-1"))), NOW)
    assert agent.get_reported_states() == {A: PeerState.HELD}


def test_a_name_is_taken_and_logged_when_it_changes_and_no_name_is_none(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(Configuration(), client=AsyncClient(), clock=RealClock(), steps=QuickSteps(), storage=InMemory())
    with caplog.at_level("INFO", "forewarn.agent"):
        for name, known in (("", ""), ("db", "db"), ("db", "db"), ("", "db"), ("web-0", "web-0")):
            agent._set_name(name)
            assert agent.vm == known
    assert [r.getMessage() for r in caplog.records] == ["this VM's name is db", "this VM's name is web-0"]


@pytest.mark.anyio
async def test_each_poll_is_counted_and_failures_in_a_row_are_logged_less_and_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent(
        Configuration(name="db"), client=AsyncClient(), clock=RealClock(), steps=QuickSteps(), storage=InMemory()
    )
    caplog.set_level("INFO", "forewarn.agent")
    for failures in range(1, 6):
        agent._record_failed_poll(PollFailed(error=EndpointError("no answer"), failures=failures, retry_in_s=1.0))
    for is_changed in (True, False):
        agent._record_answer(PollAnswered(document=document(), is_changed=is_changed, served_at=None))
    assert agent.metrics.polls == {"ok": 2, "failed": 5}
    logged = [f"no answer ({failures} in a row)" for failures in (1, 2, 4)]
    assert [r.getMessage() for r in caplog.records if r.levelname != "DEBUG"] == [
        *logged,
        "the metadata endpoint answers again",
    ]


class AcceptingClient(AsyncClient):
    """A client whose approvals are all accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.approved: list[str] = []

    async def approve_once(self, events: Event | str | Iterable[Event | str]) -> None:
        assert isinstance(events, list)
        self.approved += events


async def judge(agent: Agent) -> None:
    """Judge once, and let what was decided come to its end."""
    async with asyncio.TaskGroup() as group:
        agent._executor.open(group)
        agent._judge_all()


@pytest.mark.anyio
async def test_what_a_full_disk_has_refused_is_not_approved() -> None:
    """The impact may restart the VM, whose agent would then know neither the preparation nor the approval."""
    storage, client = InMemory(), AcceptingClient()
    rules = (Rule(prepare=(DRAIN,)),)
    agent = Agent(
        Configuration(name="db", rule=rules), client=client, clock=RealClock(), steps=QuickSteps(), storage=storage
    )
    agent._last_answer_s = 0.0  # the endpoint has answered
    agent._registry.observe_document(document(an_event(id=A), an_event(id=B)), NOW)
    for event_id in (A, B):
        agent._registry.update_record(event_id, runs={EventStep.PREPARE: a_run()})
    storage.is_full = True
    for _ in range(2):
        await judge(agent)
        assert client.approved == []
    assert agent.metrics.save_failures == 2, "one attempt in each round"
    assert agent.get_wait_reason(A) == "held: the state file cannot be written; it starts at NotBefore"
    agent.approve_by_hand(B)
    await judge(agent)
    assert client.approved == [B]
    storage.is_full = False
    await judge(agent)
    assert client.approved == [B, A]


@pytest.mark.anyio
async def test_each_event_is_counted_once_when_it_is_over_and_if_it_came_too_soon() -> None:
    rules = (Rule(prepare=(DRAIN,)),)
    agent = Agent(
        Configuration(name="db", rule=rules),
        client=AcceptingClient(),
        clock=RealClock(),
        steps=QuickSteps(),
        storage=InMemory(),
    )
    agent._registry.observe_document(document(an_event(id=A), an_event(id=B, status="Started")), NOW)
    agent._registry.observe_document(document(), NOW)
    for _ in range(5):  # more often than there are steps
        await judge(agent)
    assert list(agent._registry.records) == []
    assert agent.metrics.unprepared_events == {"Freeze": 1}
    assert agent.metrics.ended_events == {("Freeze", "canceled"): 1, ("Freeze", "recovered"): 1}


def test_hooks_are_given_the_names_of_steps_that_are_documented() -> None:
    documented = set(re.findall(r"`([a-z-]+)`", VARIABLES["FOREWARN_STEP"]))
    assert documented == {step.value for step in EventStep}
