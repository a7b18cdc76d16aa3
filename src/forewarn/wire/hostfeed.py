"""The feed of a control plane for the endpoint on a host, line by line: first the whole state, then each change.

A line is a JSON object with a `kind`: ``state`` (the host's VMs with their scopes, the switches of the protocol, and
every document), ``document`` (one that has changed), ``alive`` (no change). An endpoint that loses the stream connects
again and begins with the state, so the control plane need not remember how far each endpoint has read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import (
    Audience,
    Event,
    EventSource,
    EventType,
    Maintenance,
    MaintenanceState,
    Scope,
    VirtualMachine,
)
from forewarn.wire.imds import Dialect
from forewarn.wire.inventory import InventoryIn, VmIn, to_inventory, to_inventory_in

__all__ = ["ALIVE", "BadFeedLine", "HostFeedState", "encode_document_line", "encode_state_line", "parse_line"]

ALIVE = b'{"kind":"alive"}\n'


class BadFeedLine(ValueError):
    """A line that is not one of ours; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFeedState:
    """All that an endpoint has to know.

    Attributes:
        host: Name of its host.
        position: Number of the last included change; a smaller number comes from a replica that has yet to catch up.
        inventory: The host's VMs, with their scopes.
        dialect: Switches of the metadata protocol.
        first_answer_delay_s: Delay of the answer to an enabling GET (R67).
        documents: Document of every audience of these VMs that was ever enabled.
    """

    host: str
    position: int = 0
    inventory: Inventory
    dialect: Dialect
    first_answer_delay_s: float
    documents: tuple[AudienceDocument, ...]


class _FeedLine(BaseModel):
    # A newer control plane may send fields that this version does not know.
    model_config = ConfigDict(extra="ignore", frozen=True)


class _EventItem(_FeedLine):
    """An event with the facts of its maintenance."""

    id: str
    sequence: int
    resources: tuple[str, ...]
    update_domain: int
    is_iaas: bool
    is_approved: bool
    state: MaintenanceState
    type: EventType
    not_before: datetime | None
    description: str
    source: EventSource
    duration_s: int


class _DocumentLine(_FeedLine):
    kind: Literal["document"] = "document"
    audience: str
    scope: str | None
    epoch: int
    incarnation: int
    is_enabled: bool
    events: tuple[_EventItem, ...]


class _DialectItem(_FeedLine):
    notbefore_2017_03_01: str
    require_metadata_2017_03_01: str
    cloud: str
    legacy_latest: bool
    unknown_event: int
    post_body: str


class _StateLine(_FeedLine):
    kind: Literal["state"] = "state"
    host: str
    position: int = 0
    inventory: InventoryIn
    dialect: _DialectItem
    first_answer_delay_s: float
    documents: tuple[_DocumentLine, ...]


class _AliveLine(_FeedLine):
    kind: Literal["alive"]


_LINE: TypeAdapter[_StateLine | _DocumentLine | _AliveLine] = TypeAdapter(
    Annotated[_StateLine | _DocumentLine | _AliveLine, Field(discriminator="kind")]
)
# Lines say whether something has happened, not when; the endpoint needs only that it was before now.
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_ELSEWHERE = {"name", "host", "addresses", "tags", "policy", "labels"}
_VM_NAMES = tuple(name for name in VmIn.model_fields if name not in _ELSEWHERE)
_VM_DEFAULTS = tuple(VmIn.model_fields[name].default for name in _VM_NAMES)
_get_vm_values = attrgetter(*_VM_NAMES)


def encode_state_line(state: HostFeedState) -> bytes:
    """Encode the first line of a stream. Fields with their default value are left out."""
    declared = state.inventory
    inventory: dict[str, Any] = {"hosts": [{"name": host.name} for host in declared.hosts]}
    if declared.scopes:
        inventory["scopes"] = [_dump_scope(scope) for scope in declared.scopes]
    inventory["vms"] = [_dump_vm(vm) for vm in declared.vms]
    content = {
        "kind": "state",
        "host": state.host,
        "position": state.position,
        "inventory": inventory,
        "dialect": _dump_dialect(state.dialect),
        "first_answer_delay_s": state.first_answer_delay_s,
        "documents": [_dump_document(document) for document in state.documents],
    }
    return _encode_line(content)


def encode_document_line(document: AudienceDocument) -> bytes:
    """Encode the line for a changed document."""
    return _encode_line(_dump_document(document))


# Thousands of hosts may connect at once, each for its state. So these are plain values that no model validates here:
# they come from the store, and the reader of the line validates it.


def _encode_line(content: dict[str, Any]) -> bytes:
    return msgspec.json.encode(content) + b"\n"


@lru_cache(maxsize=16)
def _dump_dialect(dialect: Dialect) -> dict[str, Any]:
    """Return the switches, not to be changed."""
    return asdict(dialect)


@lru_cache(maxsize=1024)
def _dump_scope(scope: Scope) -> dict[str, Any]:
    """Return the fields of a scope, not to be changed; without what only the control plane uses."""
    [shown] = to_inventory_in(Inventory(scopes=(scope,))).scopes
    fields: dict[str, Any] = shown.model_dump(mode="json", exclude_defaults=True, exclude={"policy", "labels"})
    return fields


def _dump_vm(vm: VirtualMachine) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": vm.name, "host": vm.host}
    values = _get_vm_values(vm)
    if values != _VM_DEFAULTS:
        shown |= {
            name: value
            for name, value, default in zip(_VM_NAMES, values, _VM_DEFAULTS, strict=True)
            if value != default
        }
    if vm.addresses:
        shown["addresses"] = vm.addresses
    if vm.tags:
        shown["tags"] = dict(vm.tags)
    return shown


def _dump_document(document: AudienceDocument) -> dict[str, Any]:
    audience = document.audience
    return {
        "kind": "document",
        "audience": audience.key,
        "scope": audience.scope,
        "epoch": audience.epoch,
        "incarnation": audience.incarnation,
        "is_enabled": audience.enabled_at is not None,
        "events": [_dump_event(event, maintenance) for event, maintenance in document.items],
    }


def _dump_event(event: Event, maintenance: Maintenance) -> dict[str, Any]:
    return {
        "id": event.id,
        "sequence": event.sequence,
        "resources": event.resources,
        "update_domain": event.update_domain,
        "is_iaas": event.is_iaas,
        # An approval by policy yields to that of a VM, so the endpoint must still pass the latter on (ADR 19).
        "is_approved": event.is_settled,
        "state": maintenance.state,
        "type": maintenance.type,
        "not_before": None if maintenance.not_before is None else maintenance.not_before.isoformat(),
        "description": maintenance.description,
        "source": maintenance.source,
        "duration_s": maintenance.duration_s,
    }


def parse_line(line: bytes) -> HostFeedState | AudienceDocument | None:
    """Decode a line; None if it only says that the control plane is alive.

    Raises:
        BadFeedLine: It is none of ours.
    """
    try:
        parsed = _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadFeedLine(f"{where or 'the line'}: {first['msg']}") from error
    if isinstance(parsed, _AliveLine):
        return None
    if isinstance(parsed, _DocumentLine):
        return _to_document(parsed)
    return HostFeedState(
        host=parsed.host,
        position=parsed.position,
        inventory=to_inventory(parsed.inventory),
        dialect=Dialect(**parsed.dialect.model_dump()),
        first_answer_delay_s=parsed.first_answer_delay_s,
        documents=tuple(_to_document(document) for document in parsed.documents),
    )


def _to_document(line: _DocumentLine) -> AudienceDocument:
    audience = Audience(
        key=line.audience,
        scope=line.scope,
        enabled_at=_LONG_AGO if line.is_enabled else None,
        epoch=line.epoch,
        incarnation=line.incarnation,
    )
    return AudienceDocument(audience=audience, items=tuple(_to_item(line.audience, item) for item in line.events))


def _to_item(audience: str, item: _EventItem) -> tuple[Event, Maintenance]:
    """Convert a shown event; fields that a document does not show are empty."""
    event = Event(
        id=item.id,
        sequence=item.sequence,
        maintenance_id="",
        audience=audience,
        update_domain=item.update_domain,
        resources=item.resources,
        is_iaas=item.is_iaas,
        approved_at=_LONG_AGO if item.is_approved else None,
    )
    maintenance = Maintenance(
        id="",
        sequence=item.sequence,
        request_id="",
        cause="",
        type=item.type,
        impact=item.type,
        source=item.source,
        description=item.description,
        duration_s=item.duration_s,
        state=item.state,
        created_at=_LONG_AGO,
        notice=timedelta(0),
        not_before=item.not_before,
    )
    return event, maintenance
