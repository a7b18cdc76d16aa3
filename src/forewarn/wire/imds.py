"""The Scheduled Events protocol: one row for each api-version, and the bytes of its answers.

Spec: 1.1 to 1.9
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import format_datetime

from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.maintenance.lifecycle import get_event_status
from forewarn.core.model import Event, EventStatus, EventType, Maintenance

__all__ = [
    "CONTENT_TYPE",
    "VERSIONS",
    "BadPayload",
    "Dialect",
    "Version",
    "decode_approval",
    "encode_document",
    "encode_documents",
    "encode_error",
    "encode_version_error",
    "encode_versions",
    "is_not_modified",
]

CONTENT_TYPE = "application/json; charset=utf-8"
"""Content-Type of every answer (R8, W2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One api-version.

    Attributes:
        name: Value of ``api-version=``.
        types: Event types it shows; others are left out of its documents (R19).
        members: Members after NotBefore that it shows, in order (R18).
        prefixes_names: True if IaaS names get a leading ``_`` (R20).
        requires_metadata: Methods that need ``Metadata: true`` (R10, R12).
    """

    name: str
    types: frozenset[EventType]
    members: tuple[str, ...] = ()
    prefixes_names: bool = False
    requires_metadata: frozenset[str] = frozenset({"GET", "POST"})


_FIRST = frozenset({EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY})
_PREEMPT = _FIRST | {EventType.PREEMPT}
_ALL = _PREEMPT | {EventType.TERMINATE}

VERSIONS = (
    Version(name="2017-03-01", types=_FIRST, prefixes_names=True, requires_metadata=frozenset()),
    Version(name="2017-08-01", types=_FIRST),
    Version(name="2017-11-01", types=_PREEMPT),
    Version(name="2019-01-01", types=_ALL),
    Version(name="2019-04-01", types=_ALL, members=("Description",)),
    Version(name="2019-08-01", types=_ALL, members=("Description", "EventSource")),
    Version(name="2020-07-01", types=_ALL, members=("Description", "EventSource", "DurationInSeconds")),
)
"""Every supported api-version, oldest first (R16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The switches of part 2 of the specification, each with the default recommended there.

    Attributes:
        notbefore_2017_03_01: ``iso`` or ``rfc1123`` (A1).
        require_metadata_2017_03_01: ``none``, ``get`` or ``all`` (A3).
        cloud: ``public``, or ``china`` without 2017-11-01 and without Preempt (A2).
        legacy_latest: True to serve ``/metadata/latest/scheduledevents`` in the shape of 2017-03-01 (A4).
        unknown_event: Status for the approval of an unknown id: 400, 404 or 200 (A11).
        post_body: ``empty``, or ``document`` to answer approvals with the document (A13).
    """

    notbefore_2017_03_01: str = "iso"
    require_metadata_2017_03_01: str = "none"
    cloud: str = "public"
    legacy_latest: bool = False
    unknown_event: int = 400
    post_body: str = "empty"

    def list_versions(self) -> tuple[Version, ...]:
        """Return the rows of `VERSIONS` as adapted by this dialect."""
        return tuple(self._adapt_version(v) for v in VERSIONS if not (self.cloud == "china" and v.name == "2017-11-01"))

    def _adapt_version(self, version: Version) -> Version:
        types = version.types - {EventType.PREEMPT} if self.cloud == "china" else version.types
        methods = version.requires_metadata
        if version.name == "2017-03-01":
            methods = {"none": frozenset[str](), "get": frozenset({"GET"}), "all": frozenset({"GET", "POST"})}[
                self.require_metadata_2017_03_01
            ]
        return replace(version, types=types, requires_metadata=methods)


# Documents


_encode_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode_document(document: AudienceDocument, version: Version, dialect: Dialect) -> bytes:
    """Encode the body of a GET: compact JSON, members in the order of the real endpoint (R25, R26)."""
    return encode_documents(document, (version,), dialect)[0]


def encode_documents(document: AudienceDocument, versions: Iterable[Version], dialect: Dialect) -> tuple[bytes, ...]:
    """Encode the bodies in several versions; their common parts are encoded once."""
    events = [(maintenance.type, _encode_members(event, maintenance, dialect)) for event, maintenance in document.items]
    head = f'{{"DocumentIncarnation":{document.audience.incarnation},"Events":['
    return tuple(
        (head + ",".join(_join_members(fragments, v) for t, fragments in events if t in v.types) + "]}").encode()
        for v in versions
    )


def _join_members(fragments: dict[str, str], version: Version) -> str:
    names = _PREVIEW_MEMBERS if version.prefixes_names else _MEMBERS
    return "{" + ",".join([fragments[name] for name in (*names, *version.members)]) + "}"


_MEMBERS = ("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore")
_PREVIEW_MEMBERS = ("EventId", "EventStatus", "EventType", "ResourceType", "preview Resources", "preview NotBefore")


def _encode_members(event: Event, maintenance: Maintenance, dialect: Dialect) -> dict[str, str]:
    """Encode each member of an event with its value, ready to be joined; twice if the preview shows it differently."""
    status = get_event_status(event, maintenance)
    is_iso = dialect.notbefore_2017_03_01 == "iso"
    prefix = "_" if event.is_iaas else ""
    # Only names and descriptions are free text; everything else consists of characters that JSON need not escape.
    return {
        "EventId": f'"EventId":"{event.id}"',
        "EventStatus": f'"EventStatus":"{status.value}"',
        "EventType": f'"EventType":"{maintenance.type.value}"',
        "ResourceType": '"ResourceType":"VirtualMachine"',
        "Resources": f'"Resources":{_encode_compact(event.resources)}',
        "NotBefore": f'"NotBefore":"{_encode_not_before(status, maintenance.not_before, is_iso=False)}"',
        "preview Resources": f'"Resources":{_encode_compact([prefix + name for name in event.resources])}',
        "preview NotBefore": f'"NotBefore":"{_encode_not_before(status, maintenance.not_before, is_iso=is_iso)}"',
        "Description": f'"Description":{_encode_compact(maintenance.description)}',
        "EventSource": f'"EventSource":"{maintenance.source.value}"',
        "DurationInSeconds": f'"DurationInSeconds":{maintenance.duration_s}',
    }


def _encode_not_before(status: EventStatus, not_before: datetime | None, *, is_iso: bool) -> str:
    """Encode NotBefore: empty once Started; ISO 8601 in the preview, RFC 1123 in all later versions (R21, R36)."""
    if status is not EventStatus.SCHEDULED or not_before is None:
        return ""
    # A moment that was just decided, and not yet read back from the store, may be in the caller's time zone.
    moment = not_before.astimezone(UTC)
    # Not strftime for RFC 1123: the names of days and months must be English in every locale (R21).
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if is_iso else format_datetime(moment, usegmt=True)


# Errors


def encode_error(text: str, **more: object) -> bytes:
    """Encode an error body in the spacing of captured ones: ``{ "error": "..." }`` (R63 to R65)."""
    members = [f'"{key}": {_encode_spaced(value)}' for key, value in ({"error": text} | more).items()]
    return ("{ " + ", ".join(members) + " }").encode()


def _encode_spaced(value: object) -> str:
    if isinstance(value, list):
        return "[ " + ", ".join(json.dumps(item) for item in value) + " ]"
    return json.dumps(value, ensure_ascii=False)


VERSION_ERROR = (
    "Bad request. api-version is invalid or was not specified in the request. "
    "For more information refer to aka.ms/azureimds"
)


def encode_version_error(names: Iterable[str], text: str = VERSION_ERROR) -> bytes:
    """Encode the body of an error about the api-version, with the three newest of these names (R64, R111)."""
    return encode_error(text, **{"newest-versions": sorted(names, reverse=True)[:3]})


def encode_versions(versions: Iterable[Version]) -> bytes:
    """Encode the body of ``/metadata/versions`` (X2)."""
    return json.dumps({"apiVersions": [version.name for version in versions]}, separators=(",", ":")).encode()


# The real endpoint's messages begin with this stray period too, and clients may compare them.
METADATA_MISSING = encode_error("Bad request: . Required metadata header not specified")
FORWARDED = encode_error("Bad request: . X-Forwarded-For header is not allowed")
HOST_REFUSED = encode_error("Bad request: . Host header is missing or not allowed")
ORIGIN_REFUSED = encode_error("Bad request: . Origin header is not allowed")


# Approvals


class BadPayload(ValueError):
    """The body of an approval is malformed; the message is the reason to give (R54)."""


_GUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def decode_approval(body: bytes, requests_max: int) -> tuple[str, ...]:
    """Decode the body of a POST.

    Args:
        body: Body as received; UTF-8 with or without BOM.
        requests_max: Maximum number of StartRequests in one POST.

    Raises:
        BadPayload: The body is malformed; nothing may be approved.

    Spec: R6, R47, R48, R52 to R54, R56
    """
    try:
        # utf-8-sig: tools on Windows, such as PowerShell, may put a BOM before UTF-8.
        content = json.loads(
            body.decode("utf-8-sig"), object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant
        )
    except BadPayload:
        raise
    # Deep nesting raises RecursionError, which is not a ValueError.
    except (ValueError, RecursionError) as error:
        raise BadPayload("body is empty" if not body.strip() else "body is not JSON in UTF-8") from error
    if not isinstance(content, dict):
        raise BadPayload("body is not a JSON object")
    requests = content.get("StartRequests")
    if not isinstance(requests, list):
        raise BadPayload("StartRequests is missing or not an array")
    if len(requests) > requests_max:
        raise BadPayload(f"StartRequests has {len(requests)} elements: at most {requests_max} are allowed")
    return tuple(_decode_event_id(item) for item in requests)


def _decode_event_id(item: object) -> str:
    event_id = item.get("EventId") if isinstance(item, dict) else None
    if not isinstance(event_id, str) or not _GUID.fullmatch(event_id):
        raise BadPayload("an element of StartRequests has no EventId that is a GUID")
    return event_id.upper()


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse duplicate keys: two readers of the body could see two different approvals in it."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise BadPayload("an object has a duplicate member")
    return content


def _refuse_constant(name: str) -> object:
    raise BadPayload(f"{name} is not JSON")


# Conditional requests


def is_not_modified(if_none_match: str, incarnation: int) -> bool:
    """Return True if the client has it; accepts ``5``, ``"5"``, ``W/"5"``, lists of them, and ``*`` (R14, A9)."""
    tags = [tag.strip() for tag in if_none_match.split(",")]
    return "*" in tags or any(tag.removeprefix("W/").strip('"') == str(incarnation) for tag in tags)
