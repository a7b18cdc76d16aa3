"""Several events that take the same things out of service, in any order: in the end everything is as it was.

A handler looks and remembers, and later removes; at the end it puts back what it removed, while nobody else who has the
same handler is between looking and removing. Between those, events come and go, fail, and are interrupted.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forewarn.agent.handlers import AnyHandler, FileHandler
from forewarn.agent.record import EventRecord, StepRunState
from forewarn.agent.registry import EventRegistry
from forewarn.agent.rule import EventStep, Rule
from tests.support.occasion import an_event
from tests.support.records import NOW, A, B, C, InMemory, document

FILES = ("/srv/a", "/srv/b")
ONE, OTHER = (FileHandler(remove=path) for path in FILES)
RULES = (
    Rule(name="both", handlers=(ONE, OTHER)),
    Rule(name="turned", handlers=(OTHER, ONE)),
    Rule(name="one", handlers=(ONE,)),
)
UNDOING = (EventStep.RECOVER, EventStep.CANCELED)

ids = st.sampled_from((A, B, C))


def path_of(handler: AnyHandler) -> str:
    assert isinstance(handler, FileHandler)
    return handler.remove


class Shared(RuleBasedStateMachine):
    """Three events, two files that say that this VM is in service."""

    @initialize(are_there=st.tuples(st.booleans(), st.booleans()))
    def begin(self, are_there: tuple[bool, bool]) -> None:
        self.first = dict(zip(FILES, are_there, strict=True))
        self.files = dict(self.first)
        self.present: dict[str, Rule] = {}
        self.removed: set[tuple[str, str]] = set()
        self.memory = InMemory()
        self.book = self._book()

    def _book(self) -> EventRegistry:
        book = EventRegistry(
            self.memory, lambda event, _now: RULES[int(event.description)], records_max=9, history_max=0
        )
        book.vm = "db"
        return book

    def _see(self) -> None:
        events = (an_event(id=event_id, description=str(RULES.index(r))) for event_id, r in self.present.items())
        self.book.observe_document(document(*events), NOW)
        for record in self.book.records:
            if not record.runs and record.gone_at is None:
                self.book.begin_run(record.event.id, EventStep.PREPARE, NOW)
        self.book.save()

    @rule(event_id=ids, chosen=st.sampled_from(RULES))
    def appear(self, event_id: str, chosen: Rule) -> None:
        if event_id not in self.present and event_id not in self.book:
            self.present[event_id] = chosen
        self._see()

    @rule(some=st.sets(ids, min_size=1))
    def vanish(self, some: set[str]) -> None:
        for event_id in some:
            self.present.pop(event_id, None)
        self._see()

    @rule(some=st.lists(ids, min_size=1, max_size=9))
    def go_on(self, some: list[str]) -> None:
        """The next handlers of events that are being prepared."""
        for event_id in some:
            if event_id in self.book and self.book[event_id].running_step is EventStep.PREPARE:
                self._take_out(self.book[event_id])

    def _take_out(self, record: EventRecord) -> None:
        event_id = record.event.id
        for place, handler in enumerate(record.rule.handlers):
            path = path_of(handler)
            if str(place) not in record.memory:
                self.book.update_record(event_id, memory=record.memory | {str(place): {"existed": self.files[path]}})
                break
            if (event_id, path) not in self.removed:
                self.files[path] = False
                self.removed.add((event_id, path))
                break
        else:
            self.book.update_run(event_id, EventStep.PREPARE, state=StepRunState.DONE)
        self.book.save()

    @rule(event_id=ids)
    def fail(self, event_id: str) -> None:
        if event_id in self.book and self.book[event_id].running_step is EventStep.PREPARE:
            self.book.update_run(event_id, EventStep.PREPARE, state=StepRunState.FAILED)
            self.book.save()

    @rule()
    def restart(self) -> None:
        self.book = self._book()
        self.book.load(NOW)
        self.removed.clear()
        for record in self.book.records:
            run = record.runs.get(EventStep.PREPARE)
            if run is not None and run.state is StepRunState.INTERRUPTED and record.gone_at is None:
                self.book.begin_run(record.event.id, EventStep.PREPARE, NOW)
        self.book.save()

    @rule(event_id=ids)
    def undo(self, event_id: str) -> None:
        if event_id in self.book and self.book[event_id].gone_at is not None and not self._is_crossed(event_id):
            self._undo(event_id)

    def _is_crossed(self, event_id: str) -> bool:
        """Whether another event is being prepared by one of the same handlers; `judge` waits then."""
        mine = self.book[event_id].rule.handlers
        preparing = [each for each in self.book.records if each.running_step is EventStep.PREPARE]
        return any(handler in mine for each in preparing if each.event.id != event_id for handler in each.rule.handlers)

    def _undo(self, event_id: str) -> None:
        self.book.begin_run(event_id, EventStep.RECOVER, NOW)
        record = self.book[event_id]
        for place in reversed(range(len(record.rule.handlers))):
            existed = record.memory.get(str(place), {}).get("existed")
            if existed is not None:
                self.files[path_of(record.rule.handlers[place])] = existed
        self.book.update_run(event_id, EventStep.RECOVER, state=StepRunState.DONE)
        self.book.remove_record(event_id, NOW)
        self.removed = {(other, path) for other, path in self.removed if other != event_id}
        self.book.save()

    @invariant()
    def what_is_prepared_is_out_of_service(self) -> None:
        for record in self.book.records if hasattr(self, "book") else ():
            if record.is_done(EventStep.PREPARE):
                assert not any(self.files[path_of(handler)] for handler in record.rule.handlers)

    def teardown(self) -> None:
        """The events end one after the other."""
        if hasattr(self, "book"):
            self.present.clear()
            self._see()
            for record in self.book.records:
                if record.running_step is not None:
                    self.book.update_run(record.event.id, record.running_step, state=StepRunState.FAILED)
            for record in self.book.records:
                self._undo(record.event.id)
            assert self.files == self.first


TestShared = Shared.TestCase
TestShared.settings = settings(max_examples=60, stateful_step_count=30)
