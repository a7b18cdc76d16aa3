"""Names of VMs, and Forewarn's extensions of the protocol: 1.19 and 1.20 of the specification."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from forewarn.errors import EndpointUnreachable
from forewarn.testing.conformance.check import Check
from forewarn.testing.conformance.outcome import Outcome, breaks, excerpt, holds, inconclusive, judge
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.request import get
from forewarn.testing.conformance.table import NEWEST

__all__ = ["CHECKS"]

_INSTANCE = "/metadata/instance"
_INSTANCE_VERSIONS = ("2021-02-01", "2017-04-02")
_NO_VERSION = "2017-07-01"
_AS_JSON = "&format=json"
_TEXTS = (
    "name",
    "vmId",
    "location",
    "zone",
    "resourceGroupName",
    "subscriptionId",
    "vmScaleSetName",
    "vmSize",
    "osType",
    "platformFaultDomain",
    "platformUpdateDomain",
    "priority",
    "tags",
)
_HELD_S = 1
_HELD_AT_LEAST_S = 0.9
_HELD_AT_MOST_S = 3.0


def _names_by_instance(probe: Probe) -> Outcome:
    reply = probe.ask(get(_INSTANCE_VERSIONS[0], path=f"{_INSTANCE}/compute/name", query="&format=text"))
    name = reply.body.decode("utf-8", "replace")
    if reply.status != HTTPStatus.OK or not name:
        return inconclusive(f"/metadata/instance does not tell the VM's name: {reply.status}")
    names = {str(each) for event in probe.events() for each in event.get("Resources") or []}
    if name in names:
        return holds(f"Resources has {name}, as /metadata/instance spells it")
    alike = [each for each in names if each.casefold() == name.casefold()]
    if alike:
        return breaks(f"Resources has {alike[0]}, /metadata/instance {name}")
    return inconclusive(f"no event names {name}, which is the VM's name")


def _holds_polls(probe: Probe) -> Outcome:
    incarnation = probe.fetch().incarnation
    request = get(probe.version).having(("If-None-Match", f'"{incarnation}"'), ("Prefer", f"wait={_HELD_S}"))
    try:
        reply = probe.ask(request, timeout_s=_HELD_AT_MOST_S)
    except EndpointUnreachable:
        return breaks(f"a GET that wants to be held for {_HELD_S} s is not answered within {_HELD_AT_MOST_S:.0f} s")
    if reply.status == HTTPStatus.OK and (reply.content or {}).get("DocumentIncarnation") != incarnation:
        return inconclusive("the document changed while the GET was held")
    if reply.elapsed_s < _HELD_AT_LEAST_S:
        return inconclusive(f"not offered: a GET with Prefer: wait={_HELD_S} is answered {reply.status} at once")
    if reply.status != HTTPStatus.NOT_MODIFIED:
        return breaks(f"a GET is held for {reply.elapsed_s:.1f} s and answered {reply.status}, though nothing changed")
    return holds(f"a GET with Prefer: wait={_HELD_S} is held for {reply.elapsed_s:.1f} s and answered 304")


def _lists_versions(probe: Probe) -> Outcome:
    reply = probe.ask(get(None, path="/metadata/versions"))
    if reply.status != HTTPStatus.OK:
        return inconclusive(f"not offered: /metadata/versions is answered {reply.status}")
    versions = reply.content.get("apiVersions") if isinstance(reply.content, dict) else None
    if not isinstance(versions, list) or not all(isinstance(version, str) for version in versions):
        return breaks(f"/metadata/versions is answered with {excerpt(reply.body)}")
    return holds(f"/metadata/versions lists {len(versions)} api-versions")


def _tells_instance(probe: Probe) -> Outcome:
    replies = {version: probe.ask(get(version, path=_INSTANCE)) for version in _INSTANCE_VERSIONS}
    first = replies[_INSTANCE_VERSIONS[0]]
    if first.status != HTTPStatus.OK:
        return inconclusive(f"not offered: /metadata/instance is answered {first.status}")
    wrong = [f"api-version {v} is answered {r.status}" for v, r in replies.items() if r.status != HTTPStatus.OK]
    compute = _part(first.content, "compute")
    wrong += [f"compute has no text {name}" for name in _TEXTS if not isinstance(compute.get(name), str)]
    if not isinstance(compute.get("tagsList"), list):
        wrong.append("compute has no array tagsList")
    if not isinstance(_part(first.content, "network").get("interface"), list):
        wrong.append("network has no array interface")
    for path, expected in (("compute", compute), ("network", _part(first.content, "network"))):
        if probe.ask(get(_INSTANCE_VERSIONS[0], path=f"{_INSTANCE}/{path}")).content != expected:
            wrong.append(f"/metadata/instance/{path} is not that part of the whole")
    text = probe.ask(get(_INSTANCE_VERSIONS[0], path=f"{_INSTANCE}/compute/name", query="&format=text")).body
    if text.decode("utf-8", "replace") != compute.get("name"):
        wrong.append(f"compute/name is {excerpt(text)}, in the whole {compute.get('name')!r}")
    return judge(wrong, f"/metadata/instance tells who asks: {compute.get('name')}")


def _part(content: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    part = content.get(name) if isinstance(content, dict) else None
    return part if isinstance(part, dict) else {}


def _wants_text(probe: Probe) -> Outcome:
    path = f"{_INSTANCE}/compute/name"
    as_text = probe.ask(get(_INSTANCE_VERSIONS[0], path=path, query="&format=text"))
    if as_text.status != HTTPStatus.OK:
        return inconclusive(f"not offered: {path} with format=text is answered {as_text.status}")
    plain = {query: probe.ask(get(_INSTANCE_VERSIONS[0], path=path, query=query)).status for query in ("", _AS_JSON)}
    wrong = [
        f"{path} {f'with {query[1:]}' if query else 'without format=text'} is answered {status}, not 400"
        for query, status in plain.items()
        if status != HTTPStatus.BAD_REQUEST
    ]
    return judge(wrong, f"{path} is answered 200 with format=text, and 400 without it and with format=json")


def _knows_its_versions(probe: Probe) -> Outcome:
    known = probe.ask(get(_INSTANCE_VERSIONS[0], path=_INSTANCE))
    if known.status != HTTPStatus.OK:
        return inconclusive(f"not offered: {_INSTANCE} is answered {known.status}")
    reply = probe.ask(get(_NO_VERSION, path=_INSTANCE))
    if reply.status != HTTPStatus.BAD_REQUEST:
        return breaks(f"api-version {_NO_VERSION}, which never existed, is answered {reply.status}, not 400")
    newest = reply.content.get("newest-versions") if isinstance(reply.content, dict) else None
    said = f"api-version {_NO_VERSION}, which never existed, is answered 400"
    if newest is None:
        return holds(f"{said}, without the newest versions")
    if newest == NEWEST:
        return breaks(f"{said} with the versions of Scheduled Events, not of the instance metadata")
    return holds(f"{said}, with the newest versions {excerpt(json.dumps(newest).encode())}")


CHECKS = (
    Check("names", ("W7",), "Resources spells names as /metadata/instance does", _names_by_instance),
    Check("long-poll", ("X1",), "A GET is held until something changes", _holds_polls),
    Check("version-list", ("X2",), "/metadata/versions lists the api-versions", _lists_versions),
    Check("instance", ("X3",), "/metadata/instance tells who asks", _tells_instance),
    Check("instance-format", ("R111",), "A single value of the instance needs format=text", _wants_text),
    Check("instance-version", ("R111",), "/metadata/instance has api-versions of its own", _knows_its_versions),
)
