"""`/v1/status`: health of the service, and what needs attention, on one page."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter

from forewarn import __version__
from forewarn.clock import uptime_s
from forewarn.control.attention import TROUBLES, Attention, read_attention
from forewarn.control.board import Board, BoardItem
from forewarn.control.clock import make_clock_out
from forewarn.control.context import Context, ContextOf
from forewarn.core.maintenance.forecast import MaintenanceProblem
from forewarn.core.model import ACTIVE_STATES, Host, MaintenanceState
from forewarn.core.rollout.rollout import ENDED_STATES, RolloutState
from forewarn.engine.clock_guard import describe_jump
from forewarn.engine.leader_election import LeasedLeadership
from forewarn.errors import EndpointBehind, ForewarnError, StoreCorrupt, StoreUnavailable
from forewarn.store.contract import Reader
from forewarn.wire.rollout import decode_rollout_state
from forewarn.wire.status import (
    AttentionOut,
    DatabaseStatusOut,
    EndpointStatusOut,
    InventoryStatusOut,
    ReplicaStatusOut,
    ServiceProblemOut,
    StatusOut,
)

__all__ = ["router"]

router = APIRouter(prefix="/v1/status", tags=["status"])

_SHOWN_MAX = 100
_NAMES_MAX = 10
_ROLLOUTS_MAX = 1000
_PROBE_S = 2.0
"""Time limit for a change of the database that only tests it, in seconds; a long transaction delays it."""


_UNWRITABLE = frozenset({EndpointBehind.code, StoreCorrupt.code, StoreUnavailable.code})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What is under way, as read from the store."""

    attention: Attention
    maintenances: dict[str, int]
    rollouts: dict[str, int]


@router.get("")
async def show(context: ContextOf) -> StatusOut:
    """Show the health of the service, and the maintenances and hosts that need attention.

    The answer comes with status 200 even if there are problems. `endpoints` and `replicas.up_s` are those of the
    replica that answers.
    """
    problems = [each async for each in _find_problems(context)]
    work: _Work | None = None
    count: int | None = None
    try:
        board = await context.boards.get_current()
        work = await context.engine.read(lambda reader: _read_work(reader, board))
        shared = context.engine.committer.store.shared
        count = None if shared is None else await asyncio.to_thread(shared.count_replicas)
    except ForewarnError as error:
        problems.append(ServiceProblemOut(name=error.code, text=error.message))
    attention = [] if work is None else _make_attention_out(work.attention)
    distinct = list({problem.text: problem for problem in problems}.values())
    return StatusOut(
        is_well=not distinct and not attention,
        version=__version__,
        now=context.clock.now(),
        replicas=_make_replicas_out(context, count),
        clock=make_clock_out(context),
        skew_s=context.engine.leadership.skew.total_seconds(),
        database=DatabaseStatusOut(
            kind="sqlite" if context.settings.database_url.startswith("sqlite") else "postgresql",
            is_writable=not any(problem.name in _UNWRITABLE for problem in distinct),
        ),
        endpoints=_make_endpoints_out(context),
        inventory=InventoryStatusOut(
            hosts=len(context.engine.identity.hosts),
            scopes=context.engine.identity.scope_count,
            vms=context.engine.identity.vm_count,
        ),
        open_files_max=_get_open_files_max(),
        maintenances=None if work is None else work.maintenances,
        rollouts=None if work is None else work.rollouts,
        problems=distinct,
        attention_count=0 if work is None else work.attention.count,
        attention=attention[:_SHOWN_MAX],
    )


def _get_open_files_max() -> int | None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if most == resource.RLIM_INFINITY else most


async def _find_problems(context: Context) -> AsyncIterator[ServiceProblemOut]:
    jump = context.engine.clock.guard.jump
    if jump is not None:
        text = f"{describe_jump(jump)}: check the time, then run 'forewarn clock confirm'"
        yield ServiceProblemOut(name="clock_jump", text=text)
    leadership = context.engine.leadership
    if leadership.has_replicas and not leadership.is_held and leadership.leader is None:
        text = "no replica is known to be the leader, so nothing is started: see the log of each replica"
        yield ServiceProblemOut(name="no_leader", text=text)
    # Not canceled when it takes too long: other callers may wait for the same probe.
    probe = asyncio.ensure_future(context.check_ready())
    await asyncio.wait({probe}, timeout=_PROBE_S)
    if not probe.done():
        probe.add_done_callback(lambda done: done.cancelled() or done.exception())
        text = f"the database took no change for {_PROBE_S:.0f} s: a long change may be under way"
        yield ServiceProblemOut(name="store_slow", text=text)
    elif isinstance(error := probe.exception(), ForewarnError):
        yield ServiceProblemOut(name=error.code, text=error.message)
    elif error is not None:
        raise error


def _read_work(reader: Reader, board: Board) -> _Work:
    if board.is_complete:
        states = Counter(item.maintenance.state for item in board.items)
    else:
        states = Counter(dict(reader.count_by_state()))
    rollouts = Counter(
        decode_rollout_state(each.content) for each in reader.list_rollouts(is_ended=False, limit=_ROLLOUTS_MAX)
    )
    return _Work(
        attention=read_attention(reader, board, has_hosts=True),
        maintenances={state.value: states[state] for state in MaintenanceState if state in ACTIVE_STATES},
        rollouts={state.value: rollouts[state] for state in RolloutState if state not in ENDED_STATES},
    )


def _make_replicas_out(context: Context, count: int | None) -> ReplicaStatusOut:
    leadership = context.engine.leadership
    up_s = uptime_s() - context.began_s
    if not isinstance(leadership, LeasedLeadership):
        return ReplicaStatusOut(role="single", name=None, leader=None, count=None, up_s=up_s)
    return ReplicaStatusOut(
        role="leader" if leadership.is_held else "follower",
        name=leadership.holder,
        leader=leadership.holder if leadership.is_held else leadership.leader,
        count=count,
        up_s=up_s,
    )


def _make_endpoints_out(context: Context) -> EndpointStatusOut:
    now, streams = context.clock.now(), context.host_streams.list_streams()
    ages_s = [(now - stream.began_at).total_seconds() for stream in streams if stream.began_at is not None]
    return EndpointStatusOut(
        connected=len(streams), oldest_s=max(ages_s, default=None), newest_s=min(ages_s, default=None)
    )


def _make_attention_out(attention: Attention) -> list[AttentionOut]:
    failed = [_make_failed_host_out(h, h.failed_at) for h in attention.failed_hosts if h.failed_at is not None]
    return [*failed, *map(_make_item_out, attention.items)]


def _make_failed_host_out(host: Host, failed_at: datetime) -> AttentionOut:
    reason = "" if host.failure_reason is None else f": {host.failure_reason}"
    return AttentionOut(
        kind="host",
        id=host.name,
        problem=MaintenanceProblem.FAILED,
        text=f"It failed{reason}. Run 'forewarn host recover {host.name}' once it works again.",
        at=failed_at,
        type=None,
        hosts=[host.name],
        vms=[],
    )


def _make_item_out(item: BoardItem) -> AttentionOut:
    maintenance, problem = item.maintenance, item.forecast.problems[0]
    return AttentionOut(
        kind="maintenance",
        id=maintenance.id,
        problem=problem,
        text=TROUBLES[problem][1],
        at=item.sort_time,
        type=maintenance.type,
        hosts=list(maintenance.hosts[:_NAMES_MAX]),
        vms=list(maintenance.vms[:_NAMES_MAX]),
    )
