"""Scheduler: one timer to the next deadline.

The deadlines are in the store; this loop only reads the next one and sleeps until then. A command that creates an
earlier one wakes it. After a stop of any kind there is nothing to restore: what fell due meanwhile is due now, and is
carried out in order.

On a virtual clock there is no timer: `advance_clock` goes from deadline to deadline and carries out each at its own
moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from forewarn.actuators import Actuator
from forewarn.actuators.contract import BEGIN_BEFORE_S
from forewarn.clock import Clock, VirtualClock, wait_until_or_event
from forewarn.core.maintenance.actuator_result import ActuatorFailure, Progress, RetryPolicy
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import Maintenance, MaintenanceState
from forewarn.engine.engine import Engine
from forewarn.errors import ActuationFailed, ActuatorBusy, ForewarnError, InvalidRequest, LeaseLost
from forewarn.scheduling.rollout_driver import RolloutDriver
from forewarn.util.failpoint import FailPoint, reach_failpoint

__all__ = ["Scheduler", "SchedulerSettings"]

_log = structlog.get_logger("forewarn.scheduling.scheduler")

_STORE_RETRY_S = 1.0
# A guard against a deadline that does not move, not a limit of normal use.
_STEPS_MAX = 1_000_000
# Calls that may wait for a slot, as a multiple of `calls_max`, before no more work is read.
_CALLS_WAITING = 10
# Interval at which the times of the audiences' last requests are stored.
_REMEMBER_EVERY = timedelta(minutes=1)
# Interval between deletions of old history.
_PRUNE_EVERY = timedelta(hours=1)


@dataclass(slots=True, kw_only=True)
class SchedulerSettings:
    """Limits and intervals of the scheduler.

    Attributes:
        batch_max: Maximum number of maintenances in one transaction.
        calls_max: Maximum number of concurrent actuator calls.
        call_timeout: Time limit for one actuator call.
        retry: Retry policy for failed calls.
        history: Retention of ended maintenances and of audit log entries other than audit entries.
        audit: Retention of audit entries in the audit log, if longer than `history`.
        entries_max: Maximum number of other entries in the audit log.
        outcomes: Retention of idempotency keys.
    """

    batch_max: int = 500
    calls_max: int = 64
    call_timeout: timedelta = timedelta(minutes=1)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    history: timedelta = timedelta(days=90)
    audit: timedelta = timedelta(days=366)
    entries_max: int = 10_000_000
    outcomes: timedelta = timedelta(hours=24)


class Scheduler:
    """Starts what is due and calls the actuator.

    Args:
        engine: Engine that runs the commands.
        clock: Source of the time.
        actuator: Actuator that carries out maintenances.
        settings: Limits and intervals; None for the defaults.
        on_lateness: Called with the lateness of each start, in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        actuator: Actuator,
        settings: SchedulerSettings | None = None,
        on_lateness: Callable[[float], None] | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._actuator = actuator
        self._settings = settings or SchedulerSettings()
        self._on_lateness = on_lateness or (lambda _late_s: None)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._rollout_driver = RolloutDriver(engine.rollouts, clock, self.wake)
        self._aborts: set[asyncio.Task[None]] = set()
        self._recorded: set[str] = set()
        self._slots = asyncio.Semaphore(self._settings.calls_max)
        self._woken = asyncio.Event()
        self._next: datetime | None = None
        # `advance_clock` runs in another task than the loop, and both carry out deadlines.
        self._lock = asyncio.Lock()
        self._housekeeping_at = clock.now()
        self._prune_at = clock.now() + _PRUNE_EVERY
        self._has_lead = False
        self._pruning: asyncio.Task[None] | None = None
        engine.listeners.append(self.handle_changes)

    def wake(self) -> None:
        """Check the deadlines again: another process has changed something."""
        self._next = None
        self._woken.set()

    def handle_changes(self, changes: ChangeSet) -> None:
        """Wake earlier if a change created an earlier deadline. Only a hint: the store is always read."""
        self._abort_ended(changes)
        # Any change may be the one that a rollout waits for.
        if self._engine.rollouts.may_be_active and not self._clock.is_virtual:
            self.wake()
        due_at = changes.next_due_at
        if due_at is not None and self._clock.is_virtual and due_at > self._clock.now():
            return  # only `advance_clock` moves the time there, and it reads the store
        if due_at is not None and (self._next is None or due_at < self._next):
            self._next = due_at
            self._woken.set()

    def _abort_ended(self, changes: ChangeSet) -> None:
        """Abort on the actuator what has ended without its report: completed by hand, or failed."""
        for maintenance in changes.maintenances.values():
            is_over = maintenance.started_at is not None and not maintenance.is_active
            # What the actuator itself reported as complete needs no abort; after a failure something may still run.
            if is_over and (maintenance.state is MaintenanceState.FAILED or maintenance.id not in self._recorded):
                task = asyncio.ensure_future(self._abort_maintenance(maintenance))
                self._aborts.add(task)
                task.add_done_callback(self._aborts.discard)

    async def _abort_maintenance(self, maintenance: Maintenance) -> None:
        try:
            async with asyncio.timeout(self._settings.call_timeout.total_seconds()):
                await self._actuator.abort(maintenance, self._clock.now())
        except (ForewarnError, TimeoutError) as error:
            _log.warning("cannot abort a maintenance", maintenance_id=maintenance.id, error=str(error))
        except Exception:  # noqa: BLE001 - an actuator may raise anything; the log has the trace
            _log.exception("an actuator raised an exception", maintenance_id=maintenance.id)

    async def _record_results(self, results: dict[str, Progress | ActuatorFailure]) -> None:
        """Record results of the actuator, marked so that `_abort_ended` does not abort what it completed."""
        for maintenance_id, result in results.items():
            if isinstance(result, ActuatorFailure):
                reason, is_final = result.reason, result.is_final
                _log.warning("an actuator call failed", maintenance_id=maintenance_id, reason=reason, is_final=is_final)
        self._recorded |= results.keys()
        try:
            await self._engine.deadlines.record_results(results, self._settings.retry)
        finally:
            self._recorded -= results.keys()

    async def run(self) -> None:
        """Run until cancelled. If the store fails, try again each second."""
        while True:
            try:
                await self._run_round()
                continue
            except LeaseLost as error:
                _log.warning("the lease is lost; this replica starts nothing more", reason=error.message)
            except ForewarnError as error:
                _log.warning("cannot use the store; retrying", error=error.message)
            except Exception:  # noqa: BLE001 - the loop must survive a bug; the log has the trace
                _log.exception("a round of the scheduler failed; retrying")
            await asyncio.sleep(_STORE_RETRY_S)

    async def _run_round(self) -> None:
        self._woken.clear()  # before anything is read, so that a change meanwhile starts another round
        leadership = self._engine.leadership
        async with self._lock:
            await self._sync_clock_jump()
            if leadership.is_held:
                await self._carry_out_due()
            # Again, since each decision reads the clock and may have found a jump.
            await self._sync_clock_jump()
            await self._run_housekeeping()
            is_idle = self._is_full or not leadership.is_held
            deadline = None if is_idle else await self._engine.deadlines.next_deadline(self._calls)
            if leadership.is_held and self._engine.clock.guard.jump is None:
                deadline = _pick_earlier(deadline, self._rollout_driver.until)
            self._next = deadline
        if self._clock.is_virtual:
            await self._woken.wait()
            return
        until = min(self._housekeeping_at, self._next or self._housekeeping_at)
        await wait_until_or_event(self._clock, until, self._woken)

    async def advance_clock(self, by: timedelta) -> datetime:
        """Move a virtual clock, carrying out every deadline on the way at its own moment.

        Returns:
            The new time.

        Raises:
            InvalidRequest: The clock is real, or `by` is negative.
        """
        clock = self._clock
        if not isinstance(clock, VirtualClock):
            raise InvalidRequest("the clock is real: start the service with --clock virtual to advance it")
        if by < timedelta(0):
            raise InvalidRequest("the clock cannot be advanced by a negative span")
        async with self._lock:
            target = clock.now() + by
            if self._engine.rollouts.may_be_active:
                await self._carry_out_due()
            for _ in range(_STEPS_MAX):
                deadline = _pick_earlier(await self._engine.deadlines.next_deadline(), self._rollout_driver.until)
                if deadline is None or deadline > target:
                    break
                # A deadline may lie in the past, and a virtual clock cannot go back.
                clock.set(max(deadline, clock.now()))
                await self._carry_out_batch()  # what becomes due through it is handled as the next deadline
                if self._engine.rollouts.may_be_active:
                    await self._carry_out_due()
            clock.set(target)
            await self._run_housekeeping()
        return target

    @property
    def _is_full(self) -> bool:
        """True if no further call may begin; the end of one wakes the loop."""
        return len(self._calls) >= _CALLS_WAITING * self._settings.calls_max

    async def _sync_clock_jump(self) -> None:
        """Sync clock jumps with the database: periodically, on becoming leader, and while the clock is not trusted."""
        has_lead, self._has_lead = self._has_lead, self._engine.leadership.is_held
        is_new = self._has_lead and not has_lead
        if is_new or self._engine.clock.guard.jump is not None or self._clock.now() >= self._housekeeping_at:
            await self._engine.clock.sync_jump()

    async def _carry_out_due(self) -> None:
        """Carry out what is due until nothing is left at this moment."""
        is_done = False
        while not is_done:
            while await self._carry_out_batch():
                pass
            is_done = self._engine.clock.guard.jump is not None or not await self._rollout_driver.drive_rollouts()

    async def _carry_out_batch(self) -> bool:
        """Run all starts, then some actuator calls; return True if more may be due."""
        while True:
            due = await self._engine.deadlines.handle_due(self._settings.batch_max, self._calls)
            # Lateness counts until the documents are visible, not only until the commit.
            shown_at = self._clock.now()
            for due_at in due.due_at:
                self._on_lateness((shown_at - due_at).total_seconds())
            if not due.has_more:
                break
        while await self._engine.deadlines.check_alerts(self._settings.batch_max):
            pass
        if not due.jobs or self._is_full:
            return False
        await self._call_actuator(due.jobs)
        return True

    async def _call_actuator(self, jobs: tuple[Maintenance, ...]) -> None:
        """Call the actuator for each; answers within this iteration of the event loop share one transaction."""
        unclaimed = [] if self._actuator.is_observable else [m.id for m in jobs if m.begun_at is None]
        # Committed before the call: an actuator that cannot be observed must not be called twice.
        claimed = await self._engine.deadlines.claim_maintenances(unclaimed) if unclaimed else set[str]()
        if self._clock.is_virtual and len(jobs) == 1:
            result = await self._call_actuator_for(jobs[0], is_claimed=jobs[0].id in claimed)
            await self._record_results({jobs[0].id: result})
            return
        results: dict[str, Progress | ActuatorFailure] = {}
        slow = {m.id: asyncio.ensure_future(self._call_actuator_for(m, is_claimed=m.id in claimed)) for m in jobs}
        if self._clock.is_virtual:
            await asyncio.gather(*slow.values())
        else:
            # Let the calls begin and quick actuators answer; slow ones are recorded later, each on its own.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        for maintenance_id in [i for i, task in slow.items() if task.done()]:
            results[maintenance_id] = slow.pop(maintenance_id).result()
        for maintenance_id, task in slow.items():
            self._calls[maintenance_id] = asyncio.ensure_future(self._record_later(maintenance_id, task))
        if results:
            await self._record_results(results)

    async def _call_actuator_for(self, maintenance: Maintenance, *, is_claimed: bool) -> Progress | ActuatorFailure:
        is_execution = is_claimed
        try:
            async with self._slots, asyncio.timeout(self._settings.call_timeout.total_seconds()):
                # The call may have waited for a slot for longer than the lease lasts.
                self._engine.leadership.ensure_leader()
                now = self._clock.now()
                progress = None if is_claimed else await self._actuator.observe(maintenance, now)
                if progress is None:
                    self._engine.leadership.ensure_leader()  # `observe` may have taken longer than the lease lasts
                    # With a lease, each call runs in its own task, so the others do not see this value.
                    BEGIN_BEFORE_S.set(self._engine.leadership.until_s)
                    is_execution = True
                    reach_failpoint(FailPoint.BEFORE_EXECUTE)
                    progress = await self._actuator.execute(maintenance, now)
                    reach_failpoint(FailPoint.EXECUTED)
                return progress
        except LeaseLost:
            # Not a failure of the actuator: nothing is recorded, and the new leader asks it.
            raise
        except TimeoutError:
            # The call may have begun something before it timed out, unlike one that was refused.
            return ActuatorFailure(reason=f"no answer within {self._settings.call_timeout}")
        except ActuationFailed as error:
            return ActuatorFailure(reason=error.message, is_final=True)
        except ActuatorBusy as error:
            return ActuatorFailure(reason=error.message, has_begun_nothing=True, attempts_min=error.tries)
        except ForewarnError as error:
            # By contract a failed `execute` has begun nothing; a failed `observe` leaves that open.
            return ActuatorFailure(reason=error.message, has_begun_nothing=is_execution)
        except Exception as error:  # noqa: BLE001 - an actuator may raise anything; the log has the trace
            _log.exception("an actuator raised an exception", maintenance_id=maintenance.id)
            return ActuatorFailure(reason=f"{type(error).__name__}: {error}")

    async def _record_later(self, maintenance_id: str, task: asyncio.Task[Progress | ActuatorFailure]) -> None:
        try:
            await self._record_results({maintenance_id: await task})
        except ForewarnError as error:
            _log.warning("cannot record an actuator result; it is queried again", error=error.message)
        finally:
            self._calls.pop(maintenance_id, None)
            self._woken.set()

    async def _run_housekeeping(self) -> None:
        now = self._clock.now()
        if now < self._housekeeping_at:
            return
        self._housekeeping_at = now + _REMEMBER_EVERY
        # On every replica, since each knows only the requests that it has answered.
        await self._engine.authority.store_last_polls()
        if not self._engine.leadership.is_held or now < self._prune_at:
            return
        self._prune_at = now + _PRUNE_EVERY
        if self._clock.is_virtual:
            await self._prune_history()
        elif self._pruning is None or self._pruning.done():
            # In its own task: deleting a million maintenances takes minutes, and starts must be on time.
            self._pruning = asyncio.ensure_future(self._prune_history())

    async def _prune_history(self) -> None:
        pace = self._settings
        audit = max(pace.audit, pace.history)
        try:
            await self._engine.retention.prune_history(pace.history, pace.outcomes, pace.entries_max, audit)
        except ForewarnError as error:
            _log.warning("cannot prune the history; retrying later", error=error.message)
        except Exception:  # noqa: BLE001 - a bug here must not go unseen; the log has the trace
            _log.exception("pruning the history failed; retrying later")

    async def stop(self) -> None:
        """Cancel the calls under way, which are repeated after the next start, and store the last request times."""
        pruning = [] if self._pruning is None else [self._pruning]
        for task in (*self._calls.values(), *self._aborts, *pruning):
            task.cancel()
        await self._rollout_driver.stop()
        await self._engine.authority.store_last_polls()


def _pick_earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((moment for moment in (one, other) if moment is not None), default=None)
