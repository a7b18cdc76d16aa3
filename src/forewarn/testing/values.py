"""Values that tests may write, and their conversion for the service: spans as text, inventories as lists of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias

import yaml

from forewarn.core.causes import DEFAULT_CAUSE
from forewarn.core.fault import FAULTS
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventSource, EventType, Host, NotificationProfile, VirtualMachine
from forewarn.errors import InvalidRequest
from forewarn.util.duration import parse_duration
from forewarn.wire.inventory import parse_inventory

__all__ = [
    "AnyInventory",
    "AnySpan",
    "EventTypeName",
    "FaultName",
    "MethodName",
    "SourceName",
    "build_request",
    "parse_any_inventory",
    "parse_fault_kind",
    "parse_time_span",
    "to_utc",
]

EventTypeName: TypeAlias = Literal["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"]
"""`EventType`, for type checkers."""

SourceName: TypeAlias = Literal["Platform", "User"]
"""`EventSource`, for type checkers."""

MethodName: TypeAlias = Literal["", "GET", "POST"]
"""Methods affected by a fault; empty for both."""

FaultName: TypeAlias = Literal[
    "404",
    "410",
    "429",
    "500",
    "503",
    "dropped",
    "refused",
    "reset",
    "slow-headers",
    "slow-body",
    "time-out",
    "late",
    "empty",
    "truncated",
    "no-events",
    "text-plain",
    "unknown-members",
    "unknown-type",
    "large-document",
    "repeated-event",
    "stale",
    "answered-twice",
    "incarnation-reset",
    "short-notice",
    "no-notice",
]
"""Names in `FAULTS`, for type checkers."""

AnySpan: TypeAlias = str | float | timedelta
"""``"15m"``, seconds, or a timedelta."""

AnyInventory: TypeAlias = Inventory | Mapping[str, Any] | Sequence[str] | str | Path | None
"""An inventory, its content as in the file, names of standalone VMs, one such name, or a file; None for one VM."""


def parse_time_span(value: AnySpan) -> timedelta:
    """Return a time span.

    Raises:
        InvalidRequest: It is not a span, or is negative.
    """
    try:
        return parse_duration(value)
    except (ValueError, TypeError, OverflowError) as error:
        msg = f"{value!r} is not a span of time: expected for example '90s', '15m', '7d' or seconds"
        raise InvalidRequest(msg) from error


def to_utc(value: datetime) -> datetime:
    """Return a time in UTC; one without a time zone is taken as UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def parse_fault_kind(value: object) -> str:
    """Return the name of a kind of fault.

    Raises:
        InvalidRequest: There is none of that name.
    """
    if isinstance(value, str) and value in FAULTS:
        return value
    # `inject(503)` is the natural mistake, so it gets its own message instead of the list of faults.
    if isinstance(value, int) and str(int(value)) in FAULTS:
        raise InvalidRequest(f"fault {int(value)} must be text, not a number: write inject({str(int(value))!r})")
    raise InvalidRequest(f"unknown fault {value!r}: expected one of {', '.join(FAULTS)}")


def parse_any_inventory(value: AnyInventory) -> Inventory:
    """Return an inventory.

    Raises:
        ConfigError: It contradicts itself.
        OSError: The file cannot be read.
    """
    if isinstance(value, Inventory):
        return value
    if isinstance(value, Path):
        return parse_inventory(value.read_bytes())
    if isinstance(value, Mapping):
        # Through the parser of files, so that a mapping is checked by the same rules and gets the same errors.
        return parse_inventory(yaml.safe_dump(dict(value)).encode())
    names = ["vm-1"] if value is None else [value] if isinstance(value, str) else list(value)
    # Without terminate notification, deleting one of these VMs would announce nothing (R91).
    profile = NotificationProfile(enable=True)
    vms = tuple(
        VirtualMachine(name=name, host=f"host-{number}", terminate_notification=profile)
        for number, name in enumerate(names, 1)
    )
    return Inventory(hosts=tuple(Host(name=vm.host) for vm in vms), vms=vms)


def build_request(  # noqa: PLR0913 - the parts of a maintenance
    event_type: str,
    *,
    vms: Sequence[str] = (),
    hosts: Sequence[str] = (),
    source: str = "Platform",
    description: str | None = None,
    duration_s: int | None = None,
    notice: AnySpan | None = None,
    not_before: datetime | None = None,
    impact: str | None = None,
) -> MaintenanceRequest:
    """Return a request for the core; a notice or NotBefore given by a test is forced, as it may be short on purpose.

    Raises:
        InvalidRequest: There is no such type or source, or a span is invalid.
    """
    kind = _parse_enum_member(EventType, event_type, "type")
    origin = _parse_enum_member(EventSource, source, "source")
    return MaintenanceRequest(
        cause=DEFAULT_CAUSE[kind, origin],
        type=kind,
        source=origin,
        description=description,
        duration_s=duration_s,
        impact=None if impact is None else _parse_enum_member(EventType, impact, "type"),
        notice=None if notice is None else parse_time_span(notice),
        not_before=None if not_before is None else to_utc(not_before),
        hosts=tuple(hosts),
        vms=tuple(vms),
        force_reason="a test" if notice is not None or not_before is not None else None,
    )


def _parse_enum_member(enum_class: Any, value: str, label: str) -> Any:  # noqa: ANN401 - an enum and its member
    for word in enum_class:
        if word.value.lower() == value.lower():
            return word
    raise InvalidRequest(f"unknown {label} {value!r}: expected one of {', '.join(word.value for word in enum_class)}")
