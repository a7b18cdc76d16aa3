"""`/v1/vms`: VMs, and operations by users and the platform on a single VM."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from forewarn.control.context import (
    Actor,
    AfterName,
    Caller,
    Context,
    ContextOf,
    IdempotencyHeader,
    NamePrefix,
    PageLimit,
    SelectorText,
    not_found_error,
    read_maintenances_out,
)
from forewarn.control.selection_query import make_text_query
from forewarn.core.access import FILE_OPERATOR, Principal
from forewarn.core.label import parse_selector
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventSource, VirtualMachine, audience_key
from forewarn.core.vm_filter import VmFilter
from forewarn.errors import Forbidden
from forewarn.store.contract import Reader
from forewarn.wire.control_request import OperationIn
from forewarn.wire.control_response import MaintenanceOut, PageOut, VmOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/vms", tags=["vm"])


def _make_vms_out(reader: Reader, vms: list[VirtualMachine], caller: Principal = FILE_OPERATOR) -> list[VmOut]:
    scopes = reader.find_scopes({vm.scope for vm in vms if vm.scope is not None})
    keys = {vm.name: audience_key(vm, scopes.get(vm.scope or "")) for vm in vms}
    audiences = reader.find_audiences(keys.values())
    shown = []
    for vm in vms:
        audience = audiences.get(keys[vm.name])
        incarnation = None if audience is None or audience.enabled_at is None else audience.incarnation
        shown.append(VmOut.from_model(vm, scopes.get(vm.scope or ""), incarnation, has_host=caller.ownership is None))
    return shown


@router.get("")
async def list_vms(  # noqa: PLR0913 - a query parameter each
    context: ContextOf,
    caller: Caller,
    host: Annotated[str | None, make_text_query("Only VMs on this host.")] = None,
    scope: Annotated[str | None, make_text_query("Only VMs of this scope.")] = None,
    prefix: NamePrefix = None,
    selector: SelectorText = None,
    after: AfterName = None,
    limit: PageLimit = 100,
) -> PageOut[VmOut]:
    """List VMs, by name.

    A VM also has the labels of its scope and, unless a tenant asks, of its host. Its own label overrides that of its
    scope with the same key, and the scope's overrides the host's.

    Raises:
        Forbidden: A tenant selects by host; matches would reveal hosts, which the tenant is not shown.
    """
    if host is not None and caller.ownership is not None:
        raise Forbidden(f"{caller.actor} may not filter by host: not allowed for role {caller.role}")
    size = min(limit, context.settings.page_size_max)
    wanted = VmFilter(
        host=host,
        scope=scope,
        prefix=prefix or "",
        selector=parse_selector(selector or ""),
        ignores_host_labels=caller.ownership is not None,
    )

    def read(reader: Reader) -> PageOut[VmOut]:
        found = reader.get_vm_page(after, size + 1, caller.ownership, wanted)
        following = found[size - 1].name if len(found) > size else None
        return PageOut(items=_make_vms_out(reader, found[:size], caller), next=following)

    return await context.engine.read(read)


@router.get("/{name}")
async def show_vm(context: ContextOf, caller: Caller, name: str) -> VmOut:
    """Show one VM."""
    found = await context.engine.read(
        lambda reader: _make_vms_out(reader, reader.list_vms(name=name, owned=caller.ownership), caller)
    )
    if not found:
        raise not_found_error(name, "vm")
    return found[0]


def _check_tenant_request(context: Context, caller: Principal, request: MaintenanceRequest) -> None:
    """Check that a tenant may request this operation.

    The VM is looked up in memory, so that the time taken does not reveal whether another tenant has a VM of that name.
    The transaction checks once more.

    Raises:
        NotFound: The tenant has no VM of that name.
        Forbidden: The request forces a shorter notice, or names the platform as its source.
    """
    for name in request.vms:
        found = context.engine.identity.find_caller(name)
        if found is None or not caller.owns_vm(found.vm, found.scope):
            raise not_found_error(name, "vm")
    if request.force_reason is not None:
        raise Forbidden("a tenant may not shorten the notice: only an operator may force it")
    if request.source is EventSource.PLATFORM:
        raise Forbidden("a tenant's source is User: only an operator may use Platform")


def _add_operation(verb: str, cause: str, description: str) -> None:
    async def operate(
        context: ContextOf, caller: Caller, key: IdempotencyHeader, name: str, body: OperationIn | None = None
    ) -> PageOut[MaintenanceOut]:
        request = (body or OperationIn()).to_request(cause, name)
        if caller.ownership is not None:
            _check_tenant_request(context, caller, request)
        made = await context.engine.maintenances.schedule(request, actor=caller.actor, key=key, owned=caller.ownership)
        return await read_maintenances_out(context, made, caller)

    method, path = ("DELETE", "/{name}") if verb == "delete" else ("POST", f"/{{name}}/{verb}")
    router.add_api_route(path, operate, methods=[method], name=verb, description=description, status_code=201)


_add_operation("restart", "user-restart", "Restart a VM for a user, with a Reboot event (R87).")
_add_operation("redeploy", "user-redeploy", "Redeploy a VM for a user, with a Redeploy event (R87).")
_add_operation("reimage", "reimage", "Reimage a VM for a user, with a Reboot event if the scale set opted in (R93).")
_add_operation("evict", "spot-eviction", "Evict a Spot VM for the platform, with a Preempt event (R90).")
_add_operation("delete", "scale-set-delete", "Delete a VM, with a Terminate event if the scale set opted in (R91).")


@router.post("/{name}/update-model")
async def update_model(context: ContextOf, actor: Actor, name: str) -> VmOut:
    """Update a VM to its scale set's latest model, including the setting for terminate notification (R91)."""
    await context.engine.inventory.update_model(name, actor=actor)
    return (await context.engine.read(lambda reader: _make_vms_out(reader, reader.list_vms(name=name))))[0]
