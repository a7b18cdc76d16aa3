"""`/v1/hosts`: hosts, their failures, and failures foreseen."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter

from forewarn.control.context import Actor, ContextOf, IdempotencyKey, show_all
from forewarn.core.request import Request
from forewarn.store.contract import Reader
from forewarn.wire.control import FailureIn, HostOut, MaintenanceOut, PageOut, PredictionIn

__all__ = ["router"]

router = APIRouter(prefix="/v1/hosts", tags=["host"])


@router.get("")
async def list_hosts(context: ContextOf, _actor: Actor) -> PageOut[HostOut]:
    """Every host with its VMs, by name."""

    def read(reader: Reader) -> PageOut[HostOut]:
        inventory = reader.inventory()
        vms: dict[str, list[str]] = {host.name: [] for host in inventory.hosts}
        for vm in inventory.vms:
            vms[vm.host].append(vm.name)
        return PageOut(items=[HostOut(name=name, vms=names) for name, names in vms.items()])

    return await context.engine.read(read)


@router.post("/{name}/fail", status_code=201)
async def fail(
    context: ContextOf, actor: Actor, key: IdempotencyKey, name: str, body: FailureIn | None = None
) -> PageOut[MaintenanceOut]:
    """The host failed: its VMs get a Reboot event that has Started, without notice (R73)."""
    reason = None if body is None else body.reason
    request = Request(cause="hardware-failure", hosts=(name,), force_reason=reason)
    return PageOut(items=await show_all(context, await context.engine.schedule(request, actor=actor, key=key)))


@router.post("/{name}/predict-failure", status_code=201)
async def predict_failure(
    context: ContextOf, actor: Actor, key: IdempotencyKey, name: str, body: PredictionIn | None = None
) -> PageOut[MaintenanceOut]:
    """The host will fail: each of its VMs gets an event days ahead (R72)."""
    wanted = body or PredictionIn()
    notice = None if wanted.notice_s is None else timedelta(seconds=wanted.notice_s)
    request = Request(
        cause="predicted-failure",
        type=wanted.type,
        hosts=(name,),
        notice=notice,
        force_reason=wanted.force_reason,
    )
    return PageOut(items=await show_all(context, await context.engine.schedule(request, actor=actor, key=key)))
