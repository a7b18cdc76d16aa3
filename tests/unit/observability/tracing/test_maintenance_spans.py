"""What is told of the audit log, and which commands are told."""

from __future__ import annotations

import inspect
from typing import get_type_hints

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
        f"{group}.{name}": method
        for group, commands in get_type_hints(Engine).items()
        if group != "committer"
        for name, method in inspect.getmembers(commands, inspect.iscoroutinefunction)
        if not name.startswith("_") and "actor" in inspect.signature(method).parameters
    }
    told = {name for name, method in asked.items() if hasattr(method, "__wrapped__")}
    assert len(told) > 20
    assert asked.keys() - told == {"maintenances.preview"}, "nothing comes of it"
