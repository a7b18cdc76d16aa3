"""Commands for rollouts: plan, create, pause, resume, abort and drive them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from forewarn.core import ending, planning, rollout_commands, rollout_steps, settlement
from forewarn.core.decision import Changes, Draft, State
from forewarn.core.inventory import Inventory
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState
from forewarn.core.rollout import Health, Rollout, RolloutSpec
from forewarn.core.rollout_plan import Plan, plan
from forewarn.core.rollout_step import Cancel, CheckHealth, Facts, Schedule, Step, Wait
from forewarn.engine.transaction import Committer, Key, recall, traced
from forewarn.errors import CallerError, LimitExceeded, NotFound
from forewarn.store.contract import Outcome, Reader, StoredRollout, Transaction
from forewarn.wire.rollout import decode_rollout, encode_rollout

__all__ = ["Driven", "RolloutCommands"]

_ACTIVE_MAX = 100
_TURNS_MAX = 100
"""Maximum number of decisions for one rollout in a transaction; the rest follows in the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """Result of driving the rollouts once.

    Attributes:
        checks: Health checks to run, by rollout id.
        until: Time to drive again if nothing happens before; None for no such time.
        has_more: True if a rollout can go on at once.
        has_changed: True if anything was announced, canceled or changed.
    """

    checks: dict[str, CheckHealth]
    until: datetime | None
    has_more: bool
    has_changed: bool


class RolloutCommands(Committer):
    """Commands of operators and of the rollout driver."""

    has_rollouts = True
    """True if a rollout may be active; a hint that saves a query."""

    async def catch_up(self) -> bool:
        """Publish what others have committed, and notice rollouts created through a replica that is not the leader."""
        has_news = await super().catch_up()
        if has_news and not self.has_rollouts:
            self.has_rollouts = await self._are_there()
        return has_news

    async def plan_rollout(self, spec: RolloutSpec) -> Plan:
        """Return the plan of a rollout without starting it; see `core.rollout_plan.plan` for errors."""
        inventory = await self.read_long(lambda reader: reader.inventory())
        would_warn = partial(self.would_warn, spec.cause)
        return plan(spec, inventory, self.clock.now(), rules=self.rules, would_warn=would_warn)

    @traced
    async def create_rollout(self, spec: RolloutSpec, *, actor: str, key: Key | None = None) -> Rollout:
        """Plan a rollout and start it.

        Raises:
            LimitExceeded: Too many rollouts are active.
        """

        def work(tx: Transaction) -> tuple[Rollout, Changes]:
            known = recall(tx, key)
            if known is not None:
                return _stored(tx, known["rollout"]), Changes()
            draft = self._draft(State(), tx, actor)
            if len(tx.rollouts(is_ended=False, limit=_ACTIVE_MAX)) >= _ACTIVE_MAX:
                msg = f"{_ACTIVE_MAX} rollouts are under way already: abort one, or wait"
                raise LimitExceeded(msg)
            planned = plan(spec, tx.inventory(), draft.now, rules=self.rules)
            made = rollout_commands.create(planned, draft.new_id("rollout"), draft.now)
            started = rollout_commands.start(made, draft.now)
            if key is not None:
                content = {"rollout": started.id}
                tx.keep_outcome(Outcome(key=key.key, fingerprint=key.fingerprint, content=content, at=draft.now))
            count = len(started.hosts)
            return started, self._keep(tx, draft, started, f"started: {count} host{'' if count == 1 else 's'}")

        return await self._rollout_command(work)

    @traced
    async def change_rollout(
        self, rollout_id: str, change: Callable[[Rollout, datetime], Rollout], word: str, *, actor: str
    ) -> Rollout:
        """Pause, resume or abort a rollout.

        Args:
            rollout_id: Id of the rollout.
            change: Function of `core.rollout_commands`.
            word: Action, as the audit log names it.
            actor: Actor named in the audit log.

        Raises:
            NotFound: No rollout has this id.
            Conflict: Its state does not allow this.
        """

        def work(tx: Transaction) -> tuple[Rollout, Changes]:
            draft = self._draft(State(), tx, actor)
            changed = change(_stored(tx, rollout_id), draft.now)
            return changed, self._keep(tx, draft, changed, word)

        return await self._rollout_command(work)

    async def rollout(self, rollout_id: str) -> tuple[Rollout, Wait | None]:
        """Return a rollout and the step it waits for; None if it does not wait.

        Raises:
            NotFound: No rollout has this id.
        """

        def read(reader: Reader) -> tuple[Rollout, Wait | None]:
            found = _stored(reader, rollout_id)
            if found.is_ended:
                return found, None
            steps = rollout_steps.next_steps(found, reader.inventory(), _facts(reader, found, None), self.clock.now())
            return found, next((step for step in steps if isinstance(step, Wait)), None)

        return await self.read(read)

    async def drive_rollouts(self, health: Mapping[str, Health]) -> Driven:
        """Take every active rollout as far as it can go now.

        Args:
            health: Results of health checks, by rollout id.

        Raises:
            LeaseLost: Another replica is the leader.
        """

        def work(tx: Transaction) -> tuple[Driven, list[Changes]]:
            self.leadership.check(tx)
            checks: dict[str, CheckHealth] = {}
            changes: list[Changes] = []
            moments: list[datetime] = []
            has_more = False
            stored = tx.rollouts(is_ended=False, limit=_ACTIVE_MAX)
            inventory = tx.inventory() if stored else Inventory()
            for each in stored:
                turn = _Turn(self, tx, decode_rollout(each.content), inventory, health.get(each.id))
                turn.take()
                changes += turn.changes
                has_more |= turn.has_more
                if turn.check is not None:
                    checks[each.id] = turn.check
                if turn.until is not None:
                    moments.append(turn.until)
            until = min(moments, default=None)
            driven = Driven(checks=checks, until=until, has_more=has_more, has_changed=bool(changes))
            return driven, changes

        def publish(result: tuple[Driven, list[Changes]]) -> Driven:
            for changes in result[1]:
                self._publish(changes)
            return result[0]

        driven = await self._command(work, publish)
        self.has_rollouts = (
            driven.has_more or bool(driven.checks) or driven.until is not None or await self._are_there()
        )
        return driven

    async def _are_there(self) -> bool:
        return bool(await self.read(lambda reader: reader.rollouts(is_ended=False, limit=1)))

    async def _rollout_command(self, work: Callable[[Transaction], tuple[Rollout, Changes]]) -> Rollout:
        def publish(result: tuple[Rollout, Changes]) -> Rollout:
            self.has_rollouts = True
            self._publish(result[1])
            return result[0]

        return await self._command(work, publish)

    def _keep(self, tx: Transaction, draft: Draft, rollout: Rollout, word: str) -> Changes:
        """Store the rollout and record the action in the audit log."""
        draft.note(EntryKind.ROLLOUT, reason=f"rollout {rollout.id} {rollout.spec.name!r} {word}")
        changes = draft.finish()
        tx.save(changes)
        _keep(tx, rollout)
        return changes


class _Turn:
    """Driving of one rollout, as far as it can go in one transaction."""

    def __init__(
        self, commands: RolloutCommands, tx: Transaction, rollout: Rollout, inventory: Inventory, health: Health | None
    ) -> None:
        self.changes: list[Changes] = []
        self.check: CheckHealth | None = None
        self.until: datetime | None = None
        self.has_more = True
        self._commands = commands
        self._tx = tx
        self._rollout = rollout
        self._inventory = inventory
        self._health = health

    def take(self) -> None:
        before = self._rollout
        for _ in range(_TURNS_MAX):
            facts = _facts(self._tx, self._rollout, self._health)
            now = self._commands._now(self._tx)  # noqa: SLF001 - of this module
            self._rollout = rollout_steps.observe(self._rollout, facts, now)
            steps = rollout_steps.next_steps(self._rollout, self._inventory, facts, now)
            for each in steps:
                failures = self._rollout.failures
                self._carry_out(each, now)
                if self._rollout.failures > failures:
                    break  # the remaining steps were decided before this failure
            if not steps or isinstance(steps[-1], Wait):
                self.has_more = False
                break
        if self._rollout != before:
            self._store(before)

    def _store(self, before: Rollout) -> None:
        if self._rollout.state is before.state:
            _keep(self._tx, self._rollout)
            return
        reason = f": {self._rollout.reason}" if self._rollout.reason else ""
        draft = self._commands._draft(State(), self._tx, "forewarn")  # noqa: SLF001 - of this module
        word = f"{self._rollout.state.value}{reason}"
        self.changes.append(self._commands._keep(self._tx, draft, self._rollout, word))  # noqa: SLF001 - as above

    def _carry_out(self, each: Step, now: datetime) -> None:
        match each:
            case Schedule():
                self._schedule(each, now)
            case Cancel():
                self._cancel(each)
            case CheckHealth():
                self.check = each
            case Wait():
                self.until = each.until
            case _:
                self._rollout = rollout_steps.carry_out(self._rollout, each, now)

    def _schedule(self, each: Schedule, now: datetime) -> None:
        state = self._tx.load_request(each.request.hosts, each.request.vms)
        try:
            made = self._decide(state, lambda draft: planning.plan(draft, each.request))
        except CallerError as error:
            self._rollout = rollout_steps.refused(self._rollout, each.host, error.message, now)
            return
        ids = tuple(maintenance.id for maintenance in made)
        self._rollout = rollout_steps.scheduled(self._rollout, each.host, ids, now)

    def _cancel(self, each: Cancel) -> None:
        state = self._tx.load_maintenances([each.maintenance_id], with_neighbours=True)

        def decide(draft: Draft) -> list[Maintenance]:
            found = draft.maintenances.get(each.maintenance_id)
            if found is None or found.state not in {MaintenanceState.QUEUED, MaintenanceState.SCHEDULED}:
                return []
            return [ending.cancel(draft, found, reason=each.reason)]

        self._decide(state, decide)

    def _decide(self, state: State, decide: Callable[[Draft], list[Maintenance]]) -> list[Maintenance]:
        draft = self._commands._draft(state, self._tx, f"rollout:{self._rollout.id}")  # noqa: SLF001 - of this module
        made = decide(draft)
        settlement.settle(draft)
        changes = draft.finish()
        self._tx.save(changes)
        self.changes.append(changes)
        return made


def _facts(reader: Reader, rollout: Rollout, health: Health | None) -> Facts:
    watched = {i: reader.maintenance(i) for i in rollout.watched}
    mine = set(watched)
    active = (MaintenanceState.QUEUED, MaintenanceState.SCHEDULED, MaintenanceState.STARTED)
    others = reader.maintenances(states=active, limit=10_000).items
    return Facts(maintenances=watched, others=tuple(m for m in others if m.id not in mine), health=health)


def _stored(reader: Reader, rollout_id: str) -> Rollout:
    found = reader.rollout(rollout_id)
    if found is None:
        msg = f"rollout {rollout_id!r} does not exist: see 'forewarn rollout list'"
        raise NotFound(msg, id=rollout_id)
    return decode_rollout(found.content)


def _keep(tx: Transaction, rollout: Rollout) -> None:
    tx.keep_rollout(
        StoredRollout(
            id=rollout.id,
            name=rollout.spec.name,
            created_at=rollout.created_at,
            is_ended=rollout.is_ended,
            content=encode_rollout(rollout),
        )
    )
