"""What `forewarn serve` and its metadata process say to each other, and the bytes of it.

The values of the core travel as they are: msgspec writes and reads frozen dataclasses by itself. What no endpoint needs
is left out: the VMs that a maintenance holds, which may be thousands, and what is as a field's default says it.

One ordered stream leads each way. So whatever a message implies has been said before it: the documents that an approval
changed arrive before the answer to that approval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any

import msgspec

from forewarn.core.approval import Approval, Approver
from forewarn.core.decision import Document
from forewarn.core.limit_log import LimitsMet
from forewarn.core.model import Maintenance, Scope, VirtualMachine
from forewarn.endpoint.request_journal import JournalEntry
from forewarn.endpoint.traffic import Limits
from forewarn.wire.imds import Dialect

__all__ = [
    "Answer",
    "Approve",
    "Asked",
    "Begin",
    "Counted",
    "Declare",
    "Enable",
    "Failure",
    "FromEndpoint",
    "FromService",
    "Report",
    "Show",
    "Stop",
    "Sync",
    "Synced",
    "Told",
    "decode_from_endpoint",
    "decode_from_service",
    "encode",
    "show",
    "sparse",
]


class _Message(msgspec.Struct, array_like=True, tag=True):
    """One message; its class is its first element."""


# From the service to the metadata process


class Begin(_Message):
    """The settings; sent once, before anything else.

    Attributes:
        limits: Of the listener.
        dialect: The switches of the metadata protocol.
        any_caller_is: As the setting of that name.
        first_answer_delay_s: How long an enabling GET is held (R67).
        report_s: Seconds from one report of who has asked to the next.
        requests_kept: Requests that the journal keeps; 0: none.
        requests_before: Number of the last request that was written down before this process began.
        calls_max: Approvals and first requests that may wait for the service; one more is refused.
        calls_per_vm_max: The same, of one VM.
    """

    limits: Limits
    dialect: Dialect
    any_caller_is: str
    first_answer_delay_s: float
    report_s: float
    requests_kept: int
    requests_before: int
    calls_max: int
    calls_per_vm_max: int


class Declare(_Message):
    """Part of what has changed in the inventory. The parts take effect together, with the last one.

    Attributes:
        vms: New or changed ones.
        scopes: As `vms`.
        removed_vms: Names of VMs that are declared no more.
        removed_scopes: Of scopes.
        is_last: Whether this is the last part.
    """

    vms: list[VirtualMachine] = []
    scopes: list[Scope] = []
    removed_vms: list[str] = []
    removed_scopes: list[str] = []
    is_last: bool = False


class Show(_Message):
    """Documents that have changed, the newest of each audience."""

    documents: list[Document]


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """Why something was not done: what an error of ours says; with the name of the limit that was met, if one was."""

    status: int
    message: str
    limit: str = ""


class Answer(_Message):
    """What came of a call.

    Attributes:
        number: Of the call.
        approval: For an approval that was decided.
        failure: For a call that failed.
    """

    number: int
    approval: Approval | None = None
    failure: Failure | None = None


class Sync(_Message):
    """Answer this once everything before it has taken effect. VMs are answered from the first one on."""

    number: int


class Report(_Message):
    """Say what was counted, and which requests were written down since that number."""

    number: int
    requests_after: int


class Stop(_Message):
    """Accept no more, answer what is under way within that time, and end."""

    grace_s: float


# From the metadata process to the service


class Enable(_Message):
    """A VM of an audience has asked for the first time (R67)."""

    number: int
    key: str
    scope: str | None


class Approve(_Message):
    """A VM approves events."""

    number: int
    event_ids: tuple[str, ...]
    approver: Approver


class Asked(_Message):
    """When audiences asked last (R69)."""

    moments: dict[str, datetime]


class Told(_Message):
    """Requests that were written down, oldest first."""

    requests: list[JournalEntry]


class Counted(_Message):
    """What was counted since this process began.

    Attributes:
        number: Of the question.
        fast: GETs that the hot path answered, by version.
        outcomes: Requests that the app answered: version, method, status, how many.
        unknown_callers: Requests of callers that are no VM.
        connections_refused: Connections over a limit.
        connections: Connections that are open now.
        over_limit: Requests and connections over a limit of their VM's, by setting.
        limits_met: Who was over a limit since the last of these messages.
    """

    number: int
    fast: list[int]
    outcomes: list[tuple[str, str, int, int]]
    unknown_callers: int
    connections_refused: int
    connections: int
    over_limit: dict[str, int]
    limits_met: list[LimitsMet] = []


class Synced(_Message):
    """Everything before that `Sync` has taken effect."""

    number: int


FromService = Begin | Declare | Show | Answer | Sync | Report | Stop
FromEndpoint = Enable | Approve | Asked | Told | Counted | Synced

_from_service = msgspec.msgpack.Decoder(FromService)
_from_endpoint = msgspec.msgpack.Decoder(FromEndpoint)
_encoder = msgspec.msgpack.Encoder()

decode_from_service = _from_service.decode
decode_from_endpoint = _from_endpoint.decode
encode = _encoder.encode

_NOT_SENT = frozenset({"claims", "hosts", "policy", "terminate_notification", "os_image_notification"})


def _defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((each.name, each.default) for each in fields(kind) if each.name not in _NOT_SENT)


_FIELDS = {kind: _defaults(kind) for kind in (VirtualMachine, Scope, Maintenance)}


def sparse(value: VirtualMachine | Scope | Maintenance) -> Any:  # noqa: ANN401 - a map that is read as the same kind
    """The fields that an endpoint needs and that differ from their defaults."""
    shown: dict[str, Any] = {}
    for name, default in _FIELDS[type(value)]:
        field = getattr(value, name)
        if default is MISSING or field != default:
            shown[name] = field
    return shown


def show(documents: Iterable[Document]) -> Show:
    """The message that shows these documents."""
    shown: Any = [
        {"audience": each.audience, "items": [(event, sparse(maintenance)) for event, maintenance in each.items]}
        for each in documents
    ]
    return Show(documents=shown)
