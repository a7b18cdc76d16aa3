"""The book of events: every record, how it comes into being, changes and ends, and what of it is on disk."""

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
        memory: Keeps them.
        choose: The rule for an event that is seen first at that moment.
        records_max: Most records; events beyond are left alone.
        history_max: How many finished events are kept.

    Attributes:
        vm: This VM's name; empty while nobody knows it.
        finished: The last events about which nothing is left to do, oldest first.
        is_dirty: Whether something has changed since it was saved.
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
        """Events about which something is left to do, in the order in which they were seen first."""
        return tuple(self._records.values())

    # Between the disk and here

    def load(self, now: datetime) -> None:
        """Take up what was left when the agent stopped last."""
        state = self._memory.load()
        self.vm = self.vm or state.vm
        self.finished = state.finished
        self._records = {record.event.key: _resume(record, now) for record in state.records}
        for record in self._records.values():
            _log.info("event %s is taken up again", record.event.id, extra=facts(record))

    def save(self) -> None:
        """Keep everything; it is on disk when this returns.

        Raises:
            OSError: It could not be kept, and is dirty still.
        """
        self._memory.save(State(vm=self.vm, records=self.records, finished=self.finished))
        self.is_dirty = False

    # Events as they are seen

    def see(self, document: Document, now: datetime) -> None:
        """Bring the records up to a document."""
        self._document = document
        for event in document.events:
            record = self._records.get(event.key)
            if record is None:
                self._meet(event, now)
            elif not _is_ending(record):
                self._sight(record, event, now)
        present = {event.key for event in document.events}
        self._crowded &= present
        for record in self.records:
            if record.event.key not in present and record.gone_at is None:
                _log.info("event %s is gone", record.event.id, extra=facts(record))
                self.change(record.event.id, gone_at=now)

    def rename(self, vm: str, now: datetime) -> None:
        """Take note of this VM's name; events about which nothing was done yet get the rule that holds under it."""
        self.vm = vm
        self.is_dirty = True
        for record in self.records:
            if _is_untouched(record):
                self.change(record.event.id, rule=self._choose(record.event, now))

    def reconfigure(self, now: datetime, *, records_max: int, history_max: int) -> None:
        """Go by another configuration: announced events about which nothing was done yet get the rule of it.

        All others keep their rule: what was begun goes on, and is undone, as it was begun.
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
        """Replace members of a record."""
        record = self[event_id]
        changed = msgspec.structs.replace(record, **members)
        for place in changed.memory.keys() - changed.looks.keys():
            latest = max((look for other in self.records for look in other.looks.values()), default=0)
            changed = msgspec.structs.replace(changed, looks=changed.looks | {place: latest + 1})
        if changed != record:
            self._records[event_key(event_id)] = changed
            self.is_dirty = True
        return changed

    def change_run(self, event_id: str, step: Step, **members: Any) -> Record:  # noqa: ANN401 - members of a run
        """Replace members of what became of a step."""
        runs = self[event_id].runs
        return self.change(event_id, runs=runs | {step: msgspec.structs.replace(runs[step], **members)})

    def begin_run(self, event_id: str, step: Step, now: datetime) -> Record:
        """Write down that a step begins, perhaps once more."""
        if step in {Step.RECOVER, Step.CANCELED}:
            self._hand_over(self[event_id])
        runs = self[event_id].runs
        tries = runs[step].tries + 1 if step in runs else 1
        return self.change(event_id, runs=runs | {step: Run(state=RunState.RUNNING, began_at=now, tries=tries)})

    def _hand_over(self, record: Record) -> None:
        """Leave what a handler took out of service to the other events that need it so.

        Who looked first has seen how things were before. An event that looked later found them out of service, and
        would leave them there: it is handed the memory of how they were, whether it is prepared, fails to, or is to be
        undone next. Where another looked earlier and is not undone yet, that one is to put things back.
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
                # One that is prepared may have found nothing worth remembering.
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
        """Write down that a step has failed; it need not have begun."""
        runs = self[event_id].runs
        run = runs.get(step) or Run(state=RunState.FAILED, began_at=now, tries=0)
        failed = msgspec.structs.replace(run, state=RunState.FAILED, ended_at=now, reason=reason)
        return self.change(event_id, runs=runs | {step: failed})

    def forget(self, event_id: str, now: datetime) -> Finished:
        """Take a record out of the book, and hand back what is kept of it."""
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
            self.see(self._document, now)  # What came back under the same id meanwhile is a new event now.
        return finished


def _resume(record: Record, now: datetime) -> Record:
    """The record of a state file, with what was under way when the agent ended."""
    if record.approval is Approval.SENDING:
        # Nobody knows whether it arrived, and sending it again does no harm (R49).
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
    """Whether it was gone, and that has had its effect: what comes back under the same id is another event."""
    return record.gone_at is not None and (_is_undone(record) or record.is_stopping)


def _is_untouched(record: Record) -> bool:
    """Whether nothing was done about it yet, and no operator has said anything."""
    return not record.runs and record.approval is Approval.NONE and record.by_hand_at is None


def _is_undone(record: Record) -> bool:
    """Whether it is undone, or was."""
    return Step.RECOVER in record.runs or Step.CANCELED in record.runs


def facts(record: Record) -> dict[str, Any]:
    """What a log line says of an event besides its text."""
    event = record.event
    return {
        "event_id": event.id,
        "event_type": event.type,
        "resources": list(event.resources),
        "rule": record.rule.name,
    }
