"""The document and its incarnation: 1.4 and 1.6 of the specification."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from forewarn.testing.conformance.check import Check, Phase
from forewarn.testing.conformance.outcome import Outcome, breaks, holds, inconclusive, judge, note
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.shown import Shown

__all__ = ["CHECKS"]

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_WHITE = re.compile(rb"\s")
_AT_ONCE_S = 2.0
_REPEATS = 3


def _has_two_members(probe: Probe) -> Outcome:
    wrong = []
    for name in probe.supported:
        content = probe.shown(name).content
        if set(content) != {"DocumentIncarnation", "Events"}:
            wrong.append(f"{name} has the members {', '.join(content) or 'none'}")
        elif not isinstance(content["Events"], list):
            wrong.append(f"{name} has Events {content['Events']!r}, which is no array")
        elif len(probe.shown(name).events) < len(content["Events"]):
            wrong.append(f"{name} has an element of Events that is no object")
    return judge(wrong, "the document is DocumentIncarnation and an array Events, and nothing else")


def _is_compact(probe: Probe) -> Outcome:
    bodies = {name: probe.shown(name).reply.body for name in probe.supported}
    wrong = [
        f"{name} has white space outside of texts, {count} bytes of {len(body)}"
        for name, body in bodies.items()
        if (count := len(_WHITE.findall(_STRING.sub(b"", body.strip()))))
    ]
    around = [name for name, body in bodies.items() if body != body.strip()]
    if around and not wrong:
        return note(f"{', '.join(around)}: the document is compact, with white space around it")
    return judge(wrong, f"{len(bodies)} documents have no white space outside of texts")


def _repeats_itself(probe: Probe) -> Outcome:
    bodies: dict[tuple[str, Any], bytes] = {}
    wrong = []
    compared = 0
    for _ in range(_REPEATS):
        probe.fetch()
    for shown in probe.history:
        key = (shown.version, repr(shown.incarnation))
        compared += key in bodies
        if bodies.setdefault(key, shown.reply.body) != shown.reply.body:
            wrong.append(f"{shown.version} has two documents of DocumentIncarnation {shown.incarnation}")
    if not compared:
        return inconclusive("no two documents have the same api-version and DocumentIncarnation")
    return judge(wrong, f"{compared} documents have the bytes of an earlier one of their api-version and incarnation")


def _is_integer(probe: Probe) -> Outcome:
    found = {name: probe.shown(name).incarnation for name in probe.supported}
    wrong = [f"{name} has {value!r}" for name, value in found.items() if type(value) is not int]
    return judge(wrong, f"DocumentIncarnation is the integer {next(iter(found.values()))}")


def _is_set(probe: Probe) -> Outcome:
    found = probe.shown().incarnation
    if type(found) is not int:
        return inconclusive("DocumentIncarnation is no integer")
    return breaks(f"DocumentIncarnation is {found}") if found < 1 else holds(f"DocumentIncarnation is {found}")


def _grows_by_one(probe: Probe) -> Outcome:
    found = [shown for shown in probe.all_shown() if type(shown.incarnation) is int]
    wrong = []
    changes = 0
    for before, after in pairwise(found):
        growth = after.incarnation - before.incarnation
        is_other = before.content.get("Events") != after.content.get("Events")
        changes += is_other
        said = f"from {before.incarnation} to {after.incarnation}"
        if is_other and growth == 0:
            wrong.append(f"the events changed, and DocumentIncarnation stayed {after.incarnation}")
        elif is_other and growth < 0:
            wrong.append(f"the events changed, and DocumentIncarnation went {said}")
        elif not is_other and growth == 1:
            wrong.append(f"DocumentIncarnation went {said}, and the events stayed as they were")
        elif growth > 1 and _is_one_change(before, after):
            wrong.append(f"DocumentIncarnation went {said} with one change of one event")
    if not wrong and not changes:
        return inconclusive("nothing changed while we looked")
    return judge(wrong, f"in {changes} changes DocumentIncarnation grew each time, and by 1 for one change")


def _is_one_change(before: Shown, after: Shown) -> bool:
    """Return True if only one event differs, shown in both, between documents too close in time for more changes."""
    old, new = before.by_id(), after.by_id()
    changed = [event_id for event_id in old.keys() | new.keys() if old.get(event_id) != new.get(event_id)]
    has_come = any(event_id not in old for event_id in changed)
    return len(changed) == 1 and not has_come and after.at_s - before.at_s < _AT_ONCE_S and changed[0] in new


CHECKS = (
    Check("document", ("R25",), "The document has two members and an array of events", _has_two_members),
    Check("document-compact", ("R26", "R112"), "The document is compact JSON", _is_compact),
    Check("document-repeated", ("R28",), "GET changes nothing", _repeats_itself, Phase.AFTERWARDS),
    Check("incarnation", ("R41",), "DocumentIncarnation is an integer", _is_integer),
    Check("incarnation-set", ("W9",), "DocumentIncarnation is not 0", _is_set),
    Check(
        "incarnation-growth", ("R42",), "The incarnation grows by 1 with each change", _grows_by_one, Phase.AFTERWARDS
    ),
)
