"""Commands of the scheduler: start what is due, record actuator results, notice silence and lateness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from forewarn.core.maintenance import enablement, settlement
from forewarn.core.maintenance.actuator_result import ActuatorFailure, Progress, RetryPolicy, apply_result, mark_begun
from forewarn.core.maintenance.alerting import run_alert_check
from forewarn.core.maintenance.decision import ChangeSet, Draft, WorkingSet
from forewarn.core.model import SERVICE, Audience, Maintenance, MaintenanceState
from forewarn.engine.transaction import Commands, TransactionResult, save_draft
from forewarn.store.contract import Reader, Transaction

__all__ = ["DeadlineCommands", "DueWork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWork:
    """Result of one check of the deadlines.

    Attributes:
        due_at: Due time of each maintenance that was started.
        jobs: Started maintenances whose actuator is to be called now.
        has_more: True if more may be due: check again at once.
    """

    due_at: tuple[datetime, ...] = ()
    jobs: tuple[Maintenance, ...] = ()
    has_more: bool = False


class DeadlineCommands(Commands):
    """Commands of the scheduler; only the leader may run them."""

    # Time of the next check of the alerts, as `next_deadline` has read it.
    _alerts_due_at: datetime | None = None

    async def handle_due(self, limit: int, in_flight: Iterable[str] = ()) -> DueWork:
        """Start what is due, disable silent audiences, and find the maintenances whose actuator is to be called.

        Args:
            limit: Maximum number of maintenances in one transaction.
            in_flight: Maintenances with an actuator call in progress.
        """
        skipped = frozenset(in_flight)
        began_at = self._committer.clock.now()

        def work(tx: Transaction) -> TransactionResult[DueWork]:
            self._committer.leadership.ensure_leader_in(tx)
            now = self._committer.read_now(tx)
            # Read after the time, since reading the time may have detected a jump.
            is_held = self._committer.clock_guard.jump is not None
            # The query also returns those in flight, so leave room for them.
            found = tx.list_due(now, limit + len(skipped), only_started=is_held)
            due = [m for m in found if m.id not in skipped]
            jobs = tuple(m for m in due if m.state is MaintenanceState.STARTED)
            waiting = [m for m in due if m.state is MaintenanceState.SCHEDULED]
            silent = [] if is_held else tx.list_inactive(now - self._committer.rules.disable_after, limit)
            # The stored times of requests lag behind; the feed may know of a request since.
            asked = ((a, self._committer.feed.last_polled_at(a.key)) for a in silent)
            heard = {a.key: at for a, at in asked if at and a.active_until and at > a.active_until}
            tx.extend_active_until(heard)
            gone = [a for a in silent if a.key not in heard]
            if not (waiting or gone):
                # Audiences that have asked since took up part of the limit, so silent ones may remain.
                return TransactionResult(answer=DueWork(jobs=jobs, has_more=bool(heard)))
            changes = self._start_due(tx, waiting, [a.key for a in gone])
            after = [changes.maintenances.get(m.id, m) for m in waiting]
            begun = [m for m, now_is in zip(waiting, after, strict=True) if now_is.state is not m.state]
            due_at = tuple(m.due_at for m in begun if m.due_at is not None)
            jobs += tuple(m for m in after if m.state is MaintenanceState.STARTED)
            has_more = bool(gone) or len(found) == limit + len(skipped)
            return TransactionResult(
                answer=DueWork(due_at=due_at, jobs=jobs, has_more=has_more),
                changes=[changes],
                due_since=None if changes.is_empty else began_at,
            )

        return await self._committer.commit(work)

    async def check_alerts(self, limit: int) -> bool:
        """Note announced events that no VM has seen, and late maintenances; return whether more checks are due.

        Args:
            limit: Maximum number of maintenances in one transaction.
        """
        # Most rounds need no transaction.
        if self._alerts_due_at is None or self._alerts_due_at > self._committer.clock.now():
            return False

        def work(tx: Transaction) -> TransactionResult[bool]:
            self._committer.leadership.ensure_leader_in(tx)
            checks = tx.list_due_alert_checks(self._committer.read_now(tx), limit)
            state = tx.load_maintenances(check.maintenance_id for check in checks)
            asked = {
                key: moment for key, a in state.audiences.items() if (moment := self._last_polled_at(a)) is not None
            }
            draft = self._committer.make_draft(tx, SERVICE, state)
            following = {check.maintenance_id: run_alert_check(draft, check, asked) for check in checks}
            changes = draft.finish()
            # Last, since the draft plans checks from the state alone and does not know that one was just made.
            changes.alert_checks.update(following)
            # Not `save_draft`, which skips empty decisions: even a check that finds nothing has a successor.
            tx.save(changes)
            return TransactionResult(answer=len(checks) == limit, changes=[changes])

        return await self._committer.commit(work)

    def _last_polled_at(self, audience: Audience) -> datetime | None:
        moments = [audience.active_until, self._committer.feed.last_polled_at(audience.key)]
        return max((moment for moment in moments if moment is not None), default=None)

    def _start_due(self, tx: Transaction, due: list[Maintenance], audience_keys: list[str]) -> ChangeSet:
        state = tx.load_audiences(audience_keys) if audience_keys else WorkingSet()
        state.maintenances.update((m.id, m) for m in due)  # read earlier in this transaction
        state = tx.load_maintenances({*(m.id for m in due), *state.focus}, into=state)
        draft = self._committer.make_draft(tx, SERVICE, state)
        # Before settling: without the vote of a silent audience, all votes may be in, and the start due (R86).
        for key in audience_keys:
            enablement.disable_audience(draft, draft.audiences[key])
        settlement.settle_maintenances(draft)
        return save_draft(tx, draft)

    async def claim_maintenances(self, ids: Iterable[str]) -> set[str]:
        """Commit that an actuator is about to execute these; return those that were not claimed before."""
        wanted = set(ids)

        def decide(draft: Draft) -> set[str]:
            found = [draft.maintenances[i] for i in wanted if i in draft.maintenances]
            # `begun_at` is the claim: of two callers that race for a maintenance, the second finds it set.
            mine = [m for m in found if m.state is MaintenanceState.STARTED and m.begun_at is None]
            for maintenance in mine:
                mark_begun(draft, maintenance)
            return {m.id for m in mine}

        def load(tx: Transaction) -> WorkingSet:
            self._committer.leadership.ensure_leader_in(tx)
            return tx.load_maintenances(wanted)

        return await self._committer.decide(load, decide, actor="actuator")

    async def record_results(self, results: Mapping[str, Progress | ActuatorFailure], retry: RetryPolicy) -> None:
        """Record the answers of actuators."""

        def load(tx: Transaction) -> WorkingSet:
            self._committer.leadership.ensure_leader_in(tx)
            # Only the end of a maintenance can free its neighbours, so a mere progress report does not load them.
            ends = any(isinstance(r, ActuatorFailure) or r.is_complete for r in results.values())
            return tx.load_maintenances(results, with_neighbours=ends)

        def decide(draft: Draft) -> None:
            for maintenance_id, result in results.items():
                maintenance = draft.maintenances.get(maintenance_id)
                # It may have ended while the actuator was called, for example completed by an operator.
                if maintenance is not None and maintenance.state is MaintenanceState.STARTED:
                    apply_result(draft, maintenance, result, retry)

        await self._committer.decide(load, decide, actor="actuator")

    async def next_deadline(self, in_flight: Iterable[str] = ()) -> datetime | None:
        """Return the next moment at which `handle_due` or `check_alerts` has something to do."""
        skipped = list(in_flight)
        is_held = self._committer.clock_guard.jump is not None

        def read(reader: Reader) -> datetime | None:
            # Those in flight are due already: with them the scheduler would never sleep. The end of each call wakes it.
            moments = [reader.next_due_at(skipped, only_started=is_held)]
            if self._committer.rules.alert_thresholds.is_on:
                self._alerts_due_at = reader.next_alert_check_at()
                moments.append(self._alerts_due_at)
            silent_at = None if is_held else reader.next_inactive_at()
            if silent_at is not None:
                moments.append(silent_at + self._committer.rules.disable_after)
            return min((m for m in moments if m is not None), default=None)

        return await self._committer.read(read)
