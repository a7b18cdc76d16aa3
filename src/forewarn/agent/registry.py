"""The registry of events: how records are created, changed and ended, and their storage on disk."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import datetime
from operator import itemgetter
from typing import Any

import msgspec

from forewarn.agent.judgement import choose_final_step
from forewarn.agent.record import ApprovalState, EventRecord, FinishedEvent, StepRun, StepRunState
from forewarn.agent.rule import LOG_ONLY, EventStep, Rule
from forewarn.agent.state import AgentState, StateStorage
from forewarn.wire.document import Document, Event, event_key

__all__ = ["EventRegistry", "build_log_fields"]

_log = logging.getLogger("forewarn.agent")


class EventRegistry:
    """All records of one agent.

    Args:
        storage: Storage of the records.
        match_rule: Function that returns the rule for an event first seen at the given time.
        records_max: Maximum number of records; events beyond it are ignored.
        history_max: Maximum number of finished events that are kept.

    Attributes:
        vm: This VM's name; empty until it is known.
        finished: The latest events on which no work is left, oldest first.
        is_dirty: True if something has changed since the last save.
        is_save_failing: True if the latest save failed; then the registry is dirty.
    """

    def __init__(
        self,
        storage: StateStorage,
        match_rule: Callable[[Event, datetime], Rule],
        *,
        records_max: int,
        history_max: int,
    ) -> None:
        self.vm = ""
        self.finished: tuple[FinishedEvent, ...] = ()
        self.is_dirty = False
        self.is_save_failing = False
        self._storage = storage
        self._match_rule = match_rule
        self._records_max = records_max
        self._history_max = history_max
        # By `event_key`, since ids are equal in any case (R53); the events keep their ids as shown, for endpoints that
        # compare approvals letter by letter.
        self._records: dict[str, EventRecord] = {}
        self._document: Document | None = None
        self._ignored_keys: set[str] = set()

    def __contains__(self, event_id: str) -> bool:
        return event_key(event_id) in self._records

    def __getitem__(self, event_id: str) -> EventRecord:
        return self._records[event_key(event_id)]

    @property
    def records(self) -> tuple[EventRecord, ...]:
        """Events on which work is left, in the order in which they were first seen."""
        return tuple(self._records.values())

    # Load and save

    def load(self, now: datetime) -> None:
        """Load the state that the last run of the agent left."""
        state = self._storage.load()
        # The configured name wins. The stored one lets rules match while the endpoint cannot be asked for the name.
        self.vm = self.vm or state.vm
        self.finished = state.finished
        self._records = {record.event.key: _resume_record(record, now) for record in state.records}
        for record in self._records.values():
            _log.info("event %s is resumed", record.event.id, extra=build_log_fields(record))

    def save(self) -> None:
        """Save everything; it is on disk when this returns.

        Raises:
            OSError: It could not be saved; the registry stays dirty.
        """
        self.is_save_failing = True
        self._storage.save(AgentState(vm=self.vm, records=self.records, finished=self.finished))
        self.is_dirty = self.is_save_failing = False

    # Observations

    def observe_document(self, document: Document, now: datetime) -> None:
        """Update the records from a document."""
        self._document = document
        for event in document.events:
            record = self._records.get(event.key)
            if record is None:
                self._add_record(event, now)
            elif not _is_finishing(record):
                self._update_sighting(record, event, now)
        present = {event.key for event in document.events}
        # Forget ignored events that are gone, so that they are logged again if they return.
        self._ignored_keys &= present
        for record in self.records:
            # Keep the first time: if NotBefore had not passed by then, the event was cancelled.
            if record.event.key not in present and record.gone_at is None:
                _log.info("event %s is gone", record.event.id, extra=build_log_fields(record))
                self.update_record(record.event.id, gone_at=now)

    def set_vm_name(self, vm: str, now: datetime) -> None:
        """Set this VM's name; events on which no work has begun get the rule that matches under that name."""
        self.vm = vm
        self.is_dirty = True
        # A rule chosen under a wrong name may be wrong. Once work has begun it stays, because it defines the undoing.
        for record in self.records:
            if _is_untouched(record):
                self.update_record(record.event.id, rule=self._match_rule(record.event, now))

    def reconfigure(self, now: datetime, *, records_max: int, history_max: int) -> None:
        """Apply a new configuration: announced events on which no work has begun are matched again.

        All others keep their rule, so that what was begun is continued and undone by the same rule.
        """
        self._records_max = records_max
        self._history_max = history_max
        for record in self.records:
            if _is_untouched(record) and record.started_at is None and record.gone_at is None:
                self.update_record(record.event.id, rule=self._match_rule(record.event, now))

    def _add_record(self, event: Event, now: datetime) -> None:
        # Each change rewrites the whole state file, so no endpoint may make it grow without limit.
        if len(self._records) >= self._records_max:
            if event.key not in self._ignored_keys:
                self._ignored_keys.add(event.key)
                _log.error("event %s is ignored: %d events are tracked (events_max)", event.id, self._records_max)
            return
        rule = self._match_rule(event, now)
        # An event may appear as Started after a hardware failure (R73, R78), or if its notice passed unseen.
        record = EventRecord(event=event, rule=rule, seen_at=now, started_at=now if event.is_started else None)
        self._records[event.key] = record
        self.is_dirty = True
        # Otherwise, the events of other VMs would fill the log of each VM of the scope.
        level = logging.DEBUG if rule is LOG_ONLY and not event.affects(self.vm) else logging.INFO
        _log.log(level, "new event %s: %s, %s", event.id, event.type, event.status, extra=build_log_fields(record))

    def _update_sighting(self, record: EventRecord, event: Event, now: datetime) -> None:
        has_just_started = event.is_started and record.started_at is None
        if has_just_started:
            _log.info("event %s has started", event.id, extra=build_log_fields(record))
        # An event may return before its absence had any effect, so `gone_at` is reset. `started_at` is kept: no event
        # goes back from Started to Scheduled, so a document that says so is outdated.
        self.update_record(
            event.id, event=event, started_at=now if has_just_started else record.started_at, gone_at=None
        )

    # Changes

    def update_record(self, event_id: str, **members: Any) -> EventRecord:  # noqa: ANN401 - members of a record
        """Replace fields of a record."""
        record = self[event_id]
        changed = msgspec.structs.replace(record, **members)
        # A handler that remembers for the first time gets the next number in the order of looks.
        for place in changed.memory.keys() - changed.looks.keys():
            latest = max((look for other in self.records for look in other.looks.values()), default=0)
            changed = msgspec.structs.replace(changed, looks=changed.looks | {place: latest + 1})
        # An unchanged record must not cause a save: each one rewrites the file and flushes it to disk.
        if changed != record:
            self._records[event_key(event_id)] = changed
            self.is_dirty = True
        return changed

    def update_run(self, event_id: str, step: EventStep, **members: Any) -> EventRecord:  # noqa: ANN401 - members of a run
        """Replace fields of a step's run."""
        runs = self[event_id].runs
        return self.update_record(event_id, runs=runs | {step: msgspec.structs.replace(runs[step], **members)})

    def begin_run(self, event_id: str, step: EventStep, now: datetime) -> EventRecord:
        """Record the start of a step, counting the attempt."""
        # Hand over before the step runs, so that `undo` finds an empty memory and leaves shared resources alone. Both
        # changes are saved together.
        if step in {EventStep.RECOVER, EventStep.CANCELED}:
            self._hand_over_resources(self[event_id])
        runs = self[event_id].runs
        tries = runs[step].tries + 1 if step in runs else 1
        return self.update_record(
            event_id, runs=runs | {step: StepRun(state=StepRunState.RUNNING, began_at=now, tries=tries)}
        )

    def _hand_over_resources(self, record: EventRecord) -> None:
        """Leave the resources that a handler took out of service to the other events that need them so.

        The event that looked first has seen the original state. An event that looked later found the resources out of
        service and would leave them there: it gets the memory of the original state, whether it is prepared, fails to
        prepare, or is undone next. If another event looked earlier and is not undone yet, that one restores the state.
        """
        for place, handler in enumerate(record.rule.handlers):
            mine = str(place)
            remembered = record.memory.get(mine)
            # The handler changed nothing or has handed over already, so there is nothing to restore.
            if not remembered:
                continue
            my_look = record.looks.get(mine, 0)
            # Handlers with equal settings act on the same resource. Their positions in the two rules may differ.
            sharers = [
                (look, other, theirs)
                for other in self.records
                # An event whose undoing has begun is about to put the resource back, so it cannot be the heir.
                if other.event.key != record.event.key and not _has_begun_undoing(other)
                for theirs in (str(at) for at, each in enumerate(other.rule.handlers) if each == handler)
                # A prepared event may have found nothing worth remembering.
                # With 0, an event that has not looked yet is left out: it is going to see the restored state.
                if (look := other.looks.get(theirs, sys.maxsize if other.is_done(EventStep.PREPARE) else 0))
            ]
            # Only an event that looked later can have taken our change for the original state. The earliest of these
            # inherits, because the later ones leave the restoring to it.
            heirs = [sharer for sharer in sharers if sharer[0] > my_look]
            if heirs:
                _, heir, theirs = min(heirs, key=itemgetter(0))
                self.update_record(
                    heir.event.id,
                    memory=heir.memory | {theirs: remembered},
                    # The memory is now as old as ours, and later hand-overs must see that.
                    looks=heir.looks | {theirs: my_look},
                )
            elif sharers:
                _, heir, _ = min(sharers, key=itemgetter(0))
            else:
                continue
            # Another event restores the resource now; with an empty memory, our `undo` does nothing.
            self.update_record(record.event.id, memory=self[record.event.id].memory | {mine: {}})
            _log.info("event %s takes over handler %s", heir.event.id, handler.name, extra=build_log_fields(heir))

    def give_up_run(self, event_id: str, step: EventStep, reason: str, now: datetime) -> EventRecord:
        """Mark a step as failed, even if it has not begun."""
        runs = self[event_id].runs
        # Without a try, nothing was changed and nothing has to be undone; see `EventRecord.has_begun_to_prepare`.
        run = runs.get(step) or StepRun(state=StepRunState.FAILED, began_at=now, tries=0)
        failed = msgspec.structs.replace(run, state=StepRunState.FAILED, ended_at=now, reason=reason)
        return self.update_record(event_id, runs=runs | {step: failed})

    def remove_record(self, event_id: str, now: datetime) -> FinishedEvent:
        """Remove a record from the registry, and return the summary that is kept of it."""
        record = self._records.pop(event_key(event_id))
        # If there was nothing to undo, no run shows how the event ended.
        is_canceled = EventStep.CANCELED in record.runs or (
            EventStep.RECOVER not in record.runs and choose_final_step(record) is EventStep.CANCELED
        )
        # A cancelled event did not need the preparation, so it counts as neither prepared nor unprepared.
        had_to_prepare = record.rule.has_preparation and not is_canceled
        finished = FinishedEvent(
            event=record.event,
            rule=record.rule.name,
            # Compared by value, because a rule that was loaded from the state file is another object.
            outcome="observed" if record.rule == LOG_ONLY else "canceled" if is_canceled else "recovered",
            seen_at=record.seen_at,
            approved_at=record.approved_at,
            started_at=record.started_at,
            gone_at=record.gone_at,
            was_prepared=not record.is_reported_unprepared if had_to_prepare else None,
        )
        # The index is computed because [-0:] would keep everything when `history_max` is 0.
        self.finished = (*self.finished, finished)[max(len(self.finished) + 1 - self._history_max, 0) :]
        self.is_dirty = True
        if self._document is not None:
            self.observe_document(self._document, now)  # If the id came back meanwhile, it is a new event now.
        return finished


def _resume_record(record: EventRecord, now: datetime) -> EventRecord:
    """Return a record as loaded, with its interrupted step and approval reset."""
    if record.approval is ApprovalState.SENDING:
        # It is unknown whether the approval arrived; sending it again is harmless (R49).
        record = msgspec.structs.replace(record, approval=ApprovalState.NONE)
    step = record.running_step
    if step is None:
        return record
    run = record.runs[step]
    # Undoing always runs again: a VM that stays out of service is worse than a repeated step.
    is_marked = record.rule.interrupted == "mark" and step not in {EventStep.RECOVER, EventStep.CANCELED}
    # A stopped step must not run again: its time was up, or its event was gone before the crash.
    is_stopping = run.state is StepRunState.STOPPING
    if is_stopping or is_marked:
        reason = run.reason if is_stopping else "the agent was interrupted"
        ended = msgspec.structs.replace(run, state=StepRunState.FAILED, ended_at=now, reason=reason)
    else:
        ended = msgspec.structs.replace(run, state=StepRunState.INTERRUPTED)
    return msgspec.structs.replace(record, runs=record.runs | {step: ended})


def _is_finishing(record: EventRecord) -> bool:
    """Return True if the event was gone and that had its effect: a later event with the same id is another one."""
    return record.gone_at is not None and (_has_begun_undoing(record) or record.is_stopping)


def _is_untouched(record: EventRecord) -> bool:
    """Return True if no work has begun and no operator has approved the event."""
    return not record.runs and record.approval is ApprovalState.NONE and record.by_hand_at is None


def _has_begun_undoing(record: EventRecord) -> bool:
    """Return True if recovery or cancellation has begun."""
    return EventStep.RECOVER in record.runs or EventStep.CANCELED in record.runs


def build_log_fields(record: EventRecord) -> dict[str, Any]:
    """Return the fields that a log line carries for an event."""
    event = record.event
    return {
        "event_id": event.id,
        "event_type": event.type,
        "resources": list(event.resources),
        "rule": record.rule.name,
    }
