"""Comparison of what a scenario expects with what VMs are shown."""

from __future__ import annotations

from datetime import timedelta

from forewarn.core.model import Event as CoreEvent
from forewarn.testing.scenario.scenario_model import ExpectStep
from forewarn.testing.trial.handler_coordinator import HandlerCoordinator
from forewarn.testing.trial.scenario_operations import ScenarioOperations

__all__ = ["find_difference"]


async def find_difference(
    expect: ExpectStep, vm: str, operations: ScenarioOperations, coordinator: HandlerCoordinator | None
) -> str:
    """Return the first difference from what is expected of that VM now; empty if there is none.

    Without a `coordinator`, no handler runs beside the scenario.
    """
    lab = operations.lab
    document = lab.get_document(vm)
    is_enabled = lab.get_channel(vm).is_enabled
    for what, wanted, found in (
        ("enabled", expect.enabled, is_enabled),
        ("incarnation", expect.incarnation, document.incarnation),
        ("events", expect.events, len(document.events)),
    ):
        if wanted is not None and wanted != found:
            return f"{what} is {found}, expected {wanted}"
    if expect.document is not None:
        found_bytes = lab.get_document_bytes(vm, expect.version)
        if found_bytes != expect.document.encode():
            return f"the document is {found_bytes.decode()}, expected {expect.document}"
    if expect.operation is None:
        return ""
    return await _find_event_difference(expect, expect.operation, vm, operations, coordinator)


async def _find_event_difference(
    expect: ExpectStep,
    operation: str,
    vm: str,
    operations: ScenarioOperations,
    coordinator: HandlerCoordinator | None,
) -> str:
    """Return the first difference in the event that an operation shows to a VM; empty if there is none."""
    lab = operations.lab
    shown = await operations.find_shown_event(operation, vm)
    found = await operations.list_events(operation)
    ids = {event.id for event in found}
    # A document without the event does not tell `gone` from `absent`; earlier documents do.
    was_there = any(event.id in ids for document in lab.list_documents(vm) for event in document.events)
    status = shown.status if shown is not None else "gone" if was_there else "absent"
    # The events that name the VM; for a VM that none names, such as another one of the scope, the one it is shown.
    mine = [e for e in found if vm in e.resources] or [e for e in found if shown is not None and e.id == shown.id]
    pairs: list[tuple[str, object, object]] = [
        ("status", expect.status, status),
        ("approved", expect.approved, bool(mine) and all(_is_approved(event, coordinator) for event in mine)),
    ]
    of_shown = ("type", "description", "duration", "source", "resources")
    if shown is not None:
        values = (shown.type, shown.description, shown.duration_s, shown.source, shown.resources)
        pairs += [(name, getattr(expect, name), value) for name, value in zip(of_shown, values, strict=True)]
        left = timedelta(0) if shown.not_before is None else shown.not_before - lab.clock.now()
        if expect.notice_at_least is not None and left < expect.notice_at_least:
            return f"{operation} has {left} of notice, expected at least {expect.notice_at_least}"
    elif any(getattr(expect, name) is not None for name in (*of_shown, "notice_at_least")):
        return f"{operation} is {status}"
    wrong = next(((what, wanted, value) for what, wanted, value in pairs if wanted not in {None, value}), None)
    return "" if wrong is None else f"{wrong[0]} of {operation} is {wrong[2]}, expected {wrong[1]}"


def _is_approved(event: CoreEvent, coordinator: HandlerCoordinator | None) -> bool:
    """Return True if it is approved, or if the handler's approval is held for a later step."""
    return event.is_approved or (coordinator is not None and coordinator.has_approved(event.id))
