"""Members of events: 1.5 of the specification. Each event is checked in every state in which it was seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from forewarn.testing.conformance.check import Check, Phase
from forewarn.testing.conformance.outcome import Inconclusive, Outcome, holds, inconclusive, judge, note
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.table import EVENT_TYPES, row

__all__ = ["CHECKS"]

_GUID = re.compile(r"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}", re.IGNORECASE)
_MAY_CHANGE = frozenset({"EventStatus", "NotBefore"})


def _each(member: str, is_right: Callable[[Any], bool], right: str) -> Callable[[Probe], Outcome]:
    """Return a check of one member in all events, in every version that has it."""

    def look(probe: Probe) -> Outcome:
        wrong = []
        count = 0
        for name in [name for name in probe.supported if member in row(name).members]:
            try:
                events = probe.events(name)
            except Inconclusive:
                continue
            count += len(events)
            wrong += [
                f"{name} has {member} {_value(event, member)}" for event in events if not _has(event, member, is_right)
            ]
        if not count:
            return inconclusive(f"no event is shown in an api-version with {member} now")
        return judge(wrong, f"{right} ({count} looked at, in every api-version that has it)")

    return look


def _has(event: dict[str, Any], member: str, is_right: Callable[[Any], bool]) -> bool:
    return member in event and is_right(event[member])


def _value(event: dict[str, Any], member: str) -> str:
    return repr(event[member]) if member in event else "nowhere"


def _spells_ids_upper(probe: Probe) -> Outcome:
    """Judge the case of EventIds; clients compare them without regard to it, so lower case is only noted (R112)."""
    ids = [event["EventId"] for event in probe.events() if _is_guid(event.get("EventId"))]
    if not ids:
        return inconclusive("no event has an EventId that is a GUID")
    lower = [event_id for event_id in ids if event_id != event_id.upper()]
    if lower:
        return note(f"{lower[0]} is not in upper case (A8: other)")
    return holds(f"every EventId is in upper case, such as {ids[0]} (A8: upper)")


def _has_unique_ids(probe: Probe) -> Outcome:
    probe.events()
    wrong = []
    most = max(len(shown.events) for shown in probe.all_shown())
    if most == 1:
        return inconclusive("no document shows more than one event")
    for shown in probe.all_shown():
        ids = [str(event.get("EventId")).upper() for event in shown.events]
        wrong += [f"two events have the EventId {event_id}" for event_id in ids if ids.count(event_id) > 1]
    return judge(wrong, f"no two events of a document have the same EventId, among up to {most}")


def _has_same_ids(probe: Probe) -> Outcome:
    if not probe.views.is_steady:
        return inconclusive("the document changed while api-versions were compared")
    newest = set(probe.shown().by_id())
    showing = [name for name in probe.supported if probe.shown(name).by_id()]
    if not newest or len(showing) == 1:
        return inconclusive("no event is shown in two api-versions now")
    wrong = [
        f"{name} shows {min(set(probe.shown(name).by_id()) - newest)}, which {probe.version} does not"
        for name in probe.supported
        if set(probe.shown(name).by_id()) - newest
    ]
    if not wrong:
        probe.require_versions_to_count()
    return judge(wrong, f"{len(showing)} api-versions show the same EventIds")


def _keeps_its_id(probe: Probe) -> Outcome:
    wrong = []
    started = 0
    shown = probe.all_shown()
    for earlier, later in pairwise(shown):
        old, new = earlier.by_id(), later.by_id()
        for event_id, event in new.items():
            if event.get("EventStatus") != "Started":
                continue
            if event_id in old:
                started += old[event_id].get("EventStatus") == "Scheduled"
                continue
            gone = [each for gone_id, each in old.items() if gone_id not in new and _is_alike(each, event)]
            if gone:
                wrong.append(f"{gone[0]['EventId']} is called {event_id} once it has started")
    if not wrong and not started:
        return inconclusive("no event started while we looked")
    return judge(wrong, "an event that started kept its EventId")


def _is_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(member) == other.get(member) for member in ("EventType", "Resources"))


def _changes_nothing_else(probe: Probe) -> Outcome:
    first: dict[str, dict[str, Any]] = {}
    wrong = []
    changed = 0
    for shown in probe.all_shown():
        for event_id, event in shown.by_id().items():
            before = first.setdefault(event_id, event)
            names = {name for name in before.keys() | event.keys() if before.get(name) != event.get(name)}
            changed += bool(names)
            wrong += [f"{name} went from {before.get(name)!r} to {event.get(name)!r}" for name in names - _MAY_CHANGE]
    if not wrong and not changed:
        return inconclusive("no event changed while we looked")
    return judge(wrong, "of an event that changed, only EventStatus and NotBefore did")


def _empties_not_before(probe: Probe) -> Outcome:
    wrong = []
    for name in probe.supported:
        for event in [event for shown in probe.all_shown(name) for event in shown.events]:
            status, text = event.get("EventStatus"), event.get("NotBefore")
            if not isinstance(text, str):
                wrong.append(f"{name} has NotBefore {_value(event, 'NotBefore')}, which is no text")
            elif status == "Started" and text:
                wrong.append(f"{name} has a Started event with NotBefore {text}")
            elif status == "Scheduled" and not text:
                wrong.append(f"{name} has a Scheduled event without NotBefore")
    statuses = {event.get("EventStatus") for event in probe.events()}
    if wrong or "Started" in statuses:
        return judge(wrong, "NotBefore is a text, and empty once an event has started")
    return inconclusive("no event is Started now; NotBefore of those that are Scheduled is a text")


def _is_text(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, str)


def _is_guid(value: Any) -> bool:  # noqa: ANN401 - as above
    return _is_text(value) and _GUID.fullmatch(value) is not None


def _is_duration(value: Any) -> bool:  # noqa: ANN401 - as above
    return type(value) is int and value >= -1


def _are_names(value: Any) -> bool:  # noqa: ANN401 - as above
    is_filled = isinstance(value, list) and bool(value) and all(_is_text(name) and name for name in value)
    return is_filled and len(set(value)) == len(value)


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: _is_text(value) and value in words


def _member(code: str, number: str, member: str, title: str, is_right: Callable[[Any], bool]) -> Check:
    return Check(code, (number,), title, _each(member, is_right, title), Phase.AFTERWARDS)


CHECKS = (
    _member("event-id", "R30", "EventId", "EventId is a GUID", _is_guid),
    Check("event-id-case", ("R30", "R112", "A8"), "EventId is in upper case", _spells_ids_upper, Phase.AFTERWARDS),
    Check("event-id-unique", ("R30",), "No two events have the same EventId", _has_unique_ids, Phase.AFTERWARDS),
    Check("event-id-versions", ("R30",), "An event has one EventId in every api-version", _has_same_ids),
    Check("event-id-constant", ("R30",), "An event keeps its EventId", _keeps_its_id, Phase.AFTERWARDS),
    _member("event-type", "R31", "EventType", "EventType is one of five", _one_of(*EVENT_TYPES)),
    _member("resource-type", "R32", "ResourceType", "ResourceType is VirtualMachine", _one_of("VirtualMachine")),
    _member("resources", "R33", "Resources", "Resources is an array of names", _are_names),
    _member(
        "event-status", "R35", "EventStatus", "EventStatus is Scheduled or Started", _one_of("Scheduled", "Started")
    ),
    Check("not-before", ("R36",), "NotBefore is a text, empty once Started", _empties_not_before, Phase.AFTERWARDS),
    _member("description", "R37", "Description", "Description is a text", _is_text),
    _member("event-source", "R38", "EventSource", "EventSource is Platform or User", _one_of("Platform", "User")),
    _member("duration", "R39", "DurationInSeconds", "DurationInSeconds is an integer from -1 on", _is_duration),
    Check(
        "life", ("R40",), "Only EventStatus and NotBefore of an event change", _changes_nothing_else, Phase.AFTERWARDS
    ),
)
