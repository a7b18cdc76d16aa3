"""Commands for maintenances: schedule, preview, start, cancel, complete and postpone them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from math import ceil

from forewarn.core.access import Ownership
from forewarn.core.causes import CAUSES
from forewarn.core.fault import FaultPoint
from forewarn.core.hints import SEE_MAINTENANCES
from forewarn.core.maintenance import ending, planning, postponement, settlement
from forewarn.core.maintenance.announcement import is_warned
from forewarn.core.maintenance.decision import Draft, WorkingSet
from forewarn.core.maintenance.lifecycle import Trigger
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.unwarned import find_unwarned_vms
from forewarn.core.model import Event, Maintenance
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.engine.idempotency import IdempotencyKey, recall_outcome, save_outcome
from forewarn.engine.transaction import Commands, Committer, TransactionResult, save_draft, trace_command
from forewarn.errors import LimitExceeded, NotFound
from forewarn.store.contract import Transaction

__all__ = ["MaintenanceCommands", "MaintenancePreview"]

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePreview:
    """Maintenance that a request would create.

    Attributes:
        maintenance: Maintenance that would be created; its id has no meaning.
        events: Events that its VMs would be shown.
        unwarned_vms: VMs that it would affect without a warning (R70c).
    """

    maintenance: Maintenance
    events: tuple[Event, ...]
    unwarned_vms: tuple[str, ...]


def _preview_maintenance(draft: Draft, maintenance_id: str) -> MaintenancePreview:
    m, events = draft.maintenances[maintenance_id], tuple(draft.get_events(maintenance_id))
    found = find_unwarned_vms(m, events, lambda name: is_warned(draft, m.cause, draft.vms[name]))
    return MaintenancePreview(maintenance=m, events=events, unwarned_vms=found)


class MaintenanceCommands(Commands):
    """Commands of operators and tenants on maintenances.

    Args:
        committer: Carries out the commands.
        faults: Injected faults, which may shorten the notice.
    """

    def __init__(self, *, committer: Committer, faults: FaultRegistry) -> None:
        super().__init__(committer=committer)
        self._faults = faults

    @trace_command("schedule")
    async def schedule(
        self,
        request: MaintenanceRequest,
        *,
        actor: str,
        key: IdempotencyKey | None = None,
        owned: Ownership | None = None,
    ) -> list[Maintenance]:
        """Carry out a request; see `planning.plan_maintenance` for errors.

        Args:
            request: Request for maintenances.
            actor: Actor named in the audit log.
            key: Idempotency key of the request; None for none.
            owned: Scopes and VMs of the caller, others are treated as unknown; None for all.
        """
        request = self._apply_faults(request)

        def load(tx: Transaction) -> WorkingSet:
            # In the transaction, so that concurrent requests cannot exceed the quota together.
            if owned is not None:
                self._check_quota(tx, owned)
            return tx.load_targets(request.hosts, request.vms)

        def decide(draft: Draft) -> list[str]:
            if owned is not None:
                for vm in [draft.vms[name] for name in {*request.vms} & draft.vms.keys()]:
                    if not owned.has_vm(vm, draft.scopes.get(vm.scope or "")):
                        del draft.vms[vm.name]  # for this caller it does not exist
            made = [m.id for m in planning.plan_maintenance(draft, request)]
            if owned is not None:
                # Marks them as the tenant's, so that their entries count toward its quota.
                for maintenance_id in made:
                    draft.put(replace(draft.maintenances[maintenance_id], tenant_key=owned.key))
            return made

        return await self._run(load, decide, actor=actor, key=key)

    def _check_quota(self, tx: Transaction, owned: Ownership) -> None:
        """Refuse a user operation of a tenant that has used up its audit log quota.

        All tokens for the same scopes and VMs share one quota. It counts the entries that tenants caused for the
        operations requested in the last 24 hours.

        Only new user operations are refused. Approving, canceling and deferring are limited by the number of existing
        operations, and must stay possible.

        Raises:
            LimitExceeded: The tenant has caused too many entries in the last 24 hours.
        """
        most = self._committer.rules.tenant_entries_max
        now = self._committer.read_now(tx)
        # If there are as many entries as allowed, the oldest of them must be a day old before there is room again.
        first = tx.find_nth_newest_of_tenant(owned.key, now - _DAY, most)
        wait = timedelta(0) if first is None else first + _DAY - now
        if wait > timedelta(0):
            limit = f"{most} audit log entries in 24 hours (audit_log_entries_per_tenant_per_day)"
            msg = f"this tenant caused {limit}: try again later"
            raise LimitExceeded(msg, limit=most, retry_after_s=ceil(wait / timedelta(seconds=1)))

    async def preview(self, request: MaintenanceRequest, *, actor: str) -> list[MaintenancePreview]:
        """Return the maintenances and events that `schedule` would create now, without creating them.

        Raises:
            ForewarnError: The same errors as `schedule`.
        """

        def load(tx: Transaction) -> WorkingSet:
            return tx.load_targets(request.hosts, request.vms)

        def decide(draft: Draft) -> list[MaintenancePreview]:
            made = planning.plan_maintenance(draft, request)
            settlement.settle_maintenances(draft)
            return [_preview_maintenance(draft, m.id) for m in made]

        return await self._committer.rehearse(load, decide, actor=actor)

    def _apply_faults(self, request: MaintenanceRequest) -> MaintenanceRequest:
        """Apply an injected fault to a request: less notice than is promised (A21, R90)."""
        cause = CAUSES.get(request.cause)
        if not self._faults.in_force or cause is None or cause.is_immediate:
            return request
        names = request.vms or [vm.name for host in request.hosts for vm in self._committer.identity.vms_of(host)]
        fault = next(
            (f for name in names if (f := self._faults.take_matching_fault(name, "", FaultPoint.NOTICE)) is not None),
            None,
        )
        if fault is None:
            return request
        reason = request.force_reason or f"fault {fault.kind.name}"
        # Forced, because it undercuts the minimum; and a notice cannot be combined with the other two.
        return replace(request, notice=fault.delay, not_before=None, is_now=False, force_reason=reason)

    @trace_command("cancel")
    async def cancel(
        self, maintenance_id: str, *, actor: str, reason: str | None = None, key: IdempotencyKey | None = None
    ) -> Maintenance:
        """Cancel a queued or scheduled maintenance (R77)."""
        change = partial(Draft.apply_trigger, trigger=Trigger.CANCEL, reason=reason)
        return await self._change_maintenance(maintenance_id, change, actor=actor, key=key)

    @trace_command("complete")
    async def complete(self, maintenance_id: str, *, actor: str, key: IdempotencyKey | None = None) -> Maintenance:
        """Mark a started maintenance as complete (R79)."""
        return await self._change_maintenance(maintenance_id, ending.complete_maintenance, actor=actor, key=key)

    @trace_command("start")
    async def start(
        self, maintenance_id: str, *, actor: str, reason: str, key: IdempotencyKey | None = None
    ) -> Maintenance:
        """Start a scheduled maintenance without further waiting; the reason is recorded in the audit log."""
        change = partial(settlement.force_start, reason=reason)
        return await self._change_maintenance(maintenance_id, change, actor=actor, key=key)

    @trace_command("defer")
    async def defer(  # noqa: PLR0913 - the options of the command
        self,
        maintenance_id: str,
        *,
        actor: str,
        not_before: datetime | None = None,
        by: timedelta | None = None,
        reason: str | None = None,
        key: IdempotencyKey | None = None,
    ) -> Maintenance:
        """Move a scheduled maintenance to a later time; see `postponement.defer_maintenance`."""
        change = partial(postponement.defer_maintenance, not_before=not_before, by=by, reason=reason)
        return await self._change_maintenance(maintenance_id, change, actor=actor, key=key)

    @trace_command("extend")
    async def extend(  # noqa: PLR0913 - as above
        self,
        maintenance_id: str,
        by: timedelta,
        *,
        actor: str,
        tenant: str | None = None,
        reason: str | None = None,
        key: IdempotencyKey | None = None,
    ) -> Maintenance:
        """Give a tenant more time to prepare; see `postponement.extend_maintenance` for arguments and errors."""
        change = partial(postponement.extend_maintenance, by=by, tenant=tenant, reason=reason)
        return await self._change_maintenance(maintenance_id, change, actor=actor, key=key)

    @trace_command("impact")
    async def impact(
        self, maintenance_id: str, duration_s: int, *, actor: str, key: IdempotencyKey | None = None
    ) -> Maintenance:
        """Record a further impact of a started maintenance in the audit log; no document changes (R80)."""
        change = partial(ending.record_extra_impact, duration_s=duration_s)
        return await self._change_maintenance(maintenance_id, change, actor=actor, key=key)

    async def _run(
        self,
        load: Callable[[Transaction], WorkingSet],
        decide: Callable[[Draft], list[str]],
        *,
        actor: str,
        key: IdempotencyKey | None,
    ) -> list[Maintenance]:
        """Run a command that returns maintenances and can be repeated under an ``Idempotency-Key``."""

        def work(tx: Transaction) -> TransactionResult[list[Maintenance]]:
            known = recall_outcome(tx, key)
            if known is not None:
                # The answer shows their present state; those that were deleted since are left out.
                found = [tx.get_maintenance(i) for i in known["maintenances"]]
                return TransactionResult(answer=[m for m in found if m is not None])
            draft = self._committer.make_draft(tx, actor, load(tx))
            ids = decide(draft)
            settlement.settle_maintenances(draft)
            changes = save_draft(tx, draft)
            # In the transaction of the changes, so that a repetition after a crash finds both or neither.
            save_outcome(tx, key, {"maintenances": ids}, draft.now)
            return TransactionResult(answer=[draft.maintenances[i] for i in ids], changes=[changes])

        return await self._committer.commit(work, shares_commit=True)

    async def _change_maintenance(
        self,
        maintenance_id: str,
        change: Callable[[Draft, Maintenance], Maintenance],
        *,
        actor: str,
        key: IdempotencyKey | None,
    ) -> Maintenance:
        def load(tx: Transaction) -> WorkingSet:
            # The end of this one may free its neighbours, which are then announced or started in the same transaction.
            return tx.load_maintenances([maintenance_id], with_neighbours=True)

        def decide(draft: Draft) -> list[str]:
            maintenance = draft.maintenances.get(maintenance_id)
            if maintenance is None:
                msg = f"maintenance {maintenance_id!r} does not exist"
                raise NotFound(msg, hint=SEE_MAINTENANCES, id=maintenance_id)
            change(draft, maintenance)
            return [maintenance_id]

        found = await self._run(load, decide, actor=actor, key=key)
        if not found:  # done before under this key, and deleted since
            raise NotFound(f"maintenance {maintenance_id!r} no longer exists", id=maintenance_id)
        return found[0]
