"""Conversion of a transcript into a scenario, which the service can then play on virtual time.

The service follows its own rules, and the recorded endpoint may have had others. So the converter tracks the service's
state while it writes the timeline: anything the service would not do is left out, with a comment at the top.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import yaml

from forewarn.core.causes import CAUSES, DEFAULT_CAUSE, MINIMUM_NOTICE
from forewarn.core.fault import FAULTS
from forewarn.core.model import EventSource, EventType
from forewarn.testing.scenario.scenario_model import SCHEMA_LINE
from forewarn.testing.transcript.transcript import RequestFailure, Transcript, TranscriptEntry
from forewarn.util.duration import format_duration
from forewarn.wire.document import Document, Event

__all__ = ["convert_transcript"]

_STEPS_MAX = 1000
_VMS_MAX = 500
_OMISSIONS_MAX = 50
_DESCRIPTION_LENGTH_MAX = 1000
_DURATION_S_MAX = 10**9
_INCARNATION_MAX = 1 << 31
_NOTICE_MAX = timedelta(days=90)
_TERMINATE_NOTICE_MAX = timedelta(minutes=15)
_SILENCE_S = 12 * 3600.0
_NATURAL_WITHIN = "5s"
_NAME_LENGTH_MAX = 128
_GUID = re.compile(r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}")
_ENDS_VM = frozenset({EventType.PREEMPT, EventType.TERMINATE})
_SCOPE = "recorded"
_SUDDEN = "hardware-failure"
"""Cause of a Reboot without notice (R73)."""

_OTHER_STATUS = "503"
_FAILURES = {
    RequestFailure.NO_CONNECTION: "refused",
    RequestFailure.BROKEN: "reset",
    RequestFailure.TIME_OUT: "time-out",
}


def convert_transcript(transcript: Transcript) -> str:
    """Return a scenario in which a handler's VM sees what the transcript shows.

    Returns:
        YAML, as `load_scenario` reads it. Everything left out is named in comments at its top.
    """
    return _TranscriptConversion(transcript).convert_answers()


@dataclass(slots=True)
class _TrackedOperation:
    """An event, with the state of its operation in the service.

    Attributes:
        name: Name in the scenario.
        starts_s: Time at which the service starts it unless something else happens first.
    """

    name: str
    type: EventType
    source: EventSource
    cause: str
    vms: tuple[str, ...]
    starts_s: float
    is_started: bool = False
    is_shown_started: bool = False

    @property
    def is_routine(self) -> bool:
        return CAUSES[self.cause].is_routine and self.source is EventSource.PLATFORM


class _TimelineFull(Exception):
    """There is no room for a further step; the message gives the time from which steps are missing."""


class _EventOmitted(Exception):
    """This event cannot be part of the scenario; the message gives the reason."""


@dataclass(slots=True)
class _TranscriptConversion:
    """The conversion of one transcript."""

    transcript: Transcript
    steps: list[dict[str, Any]] = field(default_factory=list)
    omissions: dict[str, None] = field(default_factory=dict)
    vms: dict[str, str] = field(default_factory=dict)
    event_ids: list[str] = field(default_factory=list)
    operations: dict[str, _TrackedOperation] = field(default_factory=dict)
    gone_vms: set[str] = field(default_factory=set)
    used_event_ids: set[str] = field(default_factory=set)
    omitted_event_ids: set[str] = field(default_factory=set)
    counts_by_type: Counter[str] = field(default_factory=Counter)
    incarnation: int | None = None
    at_s: float | None = None

    def convert_answers(self) -> str:
        """Convert every answer; return the scenario."""
        entries = self.transcript.entries
        documents = [entry.parse_document(self.transcript.api_version) for entry in entries]
        self._name_vms(document for document in documents if document is not None)
        first = next((document for document in documents if document is not None), None)
        initial = _compute_initial_incarnation(first)
        self.incarnation = initial
        # The service announces nothing to a VM that has never sent a request (R67).
        self._add_step(0.0, poll=[self._handler_vm])
        # A failure lasts until the next answer that differs, and the last one until the end of the recording.
        ends_s = [*(entry.at_s for entry in entries[1:]), self.transcript.end_s][: len(entries)]
        try:
            for entry, document, end_s in zip(entries, documents, ends_s, strict=True):
                if document is None:
                    self._add_fault(entry, end_s)
                else:
                    self._add_document(entry, document)
        except _TimelineFull as full:
            self._add_omission(str(full))
        return self._encode_scenario(initial)

    # VMs

    @property
    def _handler_vm(self) -> str:
        return next(iter(self.vms.values()))

    def _name_vms(self, documents: Iterator[Document]) -> None:
        for document in documents:
            for event in document.events:
                for name in event.resources:
                    if name not in self.vms and len(self.vms) < _VMS_MAX:
                        self.vms[name] = self._find_free_name(name)
        if not self.vms:
            self.vms[""] = "vm-1"

    def _find_free_name(self, name: str) -> str:
        """Return the name, or a similar one that is valid in an inventory."""
        plain = re.sub(r"[^A-Za-z0-9_.\-]", "-", name)[: _NAME_LENGTH_MAX - 4]
        plain = plain if plain[:1].isascii() and plain[:1].isalnum() else f"vm{plain}"
        taken = set(self.vms.values())
        return next(each for each in (plain, *(f"{plain}-{n}" for n in range(2, 1000))) if each not in taken)

    # Answers

    def _add_fault(self, entry: TranscriptEntry, end_s: float) -> None:
        """Convert an answer without a document into a fault that lasts until the next answer."""
        lasts_s = max(end_s - entry.at_s, 0.001)
        if entry.failure is not None:
            kind = _FAILURES[entry.failure]
        elif entry.status == HTTPStatus.OK:
            kind = _classify_body(entry.body)
        else:
            kind = str(entry.status) if str(entry.status) in FAULTS else _OTHER_STATUS
            if kind != str(entry.status):
                self._add_omission(f"the status {entry.status} at {entry.at_s:g} s: replaced by {kind}")
        self._add_step(entry.at_s, fault={"kind": kind, "for": _format_seconds(lasts_s)})

    def _add_document(self, entry: TranscriptEntry, document: Document) -> None:
        """Convert a document: announce new events, start those that have started, and end those that are gone."""
        # A slow answer may be seen after the next request began, but steps must not go back in time.
        at_s = max(entry.received_s, self.at_s or 0.0)
        self._advance_service(at_s)
        shown = {event.key: event for event in document.events}
        # A VM that goes takes its other events with it, so end these first, while that is possible.
        ended = [event_id for event_id in self.operations if event_id not in shown]
        ended.sort(key=lambda event_id: self.operations[event_id].type in _ENDS_VM)
        # Collected first: all changes of one document happen before any of them is checked.
        expectations: list[dict[str, Any]] = [
            {"event": self._end_operation(event_id, at_s).name, "status": "gone"}
            for event_id in ended
            if event_id in self.operations  # the end of the previous event may have removed its VM
        ]
        # An event that is gone no longer spoils the number of events.
        self.omitted_event_ids &= shown.keys()
        for event in document.events:
            if event.key in self.omitted_event_ids:
                continue
            is_new = event.key not in self.operations
            try:
                operation = self._announce_event(event, entry, at_s) if is_new else self.operations[event.key]
                expected = self._start_operation(operation, at_s) if event.is_started else {}
            except _EventOmitted as omitted:
                self._omit_event(event, str(omitted), at_s)
                continue
            if is_new or expected:
                expectations.append(_build_expectation(operation, event, is_new=is_new) | expected)
        for expected in expectations:
            self._add_step(at_s, expect=expected)
        self._expect_document(document, at_s, is_same=not self.omitted_event_ids)

    def _expect_document(self, document: Document, at_s: float, *, is_same: bool) -> None:
        expected: dict[str, Any] = {"events": len(document.events)} if is_same else {}
        if document.incarnation is not None and document.incarnation == self.incarnation:
            expected["incarnation"] = document.incarnation
        if expected:
            self._add_step(at_s, expect=expected)

    def _advance_service(self, at_s: float) -> None:
        """Follow the service's own actions up to that time."""
        due = {op.starts_s for op in self.operations.values() if not op.is_started and op.starts_s <= at_s}
        # Operations that start at the same moment change the document, and so the incarnation, only once.
        for moment in sorted(due):
            starting = [op for op in self.operations.values() if not op.is_started and op.starts_s == moment]
            is_changed = False
            for operation in starting:
                if not self._is_blocked(operation):
                    operation.is_started = is_changed = True
            self._count_change(is_changed=is_changed)

    def _announce_event(self, event: Event, entry: TranscriptEntry, at_s: float) -> _TrackedOperation:
        """Add a step that announces the event.

        Raises:
            _EventOmitted: The service would not announce it.
        """
        operation = self._build_operation(event, at_s)
        notice = self._compute_notice(operation, event, entry)
        said: dict[str, Any] = {"as": operation.name, "vms": list(operation.vms), "type": operation.type.value}
        if operation.cause != DEFAULT_CAUSE[operation.type, operation.source]:
            said["cause"] = operation.cause
        said["source"] = operation.source.value
        if event.duration_s <= _DURATION_S_MAX:
            said["duration"] = max(event.duration_s, -1)
        if notice is not None:
            said["notice"] = _format_seconds(notice.total_seconds())
        # "${" in a recorded text is not a parameter.
        said["description"] = event.description[:_DESCRIPTION_LENGTH_MAX].replace("${", "$${")
        self._add_step(at_s, schedule=said)
        least = MINIMUM_NOTICE[operation.type] if notice is None else notice
        # The service rounds NotBefore up to a whole second.
        operation.starts_s = math.ceil(round(at_s + least.total_seconds(), 6))
        operation.is_started = operation.is_shown_started = event.is_started
        self.event_ids.append(self._make_event_id(event.key))
        self.operations[event.key] = operation
        self._count_change(is_changed=True)
        return operation

    def _build_operation(self, event: Event, at_s: float) -> _TrackedOperation:
        """Return the operation that the service would make of the event.

        Raises:
            _EventOmitted: It would make none; with the reason.
        """
        if event.type not in {each.value for each in EventType}:
            raise _EventOmitted(f"its type {event.type!r} is unknown")
        kind = EventType(event.type)
        source = EventSource.USER if event.source == EventSource.USER.value else EventSource.PLATFORM
        vms = tuple(dict.fromkeys(self.vms[name] for name in event.resources if name in self.vms)) or (
            self._handler_vm,
        )
        cause = DEFAULT_CAUSE[kind, source]
        if event.is_started and (kind, source) == (EventType.REBOOT, EventSource.PLATFORM):
            cause = _SUDDEN
        # A cause for single VMs would make one event for each of them, so take one that hits several together.
        if len(vms) > 1 and CAUSES[cause].is_per_vm:
            cause = {EventType.REBOOT: "host-maintenance", EventType.REDEPLOY: "platform-redeploy"}.get(kind, "")
            if not cause:
                raise _EventOmitted(f"a {kind.value} can affect only one VM here, not {len(vms)}")
        self.counts_by_type[kind.value] += 1
        name = f"{kind.value.lower()}-{self.counts_by_type[kind.value]}"
        operation = _TrackedOperation(name=name, type=kind, source=source, cause=cause, vms=vms, starts_s=at_s)
        self._reject_conflicts(operation)
        return operation

    def _reject_conflicts(self, operation: _TrackedOperation) -> None:
        gone = [vm for vm in operation.vms if vm in self.gone_vms]
        if gone:
            raise _EventOmitted(f"{gone[0]} was gone by then")
        for other in self.operations.values():
            if set(other.vms).isdisjoint(operation.vms):
                continue
            if operation.is_routine and other.is_routine:
                raise _EventOmitted(f"it would queue behind {other.name}, which affects the same VM")
            if not operation.is_routine and (other.cause, other.source) == (operation.cause, operation.source):
                raise _EventOmitted(f"it would be refused as a duplicate of {other.name} for the same VM")

    def _compute_notice(self, operation: _TrackedOperation, event: Event, entry: TranscriptEntry) -> timedelta | None:
        """Return the time from its first appearance to NotBefore; None for the default of its cause.

        Raises:
            _EventOmitted: The service would not allow it.
        """
        if event.is_started and CAUSES[operation.cause].is_immediate:
            return None
        if event.is_started and self._is_blocked(operation):
            raise _EventOmitted("it would not start until the active event of the same VM is over")
        if event.is_started:
            return timedelta(0)
        notice = None if event.not_before is None else event.not_before - self.transcript.get_answer_time(entry)
        if notice is None or notice <= timedelta(0):
            return None  # It was late in the recording; here it waits until it is seen to start.
        most = _TERMINATE_NOTICE_MAX if operation.type is EventType.TERMINATE else _NOTICE_MAX
        if notice > most:
            msg = f"its notice of {format_duration(notice)} exceeds the maximum of {format_duration(most)}"
            raise _EventOmitted(msg)
        return notice

    def _start_operation(self, operation: _TrackedOperation, at_s: float) -> dict[str, Any]:
        """Add a step that starts it, unless the service does so; return what to expect then, if that is new.

        Raises:
            _EventOmitted: It would be refused.
        """
        if operation.is_shown_started:
            return {}
        operation.is_shown_started = True
        if operation.is_started:
            return {"status": "Started", "within": _NATURAL_WITHIN}
        if self._is_blocked(operation):
            raise _EventOmitted("it started while another event of the same VM was active")
        self._add_step(at_s, start=operation.name)
        operation.is_started = True
        self._count_change(is_changed=True)
        return {"status": "Started"}

    def _end_operation(self, event_id: str, at_s: float) -> _TrackedOperation:
        """Add a step that ends it: completed if it has started, else canceled."""
        operation = self.operations.pop(event_id)
        verb = "complete" if operation.is_started else "cancel"
        self._add_step(at_s, **{verb: operation.name})
        if verb == "complete" and operation.type in _ENDS_VM:
            self.gone_vms.update(operation.vms)
            self._omit_events_of_gone_vms(at_s)
        self._count_change(is_changed=True)
        self._advance_service(at_s)
        return operation

    def _omit_events_of_gone_vms(self, at_s: float) -> None:
        """Leave out events that only affect VMs that are gone: the service ends them together."""
        for event_id, operation in list(self.operations.items()):
            if self.gone_vms.issuperset(operation.vms):
                reason = f"{operation.vms[0]} was gone by then"
                self._add_omission(f"the {operation.type.value} {event_id} from {at_s:g} s on: {reason}")
                self.omitted_event_ids.add(event_id)
                del self.operations[event_id]

    def _omit_event(self, event: Event, reason: str, at_s: float) -> None:
        """Leave the event out of the scenario from here on."""
        self._add_omission(f"the {event.type or 'event'} {event.id} from {at_s:g} s on: {reason}")
        self.omitted_event_ids.add(event.key)
        if event.key in self.operations:
            self._end_operation(event.key, at_s)

    def _is_blocked(self, operation: _TrackedOperation) -> bool:
        others = (op for op in self.operations.values() if op is not operation and op.is_started)
        return any(not set(op.vms).isdisjoint(operation.vms) for op in others)

    # Output

    def _make_event_id(self, event_id: str) -> str:
        """Return the id; if the service could not use it, or it was used before, one derived from it."""
        while event_id in self.used_event_ids or not _GUID.fullmatch(event_id):
            event_id = str(uuid.uuid5(uuid.NAMESPACE_URL, event_id)).upper()
        self.used_event_ids.add(event_id)
        return event_id

    def _count_change(self, *, is_changed: bool) -> None:
        if self.incarnation is not None and is_changed:
            self.incarnation += 1

    def _add_omission(self, omission: str) -> None:
        self.omissions[omission] = None

    def _add_step(self, at_s: float, **action: Any) -> None:  # noqa: ANN401 - arguments of any action
        if len(self.steps) >= _STEPS_MAX:
            raise _TimelineFull(f"everything from {at_s:g} s on: a scenario has at most {_STEPS_MAX} steps")
        moment_s = at_s if self.at_s is None else max(at_s, self.at_s)
        when = {} if moment_s == self.at_s else {"at": _format_seconds(moment_s)}
        self.at_s = moment_s
        self.steps.append(when | action)

    def _encode_scenario(self, initial: int | None) -> str:
        # The recording says when an event ends, not the simulated actuator.
        settings: dict[str, Any] = {"simulate_complete_after": "none"}
        if initial is not None:
            settings["initial_incarnation"] = initial
        # The scenario polls once, at its beginning, and would be disabled after a day without another request (R67).
        if self.transcript.end_s > _SILENCE_S:
            settings["disable_after"] = _format_seconds(2 * self.transcript.end_s)
        head = {
            "title": "Recorded",
            "description": f"Answers of an endpoint from {self.transcript.began:%Y-%m-%d %H:%M:%S}Z on, in "
            f"{self.transcript.api_version}, for {format_duration(timedelta(seconds=round(self.transcript.end_s)))}.",
            "inventory": self._build_inventory(),
            "handler": self._handler_vm,
            "event_ids": self.event_ids,
            "settings": settings,
        }
        notes = list(self.omissions)
        lines = [SCHEMA_LINE, "# Generated by 'forewarn scenario from-transcript'."]
        lines += [f"# Left out: {_join_lines(note)}" for note in notes[:_OMISSIONS_MAX]]
        lines += [f"# Left out: {len(notes) - _OMISSIONS_MAX} more"] if len(notes) > _OMISSIONS_MAX else []
        lines += [_encode_yaml({name: value}, is_flow=False) for name, value in head.items() if value]
        lines += ["timeline:", *(f"  - {_encode_yaml(step, is_flow=True)}" for step in self.steps)]
        return "\n".join(lines) + "\n"

    def _build_inventory(self) -> dict[str, Any]:
        """Return an inventory with a host for each VM; VMs that see each other's events must share a scope."""
        names = list(self.vms.values())
        # The service announces a Terminate only where terminate notification is enabled (R91).
        is_terminating = self.counts_by_type[EventType.TERMINATE.value] > 0
        scope: dict[str, Any] = {"name": _SCOPE, "kind": "scale-set" if is_terminating else "availability-set"}
        if is_terminating:
            scope["terminate_notification"] = {"enable": True}
        is_shared = len(names) > 1 or is_terminating
        vms = [
            {"name": name, "host": f"host-{number}"} | ({"scope": _SCOPE} if is_shared else {})
            for number, name in enumerate(names, 1)
        ]
        hosts = [{"name": vm["host"]} for vm in vms]
        return {"hosts": hosts} | ({"scopes": [scope]} if is_shared else {}) | {"vms": vms}


def _compute_initial_incarnation(first: Document | None) -> int | None:
    """Return the initial incarnation that makes the service count like the recording; None if unknown."""
    if first is None or first.incarnation is None:
        return None
    # The service counts 1 for each event that it announces, so it has to begin that much earlier.
    initial = first.incarnation - len(first.events)
    return initial if 0 <= initial < _INCARNATION_MAX else None


def _build_expectation(operation: _TrackedOperation, event: Event, *, is_new: bool) -> dict[str, Any]:
    status = "Started" if event.is_started else "Scheduled"
    return {"event": operation.name, "status": status} | ({"type": operation.type.value} if is_new else {})


def _classify_body(body: bytes) -> str:
    """Return the fault whose 200 is unreadable in the same way."""
    if not body.strip():
        return "empty"
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return "truncated"
    return "no-events"


def _format_seconds(seconds: float) -> str:
    return format_duration(timedelta(seconds=round(seconds, 3)))


def _join_lines(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class _ScenarioDumper(yaml.SafeDumper):
    """YAML in the style of scenarios: no anchors, and each text on one line."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Return True: a repeated value is written out each time."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_ScenarioDumper.add_representer(str, _represent_text)


def _encode_yaml(value: Any, *, is_flow: bool) -> str:  # noqa: ANN401 - any YAML value
    dumped: str = yaml.dump(value, Dumper=_ScenarioDumper, sort_keys=False, width=math.inf, default_flow_style=is_flow)
    return dumped.strip()
