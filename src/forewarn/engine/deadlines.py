"""Commands of the scheduler: start what is due, record actuator results, notice silence and lateness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from forewarn.core import service, settlement
from forewarn.core.attention import take_look
from forewarn.core.decision import Changes, Draft, State
from forewarn.core.model import Audience, EntryKind, Maintenance, MaintenanceState
from forewarn.core.progress import Failure, Progress, Retry, advance, claim
from forewarn.engine.clock_guard import describe_jump
from forewarn.engine.transaction import Committer, traced
from forewarn.errors import Conflict
from forewarn.store.contract import Reader, Transaction

__all__ = ["DeadlineCommands", "Due"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
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

    _look_at: datetime | None = None

    async def handle_due(self, limit: int, in_flight: Iterable[str] = ()) -> Due:
        """Start what is due, disable silent audiences, and find the maintenances whose actuator is to be called.

        Args:
            limit: Maximum number of maintenances in one transaction.
            in_flight: Maintenances with an actuator call in progress.
        """
        skipped = frozenset(in_flight)
        began_at = self.clock.now()

        def work(tx: Transaction) -> tuple[Due, Changes, list[datetime]]:
            self.leadership.check(tx)
            now = self._now(tx)
            is_held = self.clock_guard.jump is not None
            # The query also returns those in flight, so leave room for them.
            found = tx.due(now, limit + len(skipped), only_started=is_held)
            due = [m for m in found if m.id not in skipped]
            jobs = tuple(m for m in due if m.state is MaintenanceState.STARTED)
            waiting = [m for m in due if m.state is MaintenanceState.SCHEDULED]
            silent = [] if is_held else tx.silent(now - self.rules.disable_after, limit)
            asked = {a.key: self.feed.asked_at(a.key) for a in silent}
            heard = {a.key: moment for a in silent if (moment := asked[a.key]) and moment > _active_until(a)}
            tx.touch(heard)
            gone = [a for a in silent if a.key not in heard]
            if not (waiting or gone):
                return Due(jobs=jobs, has_more=bool(heard)), Changes(), []
            changes = self._start_due(tx, waiting, [a.key for a in gone])
            after = [changes.maintenances.get(m.id, m) for m in waiting]
            moments = [m.due_at for m, now_is in zip(waiting, after, strict=True) if now_is.state is not m.state]
            jobs += tuple(m for m in after if m.state is MaintenanceState.STARTED)
            has_more = bool(gone) or len(found) == limit + len(skipped)
            return Due(jobs=jobs, has_more=has_more), changes, [moment for moment in moments if moment is not None]

        def publish(result: tuple[Due, Changes, list[datetime]]) -> Due:
            due, changes, moments = result
            if changes.is_empty:
                return due
            with self.tracing.due(began_at):
                self._publish(changes)
            if not moments:
                return due
            shown_at = self.clock.now()
            return replace(due, started=tuple((shown_at - moment).total_seconds() for moment in moments))

        return await self._command(work, publish)

    async def mind_clock(self) -> None:
        """Store a clock jump in the database, or adopt its state there: another replica may have confirmed it."""
        guard = self.clock_guard
        if guard.jump is None or guard.is_kept:
            kept = await self.read(lambda reader: reader.clock_jump())
            if kept is None and guard.is_kept:
                guard.release()
            elif kept is not None:
                guard.hold(kept)
            return
        jump = guard.jump

        def work(tx: Transaction) -> Changes:
            draft = self._draft(State(), tx, "forewarn")
            if tx.clock_jump() is None:
                tx.keep_clock_jump(jump)
                draft.note(EntryKind.CLOCK_JUMPED, reason=describe_jump(jump))
            changes = draft.finish()
            tx.save(changes)
            return changes

        await self._command(work, self._publish)
        guard.is_kept = True

    @traced
    async def confirm_clock(self, *, actor: str, reason: str | None = None) -> None:
        """Trust the clock again, as it is now; what is due by it starts.

        Raises:
            Conflict: The clock has not jumped.
        """

        def work(tx: Transaction) -> Changes:
            draft = self._draft(State(), tx, actor)
            jump = tx.clock_jump() or self.clock_guard.jump
            if jump is None:
                msg = "the clock has not jumped since it was confirmed: there is nothing to confirm"
                raise Conflict(msg)
            tx.keep_clock_jump(None)
            draft.note(EntryKind.CLOCK_CONFIRMED, reason=reason or describe_jump(jump))
            changes = draft.finish()
            tx.save(changes)
            return changes

        def publish(changes: Changes) -> None:
            self.clock_guard.release()
            self._publish(changes)

        await self._command(work, publish)

    async def look(self, limit: int) -> bool:
        """Note announced events that no VM has seen, and late maintenances; return whether more checks are due.

        Args:
            limit: Maximum number of maintenances in one transaction.
        """
        if self._look_at is None or self._look_at > self.clock.now():
            return False

        def work(tx: Transaction) -> tuple[bool, Changes]:
            self.leadership.check(tx)
            looks = tx.looks(self._now(tx), limit)
            state = tx.load_maintenances(look.maintenance_id for look in looks)
            asked = {key: moment for key, a in state.audiences.items() if (moment := self._asked_at(a)) is not None}
            draft = self._draft(state, tx, "forewarn")
            following = {look.maintenance_id: take_look(draft, look, asked) for look in looks}
            changes = draft.finish()
            changes.looks.update(following)
            tx.save(changes)
            return len(looks) == limit, changes

        def publish(result: tuple[bool, Changes]) -> bool:
            self._publish(result[1])
            return result[0]

        return await self._command(work, publish)

    def _asked_at(self, audience: Audience) -> datetime | None:
        moments = [audience.active_until, self.feed.asked_at(audience.key)]
        return max((moment for moment in moments if moment is not None), default=None)

    def _start_due(self, tx: Transaction, due: list[Maintenance], audience_keys: list[str]) -> Changes:
        state = tx.load_audiences(audience_keys) if audience_keys else State()
        state.maintenances.update((m.id, m) for m in due)  # read earlier in this transaction
        state = tx.load_maintenances({*(m.id for m in due), *state.focus}, into=state)
        draft = self._draft(state, tx, "forewarn")
        for key in audience_keys:
            service.disable(draft, draft.audiences[key])
        settlement.settle(draft)
        changes = draft.finish()
        tx.save(changes)
        return changes

    async def claim(self, ids: Iterable[str]) -> set[str]:
        """Commit that an actuator is about to execute these; return those that were not claimed before."""
        wanted = set(ids)

        def decide(draft: Draft) -> set[str]:
            found = [draft.maintenances[i] for i in wanted if i in draft.maintenances]
            mine = [m for m in found if m.state is MaintenanceState.STARTED and m.begun_at is None]
            for maintenance in mine:
                claim(draft, maintenance)
            return {m.id for m in mine}

        def load(tx: Transaction) -> State:
            self.leadership.check(tx)
            return tx.load_maintenances(wanted)

        return await self._decide(load, decide, actor="actuator")

    async def record(self, results: Mapping[str, Progress | Failure], retry: Retry) -> None:
        """Record the answers of actuators."""

        def load(tx: Transaction) -> State:
            self.leadership.check(tx)
            ends = any(isinstance(r, Failure) or r.is_complete for r in results.values())
            return tx.load_maintenances(results, with_neighbours=ends)

        def decide(draft: Draft) -> None:
            for maintenance_id, result in results.items():
                maintenance = draft.maintenances.get(maintenance_id)
                if maintenance is not None and maintenance.state is MaintenanceState.STARTED:
                    advance(draft, maintenance, result, retry)

        await self._decide(load, decide, actor="actuator")

    async def next_deadline(self, in_flight: Iterable[str] = ()) -> datetime | None:
        """Return the next moment at which `handle_due` or `look` has something to do."""
        skipped = list(in_flight)
        is_held = self.clock_guard.jump is not None

        def read(reader: Reader) -> datetime | None:
            moments = [reader.next_due_at(skipped, only_started=is_held)]
            if self.rules.alert_thresholds.is_on:
                self._look_at = reader.next_look_at()
                moments.append(self._look_at)
            silent_at = None if is_held else reader.next_silent_at()
            if silent_at is not None:
                moments.append(silent_at + self.rules.disable_after)
            return min((m for m in moments if m is not None), default=None)

        return await self.read(read)


def _active_until(audience: Audience) -> datetime:
    return audience.active_until or datetime.min.replace(tzinfo=UTC)
