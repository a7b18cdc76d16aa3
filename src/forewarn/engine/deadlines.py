"""Commands of the scheduler: start what is due, record actuator results, notice silence and lateness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from forewarn.core import enablement, settlement
from forewarn.core.actuator_result import ActuatorFailure, Progress, RetryPolicy, apply_result, mark_begun
from forewarn.core.alerting import run_alert_check
from forewarn.core.decision import ChangeSet, Draft, WorkingSet
from forewarn.core.model import Audience, EntryKind, Maintenance, MaintenanceState
from forewarn.engine.clock_guard import describe_jump
from forewarn.engine.transaction import Committer, trace_command
from forewarn.errors import Conflict
from forewarn.store.contract import Reader, Transaction

__all__ = ["DeadlineCommands", "DueWork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWork:
    """Result of one check of the deadlines.

    Attributes:
        started: Lateness of each start, in seconds.
        jobs: Started maintenances whose actuator is to be called now.
        has_more: True if more may be due: check again at once.
    """

    started: tuple[float, ...] = ()
    jobs: tuple[Maintenance, ...] = ()
    has_more: bool = False


class DeadlineCommands(Committer):
    """Commands of the scheduler; only the leader may run them."""

    _alerts_due_at: datetime | None = None

    async def handle_due(self, limit: int, in_flight: Iterable[str] = ()) -> DueWork:
        """Start what is due, disable silent audiences, and find the maintenances whose actuator is to be called.

        Args:
            limit: Maximum number of maintenances in one transaction.
            in_flight: Maintenances with an actuator call in progress.
        """
        skipped = frozenset(in_flight)
        began_at = self.clock.now()

        def work(tx: Transaction) -> tuple[DueWork, ChangeSet, list[datetime]]:
            self.leadership.ensure_leader_in(tx)
            now = self._now(tx)
            # Read after the time, since reading the time may have detected a jump.
            is_held = self.clock_guard.jump is not None
            # The query also returns those in flight, so leave room for them.
            found = tx.list_due(now, limit + len(skipped), only_started=is_held)
            due = [m for m in found if m.id not in skipped]
            jobs = tuple(m for m in due if m.state is MaintenanceState.STARTED)
            waiting = [m for m in due if m.state is MaintenanceState.SCHEDULED]
            silent = [] if is_held else tx.list_inactive(now - self.rules.disable_after, limit)
            # The stored times of requests lag behind; the feed may know of a request since.
            asked = {a.key: self.feed.last_polled_at(a.key) for a in silent}
            heard = {a.key: moment for a in silent if (moment := asked[a.key]) and moment > _active_until(a)}
            tx.extend_active_until(heard)
            gone = [a for a in silent if a.key not in heard]
            if not (waiting or gone):
                return DueWork(jobs=jobs, has_more=bool(heard)), ChangeSet(), []
            changes = self._start_due(tx, waiting, [a.key for a in gone])
            after = [changes.maintenances.get(m.id, m) for m in waiting]
            moments = [m.due_at for m, now_is in zip(waiting, after, strict=True) if now_is.state is not m.state]
            jobs += tuple(m for m in after if m.state is MaintenanceState.STARTED)
            has_more = bool(gone) or len(found) == limit + len(skipped)
            return DueWork(jobs=jobs, has_more=has_more), changes, [moment for moment in moments if moment is not None]

        def publish(result: tuple[DueWork, ChangeSet, list[datetime]]) -> DueWork:
            due, changes, moments = result
            if changes.is_empty:
                return due
            with self.tracing.due_span(began_at):
                self._publish_changes(changes)
            if not moments:
                return due
            # Lateness counts until the documents are visible, not only until the commit.
            shown_at = self.clock.now()
            return replace(due, started=tuple((shown_at - moment).total_seconds() for moment in moments))

        return await self._run_transaction(work, publish)

    async def sync_clock_jump(self) -> None:
        """Store a clock jump in the database, or adopt its state there: another replica may have confirmed it."""
        guard = self.clock_guard
        if guard.jump is None or guard.is_stored:
            kept = await self.read(lambda reader: reader.get_clock_jump())
            # Stored before and gone now: the operator has confirmed it through another replica.
            if kept is None and guard.is_stored:
                guard.trust_again()
            elif kept is not None:
                guard.distrust(kept)
            return
        jump = guard.jump

        def work(tx: Transaction) -> ChangeSet:
            draft = self._make_draft(WorkingSet(), tx, "forewarn")
            # Another replica may have detected a jump at the same time; only the first is recorded.
            if tx.get_clock_jump() is None:
                tx.save_clock_jump(jump)
                draft.record(EntryKind.CLOCK_JUMPED, reason=describe_jump(jump))
            changes = draft.finish()
            tx.save(changes)
            return changes

        await self._run_transaction(work, self._publish_changes)
        guard.is_stored = True

    @trace_command
    async def confirm_clock(self, *, actor: str, reason: str | None = None) -> None:
        """Trust the clock again, as it is now; what is due by it starts.

        Raises:
            Conflict: The clock has not jumped.
        """

        def work(tx: Transaction) -> ChangeSet:
            draft = self._make_draft(WorkingSet(), tx, actor)
            jump = tx.get_clock_jump() or self.clock_guard.jump
            if jump is None:
                msg = "nothing to confirm: the clock has not jumped since it was last confirmed"
                raise Conflict(msg)
            tx.save_clock_jump(None)
            draft.record(EntryKind.CLOCK_CONFIRMED, reason=reason or describe_jump(jump))
            changes = draft.finish()
            tx.save(changes)
            return changes

        def publish(changes: ChangeSet) -> None:
            self.clock_guard.trust_again()
            self._publish_changes(changes)

        await self._run_transaction(work, publish)

    async def check_alerts(self, limit: int) -> bool:
        """Note announced events that no VM has seen, and late maintenances; return whether more checks are due.

        Args:
            limit: Maximum number of maintenances in one transaction.
        """
        # `next_deadline` has read the time of the next check, so most rounds need no transaction.
        if self._alerts_due_at is None or self._alerts_due_at > self.clock.now():
            return False

        def work(tx: Transaction) -> tuple[bool, ChangeSet]:
            self.leadership.ensure_leader_in(tx)
            looks = tx.list_due_alert_checks(self._now(tx), limit)
            state = tx.load_maintenances(look.maintenance_id for look in looks)
            asked = {
                key: moment for key, a in state.audiences.items() if (moment := self._last_polled_at(a)) is not None
            }
            draft = self._make_draft(state, tx, "forewarn")
            following = {look.maintenance_id: run_alert_check(draft, look, asked) for look in looks}
            changes = draft.finish()
            # Last, since the draft plans checks from the state alone and does not know that one was just made.
            changes.alert_checks.update(following)
            tx.save(changes)
            return len(looks) == limit, changes

        def publish(result: tuple[bool, ChangeSet]) -> bool:
            self._publish_changes(result[1])
            return result[0]

        return await self._run_transaction(work, publish)

    def _last_polled_at(self, audience: Audience) -> datetime | None:
        moments = [audience.active_until, self.feed.last_polled_at(audience.key)]
        return max((moment for moment in moments if moment is not None), default=None)

    def _start_due(self, tx: Transaction, due: list[Maintenance], audience_keys: list[str]) -> ChangeSet:
        state = tx.load_audiences(audience_keys) if audience_keys else WorkingSet()
        state.maintenances.update((m.id, m) for m in due)  # read earlier in this transaction
        state = tx.load_maintenances({*(m.id for m in due), *state.focus}, into=state)
        draft = self._make_draft(state, tx, "forewarn")
        for key in audience_keys:
            enablement.disable_audience(draft, draft.audiences[key])
        settlement.settle_maintenances(draft)
        changes = draft.finish()
        tx.save(changes)
        return changes

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
            self.leadership.ensure_leader_in(tx)
            return tx.load_maintenances(wanted)

        return await self._run_decision(load, decide, actor="actuator")

    async def record_results(self, results: Mapping[str, Progress | ActuatorFailure], retry: RetryPolicy) -> None:
        """Record the answers of actuators."""

        def load(tx: Transaction) -> WorkingSet:
            self.leadership.ensure_leader_in(tx)
            # Only the end of a maintenance can free its neighbours, so a mere progress report does not load them.
            ends = any(isinstance(r, ActuatorFailure) or r.is_complete for r in results.values())
            return tx.load_maintenances(results, with_neighbours=ends)

        def decide(draft: Draft) -> None:
            for maintenance_id, result in results.items():
                maintenance = draft.maintenances.get(maintenance_id)
                # It may have ended while the actuator was called, for example completed by an operator.
                if maintenance is not None and maintenance.state is MaintenanceState.STARTED:
                    apply_result(draft, maintenance, result, retry)

        await self._run_decision(load, decide, actor="actuator")

    async def next_deadline(self, in_flight: Iterable[str] = ()) -> datetime | None:
        """Return the next moment at which `handle_due` or `check_alerts` has something to do."""
        skipped = list(in_flight)
        is_held = self.clock_guard.jump is not None

        def read(reader: Reader) -> datetime | None:
            moments = [reader.next_due_at(skipped, only_started=is_held)]
            if self.rules.alert_thresholds.is_on:
                self._alerts_due_at = reader.next_alert_check_at()
                moments.append(self._alerts_due_at)
            silent_at = None if is_held else reader.next_inactive_at()
            if silent_at is not None:
                moments.append(silent_at + self.rules.disable_after)
            return min((m for m in moments if m is not None), default=None)

        return await self.read(read)


def _active_until(audience: Audience) -> datetime:
    return audience.active_until or datetime.min.replace(tzinfo=UTC)
