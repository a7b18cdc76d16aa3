"""Api-versions and the content of each: 1.3 of the specification."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from forewarn.testing.conformance.check import Check, Phase
from forewarn.testing.conformance.checks.transport import is_rfc1123
from forewarn.testing.conformance.forms import judge_harmless, send
from forewarn.testing.conformance.outcome import (
    Inconclusive,
    Outcome,
    breaks,
    excerpt,
    holds,
    inconclusive,
    judge,
    note,
)
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.request import get, post
from forewarn.testing.conformance.table import EVENT_TYPES, NEWEST, PREVIEW, VERSION_ERRORS, VERSIONS, row

__all__ = ["CHECKS", "says_versions"]

_UNSUPPORTED = ("2016-01-01", "2099-01-01", "2020-7-1", "x")
_OF_THE_IMDS = ("2017-04-02", "2018-02-01", "2019-11-01", "2021-02-01")
_LATEST = ("latest", "{latest}")
_LEGACY_PATH = "/metadata/latest/scheduledevents"
_DOCUMENT = ("DocumentIncarnation", "Events")
_NOTED_MAX = 2
_MAY_BE_MISSING = "2017-11-01"
_ROLE_INSTANCE = re.compile(r".+_IN_\d+")
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def _wants_version(probe: Probe) -> Outcome:
    asked = {"no api-version": get(None), "an empty one": get("")}
    asked |= {f"api-version={name}": get(name) for name in _UNSUPPORTED}
    asked["a POST without api-version"] = post(probe.nothing, None)
    wrong = [
        f"{name} is answered {reply.status}, not 400"
        for name, request in asked.items()
        if (reply := probe.ask(request)).status != HTTPStatus.BAD_REQUEST
    ]
    return judge(wrong, "a missing, empty or unsupported api-version is answered 400")


def says_versions(content: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Return True if a body is that of R64."""
    if not isinstance(content, dict) or set(content) != {"error", "newest-versions"}:
        return False
    return content["error"] in VERSION_ERRORS and content["newest-versions"] == NEWEST


def _says_which(probe: Probe) -> Outcome:
    replies = {"a missing": probe.ask(get(None)), "an unsupported": probe.ask(get(_UNSUPPORTED[0]))}
    wrong = [
        f"{name} api-version is answered {reply.status} with {excerpt(reply.body)}"
        for name, reply in replies.items()
        if not says_versions(reply.content)
    ]
    return judge(wrong, f"the body has the documented text, and recommends {', '.join(NEWEST)}")


def _supports_all(probe: Probe) -> Outcome:
    replies, shown = probe.views.replies, probe.views.shown
    missing = [version.name for version in VERSIONS if version.name not in shown]
    wrong = [f"{name} is answered {replies[name].status}" for name in missing if name != _MAY_BE_MISSING]
    if not wrong and missing and replies[_MAY_BE_MISSING].status != HTTPStatus.BAD_REQUEST:
        wrong = [f"{_MAY_BE_MISSING} is answered {replies[_MAY_BE_MISSING].status}"]
    if not wrong:
        probe.require_versions_to_count()
    if missing:
        return judge(wrong, f"all but {_MAY_BE_MISSING} are answered 200, as in the China cloud (A2)")
    return judge(wrong, f"all {len(VERSIONS)} api-versions are answered 200")


def _refuses_versions_of_the_imds(probe: Probe) -> Outcome:
    asked = {name: probe.ask(get(name)).status for name in _OF_THE_IMDS}
    wrong = [f"{name} is answered {status}, not 400" for name, status in asked.items() if status != 400]  # noqa: PLR2004 - the status of R15
    return judge(wrong, f"{', '.join(_OF_THE_IMDS)} are answered 400")


def _refuses_latest(probe: Probe) -> Outcome:
    asked = {name: probe.ask(get(name)).status for name in _LATEST}
    wrong = [f"api-version={name} is answered {s}, not 400" for name, s in asked.items() if s != 400]  # noqa: PLR2004 - the status of R15
    legacy = probe.ask(get(None, path=_LEGACY_PATH))
    if legacy.status not in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}:
        wrong.append(f"{_LEGACY_PATH} is answered {legacy.status}, neither 404 nor 200")
    habit = "off" if legacy.status == HTTPStatus.NOT_FOUND else "on"
    return judge(wrong, f"api-version=latest is answered 400, the old path {legacy.status} (A4: {habit})")


def _mixes(probe: Probe) -> Outcome:
    others = [name for name in probe.supported if name != probe.version]
    if not others:
        return inconclusive(f"{probe.version} alone is supported")
    forms = {f"by a POST of {name} after a GET of {probe.version}": send(name) for name in others}
    right = f"after a GET of {probe.version} a POST is told from nonsense in {len(others)} other api-versions"
    return judge_harmless(probe, forms, right)


# Content of each version


def _members(probe: Probe, *, later: bool) -> Outcome:
    """Judge members that belong to a later version, or members that are missing."""
    wrong = []
    seen: list[str] = []
    for name in probe.supported:
        expected = row(name).members
        try:
            events = probe.events(name)
        except Inconclusive:
            continue
        seen.append(name)
        for event in events:
            more = [member for member in event if member not in expected]
            if later:
                wrong += [f"{name} shows {member}" for member in more]
            else:
                wrong += [f"{name} lacks {member}" for member in expected if member not in event]
    if not seen:
        return inconclusive("the document holds no event now")
    what = "no member beyond its own" if later else "all of its members"
    return judge(wrong, f"each of {len(seen)} api-versions shows {what}")


def _shows_no_later_member(probe: Probe) -> Outcome:
    return _members(probe, later=True)


def _shows_its_members(probe: Probe) -> Outcome:
    return _members(probe, later=False)


def _orders_members(probe: Probe) -> Outcome:
    """Note the order of members: JSON objects have none, but captures of real endpoints show this one (R112)."""
    other: list[str] = []
    seen = 0
    for name in probe.supported:
        content = probe.shown(name).content
        if set(content) == set(_DOCUMENT) and list(content) != list(_DOCUMENT):
            other.append(f"{name} has the order {', '.join(content)}")
        for event in probe.shown(name).events:
            seen += 1
            known = [member for member in event if member in row(name).members]
            if known != [member for member in row(name).members if member in event]:
                other.append(f"{name} has the order {', '.join(event)}")
    if other:
        return note("; ".join(dict.fromkeys(other[:_NOTED_MAX])))
    if not seen:
        return inconclusive("the document holds no event now")
    return holds(f"{seen} events of {len(probe.supported)} api-versions have their members in the order of captures")


def _leaves_out_newer_types(probe: Probe) -> Outcome:
    if not probe.views.is_steady:
        return inconclusive("the document changed while api-versions were compared")
    newest = probe.shown().by_id()
    wrong = []
    new_types: set[str] = set()
    for name in probe.supported:
        there = probe.shown(name).by_id()
        for event_id, event in newest.items():
            event_type = str(event.get("EventType"))
            if event_type in row(name).types and event_id not in there:
                wrong.append(f"{name} lacks an event of type {event_type}")
        for event in there.values():
            event_type = str(event.get("EventType"))
            if event_type in EVENT_TYPES - row(name).types:
                wrong.append(f"{name} shows an event of type {event_type}")
            new_types |= {event_type} & {"Preempt", "Terminate"}
    if not wrong and not any(new_types - row(name).types for name in probe.supported):
        return inconclusive("no event is of a type that a supported api-version leaves out")
    if wrong or new_types:
        return judge(wrong, f"events of type {' and '.join(sorted(new_types))} are left out of older api-versions")
    return inconclusive("no event is of type Preempt or Terminate now")


def _shares_the_incarnation(probe: Probe) -> Outcome:
    if not probe.views.is_steady:
        return inconclusive("the document changed while api-versions were compared")
    supported = probe.supported
    if len(supported) == 1:
        return inconclusive(f"{supported[0]} alone is supported")
    newest = probe.shown().incarnation
    wrong = [
        f"{name} has DocumentIncarnation {probe.shown(name).incarnation}, {supported[0]} has {newest}"
        for name in supported
        if probe.shown(name).incarnation != newest
    ]
    if not wrong:
        probe.require_versions_to_count()
    return judge(wrong, f"{len(supported)} api-versions show DocumentIncarnation {newest}")


def _paired(probe: Probe) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each event of the preview with the same event of the newest version."""
    if not probe.views.is_steady:
        msg = "the document changed while api-versions were compared"
        raise Inconclusive(msg)
    old, new = probe.shown(PREVIEW).by_id(), probe.shown().by_id()
    if probe.version == PREVIEW:
        msg = "there is no later api-version to compare 2017-03-01 with"
        raise Inconclusive(msg)
    pairs = [(old[event_id], new[event_id]) for event_id in old if event_id in new]
    if not pairs:
        msg = "2017-03-01 shows no event now"
        raise Inconclusive(msg)
    return pairs


def _prefixes_names(probe: Probe) -> Outcome:
    wrong = []
    prefixed = plain = 0
    for old, new in _paired(probe):
        names = list(new.get("Resources") or [])
        for before, after in zip(names, list(old.get("Resources") or []), strict=False):
            if after == f"_{before}":
                prefixed += 1
            elif after == before and _ROLE_INSTANCE.fullmatch(str(before)):
                plain += 1
            else:
                wrong.append(f"{before} is called {after} in 2017-03-01")
        if len(names) != len(old.get("Resources") or []):
            wrong.append("2017-03-01 has another number of Resources")
    if not wrong and not prefixed + plain:
        return inconclusive("no event names a resource in 2017-03-01")
    if plain:
        return judge(wrong, f"{plain} role instances have no underscore, {prefixed} other names have one")
    return judge(wrong, f"{prefixed} names begin with an underscore in 2017-03-01")


def _later_not_before_is_rfc1123(probe: Probe) -> Outcome:
    seen = 0
    wrong = []
    for name in [name for name in probe.supported if name != PREVIEW]:
        for shown in probe.all_shown(name):
            for event in shown.events:
                text = event.get("NotBefore")
                if isinstance(text, str) and text:
                    seen += 1
                    wrong += [] if is_rfc1123(text) else [f"{name} has NotBefore {text}"]
    return judge(wrong, "NotBefore is in RFC 1123, as GMT") if seen else inconclusive("no event has a NotBefore now")


def _preview_not_before(probe: Probe) -> Outcome:
    wrong = []
    forms = set()
    compared = 0
    for old, new in _paired(probe):
        texts = str(old.get("NotBefore")), str(new.get("NotBefore"))
        if not all(texts):
            continue
        forms.add("iso" if _ISO.fullmatch(texts[0]) else "rfc1123" if is_rfc1123(texts[0]) else "neither")
        if "neither" in forms:
            return breaks(f"2017-03-01 has NotBefore {texts[0]}")
        if not is_rfc1123(texts[1]):
            continue
        compared += 1
        if _moment(texts[0]) != parsedate_to_datetime(texts[1]):
            wrong.append(f"2017-03-01 has NotBefore {texts[0]}, {probe.version} has {texts[1]}")
    if not forms:
        return inconclusive("2017-03-01 shows no event with a NotBefore now")
    if len(forms) > 1:
        return breaks("2017-03-01 shows NotBefore in two forms")
    if not compared:
        return inconclusive(f"{probe.version} shows no NotBefore in RFC 1123 to compare with")
    if not wrong:
        probe.require_versions_to_count()
    return judge(wrong, f"2017-03-01 shows the same moment in its own form (A1: {forms.pop()})")


def _moment(text: str) -> datetime:
    if not _ISO.fullmatch(text):
        return parsedate_to_datetime(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)  # differs from the time of any event


CHECKS = (
    Check("version-missing", ("R15",), "A missing or unsupported api-version is answered 400", _wants_version),
    Check("version-body", ("R64",), "The answer recommends the three newest api-versions", _says_which),
    Check("versions", ("R16", "A2"), "Every api-version is supported", _supports_all, needs_document=False),
    Check("versions-imds", ("R24",), "Api-versions of the IMDS alone are not supported", _refuses_versions_of_the_imds),
    Check("version-latest", ("R22", "A4"), "There is no api-version 'latest'", _refuses_latest),
    Check("versions-mixed", ("R23", "W6"), "Api-versions may be mixed", _mixes),
    Check("members", ("R16",), "An event has the members of its api-version", _shows_its_members),
    Check("member-order", ("R26", "R112"), "Members come in the order of captures", _orders_members),
    Check("members-later", ("R18", "W1"), "An event has no member of a later api-version", _shows_no_later_member),
    Check("types", ("R19",), "Events of newer types are left out of older api-versions", _leaves_out_newer_types),
    Check("incarnation-shared", ("R19", "R42"), "All api-versions show the same incarnation", _shares_the_incarnation),
    Check("names-preview", ("R20",), "In 2017-03-01 names of VMs begin with an underscore", _prefixes_names),
    Check(
        "not-before-form",
        ("R21",),
        "NotBefore is in RFC 1123 from 2017-08-01",
        _later_not_before_is_rfc1123,
        Phase.AFTERWARDS,
    ),
    Check("not-before-preview", ("R21", "A1"), "NotBefore in 2017-03-01 is the same moment", _preview_not_before),
)
