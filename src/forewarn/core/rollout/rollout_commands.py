"""Operator commands for a rollout: create, start, pause, resume, abort."""

from __future__ import annotations

from datetime import datetime

from forewarn.core.fast_replace import replace
from forewarn.core.rollout.rollout import Rollout, RolloutHost, RolloutHostState
from forewarn.core.rollout.rollout_lifecycle import (
    TRANSITIONS,
    HostTrigger,
    RolloutTrigger,
    apply_host_trigger,
    apply_rollout_trigger,
    check_rollout,
)
from forewarn.core.rollout.rollout_plan import RolloutPlan

__all__ = ["abort_rollout", "create_rollout", "pause_rollout", "resume_rollout", "start_rollout"]


def create_rollout(plan: RolloutPlan, rollout_id: str, now: datetime) -> Rollout:
    """Create a rollout from a plan. Nothing happens before it is started."""
    rollout = Rollout(
        id=rollout_id,
        spec=plan.spec,
        state=TRANSITIONS[None, RolloutTrigger.CREATE],
        created_at=now,
        hosts=tuple(RolloutHost(name=name, batch=batch.number) for batch in plan.batches for name in batch.hosts),
    )
    check_rollout(rollout)
    return rollout


def start_rollout(rollout: Rollout, now: datetime) -> Rollout:
    """Start a planned rollout.

    Raises:
        Conflict: It was started before.
    """
    return apply_rollout_trigger(rollout, RolloutTrigger.START, now)


def pause_rollout(rollout: Rollout, now: datetime, *, reason: str | None = None) -> Rollout:
    """Pause a rollout: no further host is begun, and hosts in flight run to their end.

    Raises:
        Conflict: It is not running.
    """
    return apply_rollout_trigger(rollout, RolloutTrigger.PAUSE, now, reason=reason)


def resume_rollout(rollout: Rollout, now: datetime, *, accept_health: bool = False) -> Rollout:
    """Resume a paused rollout. Failures so far no longer count.

    The health check before a batch that has not begun is repeated: it failed, or it is from before the pause. With
    `accept_health`, it counts as passed instead.

    Raises:
        Conflict: It is not paused.
    """
    resumed = apply_rollout_trigger(rollout, RolloutTrigger.RESUME, now)
    health = rollout.health
    if health is not None and accept_health:
        health = replace(health, is_healthy=True)
    # Once a host of this batch has begun, the check before it has been passed and is not repeated.
    elif not any(
        host.batch == rollout.current_batch and host.state is not RolloutHostState.PENDING for host in rollout.hosts
    ):
        health = None
    return replace(resumed, failures_accepted=rollout.failure_count, health=health)


def abort_rollout(rollout: Rollout, now: datetime, *, reason: str | None = None) -> Rollout:
    """Abort a rollout: begin no further host and cancel what has not started; what has started runs to its end.

    `decide_next_steps` returns the cancellations.

    Raises:
        Conflict: It is over, or is being aborted already.
    """
    # The hosts come first, because a rollout may only be aborted when every host is over. Other states raise below.
    if (rollout.state, RolloutTrigger.ABORT) in TRANSITIONS:
        host_reason = "the rollout was aborted" if reason is None else f"the rollout was aborted: {reason}"
        hosts = (
            apply_host_trigger(host, HostTrigger.SKIP, now, reason=host_reason)
            if host.state is RolloutHostState.PENDING
            else host
            for host in rollout.hosts
        )
        rollout = replace(rollout, hosts=tuple(hosts))
    return apply_rollout_trigger(rollout, RolloutTrigger.ABORT, now, reason=reason)
