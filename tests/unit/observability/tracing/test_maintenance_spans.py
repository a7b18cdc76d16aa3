"""What is told of the audit log, and which commands are told."""

from __future__ import annotations

import inspect

from forewarn.core.model import EntryKind
from forewarn.engine.engine import Engine
from forewarn.observability.tracing.maintenance_spans import _STEPS

_OF_NO_MAINTENANCE = {
    EntryKind.ENABLED,
    EntryKind.DISABLED,
    EntryKind.VM_CHANGED,
    EntryKind.INVENTORY_APPLIED,
    EntryKind.HOST_FAILED,
    EntryKind.HOST_RECOVERED,
    EntryKind.TOKEN_CREATED,
    EntryKind.TOKEN_REVOKED,
    EntryKind.REFUSED,
    EntryKind.CLOCK_ADVANCED,
    EntryKind.CLOCK_JUMPED,
    EntryKind.CLOCK_CONFIRMED,
    EntryKind.ROLLOUT,
    EntryKind.FAULT_INJECTED,
    EntryKind.FAULT_CLEARED,
    EntryKind.PRUNED,
    EntryKind.SUBSCRIPTION,
}


def test_of_every_kind_of_entry_somebody_has_decided_whether_it_is_a_step() -> None:
    assert set(EntryKind) == _STEPS.keys() | _OF_NO_MAINTENANCE
    assert not _STEPS.keys() & _OF_NO_MAINTENANCE


def test_whatever_an_operator_has_done_is_told() -> None:
    asked = {
        name
        for name, method in inspect.getmembers(Engine, inspect.iscoroutinefunction)
        if not name.startswith("_") and "actor" in inspect.signature(method).parameters
    }
    told = {name for name in asked if hasattr(getattr(Engine, name), "__wrapped__")}
    assert asked - told == {"preview_maintenances"}, "nothing comes of it"
