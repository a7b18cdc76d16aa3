"""Api-versions and the content of each: 1.3 of the specification."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from forewarn.testing.conformance.approval_forms import judge_harmless_approvals, plain_form
from forewarn.testing.conformance.check import CheckList, CheckPhase
from forewarn.testing.conformance.checks.transport import is_rfc1123
from forewarn.testing.conformance.outcome import (
    CheckOutcome,
    Inconclusive,
    breaks,
    excerpt_body,
    holds,
    inconclusive,
    judge,
    note_difference,
)
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_request import build_get, build_post
from forewarn.testing.conformance.version_table import (
    EVENT_TYPES,
    NEWEST,
    PREVIEW,
    VERSION_ERRORS,
    VERSIONS,
    get_version_row,
)

__all__ = ["CHECKS", "is_version_error"]

CHECKS = CheckList()

_UNSUPPORTED = ("2016-01-01", "2099-01-01", "2020-7-1", "x")
_OF_THE_IMDS = ("2017-04-02", "2018-02-01", "2019-11-01", "2021-02-01")
_LATEST = ("latest", "{latest}")
_LEGACY_PATH = "/metadata/latest/scheduledevents"
_DOCUMENT = ("DocumentIncarnation", "Events")
_NOTED_MAX = 2
_MAY_BE_MISSING = "2017-11-01"
_ROLE_INSTANCE = re.compile(r".+_IN_\d+")
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@CHECKS.add("version-missing", "R15", "A missing or unsupported api-version returns 400")
def _check_missing_version(probe: EndpointProbe) -> CheckOutcome:
    asked = {"no api-version": build_get(None), "an empty api-version": build_get("")}
    asked |= {f"api-version={name}": build_get(name) for name in _UNSUPPORTED}
    asked["a POST without api-version"] = build_post(probe.empty_approval, None)
    return judge(probe.list_wrong_statuses(asked), "a missing, empty or unsupported api-version returns 400")


def is_version_error(content: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Return True if a body is that of R64."""
    if not isinstance(content, dict) or set(content) != {"error", "newest-versions"}:
        return False
    return content["error"] in VERSION_ERRORS and content["newest-versions"] == NEWEST


@CHECKS.add("version-body", "R64", "The 400 for a missing api-version recommends the three newest ones")
def _check_version_error_body(probe: EndpointProbe) -> CheckOutcome:
    replies = {
        "a missing": probe.send_request(build_get(None)),
        "an unsupported": probe.send_request(build_get(_UNSUPPORTED[0])),
    }
    wrong = [
        f"{name} api-version returns {reply.status} with {excerpt_body(reply.body)}"
        for name, reply in replies.items()
        if not is_version_error(reply.content)
    ]
    return judge(wrong, f"the body has the documented text and recommends {', '.join(NEWEST)}")


@CHECKS.add("versions", "R16 A2", "Every api-version is supported", needs_document=False)
def _check_supported_versions(probe: EndpointProbe) -> CheckOutcome:
    replies, shown = probe.versioned_documents.replies, probe.versioned_documents.documents
    missing = [version.name for version in VERSIONS if version.name not in shown]
    wrong = [f"{name} returns {replies[name].status}" for name in missing if name != _MAY_BE_MISSING]
    # A version that is really not supported gets 400 (R15); any other status is a fault.
    if not wrong and missing and replies[_MAY_BE_MISSING].status != HTTPStatus.BAD_REQUEST:
        wrong = [f"{_MAY_BE_MISSING} returns {replies[_MAY_BE_MISSING].status}"]
    if not wrong:
        probe.require_version_dependence()
    if missing:
        return judge(wrong, f"all api-versions but {_MAY_BE_MISSING} return 200, as in the China cloud (A2)")
    return judge(wrong, f"all {len(VERSIONS)} api-versions return 200")


@CHECKS.add("versions-imds", "R24", "Api-versions of the instance metadata are not supported")
def _check_imds_versions(probe: EndpointProbe) -> CheckOutcome:
    wrong = probe.list_wrong_statuses({name: build_get(name) for name in _OF_THE_IMDS})
    return judge(wrong, f"{', '.join(_OF_THE_IMDS)} return 400")


@CHECKS.add("version-latest", "R22 A4", "There is no api-version 'latest'")
def _check_latest(probe: EndpointProbe) -> CheckOutcome:
    wrong = probe.list_wrong_statuses({f"api-version={name}": build_get(name) for name in _LATEST})
    legacy = probe.send_request(build_get(None, path=_LEGACY_PATH))
    if legacy.status not in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}:
        wrong.append(f"{_LEGACY_PATH} returns {legacy.status}, neither 404 nor 200")
    habit = "off" if legacy.status == HTTPStatus.NOT_FOUND else "on"
    return judge(wrong, f"api-version=latest returns 400, the old path {legacy.status} (A4: {habit})")


@CHECKS.add("versions-mixed", "R23 W6", "Api-versions may be mixed")
def _check_mixed_versions(probe: EndpointProbe) -> CheckOutcome:
    others = [name for name in probe.supported_versions if name != probe.newest_version]
    if not others:
        return inconclusive(f"only {probe.newest_version} is supported")
    forms = {f"in a POST of {name} after a GET of {probe.newest_version}": plain_form(name) for name in others}
    right = f"after a GET in {probe.newest_version}, approvals work in {len(others)} other api-versions"
    return judge_harmless_approvals(probe, forms, right)


# Content of each version


@CHECKS.add("members", "R16", "An event has the members of its api-version")
def _check_missing_members(probe: EndpointProbe) -> CheckOutcome:
    return _judge_members(probe, later=False)


def _judge_members(probe: EndpointProbe, *, later: bool) -> CheckOutcome:
    """Judge members that belong to a later version, or members that are missing."""
    wrong = []
    seen: list[str] = []
    for name in probe.supported_versions:
        expected = get_version_row(name).members
        try:
            events = probe.list_event_states(name)
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
        return inconclusive("the document has no events now")
    what = "no member beyond its own" if later else "all of its members"
    return judge(wrong, f"each of {len(seen)} api-versions shows {what}")


@CHECKS.add("member-order", "R26 R112", "Members have the order seen in captures")
def _check_member_order(probe: EndpointProbe) -> CheckOutcome:
    """Note the order of members: JSON objects have none, but captures of real endpoints show this one (R112)."""
    other: list[str] = []
    seen = 0
    for name in probe.supported_versions:
        content = probe.get_first_document(name).content
        if set(content) == set(_DOCUMENT) and list(content) != list(_DOCUMENT):
            other.append(f"{name} has the order {', '.join(content)}")
        for event in probe.get_first_document(name).events:
            seen += 1
            # Members of other versions are judged elsewhere; here they would only hide the order of the right ones.
            known = [member for member in event if member in get_version_row(name).members]
            if known != [member for member in get_version_row(name).members if member in event]:
                other.append(f"{name} has the order {', '.join(event)}")
    if other:
        return note_difference("; ".join(dict.fromkeys(other[:_NOTED_MAX])))
    if not seen:
        return inconclusive("the document has no events now")
    return holds(
        f"{seen} events of {len(probe.supported_versions)} api-versions have their members in the order of captures"
    )


@CHECKS.add("members-later", "R18 W1", "An event has no member of a later api-version")
def _check_later_members(probe: EndpointProbe) -> CheckOutcome:
    return _judge_members(probe, later=True)


@CHECKS.add("types", "R19", "Older api-versions omit events of newer types")
def _check_newer_types(probe: EndpointProbe) -> CheckOutcome:
    if not probe.versioned_documents.is_steady:
        return inconclusive("the document changed while api-versions were compared")
    newest = probe.get_first_document().events_by_id()
    wrong = []
    new_types: set[str] = set()
    for name in probe.supported_versions:
        there = probe.get_first_document(name).events_by_id()
        for event_id, event in newest.items():
            event_type = str(event.get("EventType"))
            if event_type in get_version_row(name).types and event_id not in there:
                wrong.append(f"{name} lacks an event of type {event_type}")
        for event in there.values():
            event_type = str(event.get("EventType"))
            if event_type in EVENT_TYPES - get_version_row(name).types:
                wrong.append(f"{name} shows an event of type {event_type}")
            new_types |= {event_type} & {"Preempt", "Terminate"}
    if not wrong and not any(new_types - get_version_row(name).types for name in probe.supported_versions):
        return inconclusive("no event has a type that a supported api-version omits")
    if wrong or new_types:
        return judge(wrong, f"events of type {' and '.join(sorted(new_types))} are omitted from older api-versions")
    return inconclusive("no event has type Preempt or Terminate now")


@CHECKS.add("incarnation-shared", "R19 R42", "All api-versions show the same incarnation")
def _check_shared_incarnation(probe: EndpointProbe) -> CheckOutcome:
    if not probe.versioned_documents.is_steady:
        return inconclusive("the document changed while api-versions were compared")
    supported = probe.supported_versions
    if len(supported) == 1:
        return inconclusive(f"only {supported[0]} is supported")
    newest = probe.get_first_document().incarnation
    wrong = [
        f"{name} has DocumentIncarnation {probe.get_first_document(name).incarnation}, {supported[0]} has {newest}"
        for name in supported
        if probe.get_first_document(name).incarnation != newest
    ]
    if not wrong:
        probe.require_version_dependence()
    return judge(wrong, f"{len(supported)} api-versions show DocumentIncarnation {newest}")


def _pair_preview_events(probe: EndpointProbe) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each event of the preview with the same event of the newest version."""
    if not probe.versioned_documents.is_steady:
        raise Inconclusive("the document changed while api-versions were compared")
    old, new = probe.get_first_document(PREVIEW).events_by_id(), probe.get_first_document().events_by_id()
    if probe.newest_version == PREVIEW:
        raise Inconclusive("no later api-version to compare 2017-03-01 with")
    pairs = [(old[event_id], new[event_id]) for event_id in old if event_id in new]
    if not pairs:
        raise Inconclusive("2017-03-01 shows no event now")
    return pairs


@CHECKS.add("names-preview", "R20", "In 2017-03-01 names of VMs begin with an underscore")
def _check_preview_names(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    prefixed = plain = 0
    for old, new in _pair_preview_events(probe):
        names = list(new.get("Resources") or [])
        for before, after in zip(names, list(old.get("Resources") or []), strict=False):
            if after == f"_{before}":
                prefixed += 1
            elif after == before and _ROLE_INSTANCE.fullmatch(str(before)):
                plain += 1
            else:
                wrong.append(f"{before} is spelled {after} in 2017-03-01")
        if len(names) != len(old.get("Resources") or []):
            wrong.append("2017-03-01 has a different number of Resources")
    if not wrong and not prefixed + plain:
        return inconclusive("no event names a resource in 2017-03-01")
    if plain:
        return judge(wrong, f"{plain} role instances have no underscore, {prefixed} other names have one")
    return judge(wrong, f"{prefixed} names begin with an underscore in 2017-03-01")


@CHECKS.add("not-before-form", "R21", "NotBefore is in RFC 1123 from 2017-08-01", CheckPhase.AFTERWARDS)
def _check_not_before_format(probe: EndpointProbe) -> CheckOutcome:
    seen = 0
    wrong = []
    for name in [name for name in probe.supported_versions if name != PREVIEW]:
        for shown in probe.list_documents(name):
            for event in shown.events:
                text = event.get("NotBefore")
                if isinstance(text, str) and text:
                    seen += 1
                    wrong += [] if is_rfc1123(text) else [f"{name} has NotBefore {text}"]
    return judge(wrong, "NotBefore is in RFC 1123, as GMT") if seen else inconclusive("no event has a NotBefore now")


@CHECKS.add("not-before-preview", "R21 A1", "NotBefore in 2017-03-01 is the same time as in the other api-versions")
def _check_preview_not_before(probe: EndpointProbe) -> CheckOutcome:
    wrong = []
    forms = set()
    compared = 0
    for old, new in _pair_preview_events(probe):
        texts = str(old.get("NotBefore")), str(new.get("NotBefore"))
        if not all(texts):
            continue
        forms.add("iso" if _ISO.fullmatch(texts[0]) else "rfc1123" if is_rfc1123(texts[0]) else "neither")
        if "neither" in forms:
            return breaks(f"2017-03-01 has NotBefore {texts[0]}")
        if not is_rfc1123(texts[1]):
            continue
        compared += 1
        if _parse_moment(texts[0]) != parsedate_to_datetime(texts[1]):
            wrong.append(f"2017-03-01 has NotBefore {texts[0]}, {probe.newest_version} has {texts[1]}")
    if not forms:
        return inconclusive("2017-03-01 shows no event with a NotBefore now")
    if len(forms) > 1:
        return breaks("2017-03-01 shows NotBefore in two formats")
    if not compared:
        return inconclusive(f"{probe.newest_version} shows no NotBefore in RFC 1123 to compare with")
    if not wrong:
        probe.require_version_dependence()
    return judge(wrong, f"2017-03-01 shows the same time in its own format (A1: {forms.pop()})")


def _parse_moment(text: str) -> datetime:
    if not _ISO.fullmatch(text):
        return parsedate_to_datetime(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)  # differs from the time of any event
