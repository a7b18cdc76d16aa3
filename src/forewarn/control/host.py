"""`/v1/hosts`: hosts, their failures, and predicted failures."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query

from forewarn.control.context import (
    Actor,
    ContextOf,
    HostCaller,
    IdempotencyHeader,
    not_found_error,
    read_maintenances_out,
)
from forewarn.control.inventory import RemoveMissing
from forewarn.core.access import Role
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.store.contract import Reader
from forewarn.wire.control import (
    FailurePredictionIn,
    HostFailureIn,
    HostOut,
    InventoryChangeOut,
    MaintenanceOut,
    PageOut,
    ReasonIn,
)
from forewarn.wire.inventory import HostDeclarationIn, Name, to_host_declaration

__all__ = ["router"]

router = APIRouter(prefix="/v1/hosts", tags=["host"])

HostName = Annotated[Name, Path(description="Name of the host in the inventory; a new host is added.")]


@router.get("")
async def list_hosts(
    context: ContextOf,
    _actor: Actor,
    after: Annotated[str | None, Query(max_length=128, description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, description="Maximum number of items.")] = 100,
) -> PageOut[HostOut]:
    """List hosts with their VMs, by name."""
    size = min(limit, context.settings.page_size_max)

    def read(reader: Reader) -> PageOut[HostOut]:
        page = reader.get_host_page(after, size + 1)
        hosts = reader.find_hosts(page)
        found = [HostOut.from_model(hosts[name], vms) for name, vms in page.items()]
        return PageOut(items=found[:size], next=found[size - 1].name if len(found) > size else None)

    return await context.engine.read(read)


@router.get("/{name}")
async def show_host(context: ContextOf, _actor: Actor, name: str) -> HostOut:
    """Show one host with its VMs, and whether it has failed."""
    shown = await context.engine.read(lambda reader: _read_host_out(reader, name))
    if shown is None:
        raise not_found_error(name, "host")
    return shown


def _read_host_out(reader: Reader, name: str) -> HostOut | None:
    host = reader.find_hosts([name]).get(name)
    return None if host is None else HostOut.from_model(host, [vm.name for vm in reader.list_vms(host=name)])


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
    """Declare all VMs that this host runs; the VMs of other hosts are unchanged.

    A VM that ran on another host is moved here. A VM that is no longer listed is removed, unless an active maintenance
    holds it. More than `inventory_removals_max` or `inventory_removals_share_max` of the host's VMs are removed only
    with `remove_missing`. With a host's own token, a VM of another host can be taken over only while a started Freeze
    or Redeploy moves it, and for five minutes after that has ended. With `hosts_may_join_scopes` off, such a token can
    also add a VM only to a scope that is new or of which the host already runs VMs.
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

    The host is marked as failed until `recover`; until then, rollouts skip it.
    """
    reason = None if body is None else body.reason
    # Nothing is forced here: `force_reason` is the reason that the audit log and the mark of the host record.
    request = MaintenanceRequest(cause="hardware-failure", hosts=(name,), force_reason=reason)
    return PageOut(
        items=await read_maintenances_out(
            context, await context.engine.maintenances.schedule(request, actor=actor, key=key)
        )
    )


@router.post("/{name}/recover")
async def recover(context: ContextOf, actor: Actor, name: str, body: ReasonIn | None = None) -> HostOut:
    """Report that a failed host works again: it is no longer marked as failed."""
    await context.engine.inventory.recover_host(name, actor=actor, reason=None if body is None else body.reason)
    shown = await context.engine.read(lambda reader: _read_host_out(reader, name))
    if shown is None:
        raise not_found_error(name, "host")
    return shown


@router.post("/{name}/predict-failure", status_code=201)
async def predict_failure(
    context: ContextOf, actor: Actor, key: IdempotencyHeader, name: str, body: FailurePredictionIn | None = None
) -> PageOut[MaintenanceOut]:
    """Report that a host will fail: each of its VMs gets an event days ahead (R72)."""
    wanted = body or FailurePredictionIn()
    notice = None if wanted.notice_s is None else timedelta(seconds=wanted.notice_s)
    request = MaintenanceRequest(
        cause="predicted-failure",
        type=wanted.type,
        hosts=(name,),
        notice=notice,
        force_reason=wanted.force_reason,
    )
    return PageOut(
        items=await read_maintenances_out(
            context, await context.engine.maintenances.schedule(request, actor=actor, key=key)
        )
    )
