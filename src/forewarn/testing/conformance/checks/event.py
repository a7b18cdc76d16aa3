"""Members of events: 1.5 of the specification. Each event is checked in every state in which it was seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from forewarn.testing.conformance.check import CheckList, CheckPhase
from forewarn.testing.conformance.outcome import CheckOutcome, Inconclusive, holds, inconclusive, judge, note_difference
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.version_table import EVENT_TYPES, get_version_row

__all__ = ["CHECKS"]

CHECKS = CheckList()

_GUID = re.compile(r"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}", re.IGNORECASE)
_MAY_CHANGE = frozenset({"EventStatus", "NotBefore"})


def _is_text(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, str)


def _is_guid(value: Any) -> bool:  # noqa: ANN401 - as above
    return _is_text(value) and _GUID.fullmatch(value) is not None


def _is_duration(value: Any) -> bool:  # noqa: ANN401 - as above
    return type(value) is int and value >= -1


def _is_name_list(value: Any) -> bool:  # noqa: ANN401 - as above
    is_filled = isinstance(value, list) and bool(value) and all(_is_text(name) and name for name in value)
    return is_filled and len(set(value)) == len(value)


def _accept_words(*words: str) -> Callable[[Any], bool]:
    return lambda value: _is_text(value) and value in words


def _add_member_check(code: str, number: str, member: str, title: str, is_right: Callable[[Any], bool]) -> None:
    """Add a check of one member in all events, in every version that has it."""

    @CHECKS.add(code, number, title, CheckPhase.AFTERWARDS)
    def look(probe: EndpointProbe) -> CheckOutcome:
        wrong = []
        count = 0
        for name in [name for name in probe.supported_versions if member in get_version_row(name).members]:
            try:
                events = probe.list_event_states(name)
            except Inconclusive:
                continue
            count += len(events)
            wrong += [
                f"{name}: {member} is {_format_member(event, member)}"
                for event in events
                if member not in event or not is_right(event[member])
            ]
        if not count:
            return inconclusive(f"no event is shown in an api-version with {member}")
        return judge(wrong, f"{title} ({count} checked, in every api-version that has it)")


def _format_member(event: dict[str, Any], member: str) -> str:
    return repr(event[member]) if member in event else "missing"


_add_member_check("event-id", "R30", "EventId", "EventId is a GUID", _is_guid)


@CHECKS.add("event-id-case", "R30 R112 A8", "EventId is in upper case", CheckPhase.AFTERWARDS)
def _check_id_case(probe: EndpointProbe) -> CheckOutcome:
    """Judge the case of EventIds; clients compare them without regard to it, so lower case is only noted (R112)."""
    ids = [event["EventId"] for event in probe.list_event_states() if _is_guid(event.get("EventId"))]
    if not ids:
        return inconclusive("no EventId is a GUID")
    lower = [event_id for event_id in ids if event_id != event_id.upper()]
    if lower:
        return note_difference(f"{lower[0]} is not in upper case (A8: other)")
    return holds(f"every EventId is in upper case, such as {ids[0]} (A8: upper)")


@CHECKS.add("event-id-unique", "R30", "No two events have the same EventId", CheckPhase.AFTERWARDS)
def _check_ids_are_unique(probe: EndpointProbe) -> CheckOutcome:
    probe.list_event_states()
    wrong = []
    most = max(len(shown.events) for shown in probe.list_documents())
    if most == 1:
        return inconclusive("no document shows more than one event")
    for shown in probe.list_documents():
        ids = [str(event.get("EventId")).upper() for event in shown.events]
        wrong += [f"two events have the EventId {event_id}" for event_id in ids if ids.count(event_id) > 1]
    return judge(wrong, f"no two events of a document have the same EventId, among up to {most}")


@CHECKS.add("event-id-versions", "R30", "An event has one EventId in every api-version")
def _check_ids_across_versions(probe: EndpointProbe) -> CheckOutcome:
    if not probe.versioned_documents.is_steady:
        return inconclusive("the document changed while api-versions were compared")
    newest = set(probe.get_first_document().events_by_id())
    showing = [name for name in probe.supported_versions if probe.get_first_document(name).events_by_id()]
    if not newest or len(showing) == 1:
        return inconclusive("no event is shown in two api-versions")
    wrong = [
        f"{name} shows {min(set(probe.get_first_document(name).events_by_id()) - newest)}, "
        f"which {probe.newest_version} does not"
        for name in probe.supported_versions
        if set(probe.get_first_document(name).events_by_id()) - newest
    ]
    if not wrong:
        probe.require_version_dependence()
    return judge(wrong, f"{len(showing)} api-versions show the same EventIds")


@CHECKS.add("event-id-constant", "R30", "An event keeps its EventId", CheckPhase.AFTERWARDS)
def _check_id_is_constant(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    started = 0
    shown = probe.list_documents()
    for earlier, later in pairwise(shown):
        old, new = earlier.events_by_id(), later.events_by_id()
        for event_id, event in new.items():
            if event.get("EventStatus") != "Started":
                continue
            if event_id in old:
                started += old[event_id].get("EventStatus") == "Scheduled"
                continue
            # An event that vanishes while a similar one appears as Started has most likely changed its id.
            gone = [each for gone_id, each in old.items() if gone_id not in new and _is_same_maintenance(each, event)]
            if gone:
                wrong.append(f"{gone[0]['EventId']} became {event_id} when the event started")
    if not wrong and not started:
        return inconclusive("no event started during the run")
    return judge(wrong, "each event that started kept its EventId")


def _is_same_maintenance(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(member) == other.get(member) for member in ("EventType", "Resources"))


_add_member_check("event-type", "R31", "EventType", "EventType is one of five values", _accept_words(*EVENT_TYPES))
_add_member_check(
    "resource-type", "R32", "ResourceType", "ResourceType is VirtualMachine", _accept_words("VirtualMachine")
)
_add_member_check("resources", "R33", "Resources", "Resources is an array of names", _is_name_list)
_add_member_check(
    "event-status", "R35", "EventStatus", "EventStatus is Scheduled or Started", _accept_words("Scheduled", "Started")
)


@CHECKS.add("not-before", "R36", "NotBefore is a string, empty once Started", CheckPhase.AFTERWARDS)
def _check_not_before_when_started(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    for name in probe.supported_versions:
        for event in [event for shown in probe.list_documents(name) for event in shown.events]:
            status, text = event.get("EventStatus"), event.get("NotBefore")
            if not isinstance(text, str):
                wrong.append(f"{name}: NotBefore is {_format_member(event, 'NotBefore')}, not a string")
            elif status == "Started" and text:
                wrong.append(f"{name} has a Started event with NotBefore {text}")
            elif status == "Scheduled" and not text:
                wrong.append(f"{name} has a Scheduled event without NotBefore")
    statuses = {event.get("EventStatus") for event in probe.list_event_states()}
    if wrong or "Started" in statuses:
        return judge(wrong, "NotBefore is a string, and empty once an event has started")
    return inconclusive("no event is Started now; NotBefore of Scheduled events is a string")


_add_member_check("description", "R37", "Description", "Description is a string", _is_text)
_add_member_check(
    "event-source", "R38", "EventSource", "EventSource is Platform or User", _accept_words("Platform", "User")
)
_add_member_check(
    "duration", "R39", "DurationInSeconds", "DurationInSeconds is an integer of at least -1", _is_duration
)


@CHECKS.add("life", "R40", "Only EventStatus and NotBefore of an event change", CheckPhase.AFTERWARDS)
def _check_allowed_changes(probe: EndpointProbe) -> CheckOutcome:
    first: dict[str, dict[str, Any]] = {}
    wrong = []
    changed = 0
    for shown in probe.list_documents():
        for event_id, event in shown.events_by_id().items():
            before = first.setdefault(event_id, event)
            names = {name for name in before.keys() | event.keys() if before.get(name) != event.get(name)}
            # Compared with its first state, so that a change which is undone later is found as well.
            changed += bool(names)
            wrong += [f"{name} went from {before.get(name)!r} to {event.get(name)!r}" for name in names - _MAY_CHANGE]
    if not wrong and not changed:
        return inconclusive("no event changed during the run")
    return judge(wrong, "only EventStatus and NotBefore of an event changed")
