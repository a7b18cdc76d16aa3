"""The document and its incarnation: 1.4 and 1.6 of the specification."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from forewarn.testing.conformance.check import CheckList, CheckPhase
from forewarn.testing.conformance.outcome import CheckOutcome, breaks, holds, inconclusive, judge, note_difference
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_document import RawDocument

__all__ = ["CHECKS"]

CHECKS = CheckList()

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_WHITE = re.compile(rb"\s")
_AT_ONCE_S = 2.0
_REPEATS = 3


@CHECKS.add("document", "R25", "The document has two members and an array of events")
def _check_document_members(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    for name in probe.supported_versions:
        content = probe.get_first_document(name).content
        if set(content) != {"DocumentIncarnation", "Events"}:
            wrong.append(f"{name} has the members {', '.join(content) or 'none'}")
        elif not isinstance(content["Events"], list):
            wrong.append(f"{name} has Events {content['Events']!r}, which is not an array")
        elif len(probe.get_first_document(name).events) < len(content["Events"]):
            wrong.append(f"{name} has an element of Events that is not an object")
    return judge(wrong, "the document has DocumentIncarnation, an array Events and nothing else")


@CHECKS.add("document-compact", "R26 R112", "The document is compact JSON")
def _check_compact_json(probe: EndpointProbe) -> CheckOutcome:
    bodies = {name: probe.get_first_document(name).reply.body for name in probe.supported_versions}
    wrong = [
        f"{name} has white space outside of strings, {count} bytes of {len(body)}"
        for name, body in bodies.items()
        if (count := len(_WHITE.findall(_STRING.sub(b"", body.strip()))))
    ]
    around = [name for name, body in bodies.items() if body != body.strip()]
    if around and not wrong:
        return note_difference(f"{', '.join(around)}: the document is compact, with white space around it")
    return judge(wrong, f"{len(bodies)} documents have no white space outside of strings")


@CHECKS.add("document-repeated", "R28", "GET changes nothing", CheckPhase.AFTERWARDS)
def _check_repeated_get(probe: EndpointProbe) -> CheckOutcome:
    bodies: dict[tuple[str, Any], bytes] = {}
    wrong = []
    compared = 0
    for _ in range(_REPEATS):
        probe.fetch_document()
    for shown in probe.documents_seen:
        key = (shown.version, repr(shown.incarnation))
        compared += key in bodies
        if bodies.setdefault(key, shown.reply.body) != shown.reply.body:
            wrong.append(f"{shown.version} has two documents with DocumentIncarnation {shown.incarnation}")
    if not compared:
        return inconclusive("no two documents have the same api-version and DocumentIncarnation")
    return judge(wrong, f"{compared} documents equal an earlier one of the same api-version and incarnation")


@CHECKS.add("incarnation", "R41", "DocumentIncarnation is an integer")
def _check_incarnation_type(probe: EndpointProbe) -> CheckOutcome:
    found = {name: probe.get_first_document(name).incarnation for name in probe.supported_versions}
    # Not isinstance, which would accept `true`.
    wrong = [f"{name} has {value!r}" for name, value in found.items() if type(value) is not int]
    return judge(wrong, f"DocumentIncarnation is the integer {next(iter(found.values()))}")


@CHECKS.add("incarnation-set", "W9", "DocumentIncarnation is not 0")
def _check_incarnation_is_positive(probe: EndpointProbe) -> CheckOutcome:
    found = probe.get_first_document().incarnation
    if type(found) is not int:
        return inconclusive("DocumentIncarnation is not an integer")
    return breaks(f"DocumentIncarnation is {found}") if found < 1 else holds(f"DocumentIncarnation is {found}")


@CHECKS.add("incarnation-growth", "R42", "The incarnation grows by 1 with each change", CheckPhase.AFTERWARDS)
def _check_incarnation_growth(probe: EndpointProbe) -> CheckOutcome:
    found = [shown for shown in probe.list_documents() if type(shown.incarnation) is int]
    wrong = []
    changes = 0
    for before, after in pairwise(found):
        growth = after.incarnation - before.incarnation
        is_other = before.content.get("Events") != after.content.get("Events")
        changes += is_other
        said = f"from {before.incarnation} to {after.incarnation}"
        if is_other and growth == 0:
            wrong.append(f"the events changed, but DocumentIncarnation stayed {after.incarnation}")
        elif is_other and growth < 0:
            wrong.append(f"the events changed, and DocumentIncarnation went {said}")
        elif not is_other and growth == 1:
            wrong.append(f"DocumentIncarnation went {said}, but the events did not change")
        # Several changes may lie between two documents, so a larger step alone proves nothing.
        elif growth > 1 and _is_single_change(before, after):
            wrong.append(f"DocumentIncarnation went {said} with one change of one event")
    if not wrong and not changes:
        return inconclusive("nothing changed during the run")
    return judge(wrong, f"DocumentIncarnation grew in each of {changes} changes, by 1 for a single change")


def _is_single_change(before: RawDocument, after: RawDocument) -> bool:
    """Return True if only one event differs, and only once, between documents too close in time for other changes.

    An event that is new, or gone without having been shown as Started, may have changed twice.
    """
    old, new = before.events_by_id(), after.events_by_id()
    changed = [event_id for event_id in old.keys() | new.keys() if old.get(event_id) != new.get(event_id)]
    if len(changed) != 1 or after.at_s - before.at_s >= _AT_ONCE_S or changed[0] not in old:
        return False
    return changed[0] in new or old[changed[0]].get("EventStatus") == "Started"
