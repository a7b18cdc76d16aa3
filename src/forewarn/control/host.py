"""`/v1/hosts`: hosts, their failures, and predicted failures."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from forewarn.control.context import (
    Actor,
    AfterName,
    ContextOf,
    HostCaller,
    IdempotencyHeader,
    NamePrefix,
    PageLimit,
    SelectorText,
    not_found_error,
    read_maintenances_out,
)
from forewarn.control.inventory import RemoveMissing
from forewarn.core.access import Role
from forewarn.core.label import parse_selector
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.store.contract import Reader
from forewarn.wire.control_request import FailurePredictionIn, HostFailureIn, ReasonIn
from forewarn.wire.control_response import HostOut, InventoryChangeOut, MaintenanceOut, PageOut
from forewarn.wire.inventory import HostDeclarationIn, Name, to_host_declaration
from forewarn.wire.json_types import to_timedelta

__all__ = ["router"]

router = APIRouter(prefix="/v1/hosts", tags=["host"])

HostName = Annotated[Name, Path(description="Name of the host in the inventory; a new host is added.")]


@router.get("")
async def list_hosts(
    context: ContextOf,
    prefix: NamePrefix = None,
    selector: SelectorText = None,
    after: AfterName = None,
    limit: PageLimit = 100,
) -> PageOut[HostOut]:
    """List hosts with their VMs, by name."""
    size = min(limit, context.settings.page_size_max)
    wanted = parse_selector(selector or "")

    def read(reader: Reader) -> PageOut[HostOut]:
        page = reader.get_host_page(after, size + 1, prefix or "", wanted)
        hosts = reader.find_hosts(page)
        found = [HostOut.from_model(hosts[name], vms) for name, vms in page.items()]
        return PageOut(items=found[:size], next=found[size - 1].name if len(found) > size else None)

    return await context.engine.read(read)


@router.get("/{name}")
async def show_host(context: ContextOf, name: str) -> HostOut:
    """Show one host with its VMs, and whether it has failed."""
    return await context.engine.read(lambda reader: _read_host_out(reader, name))


def _read_host_out(reader: Reader, name: str) -> HostOut:
    host = reader.find_hosts([name]).get(name)
    if host is None:
        raise not_found_error(name, "host")
    return HostOut.from_model(host, [vm.name for vm in reader.list_vms(host=name)])


@router.put("/{name}/vms")
async def declare(  # noqa: PLR0913 - parameters injected by FastAPI
    context: ContextOf,
    caller: HostCaller,
    key: IdempotencyHeader,
    name: HostName,
    body: HostDeclarationIn,
    *,
    remove_missing: RemoveMissing = False,
) -> InventoryChangeOut:
    """Declare all VMs of this host; VMs of other hosts stay unchanged, unless they are listed here.

    A listed VM that was declared for another host moves to this host. A VM of this host that is not listed is removed,
    unless an active maintenance affects it. If the request would remove more VMs than
    `inventory_removals_max`, or a larger share of the host's VMs than `inventory_removals_share_max`, it is refused
    without `remove_missing`.

    If the host calls with its token, two limits apply. A VM of another host can be moved only while a started Freeze or
    Redeploy moves it, and for five minutes after this maintenance has ended. If `hosts_may_join_scopes` is off, a VM
    can be added only to a new scope, or to a scope of which the host already runs VMs.
    """
    declared = to_host_declaration(name, body)
    removals = None if remove_missing else context.settings.removals
    change = await context.engine.inventory.apply_host(
        declared, actor=caller.actor, key=key, removals=removals, is_host=caller.role is Role.HOST
    )
    return InventoryChangeOut.from_model(change)


@router.post("/{name}/fail", status_code=201)
async def fail(
    context: ContextOf, actor: Actor, key: IdempotencyHeader, name: str, body: HostFailureIn | None = None
) -> PageOut[MaintenanceOut]:
    """Report that a host has failed: its VMs get a Reboot event in status Started, without notice (R73).

    The host stays marked as failed, and rollouts skip it, until `recover` is called.
    """
    reason = None if body is None else body.reason
    # Nothing is forced here: `force_reason` is the reason that the audit log and the mark of the host record.
    request = MaintenanceRequest(cause="hardware-failure", hosts=(name,), force_reason=reason)
    return await read_maintenances_out(
        context, await context.engine.maintenances.schedule(request, actor=actor, key=key)
    )


@router.post("/{name}/recover")
async def recover(context: ContextOf, actor: Actor, name: str, body: ReasonIn | None = None) -> HostOut:
    """Report that a failed host works again: it is no longer marked as failed."""
    await context.engine.inventory.recover_host(name, actor=actor, reason=None if body is None else body.reason)
    return await context.engine.read(lambda reader: _read_host_out(reader, name))


@router.post("/{name}/predict-failure", status_code=201)
async def predict_failure(
    context: ContextOf, actor: Actor, key: IdempotencyHeader, name: str, body: FailurePredictionIn | None = None
) -> PageOut[MaintenanceOut]:
    """Report that a host will fail: each of its VMs gets an event, by default 7 days ahead (R72)."""
    wanted = body or FailurePredictionIn()
    request = MaintenanceRequest(
        cause="predicted-failure",
        type=wanted.type,
        hosts=(name,),
        notice=to_timedelta(wanted.notice_s),
        force_reason=wanted.force_reason,
        reason=wanted.reason,
    )
    return await read_maintenances_out(
        context, await context.engine.maintenances.schedule(request, actor=actor, key=key)
    )
