"""Judgement and book under everything that can happen to an agent, in any order: sightings, results, crashes, clocks.

The machine carries out decisions as the agent does: it judges until there is nothing but waiting, saves, and only then
acts. A crash loses what was not saved, and whatever was under way. `_Life` holds what has really happened, as far as it
reached the disk, and every decision is held against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forewarn.agent.agreement import PeerReport, PeerState, TogetherSettings, may_approve
from forewarn.agent.codec import Duration
from forewarn.agent.handlers import FileHandler
from forewarn.agent.judgement import (
    Action,
    Agreement,
    BeginStep,
    ForgetEvent,
    GiveUpStep,
    ReportUnprepared,
    SendApproval,
    StopStep,
    judge_record,
)
from forewarn.agent.record import ApprovalState, EventRecord, StepRunState
from forewarn.agent.registry import EventRegistry
from forewarn.agent.rule import LOG_ONLY, EventStep, Rule
from forewarn.wire.document import Event
from tests.support.records import DRAIN, NOW, A, B, C, InMemory, document

MARGIN = timedelta(seconds=5)
ACTIONS_MAX = 16
UNDOING = (EventStep.RECOVER, EventStep.CANCELED)
TOUCH = FileHandler(touch="/run/drain")
RULES = (
    LOG_ONLY,
    Rule(name="drain", prepare=(DRAIN,), recover=(DRAIN,)),
    Rule(name="at-once", approve="at-once"),
    Rule(name="anyway", prepare=(DRAIN,), before_approval=(DRAIN,), on_failure="approve"),
    Rule(name="by-hand", handlers=(TOUCH,), before_approval=(DRAIN,), approve="by-hand"),
    Rule(name="never", prepare=(DRAIN,), canceled=(DRAIN,), approve="never"),
    Rule(name="told", recover=(DRAIN,), started=(DRAIN,)),
    Rule(name="marked", prepare=(DRAIN,), started=(DRAIN,), interrupted="mark"),
    Rule(name="all", handlers=(TOUCH,), prepare=(DRAIN,), before_approval=(DRAIN,), started=(DRAIN,), recover=(DRAIN,)),
)
TOGETHERS = (
    TogetherSettings(),
    TogetherSettings(mode="each"),
    TogetherSettings(mode="secondary", secondary_after=Duration(seconds=20), secondary_sources=("Platform", "User")),
    TogetherSettings(
        mode="all-prepared",
        deadline=Duration(seconds=30),
        listen="127.0.0.1:9470",
        peers={"web": "http://10.0.0.5:9470"},
        secret_file="/etc/forewarn/secret",
    ),
)
RESOURCES = (("db",), ("db", "web"), ("web", "db"), ("web",))

ids = st.sampled_from((A, B, C))
place = st.integers(0, 99)


@dataclass
class _Life:
    """What has happened about one event, from when it was met until it was forgotten.

    Attributes:
        has_begun: Whether something was begun that is to be undone.
        undone: How often it was undone.
        is_accepted: Whether the endpoint took the approval.
        reports: How often it was reported as started before this VM was prepared.
    """

    has_begun: bool = False
    undone: int = 0
    is_accepted: bool = False
    reports: int = 0


class Lives(RuleBasedStateMachine):
    """One agent, three event ids, and everything that can happen."""

    @initialize(together=st.sampled_from(TOGETHERS))
    def begin(self, together: TogetherSettings) -> None:
        self.now = NOW
        self.together = together
        self.there: dict[str, Event] = {}
        self.memory = InMemory()
        self.works: dict[str, EventStep] = {}
        self.sent: set[str] = set()
        self.reports: dict[str, dict[str, PeerReport]] = {}
        self.lives: dict[str, _Life] = {}
        self.pending: list[Callable[[], None]] = []
        self.crash_at = ""
        self.book = self._book()

    def _book(self) -> EventRegistry:
        book = EventRegistry(
            self.memory, lambda event, _now: RULES[int(event.description)], records_max=3, history_max=2
        )
        book.vm = "db"
        return book

    # What happens to events

    @rule(
        event_id=ids,
        chosen=st.integers(0, len(RULES) - 1),
        resources=st.sampled_from(RESOURCES),
        notice_s=st.sampled_from([None, 0, 6, 60, 900]),
        is_started=st.booleans(),
        is_seen=st.booleans(),
    )
    def appear(
        self,
        event_id: str,
        chosen: int,
        resources: tuple[str, ...],
        notice_s: int | None,
        is_started: bool,
        is_seen: bool,
    ) -> None:
        if event_id in self.there:
            return
        self.there[event_id] = Event(
            id=event_id,
            type="Reboot",
            status="Started" if is_started and notice_s is None else "Scheduled",
            resources=resources,
            not_before=None if notice_s is None else self.now + timedelta(seconds=notice_s),
            description=str(chosen),
            source="User",
        )
        self._look(is_seen=is_seen)

    @rule(event_id=ids, is_seen=st.booleans())
    def start(self, event_id: str, is_seen: bool) -> None:
        event = self.there.get(event_id)
        if event is not None:
            self.there[event_id] = replace(event, status="Started", not_before=None)
        self._look(is_seen=is_seen)

    @rule(event_id=ids, is_seen=st.booleans())
    def vanish(self, event_id: str, is_seen: bool) -> None:
        self.there.pop(event_id, None)
        self._look(is_seen=is_seen)

    @rule(is_seen=st.booleans())
    def look(self, is_seen: bool) -> None:
        self._look(is_seen=is_seen)

    def _look(self, *, is_seen: bool) -> None:
        if is_seen:
            self.book.observe_document(document(*self.there.values()), self.now)
        self._settle()

    # What happens to the agent

    @rule(seconds=st.sampled_from([-3, 0, 1, 2, 10, 30, 60, 900]))
    def pass_time(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self._settle()

    @precondition(lambda self: self.works)
    @rule(results=st.lists(st.tuples(place, st.integers(0, 3)), min_size=1, max_size=5))
    def finish(self, results: list[tuple[int, int]]) -> None:
        for which, rng in results:
            if self.works:
                event_id = sorted(self.works)[which % len(self.works)]
                self._finish(event_id, has_succeeded=rng > 0)

    def _finish(self, event_id: str, *, has_succeeded: bool) -> None:
        step = self.works.pop(event_id)
        state = StepRunState.DONE if has_succeeded else StepRunState.FAILED
        self.book.update_run(event_id, step, state=state, ended_at=self.now)
        if has_succeeded and step in UNDOING:
            self.pending.append(partial(self._note, event_id, "undone", 1))
        self._settle()

    @precondition(lambda self: self.sent)
    @rule(which=place, is_accepted=st.booleans())
    def answer(self, which: int, is_accepted: bool) -> None:
        event_id = sorted(self.sent)[which % len(self.sent)]
        self._answer(event_id, is_accepted=is_accepted)

    def _answer(self, event_id: str, *, is_accepted: bool) -> None:
        self.sent.remove(event_id)
        if event_id in self.book and is_accepted:
            self.book.update_record(
                event_id, approval=ApprovalState.ACCEPTED, approved_at=self.now, approval_failures=0
            )
            self.pending.append(partial(self._note, event_id, "is_accepted", True))
        elif event_id in self.book:
            failures = self.book[event_id].approval_failures + 1
            again_at = self.now + timedelta(seconds=min(2 ** (failures - 1), 8))
            self.book.update_record(
                event_id, approval=ApprovalState.NONE, approval_failures=failures, approve_again_at=again_at
            )
        self._settle()

    @rule(event_id=ids)
    def approve_by_hand(self, event_id: str) -> None:
        if event_id in self.book and self.book[event_id].gone_at is None and self.book[event_id].started_at is None:
            self.book.update_record(event_id, by_hand_at=self.now)
        self._settle()

    @rule(event_id=ids)
    def recover_again(self, event_id: str) -> None:
        self._recover_again(event_id)

    def _recover_again(self, event_id: str) -> None:
        if event_id in self.book:
            runs = self.book[event_id].runs
            kept = {s: run for s, run in runs.items() if s not in UNDOING or run.state is not StepRunState.FAILED}
            self.book.update_record(event_id, runs=kept)
        self._settle()

    @rule(event_id=ids, state=st.sampled_from(PeerState))
    def report(self, event_id: str, state: PeerState) -> None:
        self.reports.setdefault(event_id, {})["web"] = PeerReport(state=state, since=self.now)
        self._settle()

    @rule(at=st.sampled_from(["before it is saved", "before it is done", "now"]))
    def crash(self, at: str) -> None:
        self.crash_at = at
        if at == "now":
            self._restart()

    def _restart(self) -> None:
        self.crash_at = ""
        self.pending.clear()
        self.works.clear()
        self.sent.clear()
        self.book = self._book()
        self.book.load(self.now)

    # Judging and acting, as the agent does

    def _settle(self) -> None:
        effects: list[Callable[[], object]] = []
        for record in self.book.records:
            self._settle_one(record.event.id, effects)
        if self.crash_at == "before it is saved":
            self._restart()
            return
        if self.book.is_dirty:
            self.book.save()
        for note in self.pending:
            note()
        self.pending.clear()
        if self.crash_at == "before it is done":
            self._restart()
            return
        for effect in effects:
            effect()

    def _settle_one(self, event_id: str, effects: list[Callable[[], object]]) -> None:
        for _ in range(ACTIONS_MAX):
            if event_id not in self.book:
                return
            record = self.book[event_id]
            judgement = judge_record(record, self.now, MARGIN, self._agreement(self.now))
            if judgement.action is None:
                self._check_rest(record, judgement.judge_again_at)
                return
            self._check(record, judgement.action)
            self._decide(record, judgement.action, effects)
            if isinstance(judgement.action, ForgetEvent):
                return  # an event that is still there begins another life, when this one is buried
        raise AssertionError(f"{self.book[event_id]} does not come to rest")

    def _agreement(self, now: datetime) -> Agreement:
        return lambda record, cutoff: may_approve(
            record, "db", self.together, self.reports.get(record.event.id, {}), now, cutoff
        )

    def _decide(self, record: EventRecord, action: Action, effects: list[Callable[[], object]]) -> None:
        event_id = record.event.id
        match action:
            case BeginStep(step):
                self.book.begin_run(event_id, step, self.now)
                if step is EventStep.PREPARE:
                    self.pending.append(partial(self._note, event_id, "has_begun", True))
                effects.append(partial(self.works.__setitem__, event_id, step))
            case StopStep(step, reason):
                self.book.update_run(event_id, step, state=StepRunState.STOPPING, reason=reason)
            case GiveUpStep(step, reason):
                self.book.give_up_run(event_id, step, reason, self.now)
            case SendApproval():
                self.book.update_record(event_id, approval=ApprovalState.SENDING, approve_again_at=None)
                effects.append(partial(self.sent.add, event_id))
            case ReportUnprepared():
                self.book.update_record(event_id, is_reported_unprepared=True)
                self.pending.append(partial(self._note, event_id, "reports", 1))
            case ForgetEvent():
                self.book.remove_record(event_id, self.now)
                self.pending.append(partial(self._bury, event_id))

    def _note(self, event_id: str, name: str, value: Any) -> None:  # noqa: ANN401 - of a member of a life
        life = self.lives.setdefault(event_id, _Life())
        setattr(life, name, value if isinstance(value, bool) else getattr(life, name) + value)

    def _bury(self, event_id: str) -> None:
        life = self.lives.pop(event_id, _Life())
        assert life.undone == 1 or (life.undone == 0 and not life.has_begun), f"undone {life.undone} times"

    # What must hold

    def _cutoff(self, record: EventRecord) -> datetime | None:
        return None if record.event.not_before is None else record.event.not_before - MARGIN

    def _check(self, record: EventRecord, action: Action) -> None:
        life = self.lives.get(record.event.id, _Life())
        cutoff = self._cutoff(record)
        is_late = cutoff is not None and self.now >= cutoff
        match action:
            case BeginStep(step):
                assert record.event.id not in self.works, "one step at a time"
                assert record.running_step is None
                assert not record.is_done(step)
                self._check_begin(record, step, is_late=is_late)
            case StopStep(step):
                assert record.running_step is step
                assert not record.is_stopping
                assert step not in UNDOING
                assert record.gone_at is not None or is_late
            case GiveUpStep(step):
                assert step is EventStep.PREPARE
                assert is_late
                assert record.started_at is None
            case SendApproval():
                assert not life.is_accepted, "nothing is approved twice"
                assert record.approval is ApprovalState.NONE
                self._check_approval(record)
            case ReportUnprepared():
                assert record.started_at is not None or record.gone_at is not None
                assert not record.is_prepared
                assert life.reports == 0
            case ForgetEvent():
                assert record.gone_at is not None
                if life.has_begun or record.has_begun_to_prepare:
                    assert any(record.is_done(step) for step in UNDOING), "something is to be undone"

    def _check_begin(self, record: EventRecord, step: EventStep, *, is_late: bool) -> None:
        if step in UNDOING:
            assert record.gone_at is not None, "recovery begins when it is gone"
            assert not any(other in record.runs for other in UNDOING if other is not step)
            return
        assert record.gone_at is None
        assert not record.has_failed(step) or (step is EventStep.PREPARE and not record.has_begun_to_prepare)
        if record.started_at is not None:
            assert step in {EventStep.PREPARE, EventStep.STARTED}
            assert record.is_prepared or record.is_reported_unprepared, "what is prepared late is reported"
            return
        assert step is not EventStep.STARTED
        assert not is_late, "no time is left"
        assert not record.has_failed(step)

    def _check_approval(self, record: EventRecord) -> None:
        by_hand = record.by_hand_at is not None
        assert record.gone_at is None
        assert record.started_at is None
        assert record.running_step is None
        assert by_hand or record.rule.approve in {"at-once", "when-prepared"}
        is_forgiving = by_hand or record.rule.on_failure == "approve"
        assert record.is_prepared or (record.has_failed(EventStep.PREPARE) and is_forgiving)
        assert not record.rule.before_approval or record.is_done(EventStep.BEFORE_APPROVAL) or is_forgiving
        verdict = self._agreement(self.now)(record, self._cutoff(record))
        assert by_hand or verdict.may_approve

    def _check_rest(self, record: EventRecord, again_at: datetime | None) -> None:
        """What waits goes on waiting until the moment that it names."""
        cutoff = self._cutoff(record)
        if cutoff is not None and self.now >= cutoff and record.started_at is None and record.gone_at is None:
            assert record.running_step is None or record.is_stopping, "it ends by NotBefore less the margin"
        if record.started_at is not None and record.gone_at is None and record.running_step is None:
            assert not any(self._has_broken_off(record, step) for step in (EventStep.PREPARE, EventStep.STARTED))
            assert record.has_begun_to_prepare or not record.rule.has_preparation, "what has started is prepared for"
        last = self.now + timedelta(days=30) if again_at is None else again_at
        for part in (0.3, 0.999):
            moment = self.now + (last - self.now) * part
            later = judge_record(record, moment, MARGIN, self._agreement(moment))
            assert later.action is None, f"{later.action} although nothing but time has passed"

    def _has_broken_off(self, record: EventRecord, step: EventStep) -> bool:
        run = record.runs.get(step)
        return run is not None and run.state is StepRunState.INTERRUPTED

    @invariant()
    def the_book_knows_what_is_to_be_undone(self) -> None:
        for event_id, life in getattr(self, "lives", {}).items():
            if life.has_begun and not life.undone:
                assert event_id in self.book, "what was begun is forgotten"
                assert self.book[event_id].has_begun_to_prepare
            assert life.undone <= 1, "it is undone once"

    @invariant()
    def the_book_knows_what_is_under_way(self) -> None:
        for event_id, step in getattr(self, "works", {}).items():
            assert self.book[event_id].running_step is step
        for record in self.book.records if hasattr(self, "book") else ():
            assert sum(run.state in {StepRunState.RUNNING, StepRunState.STOPPING} for run in record.runs.values()) <= 1
            assert record.running_step == self.works.get(record.event.id)
            assert record.approval is not ApprovalState.SENDING or record.event.id in self.sent

    def teardown(self) -> None:
        """In the end everything is undone and forgotten."""
        if not hasattr(self, "book"):
            return
        self.crash_at = ""
        self.there.clear()
        self._look(is_seen=True)
        for _ in range(20):
            for event_id in sorted(self.works):
                self._finish(event_id, has_succeeded=True)
            for event_id in sorted(self.sent):
                self._answer(event_id, is_accepted=True)
            for event_id in (A, B, C):
                self._recover_again(event_id)
        assert self.book.records == ()
        assert self.lives == {} or not any(life.has_begun for life in self.lives.values())


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=150, stateful_step_count=50)
