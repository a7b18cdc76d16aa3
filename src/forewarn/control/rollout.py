"""`/v1/rollouts`: one maintenance across many hosts, in batches."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from forewarn.control.context import (
    Actor,
    AfterNumber,
    Context,
    ContextOf,
    IdempotencyHeader,
    PageLimit,
    cut_page,
    parse_after,
)
from forewarn.core.rollout import rollout_commands
from forewarn.errors import Forbidden
from forewarn.wire.control_response import PageOut
from forewarn.wire.json_types import RequestModel
from forewarn.wire.rollout import RolloutHostOut, RolloutIn, RolloutOut, RolloutPlanOut, decode_rollout

__all__ = ["router"]

router = APIRouter(prefix="/v1/rollouts", tags=["rollout"])


class RolloutReasonIn(RequestModel):
    """Reason for a pause or an abort."""

    reason: Annotated[str, Field(max_length=1000, description="Reason, shown with the rollout.")] | None = None


class RolloutResumeIn(RequestModel):
    """Options for resuming a rollout."""

    accept_health: bool = Field(default=False, description="Treat the last health check as passed.")


@router.post("/plan")
async def plan(context: ContextOf, body: RolloutIn) -> RolloutPlanOut:
    """Preview a rollout: its batches, with estimated times."""
    return RolloutPlanOut.from_model(await context.engine.rollouts.plan(body.to_spec()))


@router.post("", status_code=201)
async def start(context: ContextOf, actor: Actor, key: IdempotencyHeader, body: RolloutIn) -> RolloutOut:
    """Plan a rollout and start it."""
    spec = body.to_spec()
    # The command would run on this machine as the user of the service, so the setting has to allow it.
    if spec.health is not None and not context.settings.health_commands:
        msg = "this service runs no health commands: allow them with the setting health_commands"
        raise Forbidden(msg, setting="health_commands")
    return RolloutOut.from_model(await context.engine.rollouts.create(spec, actor=actor, key=key))


@router.get("")
async def list_rollouts(context: ContextOf, after: AfterNumber = None, limit: PageLimit = 100) -> PageOut[RolloutOut]:
    """List rollouts, newest first."""
    begin, size = parse_after(after) or 0, min(limit, context.settings.page_size_max)
    # Only the page is read, and one more to know if there are more: a rollout may have thousands of hosts.
    found = await context.engine.read(lambda reader: reader.list_rollouts(limit=size + 1, skip=begin))
    shown = [RolloutOut.from_model(decode_rollout(each.content)) for each in found[:size]]
    return PageOut(items=shown, next=str(begin + size) if len(found) > size else None)


@router.get("/{rollout_id}")
async def show(context: ContextOf, rollout_id: str) -> RolloutOut:
    """Show one rollout, and what it is waiting for."""
    return await _read_rollout_out(context, rollout_id)


@router.get("/{rollout_id}/hosts")
async def list_hosts(
    context: ContextOf, rollout_id: str, after: AfterNumber = None, limit: PageLimit = 100
) -> PageOut[RolloutHostOut]:
    """List the hosts of a rollout, in batch order."""
    rollout, _ = await context.engine.rollouts.read(rollout_id)
    hosts, following = cut_page(rollout.hosts, after, min(limit, context.settings.page_size_max))
    return PageOut(items=[RolloutHostOut.from_model(host) for host in hosts], next=following)


@router.post("/{rollout_id}/pause")
async def pause(context: ContextOf, actor: Actor, rollout_id: str, body: RolloutReasonIn | None = None) -> RolloutOut:
    """Pause a rollout: no further host begins, and hosts in progress finish."""
    change = partial(rollout_commands.pause_rollout, reason=None if body is None else body.reason)
    await context.engine.rollouts.change(rollout_id, change, "paused", actor=actor)
    return await _read_rollout_out(context, rollout_id)


@router.post("/{rollout_id}/resume")
async def resume(context: ContextOf, actor: Actor, rollout_id: str, body: RolloutResumeIn | None = None) -> RolloutOut:
    """Resume a paused rollout; failures before the pause no longer count."""
    change = partial(rollout_commands.resume_rollout, accept_health=body is not None and body.accept_health)
    await context.engine.rollouts.change(rollout_id, change, "resumed", actor=actor)
    return await _read_rollout_out(context, rollout_id)


@router.post("/{rollout_id}/abort")
async def abort(context: ContextOf, actor: Actor, rollout_id: str, body: RolloutReasonIn | None = None) -> RolloutOut:
    """Abort a rollout: no further host begins, and maintenance that has not started is canceled.

    Maintenance that has already started continues to its end.
    """
    change = partial(rollout_commands.abort_rollout, reason=None if body is None else body.reason)
    await context.engine.rollouts.change(rollout_id, change, "aborted", actor=actor)
    return await _read_rollout_out(context, rollout_id)


async def _read_rollout_out(context: Context, rollout_id: str) -> RolloutOut:
    rollout, wait = await context.engine.rollouts.read(rollout_id)
    return RolloutOut.from_model(rollout, wait)
