"""The book of events: how records are created, changed and ended, and their storage on disk."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import datetime
from operator import itemgetter
from typing import Any

import msgspec

from forewarn.agent.judgement import ending
from forewarn.agent.record import Approval, Finished, Record, Run, RunState
from forewarn.agent.rule import LOG_ONLY, Rule, Step
from forewarn.agent.state import Memory, State
from forewarn.wire.document import Document, Event, event_key

__all__ = ["Book", "facts"]

_log = logging.getLogger("forewarn.agent")


class Book:
    """All records of one agent.

    Args:
        memory: Storage of the records.
        choose: Function that returns the rule for an event first seen at the given time.
        records_max: Maximum number of records; events beyond it are ignored.
        history_max: Maximum number of finished events that are kept.

    Attributes:
        vm: This VM's name; empty until it is known.
        finished: The latest events on which no work is left, oldest first.
        is_dirty: True if something has changed since the last save.
    """

    def __init__(
        self, memory: Memory, choose: Callable[[Event, datetime], Rule], *, records_max: int, history_max: int
    ) -> None:
        self.vm = ""
        self.finished: tuple[Finished, ...] = ()
        self.is_dirty = False
        self._memory = memory
        self._choose = choose
        self._records_max = records_max
        self._history_max = history_max
        self._records: dict[str, Record] = {}
        self._document: Document | None = None
        self._crowded: set[str] = set()

    def __contains__(self, event_id: str) -> bool:
        return event_key(event_id) in self._records

    def __getitem__(self, event_id: str) -> Record:
        return self._records[event_key(event_id)]

    @property
    def records(self) -> tuple[Record, ...]:
        """Events on which work is left, in the order in which they were first seen."""
        return tuple(self._records.values())

    # Load and save

    def load(self, now: datetime) -> None:
        """Load the state that the last run of the agent left."""
        state = self._memory.load()
        self.vm = self.vm or state.vm
        self.finished = state.finished
        self._records = {record.event.key: _resume(record, now) for record in state.records}
        for record in self._records.values():
            _log.info("event %s is taken up again", record.event.id, extra=facts(record))

    def save(self) -> None:
        """Save everything; it is on disk when this returns.

        Raises:
            OSError: It could not be saved; the book stays dirty.
        """
        self._memory.save(State(vm=self.vm, records=self.records, finished=self.finished))
        self.is_dirty = False

    # Observations

    def see(self, document: Document, now: datetime) -> None:
        """Update the records from a document."""
        self._document = document
        for event in document.events:
            record = self._records.get(event.key)
            if record is None:
                self._meet(event, now)
            elif not _is_ending(record):
                self._sight(record, event, now)
        present = {event.key for event in document.events}
        # Forget ignored events that are gone, so that they are logged again if they return.
        self._crowded &= present
        for record in self.records:
            if record.event.key not in present and record.gone_at is None:
                _log.info("event %s is gone", record.event.id, extra=facts(record))
                self.change(record.event.id, gone_at=now)

    def rename(self, vm: str, now: datetime) -> None:
        """Set this VM's name; events on which no work has begun get the rule that matches under that name."""
        self.vm = vm
        self.is_dirty = True
        for record in self.records:
            if _is_untouched(record):
                self.change(record.event.id, rule=self._choose(record.event, now))

    def reconfigure(self, now: datetime, *, records_max: int, history_max: int) -> None:
        """Apply a new configuration: announced events on which no work has begun are matched again.

        All others keep their rule, so that what was begun is continued and undone by the same rule.
        """
        self._records_max = records_max
        self._history_max = history_max
        for record in self.records:
            if _is_untouched(record) and record.started_at is None and record.gone_at is None:
                self.change(record.event.id, rule=self._choose(record.event, now))

    def _meet(self, event: Event, now: datetime) -> None:
        if len(self._records) >= self._records_max:
            if event.key not in self._crowded:
                self._crowded.add(event.key)
                _log.error("event %s is left alone: there are %d already (events_max)", event.id, self._records_max)
            return
        rule = self._choose(event, now)
        record = Record(event=event, rule=rule, seen_at=now, started_at=now if event.is_started else None)
        self._records[event.key] = record
        self.is_dirty = True
        level = logging.DEBUG if rule is LOG_ONLY and not event.affects(self.vm) else logging.INFO
        _log.log(level, "event %s is seen: %s, %s", event.id, event.type, event.status, extra=facts(record))

    def _sight(self, record: Record, event: Event, now: datetime) -> None:
        has_just_started = event.is_started and record.started_at is None
        if has_just_started:
            _log.info("event %s has started", event.id, extra=facts(record))
        self.change(event.id, event=event, started_at=now if has_just_started else record.started_at, gone_at=None)

    # Changes

    def change(self, event_id: str, **members: Any) -> Record:  # noqa: ANN401 - members of a record
        """Replace fields of a record."""
        record = self[event_id]
        changed = msgspec.structs.replace(record, **members)
        # A handler that remembers for the first time gets the next number in the order of looks.
        for place in changed.memory.keys() - changed.looks.keys():
            latest = max((look for other in self.records for look in other.looks.values()), default=0)
            changed = msgspec.structs.replace(changed, looks=changed.looks | {place: latest + 1})
        if changed != record:
            self._records[event_key(event_id)] = changed
            self.is_dirty = True
        return changed

    def change_run(self, event_id: str, step: Step, **members: Any) -> Record:  # noqa: ANN401 - members of a run
        """Replace fields of a step's run."""
        runs = self[event_id].runs
        return self.change(event_id, runs=runs | {step: msgspec.structs.replace(runs[step], **members)})

    def begin_run(self, event_id: str, step: Step, now: datetime) -> Record:
        """Record the start of a step, counting the attempt."""
        if step in {Step.RECOVER, Step.CANCELED}:
            self._hand_over(self[event_id])
        runs = self[event_id].runs
        tries = runs[step].tries + 1 if step in runs else 1
        return self.change(event_id, runs=runs | {step: Run(state=RunState.RUNNING, began_at=now, tries=tries)})

    def _hand_over(self, record: Record) -> None:
        """Leave the resources that a handler took out of service to the other events that need them so.

        The event that looked first has seen the original state. An event that looked later found the resources out of
        service and would leave them there: it gets the memory of the original state, whether it is prepared, fails to
        prepare, or is undone next. If another event looked earlier and is not undone yet, that one restores the state.
        """
        for place, handler in enumerate(record.rule.handlers):
            mine = str(place)
            remembered = record.memory.get(mine)
            if not remembered:
                continue
            my_look = record.looks.get(mine, 0)
            sharers = [
                (look, other, theirs)
                for other in self.records
                if other.event.key != record.event.key and not _is_undone(other)
                for theirs in (str(at) for at, each in enumerate(other.rule.handlers) if each == handler)
                # A prepared event may have found nothing worth remembering.
                if (look := other.looks.get(theirs, sys.maxsize if other.is_done(Step.PREPARE) else 0))
            ]
            heirs = [sharer for sharer in sharers if sharer[0] > my_look]
            if heirs:
                _, heir, theirs = min(heirs, key=itemgetter(0))
                self.change(
                    heir.event.id,
                    memory=heir.memory | {theirs: remembered},
                    looks=heir.looks | {theirs: my_look},
                )
            elif sharers:
                _, heir, _ = min(sharers, key=itemgetter(0))
            else:
                continue
            self.change(record.event.id, memory=self[record.event.id].memory | {mine: {}})
            _log.info("event %s takes over %s", heir.event.id, handler.name, extra=facts(heir))

    def give_up_run(self, event_id: str, step: Step, reason: str, now: datetime) -> Record:
        """Mark a step as failed, even if it has not begun."""
        runs = self[event_id].runs
        run = runs.get(step) or Run(state=RunState.FAILED, began_at=now, tries=0)
        failed = msgspec.structs.replace(run, state=RunState.FAILED, ended_at=now, reason=reason)
        return self.change(event_id, runs=runs | {step: failed})

    def forget(self, event_id: str, now: datetime) -> Finished:
        """Remove a record from the book, and return the summary that is kept of it."""
        record = self._records.pop(event_key(event_id))
        is_canceled = Step.CANCELED in record.runs or (
            Step.RECOVER not in record.runs and ending(record) is Step.CANCELED
        )
        had_to_prepare = record.rule.has_preparation and not is_canceled
        finished = Finished(
            event=record.event,
            rule=record.rule.name,
            outcome="observed" if record.rule == LOG_ONLY else "canceled" if is_canceled else "recovered",
            seen_at=record.seen_at,
            approved_at=record.approved_at,
            started_at=record.started_at,
            gone_at=record.gone_at,
            was_prepared=not record.is_reported_unprepared if had_to_prepare else None,
        )
        self.finished = (*self.finished, finished)[max(len(self.finished) + 1 - self._history_max, 0) :]
        self.is_dirty = True
        if self._document is not None:
            self.see(self._document, now)  # If the id came back meanwhile, it is a new event now.
        return finished


def _resume(record: Record, now: datetime) -> Record:
    """Return a record as loaded, with its interrupted step and approval reset."""
    if record.approval is Approval.SENDING:
        # It is unknown whether the approval arrived; sending it again is harmless (R49).
        record = msgspec.structs.replace(record, approval=Approval.NONE)
    step = record.running
    if step is None:
        return record
    run = record.runs[step]
    is_marked = record.rule.interrupted == "mark" and step not in {Step.RECOVER, Step.CANCELED}
    if run.state is RunState.STOPPING:
        ended = msgspec.structs.replace(run, state=RunState.FAILED, ended_at=now)
    elif is_marked:
        ended = msgspec.structs.replace(run, state=RunState.FAILED, ended_at=now, reason="the agent was interrupted")
    else:
        ended = msgspec.structs.replace(run, state=RunState.INTERRUPTED)
    return msgspec.structs.replace(record, runs=record.runs | {step: ended})


def _is_ending(record: Record) -> bool:
    """Return True if the event was gone and that had its effect: a later event with the same id is another one."""
    return record.gone_at is not None and (_is_undone(record) or record.is_stopping)


def _is_untouched(record: Record) -> bool:
    """Return True if no work has begun and no operator has approved the event."""
    return not record.runs and record.approval is Approval.NONE and record.by_hand_at is None


def _is_undone(record: Record) -> bool:
    """Return True if recovery or cancellation has begun."""
    return Step.RECOVER in record.runs or Step.CANCELED in record.runs


def facts(record: Record) -> dict[str, Any]:
    """Return the fields that a log line carries for an event."""
    event = record.event
    return {
        "event_id": event.id,
        "event_type": event.type,
        "resources": list(event.resources),
        "rule": record.rule.name,
    }
