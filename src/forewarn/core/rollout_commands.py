"""Operator commands for a rollout: create, start, pause, resume, abort."""

from __future__ import annotations

from datetime import datetime

from forewarn.core.rollout import HostState, Rollout, RolloutHost
from forewarn.core.rollout_lifecycle import TRANSITIONS, HostTrigger, RolloutTrigger, check, step, step_host
from forewarn.core.rollout_plan import Plan
from forewarn.core.value import replace

__all__ = ["abort", "create", "pause", "resume", "start"]


def create(plan: Plan, rollout_id: str, now: datetime) -> Rollout:
    """Create a rollout from a plan. Nothing happens before it is started."""
    rollout = Rollout(
        id=rollout_id,
        spec=plan.spec,
        state=TRANSITIONS[None, RolloutTrigger.CREATE],
        created_at=now,
        hosts=tuple(RolloutHost(name=name, batch=batch.number) for batch in plan.batches for name in batch.hosts),
    )
    check(rollout)
    return rollout


def start(rollout: Rollout, now: datetime) -> Rollout:
    """Start a planned rollout.

    Raises:
        Conflict: It was started before.
    """
    return step(rollout, RolloutTrigger.START, now)


def pause(rollout: Rollout, now: datetime, *, reason: str | None = None) -> Rollout:
    """Pause a rollout: no further host is begun, and hosts in flight run to their end.

    Raises:
        Conflict: It is not running.
    """
    return step(rollout, RolloutTrigger.PAUSE, now, reason=reason)


def resume(rollout: Rollout, now: datetime, *, accept_health: bool = False) -> Rollout:
    """Resume a paused rollout. Failures so far no longer count.

    The health check before a batch that has not begun is repeated: it failed, or it is from before the pause.

    Args:
        rollout: A paused one.
        now: The time.
        accept_health: Continue as if the last health check had passed, without another one.

    Raises:
        Conflict: It is not paused.
    """
    resumed = step(rollout, RolloutTrigger.RESUME, now)
    health = rollout.health
    if health is not None and accept_health:
        health = replace(health, is_healthy=True)
    elif not any(host.batch == rollout.batch and host.state is not HostState.PENDING for host in rollout.hosts):
        health = None
    return replace(resumed, failures_accepted=rollout.failures, health=health)


def abort(rollout: Rollout, now: datetime, *, reason: str | None = None) -> Rollout:
    """Abort a rollout: begin no further host and cancel what has not started; what has started runs to its end.

    `next_steps` returns the cancellations.

    Raises:
        Conflict: It is over, or is being aborted already.
    """
    if (rollout.state, RolloutTrigger.ABORT) in TRANSITIONS:
        words = "the rollout was aborted" if reason is None else f"the rollout was aborted: {reason}"
        rollout = replace(rollout, hosts=tuple(_without_turn(host, now, words) for host in rollout.hosts))
    return step(rollout, RolloutTrigger.ABORT, now, reason=reason)


def _without_turn(host: RolloutHost, now: datetime, reason: str) -> RolloutHost:
    return step_host(host, HostTrigger.SKIP, now, reason=reason) if host.state is HostState.PENDING else host
