"""The executor: it sends approvals, and runs steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta

import pytest

from forewarn.agent.decision_executor import DecisionExecutor
from forewarn.agent.metrics import AgentMetrics
from forewarn.agent.record import ApprovalState, EventRecord, StepRunState
from forewarn.agent.registry import EventRegistry
from forewarn.agent.rule import EventStep, Rule
from forewarn.agent.steps import Remember
from forewarn.client import AsyncClient, EndpointError, Event
from forewarn.errors import HookFailed
from tests.support.occasion import an_event
from tests.support.quick_steps import QuickSteps
from tests.support.records import NOW, A, B, a_book, a_run, document


class RefusingClient(AsyncClient):
    """A client whose first approvals are refused."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    async def approve_once(self, events: Event | str | Iterable[Event | str]) -> None:
        assert events == [A]
        self.refusals -= 1
        if self.refusals >= 0:
            raise EndpointError("not now", status=503)


class FailingSteps(QuickSteps):
    """Steps that fail."""

    async def run(self, record: EventRecord, step: EventStep, vm: str, save_memory: Remember, reason: str = "") -> str:
        await super().run(record, step, vm, save_memory, reason)
        raise HookFailed("false ended with status 1")


class Arranged:
    """An executor, with what it was given and what it has counted."""

    def __init__(
        self, client: AsyncClient | None = None, *, rule: Rule | None = None, steps: QuickSteps | None = None
    ) -> None:
        self.book: EventRegistry = a_book(rule or Rule())
        self.steps = steps or QuickSteps()
        self.now = NOW
        self.wakes = 0
        self.metrics = AgentMetrics(lambda: self.book.records, lambda: self.now)
        self.executor = DecisionExecutor(
            self.book,
            client=client or AsyncClient(),
            steps=self.steps,
            metrics=self.metrics,
            now=lambda: self.now,
            save=self.book.save,
            wake=self._count_wake,
            is_dry_run=False,
        )

    def _count_wake(self) -> None:
        self.wakes += 1

    async def approve(self, event_id: str) -> None:
        """Send an approval, and wait for its result."""
        async with asyncio.TaskGroup() as group:
            self.executor.open(group)
            self.executor.start_approval(event_id)


@pytest.mark.anyio
async def test_an_approval_that_is_refused_is_sent_again_after_a_pause_that_grows() -> None:
    made = Arranged(RefusingClient(refusals=5))
    made.book.observe_document(document(an_event(id=A)), NOW)
    for count, pause_s in enumerate((1, 2, 4, 8, 8), 1):
        await made.approve(A)
        record = made.book[A]
        assert (record.approval, record.approval_failures) == (ApprovalState.NONE, count)
        assert record.approve_again_at == made.now + timedelta(seconds=pause_s)
        assert made.metrics.approval_failures == made.wakes == count
        made.now += timedelta(seconds=pause_s)
    await made.approve(A)
    record = made.book[A]
    assert (record.approval, record.approval_failures) == (ApprovalState.ACCEPTED, 0)
    assert record.approved_at == made.now
    assert (sum(made.metrics.approvals.counts), made.metrics.approvals.sum_s) == (1, 23)
    assert made.wakes == 6


@pytest.mark.anyio
@pytest.mark.parametrize("refusals", [0, 1])
async def test_the_answer_to_an_approval_of_an_event_that_is_gone_changes_nothing(refusals: int) -> None:
    made = Arranged(RefusingClient(refusals))
    made.book.observe_document(document(an_event(id=A)), NOW)
    async with asyncio.TaskGroup() as group:
        made.executor.open(group)
        made.executor.start_approval(A)
        made.book.observe_document(document(), NOW)
        made.book.remove_record(A, NOW)
        # Another event of this id: the answer is not about it.
        made.book.observe_document(document(an_event(id=A)), NOW + timedelta(minutes=1))
        before = made.book[A]
    assert made.book[A] == before
    assert sum(made.metrics.approvals.counts) == 0


@pytest.mark.anyio
async def test_an_executor_keeps_no_task_of_a_step_that_has_ended() -> None:
    made = Arranged()
    book, executor = made.book, made.executor
    events = [an_event(id=A), an_event(id=B)]
    book.observe_document(document(*events), NOW)
    async with asyncio.TaskGroup() as group:
        executor.open(group)
        for event in events:
            book.update_record(event.id, runs={EventStep.PREPARE: a_run(StepRunState.RUNNING)})
            executor.start_step(book[event.id], EventStep.PREPARE)
    assert made.steps.ran == [EventStep.PREPARE] * 2
    assert executor._step_tasks == {}
    executor.cancel_step(A)  # of a step that has just ended: nothing is left to cancel


@pytest.mark.anyio
async def test_an_alert_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    made = Arranged(rule=Rule(alert=(("false",),)), steps=FailingSteps())
    made.book.observe_document(document(an_event(id=A)), NOW)
    caplog.clear()
    async with asyncio.TaskGroup() as group:
        made.executor.open(group)
        made.executor.report_failure(A, EventStep.PREPARE, "it took too long")
    assert made.steps.ran == [EventStep.ALERT]
    assert caplog.messages == [
        f"event {A}: step prepare failed: it took too long",
        f"event {A}: the alert failed: false ended with status 1",
    ]
