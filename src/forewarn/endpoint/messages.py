"""Messages between `forewarn serve` and its metadata process, and their encoding.

Values of the core are sent as they are: msgspec encodes frozen dataclasses natively. Fields that no endpoint needs are
left out, such as the VMs of a maintenance, which may be thousands; so are fields with their default value.

There is one ordered stream in each direction, so a message arrives after everything it depends on: the documents that
an approval changed arrive before the answer to that approval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Any

import msgspec

from forewarn.core.limit_log import CallerLimitHits
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Maintenance, Scope, VirtualMachine
from forewarn.endpoint.request_journal import JournalEntry
from forewarn.endpoint.traffic import EndpointLimits
from forewarn.wire.imds import Dialect

__all__ = [
    "ApproveCall",
    "CallFailure",
    "CallResult",
    "CounterReport",
    "CounterRequest",
    "DocumentUpdate",
    "EnableCall",
    "EndpointSettings",
    "FromEndpoint",
    "FromService",
    "InventoryPart",
    "JournalEntries",
    "LastRequestTimes",
    "PositionPublished",
    "PositionReached",
    "PositionReceived",
    "ProcessSettings",
    "SocketAssignment",
    "StopRequest",
    "SyncReply",
    "SyncRequest",
    "build_document_update",
    "decode_from_endpoint",
    "decode_from_service",
    "encode",
    "encode_sparse",
]


# Both processes always run the same version, so fields need no names, and messages may change with any release.
class _Message(msgspec.Struct, array_like=True, tag=True):
    """Base of all messages; the class is encoded as the first element."""


# From the service to the metadata process


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Settings of the metadata process.

    Attributes:
        any_caller_is: Value of the setting `any_caller_is`.
        first_answer_delay_s: Delay of the response to an enabling GET, in seconds (R67).
        report_s: Interval between reports of the last requests of all audiences, in seconds.
        requests_kept: Number of requests that the journal keeps; 0 for none.
        calls_max: Maximum number of approvals and first requests that wait for the service.
        calls_per_vm_max: Maximum number of approvals of one VM that wait for the service.
        silence_max_s: Time without a message, in seconds, after which the process is killed and replaced.
    """

    any_caller_is: str = ""
    first_answer_delay_s: float = 0.0
    report_s: float = 5.0
    requests_kept: int = 1000
    calls_max: int = 10_000
    calls_per_vm_max: int = 100
    silence_max_s: float = 60.0


class EndpointSettings(_Message):
    """Settings, sent once before any other message.

    Attributes:
        process: Settings of the process.
        limits: Its limits.
        dialect: Variant of the protocol.
        requests_before: Number of the last request recorded before this process began.
        number: Number of this process, from 0; it chooses the sockets that are its own.
        processes: Number of processes.
        position_descriptor: File descriptor of the published position; None for a single process.
    """

    process: ProcessSettings
    limits: EndpointLimits
    dialect: Dialect
    requests_before: int
    number: int = 0
    processes: int = 1
    position_descriptor: int | None = None


class InventoryPart(_Message):
    """Part of an inventory change. All parts take effect together, with the last one.

    Attributes:
        vms: New or changed VMs.
        scopes: New or changed scopes.
        removed_vms: Names of VMs that are no longer declared.
        removed_scopes: Names of scopes that are no longer declared.
        is_last: True for the last part.
    """

    # msgspec copies an empty default for each message, so the lists are not shared.
    vms: list[VirtualMachine] = []
    scopes: list[Scope] = []
    removed_vms: list[str] = []
    removed_scopes: list[str] = []
    is_last: bool = False


class DocumentUpdate(_Message):
    """Changed documents, the latest of each audience."""

    documents: list[AudienceDocument]


class CallFailure(msgspec.Struct, array_like=True, frozen=True):
    """Error of the service: status, message, and the name of the limit that was exceeded, if any."""

    status: int
    message: str
    limit: str = ""


class CallResult(_Message):
    """Result of the call with that number: the decision on an approval, an error, or neither for other calls."""

    number: int
    approval: ApprovalResult | None = None
    failure: CallFailure | None = None


class SyncRequest(_Message):
    """Request to reply once all earlier messages have taken effect. The first one makes the process accept VMs."""

    number: int


class CounterRequest(_Message):
    """Request for the counters, and for the requests recorded after number `requests_after`."""

    number: int
    requests_after: int


class PositionReached(_Message):
    """End of an update: all messages before this one belong to updates up to this position. For several processes."""

    position: int


class PositionPublished(_Message):
    """Hint that the published position has changed, so that held requests are answered without delay."""


class SocketAssignment(_Message):
    """Numbers of the other processes from whose sockets this one accepts connections, in place of them."""

    processes: list[int]


class StopRequest(_Message):
    """Request to stop: accept no connections, finish pending responses within `grace_s`, and end."""

    grace_s: float


# From the metadata process to the service


class EnableCall(_Message):
    """First request of a VM of an audience (R67)."""

    number: int
    key: str
    scope: str | None


class ApproveCall(_Message):
    """Approval of events by a VM."""

    number: int
    event_ids: tuple[str, ...]
    approver: Approver


class LastRequestTimes(_Message):
    """Time of the last request of each audience (R69)."""

    moments: dict[str, datetime]


class JournalEntries(_Message):
    """Requests recorded in the journal, oldest first."""

    requests: list[JournalEntry]


class CounterReport(_Message):
    """Counters since this process began.

    Attributes:
        number: Number of the `CounterRequest` that this answers.
        fast: GETs answered by the hot path, by version.
        outcomes: Requests answered by the app: version, method, status, count.
        unknown_callers: Requests of callers that are not a VM.
        connections_refused: Connections refused over a limit.
        connections: Open connections.
        over_limit: Requests and connections over a limit, by setting.
        limits_met: VMs and addresses that exceeded a limit since the previous message of this kind.
    """

    number: int
    fast: list[int]
    outcomes: list[tuple[str, str, int, int]]
    unknown_callers: int
    connections_refused: int
    connections: int
    over_limit: dict[str, int]
    limits_met: list[CallerLimitHits] = []


class PositionReceived(_Message):
    """Confirmation that all updates up to this position have been received."""

    position: int


class SyncReply(_Message):
    """Reply to a `SyncRequest`: all messages before it have taken effect."""

    number: int


FromService = (
    EndpointSettings
    | InventoryPart
    | DocumentUpdate
    | CallResult
    | SyncRequest
    | CounterRequest
    | PositionReached
    | PositionPublished
    | SocketAssignment
    | StopRequest
)
FromEndpoint = (
    EnableCall | ApproveCall | LastRequestTimes | JournalEntries | CounterReport | PositionReceived | SyncReply
)

# Built once, since msgspec compiles a decoder for all these types.
decode_from_service = msgspec.msgpack.Decoder(FromService).decode
decode_from_endpoint = msgspec.msgpack.Decoder(FromEndpoint).decode
encode = msgspec.msgpack.Encoder().encode

# Only decisions use these, and the service makes them. The claims of a maintenance may name thousands of VMs.
_NOT_SENT = frozenset({"claims", "hosts", "policy", "terminate_notification", "os_image_notification"})


def _list_defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((each.name, each.default) for each in fields(kind) if each.name not in _NOT_SENT)


# Computed once: `fields` is too slow for each VM of a large inventory.
_FIELDS = {kind: _list_defaults(kind) for kind in (VirtualMachine, Scope, Maintenance)}


def encode_sparse(value: VirtualMachine | Scope | Maintenance) -> Any:  # noqa: ANN401 - a map that decodes as the same class
    """Return the fields that an endpoint needs and that differ from their defaults."""
    shown: dict[str, Any] = {}
    for name, default in _FIELDS[type(value)]:
        field = getattr(value, name)
        # A field with a default factory has no plain default either, and is always sent.
        if default is MISSING or field != default:
            shown[name] = field
    return shown


def build_document_update(documents: Iterable[AudienceDocument]) -> DocumentUpdate:
    """Return the message that shows these documents."""
    # A dict encodes as the dataclass would, which saves a sparse copy of each document.
    shown: Any = [
        {"audience": each.audience, "items": [(event, encode_sparse(maintenance)) for event, maintenance in each.items]}
        for each in documents
    ]
    return DocumentUpdate(documents=shown)
