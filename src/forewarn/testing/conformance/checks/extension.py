"""Names of VMs, and Forewarn's extensions of the protocol: 1.19 and 1.20 of the specification."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from forewarn.errors import EndpointUnreachable
from forewarn.testing.conformance.check import CheckList
from forewarn.testing.conformance.outcome import CheckOutcome, breaks, excerpt_body, holds, inconclusive, judge
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_reply import RawReply
from forewarn.testing.conformance.raw_request import build_get
from forewarn.testing.conformance.version_table import NEWEST

__all__ = ["CHECKS"]

CHECKS = CheckList()

_INSTANCE = "/metadata/instance"
_INSTANCE_VERSIONS = ("2021-02-01", "2017-04-02")
_NO_VERSION = "2017-07-01"
_NAME = _INSTANCE + "/compute/name"
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


def _request_name(probe: EndpointProbe) -> RawReply:
    """Return the answer to a GET of only the VM's name, as text."""
    return probe.send_request(build_get(_INSTANCE_VERSIONS[0], path=_NAME, query="&format=text"))


@CHECKS.add("names", "W7", "Names in Resources are spelled as in /metadata/instance")
def _check_vm_name(probe: EndpointProbe) -> CheckOutcome:
    reply = _request_name(probe)
    name = reply.body.decode("utf-8", "replace")
    if reply.status != HTTPStatus.OK or not name:
        return inconclusive(f"/metadata/instance does not return the VM's name: {reply.status}")
    names = {str(each) for event in probe.list_event_states() for each in event.get("Resources") or []}
    if name in names:
        return holds(f"Resources has {name}, spelled as in /metadata/instance")
    alike = [each for each in names if each.casefold() == name.casefold()]
    if alike:
        return breaks(f"Resources has {alike[0]}, /metadata/instance {name}")
    return inconclusive(f"no event names {name}, the VM of this caller")


@CHECKS.add("long-poll", "X1", "A GET is held until the document changes")
def _check_long_poll(probe: EndpointProbe) -> CheckOutcome:
    incarnation = probe.fetch_document().incarnation
    request = build_get(probe.newest_version).with_headers(
        ("If-None-Match", f'"{incarnation}"'), ("Prefer", f"wait={_HELD_S}")
    )
    try:
        reply = probe.send_request(request, timeout_s=_HELD_AT_MOST_S)
    except EndpointUnreachable:
        return breaks(f"a GET with Prefer: wait={_HELD_S} got no answer within {_HELD_AT_MOST_S:.0f} s")
    # A change ends the hold, so an early 200 with another incarnation proves nothing.
    if reply.status == HTTPStatus.OK and (reply.content or {}).get("DocumentIncarnation") != incarnation:
        return inconclusive("the document changed while the GET was held")
    if reply.elapsed_s < _HELD_AT_LEAST_S:
        return inconclusive(f"not offered: a GET with Prefer: wait={_HELD_S} returns {reply.status} at once")
    if reply.status != HTTPStatus.NOT_MODIFIED:
        return breaks(f"a GET is held for {reply.elapsed_s:.1f} s and returns {reply.status}, though nothing changed")
    return holds(f"a GET with Prefer: wait={_HELD_S} is held for {reply.elapsed_s:.1f} s and returns 304")


@CHECKS.add("version-list", "X2", "/metadata/versions lists the api-versions")
def _check_version_list(probe: EndpointProbe) -> CheckOutcome:
    reply = probe.send_request(build_get(None, path="/metadata/versions"))
    if reply.status != HTTPStatus.OK:
        return inconclusive(f"not offered: /metadata/versions returns {reply.status}")
    versions = reply.content.get("apiVersions") if isinstance(reply.content, dict) else None
    if not isinstance(versions, list) or not all(isinstance(version, str) for version in versions):
        return breaks(f"/metadata/versions returns {excerpt_body(reply.body)}")
    return holds(f"/metadata/versions lists {len(versions)} api-versions")


@CHECKS.add("instance", "X3", "/metadata/instance describes the calling VM")
def _check_instance(probe: EndpointProbe) -> CheckOutcome:
    replies = {version: probe.send_request(build_get(version, path=_INSTANCE)) for version in _INSTANCE_VERSIONS}
    first = replies[_INSTANCE_VERSIONS[0]]
    if first.status != HTTPStatus.OK:
        return inconclusive(f"not offered: /metadata/instance returns {first.status}")
    wrong = [f"api-version {v} returns {r.status}" for v, r in replies.items() if r.status != HTTPStatus.OK]
    compute = _get_section(first.content, "compute")
    wrong += [f"compute has no string {name}" for name in _TEXTS if not isinstance(compute.get(name), str)]
    if not isinstance(compute.get("tagsList"), list):
        wrong.append("compute has no array tagsList")
    if not isinstance(_get_section(first.content, "network").get("interface"), list):
        wrong.append("network has no array interface")
    for path, expected in (("compute", compute), ("network", _get_section(first.content, "network"))):
        if probe.send_request(build_get(_INSTANCE_VERSIONS[0], path=f"{_INSTANCE}/{path}")).content != expected:
            wrong.append(f"/metadata/instance/{path} differs from that part of /metadata/instance")
    text = _request_name(probe).body
    if text.decode("utf-8", "replace") != compute.get("name"):
        wrong.append(f"compute/name is {excerpt_body(text)}, in /metadata/instance {compute.get('name')!r}")
    return judge(wrong, f"/metadata/instance describes the calling VM: {compute.get('name')}")


def _get_section(content: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    part = content.get(name) if isinstance(content, dict) else None
    return part if isinstance(part, dict) else {}


@CHECKS.add("instance-format", "R111", "A single value of the instance needs format=text")
def _check_text_format(probe: EndpointProbe) -> CheckOutcome:
    as_text = _request_name(probe)
    if as_text.status != HTTPStatus.OK:
        return inconclusive(f"not offered: {_NAME} with format=text returns {as_text.status}")
    asked = {
        f"{_NAME} without format=text": build_get(_INSTANCE_VERSIONS[0], path=_NAME),
        f"{_NAME} with format=json": build_get(_INSTANCE_VERSIONS[0], path=_NAME, query="&format=json"),
    }
    return judge(
        probe.list_wrong_statuses(asked),
        f"{_NAME} returns 200 with format=text, and 400 without it and with format=json",
    )


@CHECKS.add("instance-version", "R111", "/metadata/instance has its own api-versions")
def _check_instance_versions(probe: EndpointProbe) -> CheckOutcome:
    known = probe.send_request(build_get(_INSTANCE_VERSIONS[0], path=_INSTANCE))
    if known.status != HTTPStatus.OK:
        return inconclusive(f"not offered: {_INSTANCE} returns {known.status}")
    reply = probe.send_request(build_get(_NO_VERSION, path=_INSTANCE))
    if reply.status != HTTPStatus.BAD_REQUEST:
        return breaks(f"api-version {_NO_VERSION}, which never existed, returns {reply.status}, not 400")
    newest = reply.content.get("newest-versions") if isinstance(reply.content, dict) else None
    said = f"api-version {_NO_VERSION}, which never existed, returns 400"
    if newest is None:
        return holds(f"{said}, without the newest versions")
    # Scheduled Events has its own list of newest versions (R64), which would mislead clients here.
    if newest == NEWEST:
        return breaks(f"{said} with the versions of Scheduled Events, not of the instance metadata")
    return holds(f"{said}, with the newest versions {excerpt_body(json.dumps(newest).encode())}")
