"""Promises of the protocol for each api-version, written a second time on purpose.

`forewarn.wire.imds` is the table that our own endpoint answers from. A check that read the same table would agree with
any mistake in it.

Spec: R16, R63, R64
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "EVENT_TYPES",
    "METADATA_MISSING",
    "NEWEST",
    "PREVIEW",
    "VERSIONS",
    "VERSION_ERRORS",
    "ApiVersionRow",
    "get_version_row",
]

_FIRST = ("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore")
_OLD_TYPES = frozenset({"Freeze", "Reboot", "Redeploy"})

EVENT_TYPES = _OLD_TYPES | {"Preempt", "Terminate"}
"""Every EventType (R31)."""


@dataclass(frozen=True, slots=True)
class ApiVersionRow:
    """One api-version: the members of its events in wire order, and the event types that it shows."""

    name: str
    members: tuple[str, ...]
    types: frozenset[str]


VERSIONS = (
    ApiVersionRow("2020-07-01", (*_FIRST, "Description", "EventSource", "DurationInSeconds"), EVENT_TYPES),
    ApiVersionRow("2019-08-01", (*_FIRST, "Description", "EventSource"), EVENT_TYPES),
    ApiVersionRow("2019-04-01", (*_FIRST, "Description"), EVENT_TYPES),
    ApiVersionRow("2019-01-01", _FIRST, EVENT_TYPES),
    ApiVersionRow("2017-11-01", _FIRST, _OLD_TYPES | {"Preempt"}),
    ApiVersionRow("2017-08-01", _FIRST, _OLD_TYPES),
    ApiVersionRow("2017-03-01", _FIRST, _OLD_TYPES),
)
"""All api-versions, newest first."""

NEWEST = [version.name for version in VERSIONS[:3]]
"""Api-versions that an error about the api-version recommends (R64)."""

PREVIEW = "2017-03-01"

METADATA_MISSING = b'{ "error": "Bad request: . Required metadata header not specified" }'
"""Body of the error as captured (R63)."""

_MORE = "For more information refer to aka.ms/azureimds"

VERSION_ERRORS = frozenset(
    {
        f"Bad request. api-version is invalid or was not specified in the request. {_MORE}",
        f"Bad request. api-version was not specified in the request. {_MORE}",
    }
)
"""Texts of the error, today's and that of 2018 to 2020 (R64)."""


def get_version_row(name: str) -> ApiVersionRow:
    """Return the row of an api-version."""
    return next(version for version in VERSIONS if version.name == name)
