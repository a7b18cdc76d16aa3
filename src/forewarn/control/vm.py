"""`/v1/vms`: look at VMs, and what users and the platform do to a single one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.commit import Key
from forewarn.control.context import Actor, Context, ContextOf, IdempotencyKey, show_all
from forewarn.core.model import VirtualMachine, audience_key
from forewarn.core.request import Request
from forewarn.errors import NotFound
from forewarn.store.contract import Reader
from forewarn.wire.control import MaintenanceOut, OperationIn, PageOut, VmOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/vms", tags=["vm"])


def _shown(reader: Reader, vms: list[VirtualMachine]) -> list[VmOut]:
    scopes = reader.scopes({vm.scope for vm in vms if vm.scope is not None})
    keys = {vm.name: audience_key(vm, scopes.get(vm.scope or "")) for vm in vms}
    audiences = reader.audiences(keys.values())
    shown = []
    for vm in vms:
        audience = audiences.get(keys[vm.name])
        incarnation = None if audience is None or audience.enabled_at is None else audience.incarnation
        shown.append(VmOut.of(vm, scopes.get(vm.scope or ""), incarnation))
    return shown


@router.get("")
async def list_vms(
    context: ContextOf,
    _actor: Actor,
    after: Annotated[str | None, Query(max_length=128, description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1)] = 100,
) -> PageOut[VmOut]:
    """VMs, by name."""
    size = min(limit, context.page_size_max)

    def read(reader: Reader) -> PageOut[VmOut]:
        found = reader.vm_page(after, size + 1)
        following = found[size - 1].name if len(found) > size else None
        return PageOut(items=_shown(reader, found[:size]), next=following)

    return await context.engine.read(read)


@router.get("/{name}")
async def show_vm(context: ContextOf, _actor: Actor, name: str) -> VmOut:
    """One VM."""
    found = await context.engine.read(lambda reader: _shown(reader, reader.vms(name=name)))
    if not found:
        msg = f"vm {name!r} does not exist: see 'forewarn vm list'"
        raise NotFound(msg, vm=name)
    return found[0]


async def _operate(context: Context, actor: str, key: Key | None, request: Request) -> PageOut[MaintenanceOut]:
    made = await context.engine.schedule(request, actor=actor, key=key)
    return PageOut(items=await show_all(context, made))


@router.post("/{name}/restart", status_code=201)
async def restart(
    context: ContextOf, actor: Actor, key: IdempotencyKey, name: str, body: OperationIn | None = None
) -> PageOut[MaintenanceOut]:
    """A user restarts the VM: a Reboot event (R87)."""
    return await _operate(context, actor, key, (body or OperationIn()).to_request("user-restart", name))


@router.post("/{name}/redeploy", status_code=201)
async def redeploy(
    context: ContextOf, actor: Actor, key: IdempotencyKey, name: str, body: OperationIn | None = None
) -> PageOut[MaintenanceOut]:
    """A user redeploys the VM: a Redeploy event (R87)."""
    return await _operate(context, actor, key, (body or OperationIn()).to_request("user-redeploy", name))


@router.post("/{name}/reimage", status_code=201)
async def reimage(
    context: ContextOf, actor: Actor, key: IdempotencyKey, name: str, body: OperationIn | None = None
) -> PageOut[MaintenanceOut]:
    """A user reimages the VM: a Reboot event where the scale set opted in (R93)."""
    return await _operate(context, actor, key, (body or OperationIn()).to_request("reimage", name))


@router.post("/{name}/evict", status_code=201)
async def evict(
    context: ContextOf, actor: Actor, key: IdempotencyKey, name: str, body: OperationIn | None = None
) -> PageOut[MaintenanceOut]:
    """The platform takes a Spot VM back: a Preempt event (R90)."""
    return await _operate(context, actor, key, (body or OperationIn()).to_request("spot-eviction", name))


@router.delete("/{name}", status_code=201)
async def delete(
    context: ContextOf, actor: Actor, key: IdempotencyKey, name: str, body: OperationIn | None = None
) -> PageOut[MaintenanceOut]:
    """Delete the VM: a Terminate event where the scale set opted in (R91)."""
    return await _operate(context, actor, key, (body or OperationIn()).to_request("scale-set-delete", name))


@router.post("/{name}/update-model")
async def update_model(context: ContextOf, actor: Actor, name: str) -> VmOut:
    """Bring the VM to its scale set's latest model, and so to its delete notification (R91)."""
    await context.engine.update_model(name, actor=actor)
    return (await context.engine.read(lambda reader: _shown(reader, reader.vms(name=name))))[0]
