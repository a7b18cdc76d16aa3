"""One restart of one VM, and short ways from such values to the bytes of a document and back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, Event, EventSource, EventType, Maintenance, MaintenanceState
from forewarn.wire.imds import VERSIONS, Dialect, Version, encode_document

__all__ = ["EVENT", "MAINTENANCE", "NOT_BEFORE", "STARTED", "VERSION_NAMES", "document", "encode", "events", "version"]

VERSION_NAMES = [row.name for row in VERSIONS]

NOT_BEFORE = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)

MAINTENANCE = Maintenance(
    id="m1",
    sequence=1,
    request_id="r1",
    cause="user-restart",
    type=EventType.REBOOT,
    impact=EventType.REBOOT,
    source=EventSource.USER,
    description="Virtual machine is going to be restarted as requested by authorized user.",
    duration_s=-1,
    state=MaintenanceState.SCHEDULED,
    created_at=NOT_BEFORE - timedelta(minutes=15),
    notice=timedelta(minutes=15),
    not_before=NOT_BEFORE,
)
STARTED = replace(MAINTENANCE, state=MaintenanceState.STARTED, started_at=NOT_BEFORE)

EVENT = Event(
    id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    sequence=2,
    maintenance_id="m1",
    audience="vm:WestNO_0",
    update_domain=0,
    resources=("WestNO_0",),
)


def version(name: str) -> Version:
    """The row of that name."""
    return next(row for row in VERSIONS if row.name == name)


def document(*items: tuple[Event, Maintenance], incarnation: int = 2) -> AudienceDocument:
    """What one audience sees."""
    return AudienceDocument(audience=Audience(key="vm:WestNO_0", incarnation=incarnation), items=items)


def encode(
    *items: tuple[Event, Maintenance], name: str = "2020-07-01", incarnation: int = 2, dialect: Dialect | None = None
) -> bytes:
    """The body of a GET with that api-version."""
    return encode_document(document(*items, incarnation=incarnation), version(name), dialect or Dialect())


def events(body: bytes) -> list[dict[str, Any]]:
    """The Events of a body."""
    return cast("list[dict[str, Any]]", json.loads(body)["Events"])
