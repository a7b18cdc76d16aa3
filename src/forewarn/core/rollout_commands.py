"""What an operator may ask of a rollout: create, start, pause, resume, abort."""

from __future__ import annotations

from datetime import datetime

from forewarn.core.rollout import HostState, Rollout, RolloutHost
from forewarn.core.rollout_lifecycle import TRANSITIONS, HostTrigger, RolloutTrigger, check, step, step_host
from forewarn.core.rollout_plan import Plan
from forewarn.core.value import replace

__all__ = ["abort", "create", "pause", "resume", "start"]


def create(plan: Plan, rollout_id: str, now: datetime) -> Rollout:
    """A rollout that would do what was planned. Nothing happens before it is started."""
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
    """Let it begin.

    Raises:
        Conflict: It has begun before.
    """
    return step(rollout, RolloutTrigger.START, now)


def pause(rollout: Rollout, now: datetime, *, reason: str | None = None) -> Rollout:
    """No further host is begun; what is in flight comes to its end.

    Raises:
        Conflict: It is not running.
    """
    return step(rollout, RolloutTrigger.PAUSE, now, reason=reason)


def resume(rollout: Rollout, now: datetime, *, accept_health: bool = False) -> Rollout:
    """Go on. The failures that there are do not count any more.

    The health check before a batch that has not begun is made again: it failed, or it is from before the pause.

    Args:
        rollout: A paused one.
        now: When.
        accept_health: Go on as if the last health check had passed, without another one.

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
    """Begin no further host and take back what has not started; what has started comes to its end.

    What is to be taken back is told by `next_steps`.

    Raises:
        Conflict: It is over, or is being aborted already.
    """
    if (rollout.state, RolloutTrigger.ABORT) in TRANSITIONS:
        words = "the rollout was aborted" if reason is None else f"the rollout was aborted: {reason}"
        rollout = replace(rollout, hosts=tuple(_without_turn(host, now, words) for host in rollout.hosts))
    return step(rollout, RolloutTrigger.ABORT, now, reason=reason)


def _without_turn(host: RolloutHost, now: datetime, reason: str) -> RolloutHost:
    return step_host(host, HostTrigger.SKIP, now, reason=reason) if host.state is HostState.PENDING else host
