"""Commands for rollouts: plan, create, pause, resume, abort and drive them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from forewarn.core.fast_replace import replace
from forewarn.core.hints import SEE_ROLLOUTS
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance import planning, settlement
from forewarn.core.maintenance.decision import ChangeSet, Draft, WorkingSet
from forewarn.core.maintenance.lifecycle import Trigger
from forewarn.core.model import SERVICE, EntryKind, Maintenance, MaintenanceState
from forewarn.core.rollout import rollout_commands, rollout_decision
from forewarn.core.rollout.rollout import HealthResult, Rollout, RolloutSpec
from forewarn.core.rollout.rollout_plan import RolloutPlan, plan_rollout
from forewarn.core.rollout.rollout_step_types import (
    CancelMaintenance,
    CheckHealth,
    RolloutFacts,
    ScheduleHost,
    Step,
    WaitForChange,
)
from forewarn.engine.idempotency import IdempotencyKey, recall_outcome, save_outcome
from forewarn.engine.transaction import Commands, Committer, TransactionResult, save_draft, trace_command
from forewarn.errors import CallerError, LimitExceeded, NotFound
from forewarn.store.contract import Reader, StoredRollout, Transaction
from forewarn.wire.rollout import decode_rollout, encode_rollout

__all__ = ["DriveResult", "RolloutCommands"]

_ACTIVE_MAX = 100
_TURNS_MAX = 100
"""Maximum number of decisions for one rollout in a transaction; the rest follows in the next."""
_COMPARED_MAX = 100
"""Maximum number of hosts that one decision compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveResult:
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


class RolloutCommands(Commands):
    """Commands of operators and of the rollout driver.

    Args:
        committer: Carries out the commands.

    Attributes:
        may_be_active: True if a rollout may be active; a hint that saves a query.
    """

    def __init__(self, *, committer: Committer) -> None:
        super().__init__(committer=committer)
        # Assumed at the start: the database may hold rollouts from before a restart.
        self.may_be_active = True
        self._changes_noted = 0
        committer.listeners.append(self._note_changes)
        committer.remote_listeners.append(self._note_remote_changes)

    def _note_changes(self, changes: ChangeSet) -> None:
        if any(entry.kind is EntryKind.ROLLOUT for entry in changes.entries):
            self._note_rollout()

    def _note_rollout(self) -> None:
        self.may_be_active = True
        self._changes_noted += 1

    async def _note_remote_changes(self) -> None:
        """Notice rollouts created through a replica that is not the leader."""
        self._changes_noted += 1
        if not self.may_be_active and await self._is_any_active():
            self.may_be_active = True

    async def plan(self, spec: RolloutSpec) -> RolloutPlan:
        """Return the plan of a rollout without starting it; see `core.rollout.rollout_plan.plan_rollout` for errors."""
        inventory = await self._committer.read_long(lambda reader: reader.get_inventory())
        would_warn = partial(self._committer.would_warn, spec.cause)
        return plan_rollout(
            spec, inventory, self._committer.clock.now(), rules=self._committer.rules, would_warn=would_warn
        )

    @trace_command("create rollout")
    async def create(self, spec: RolloutSpec, *, actor: str, key: IdempotencyKey | None = None) -> Rollout:
        """Plan a rollout and start it.

        Raises:
            LimitExceeded: Too many rollouts are active.
        """
        # Read before the transaction, so that approvals do not wait while a large inventory is read.
        inventory, version = await self._committer.read_long(
            lambda reader: (reader.get_inventory(), reader.get_inventory_version())
        )

        def change(tx: Transaction, draft: Draft) -> Rollout:
            known = recall_outcome(tx, key)
            if known is not None:
                return _load_rollout(tx, known["rollout"])
            if len(tx.list_rollouts(is_ended=False, limit=_ACTIVE_MAX)) >= _ACTIVE_MAX:
                raise LimitExceeded(f"{_ACTIVE_MAX} rollouts are active already: abort one, or wait")
            # Planned again, in the transaction: the inventory may have changed since the operator saw the plan.
            current = inventory if tx.get_inventory_version() == version else tx.get_inventory()
            planned = plan_rollout(spec, current, draft.now, rules=self._committer.rules)
            made = rollout_commands.create_rollout(planned, draft.new_id("rollout"), draft.now)
            started = rollout_commands.start_rollout(made, draft.now)
            save_outcome(tx, key, {"rollout": started.id}, draft.now)
            count = len(started.hosts)
            _store_and_record(tx, draft, started, f"started: {count} host{'' if count == 1 else 's'}")
            return started

        return await self._record(change, actor=actor)

    @trace_command("change rollout")
    async def change(
        self, rollout_id: str, change: Callable[[Rollout, datetime], Rollout], action: str, *, actor: str
    ) -> Rollout:
        """Pause, resume or abort a rollout.

        Args:
            rollout_id: Id of the rollout.
            change: Function of `core.rollout.rollout_commands`.
            action: Action, as the audit log names it.
            actor: Actor named in the audit log.

        Raises:
            NotFound: No rollout has this id.
            Conflict: Its state does not allow this.
        """

        def change_stored(tx: Transaction, draft: Draft) -> Rollout:
            changed = change(_load_rollout(tx, rollout_id), draft.now)
            _store_and_record(tx, draft, changed, action)
            return changed

        return await self._record(change_stored, actor=actor)

    async def read(self, rollout_id: str) -> tuple[Rollout, WaitForChange | None]:
        """Return a rollout and the step it waits for; None if it does not wait.

        Raises:
            NotFound: No rollout has this id.
        """

        def read(reader: Reader) -> tuple[Rollout, WaitForChange | None]:
            found = _load_rollout(reader, rollout_id)
            if found.is_ended:
                return found, None
            _, steps = _decide(reader, found, None, self._committer.clock.now())
            return found, next((step for step in steps if isinstance(step, WaitForChange)), None)

        return await self._committer.read(read)

    async def drive(self, health: Mapping[str, HealthResult]) -> DriveResult:
        """Take every active rollout as far as it can go now.

        Args:
            health: Results of health checks, by rollout id.

        Raises:
            LeaseLost: Another replica is the leader.
        """

        def work(tx: Transaction) -> TransactionResult[DriveResult]:
            self._committer.leadership.ensure_leader_in(tx)
            checks: dict[str, CheckHealth] = {}
            changes: list[ChangeSet] = []
            moments: list[datetime] = []
            has_more = False
            for each in tx.list_rollouts(is_ended=False, limit=_ACTIVE_MAX):
                turn = _RolloutTurn(self._committer, tx, decode_rollout(each.content), health.get(each.id))
                turn.drive()
                changes += turn.changes
                has_more |= turn.has_more
                if turn.check is not None:
                    checks[each.id] = turn.check
                if turn.until is not None:
                    moments.append(turn.until)
            until = min(moments, default=None)
            driven = DriveResult(checks=checks, until=until, has_more=has_more, has_changed=bool(changes))
            return TransactionResult(answer=driven, changes=changes)

        driven = await self._committer.commit(work)
        noted = self._changes_noted
        # A rollout may also wait for an operator only, without check or deadline; so ask the store before clearing the
        # hint.
        is_active = driven.has_more or bool(driven.checks) or driven.until is not None or await self._is_any_active()
        # The answer may lack a rollout that was created meanwhile, here or on another replica.
        self.may_be_active = is_active or self._changes_noted != noted
        return driven

    async def _record(self, change: Callable[[Transaction, Draft], Rollout], *, actor: str) -> Rollout:
        try:
            return await self._committer.record(change, actor=actor)
        finally:
            # A commit that failed may have succeeded all the same; then no listener hears of it.
            self._note_rollout()

    async def _is_any_active(self) -> bool:
        return bool(await self._committer.read(lambda reader: reader.list_rollouts(is_ended=False, limit=1)))


@dataclass(slots=True)
class _RolloutTurn:
    """Driving of one rollout, as far as it can go in one transaction."""

    committer: Committer
    tx: Transaction
    rollout: Rollout
    health: HealthResult | None
    changes: list[ChangeSet] = field(default_factory=list)
    check: CheckHealth | None = None
    until: datetime | None = None
    has_more: bool = True

    def drive(self) -> None:
        before = self.rollout
        for _ in range(_TURNS_MAX):
            # Read again in each turn, since the previous one may have scheduled or canceled maintenances.
            now = self.committer.read_now(self.tx)
            self.rollout, steps = _decide(self.tx, self.rollout, self.health, now)
            for each in steps:
                failures = self.rollout.failure_count
                self._carry_out(each, now)
                if self.rollout.failure_count > failures:
                    break  # the remaining steps were decided before this failure
            if not steps or isinstance(steps[-1], WaitForChange):
                self.has_more = False
                break
        if self.rollout != before:
            self._store_changes(before)

    def _store_changes(self, before: Rollout) -> None:
        # Progress within a state has no entry: the entries of the maintenances show it.
        if self.rollout.state is before.state:
            _store_rollout(self.tx, self.rollout)
            return
        reason = f": {self.rollout.reason}" if self.rollout.reason else ""
        draft = self.committer.make_draft(self.tx, SERVICE)
        _store_and_record(self.tx, draft, self.rollout, f"{self.rollout.state.value}{reason}")
        self.changes.append(save_draft(self.tx, draft))

    def _carry_out(self, each: Step, now: datetime) -> None:
        match each:
            case ScheduleHost():
                self._schedule_host(each, now)
            case CancelMaintenance():
                self._cancel_maintenance(each)
            case CheckHealth():
                self.check = each
            case WaitForChange():
                self.until = each.until
            case _:
                self.rollout = rollout_decision.apply_own_step(self.rollout, each, now)

    def _schedule_host(self, each: ScheduleHost, now: datetime) -> None:
        state = self.tx.load_targets(each.request.hosts, each.request.vms)
        try:
            made = self._decide_and_save(state, lambda draft: planning.plan_maintenance(draft, each.request))
        except CallerError as error:
            # A refusal counts as a failure of this host; raising would undo the turn of every other rollout too.
            self.rollout = rollout_decision.record_refused(self.rollout, each.host, error.message, now)
            return
        ids = tuple(maintenance.id for maintenance in made)
        self.rollout = rollout_decision.record_scheduled(self.rollout, each.host, ids, now)

    def _cancel_maintenance(self, each: CancelMaintenance) -> None:
        state = self.tx.load_maintenances([each.maintenance_id], with_neighbours=True)

        def decide(draft: Draft) -> list[Maintenance]:
            found = draft.maintenances.get(each.maintenance_id)
            if found is None or found.state not in {MaintenanceState.QUEUED, MaintenanceState.SCHEDULED}:
                return []
            return [draft.apply_trigger(found, Trigger.CANCEL, reason=each.reason)]

        self._decide_and_save(state, decide)

    def _decide_and_save(self, state: WorkingSet, decide: Callable[[Draft], list[Maintenance]]) -> list[Maintenance]:
        # A draft for each step, saved before the next one, whose working set must include what this one changes.
        draft = self.committer.make_draft(self.tx, f"rollout:{self.rollout.id}", state)
        made = decide(draft)
        settlement.settle_maintenances(draft)
        self.changes.append(save_draft(self.tx, draft))
        return made


def _decide(reader: Reader, rollout: Rollout, health: HealthResult | None, now: datetime) -> tuple[Rollout, list[Step]]:
    """Return the rollout with what has happened, and its next steps."""
    facts = RolloutFacts(
        maintenances={i: reader.get_maintenance(i) for i in rollout.watched_maintenance_ids}, health=health
    )
    rollout = rollout_decision.observe_rollout(rollout, facts, now)
    candidates = rollout_decision.list_candidates(rollout, facts, now)
    if not candidates:
        return rollout, rollout_decision.decide_next_steps(rollout, Inventory(), facts, now)
    waits: list[Step] = []
    # Some hosts at a time, so that a batch of thousands does not delay every other write: usually the first can begin.
    for first in range(0, len(candidates), _COMPARED_MAX):
        some = candidates[first : first + _COMPARED_MAX]
        steps = rollout_decision.decide_next_steps(rollout, *_read_part(reader, rollout, facts, some), now, some)
        if not isinstance(steps[-1], WaitForChange):
            return rollout, steps
        waits = waits or steps
    return rollout, waits


def _read_part(
    reader: Reader, rollout: Rollout, facts: RolloutFacts, candidates: list[str]
) -> tuple[Inventory, RolloutFacts]:
    """Read what a decision about these hosts needs, of the inventory and of other maintenances."""
    part = reader.get_inventory_around([*(host.name for host in rollout.open_hosts), *candidates], vms=())
    others = tuple(m for m in reader.find_active_maintenances(part) if m.id not in facts.maintenances)
    own = [m for m in facts.maintenances.values() if m is not None and m.is_active]
    # A VM may have been moved from a host in flight to one that is not compared.
    moved = {vm for m in (*others, *own) for vm in m.vms} - {vm.name for vm in part.vms}
    elsewhere = reader.get_inventory_around((), vms=moved)
    inventory = Inventory(
        hosts=part.hosts,
        scopes=tuple({scope.name: scope for scope in (*part.scopes, *elsewhere.scopes)}.values()),
        vms=part.vms + elsewhere.vms,
    )
    return inventory, replace(facts, others=others)


def _load_rollout(reader: Reader, rollout_id: str) -> Rollout:
    found = reader.get_rollout(rollout_id)
    if found is None:
        raise NotFound(f"rollout {rollout_id!r} does not exist", hint=SEE_ROLLOUTS, id=rollout_id)
    return decode_rollout(found.content)


def _store_rollout(tx: Transaction, rollout: Rollout) -> None:
    tx.save_rollout(
        StoredRollout(
            id=rollout.id,
            name=rollout.spec.name,
            created_at=rollout.created_at,
            is_ended=rollout.is_ended,
            content=encode_rollout(rollout),
        )
    )


def _store_and_record(tx: Transaction, draft: Draft, rollout: Rollout, action: str) -> None:
    """Store the rollout and record the action in the audit log."""
    draft.record(EntryKind.ROLLOUT, reason=f"rollout {rollout.id} {rollout.spec.name!r} {action}")
    _store_rollout(tx, rollout)
