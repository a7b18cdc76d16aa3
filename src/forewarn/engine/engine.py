"""Commands of operators, VMs and the scheduler. `forewarn.engine.transaction` describes how each of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from typing import Any, NoReturn, TypeVar

from forewarn.core import enablement, ending, host_failure, planning, postponement, settlement
from forewarn.core.access import Ownership
from forewarn.core.announcement import is_warned
from forewarn.core.approval import ApprovalResult, Approver, approve_events
from forewarn.core.causes import CAUSES
from forewarn.core.clock_jump import ClockJump
from forewarn.core.decision import AudienceDocument, ChangeSet, Draft, WorkingSet
from forewarn.core.fault import FaultPoint
from forewarn.core.inventory import (
    HostDeclaration,
    Inventory,
    InventoryChange,
    apply_inventory,
    check_held_vms,
    extract_changes,
    find_moving_vms,
    merge_host_declaration,
)
from forewarn.core.inventory_difference import (
    InventoryDifference,
    RemovalLimit,
    check_host_removals,
    check_removals,
    compare_inventories,
    format_removed_counts,
    format_scope_joins,
)
from forewarn.core.maintenance_request import MaintenanceRequest
from forewarn.core.model import ACTIVE_STATES, Audience, EntryKind, Event, Host, Maintenance, Scope, VirtualMachine
from forewarn.core.unwarned import find_unwarned_vms
from forewarn.engine.deadlines import DeadlineCommands
from forewarn.engine.faults import FaultCommands
from forewarn.engine.retention import RetentionCommands
from forewarn.engine.rollouts import RolloutCommands
from forewarn.engine.subscriptions import SubscriptionCommands
from forewarn.engine.tokens import TokenCommands
from forewarn.engine.transaction import IdempotencyKey, recall_outcome, run_inline, trace_command
from forewarn.errors import Conflict, LimitExceeded, NotFound, StoreUnavailable
from forewarn.observability.tracing import Origin
from forewarn.publishing.identity import InventoryIndex
from forewarn.store.contract import IdempotencyRecord, Reader, Transaction
from forewarn.util.fair_share import FairBatcher, QueueLimits

__all__ = ["SAMPLE_FINGERPRINT", "Engine", "MaintenancePreview"]

T = TypeVar("T")
N = TypeVar("N", Scope, VirtualMachine)

SAMPLE_FINGERPRINT = "sample"
"""Fingerprint of the sample inventory that the service declares when none was ever declared."""

_PAGE = 1000

_PLANS_MAX = 3
"""Attempts to compare an inventory outside a transaction, before it is compared within one."""

_CHANGED_MAX = 2000
"""Most changed VMs that the event loop applies one by one; more are indexed on the writer's thread and swapped in."""

_MOVED_LATELY = timedelta(minutes=5)
"""Time after a maintenance has ended in which the destination host may still declare the VMs moved to it."""

_MOVED_MAX = 1000
_APPROVALS_MAX = 500
"""Maximum number of approvals in one transaction."""

_IDS_MAX = 1000
"""Maximum number of event ids in one transaction or read, unless a single approval has more."""
_DAY = timedelta(days=1)

ApprovalRequest = tuple[tuple[str, ...], Approver, Origin | None]
"""Events to approve, the approver, and the trace origin of the request."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declaration:
    """Changes that a declaration makes.

    Attributes:
        before: Part of the inventory that is replaced, without what stays the same.
        after: Replacement of that part.
        scopes: Scopes of these VMs before and after, by name.
        change: Numbers of VMs added, changed, removed and unchanged.
        version: Version of the inventory compared with; None for the one in the same transaction.
        is_confirmed: True if it may remove any number.
        host: Host that was declared; None if the whole inventory was.
        whole: Whole inventory afterwards; None if only a host was declared.
    """

    before: Inventory
    after: Inventory
    scopes: tuple[Mapping[str, Scope], Mapping[str, Scope]]
    change: InventoryChange
    is_confirmed: bool
    host: str | None = None
    version: int | None = None
    whole: Inventory | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing differs."""
        return self.before == self.after

    @property
    def reason(self) -> str:
        """Summary for the audit log."""
        change = self.change
        words = [f"{change.added} added, {change.changed} changed, {change.removed} removed"]
        removed = format_removed_counts(self.before, self.after) if self.is_confirmed else ""
        if removed:
            words.append(f"removal confirmed: {removed}")
        joined = format_scope_joins(self.before, self.after) if self.host is not None else ""
        if joined:
            words.append(f"joined scopes: {joined}")
        return ("" if self.host is None else f"host {self.host}: ") + "; ".join(words)


class _OutdatedError(Exception):
    """Control flow, not an error: the inventory has changed since a declaration was compared with it."""


def _require_current_plan(planned: _Declaration | None, tx: Transaction) -> _Declaration | None:
    """Return a plan if it was compared with the current inventory.

    Raises:
        _OutdatedError: The inventory has changed since.
    """
    if planned is not None and planned.version != tx.get_inventory_version():
        raise _OutdatedError
    return planned


def _index_by_name(named: Iterable[N]) -> dict[str, N]:
    return {each.name: each for each in named}


class _PreviewRollback(Exception):
    """Control flow, not an error: ends a transaction without a commit and carries its result out."""

    def __init__(self, found: list[MaintenancePreview]) -> None:
        super().__init__()
        self.found = found


class Engine(DeadlineCommands, FaultCommands, RetentionCommands, RolloutCommands, SubscriptionCommands, TokenCommands):
    """All commands; see `Committer` for the other arguments.

    Args:
        limits: Maximum number of waiting approvals, per caller and in total, weighed by their event ids.
    """

    def __init__(self, *, limits: QueueLimits | None = None, **parts: Any) -> None:  # noqa: ANN401 - those of `Committer`
        super().__init__(**parts)
        limits = limits or QueueLimits(entries_max=self._waiting_max)
        self._approvals = FairBatcher(
            self._approve_all,
            requests_max=1 if self._write is run_inline else _APPROVALS_MAX,
            weight_max=_IDS_MAX,
            limits=limits,
        )
        self._look_ups = FairBatcher(
            self._find_unknown_ids,
            requests_max=1 if self._read is run_inline else _APPROVALS_MAX,
            weight_max=_IDS_MAX,
            limits=limits,
        )

    # Operators

    @trace_command
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
            owned: Scopes and VMs of the caller, for whom no other VMs exist; None for all.
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

        return await self._maintenance_command(load, decide, actor=actor, key=key)

    def _check_quota(self, tx: Transaction, owned: Ownership) -> None:
        """Refuse a user operation of a tenant that has used up its audit log quota.

        All tokens for the same scopes and VMs share one quota. It counts the entries that tenants caused for the
        operations requested in the last 24 hours.

        Only new user operations are refused. Approving, canceling and deferring are limited by the number of existing
        operations, and must stay possible.

        Raises:
            LimitExceeded: The tenant has caused too many entries in the last 24 hours.
        """
        most = self.rules.tenant_entries_max
        now = self._now(tx)
        # If there are as many entries as allowed, the oldest of them must be a day old before there is room again.
        first = tx.find_nth_newest_of_tenant(owned.key, now - _DAY, most)
        wait = timedelta(0) if first is None else first + _DAY - now
        if wait > timedelta(0):
            limit = f"{most} audit log entries in 24 hours (audit_log_entries_per_tenant_per_day)"
            msg = f"this tenant caused {limit}: try again later"
            raise LimitExceeded(msg, limit=most, retry_after_s=ceil(wait / timedelta(seconds=1)))

    async def preview_maintenances(self, request: MaintenanceRequest, *, actor: str) -> list[MaintenancePreview]:
        """Return the maintenances and events that `schedule` would create now, without creating them.

        Raises:
            ForewarnError: The same errors as `schedule`.
        """

        def decide(tx: Transaction) -> NoReturn:
            draft = self._make_draft(tx.load_targets(request.hosts, request.vms), tx, actor)
            made = planning.plan_maintenance(draft, request)
            settlement.settle_maintenances(draft)
            raise _PreviewRollback([_preview_maintenance(draft, m.id) for m in made])

        def work() -> list[MaintenancePreview]:
            try:
                with self._store.write() as tx:
                    decide(tx)
            except _PreviewRollback as undone:
                return undone.found

        # Not run as a command: nothing is committed, so there is nothing to publish.
        async with self._lock:
            result: list[MaintenancePreview] = await self._write(work)
            return result

    def _apply_faults(self, request: MaintenanceRequest) -> MaintenanceRequest:
        """Apply an injected fault to a request: less notice than is promised (A21, R90)."""
        cause = CAUSES.get(request.cause)
        if not self.faults.in_force or cause is None or cause.is_immediate:
            return request
        names = request.vms or [vm.name for vm in self.identity.vms if vm.host in request.hosts]
        fault = next(
            (f for name in names if (f := self.faults.take_matching_fault(name, "", FaultPoint.NOTICE)) is not None),
            None,
        )
        if fault is None:
            return request
        reason = request.force_reason or f"fault {fault.kind.name}"
        return replace(request, notice=fault.delay, not_before=None, is_now=False, force_reason=reason)

    @trace_command
    async def cancel(
        self, maintenance_id: str, *, actor: str, reason: str | None = None, key: IdempotencyKey | None = None
    ) -> Maintenance:
        """Cancel a queued or scheduled maintenance (R77)."""
        return await self._change_maintenance(
            maintenance_id, lambda d, m: ending.cancel_maintenance(d, m, reason=reason), actor=actor, key=key
        )

    @trace_command
    async def complete(self, maintenance_id: str, *, actor: str, key: IdempotencyKey | None = None) -> Maintenance:
        """Mark a started maintenance as complete (R79)."""
        return await self._change_maintenance(maintenance_id, ending.complete_maintenance, actor=actor, key=key)

    @trace_command
    async def start(
        self, maintenance_id: str, *, actor: str, reason: str, key: IdempotencyKey | None = None
    ) -> Maintenance:
        """Start a scheduled maintenance without further waiting; the reason is recorded in the audit log."""

        def force(draft: Draft, maintenance: Maintenance) -> Maintenance:
            return settlement.force_start(draft, maintenance, reason=reason)

        return await self._change_maintenance(maintenance_id, force, actor=actor, key=key)

    @trace_command
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

        def change(draft: Draft, maintenance: Maintenance) -> Maintenance:
            return postponement.defer_maintenance(draft, maintenance, not_before=not_before, by=by, reason=reason)

        return await self._change_maintenance(maintenance_id, change, actor=actor, key=key)

    @trace_command
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

        def change(draft: Draft, maintenance: Maintenance) -> Maintenance:
            return postponement.extend_maintenance(draft, maintenance, by=by, tenant=tenant, reason=reason)

        return await self._change_maintenance(maintenance_id, change, actor=actor, key=key)

    @trace_command
    async def impact(
        self, maintenance_id: str, duration_s: int, *, actor: str, key: IdempotencyKey | None = None
    ) -> Maintenance:
        """Record a further impact of a started maintenance in the audit log; no document changes (R80)."""

        def strike(draft: Draft, maintenance: Maintenance) -> Maintenance:
            return ending.record_extra_impact(draft, maintenance, duration_s=duration_s)

        return await self._change_maintenance(maintenance_id, strike, actor=actor, key=key)

    @trace_command
    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """Approve events; when this returns, the approval is on disk (R49 to R57a, invariant 5).

        Approvals that arrive while the database is busy share the next transaction: the VMs of a fleet approve at
        about the same time, and the transaction is what takes time. Each VM, or operator, has an equal share of it.

        Ids that the VM is not shown now are looked up first. Those that its audience never had are refused without a
        transaction, so they do not delay others.

        Raises:
            StoreUnavailable: Nothing was approved, as far as is known; or too many approvals wait already.
            LimitExceeded: Too many approvals of this VM or operator wait already.
        """
        ids = tuple(dict.fromkeys(event_ids))
        owner, weight = approver.vm or approver.actor, max(1, len(ids))
        if approver.audience is not None:
            unlisted = self.feed.channel(approver.audience).find_unlisted(ids)
            # A client may repeat a stale approval with every poll; a read is much cheaper than a place in the writer's
            # queue.
            if unlisted:
                unknown = await self._look_ups.submit((unlisted, approver.audience), owner=owner, weight=len(unlisted))
                if unknown:
                    return ApprovalResult(unknown=unknown)
        return await self._approvals.submit((ids, approver, self.tracing.current_span()), owner=owner, weight=weight)

    async def drain(self) -> None:
        """Wait for the commands under way; used when the service stops."""
        await self._approvals.drain()
        await super().drain()

    async def _find_unknown_ids(self, wanted: Sequence[tuple[tuple[str, ...], str]]) -> list[tuple[str, ...]]:
        """Return, for each audience, the ids among those given that it never had, in one read."""
        found = await self.read(lambda reader: reader.find_event_audiences({i for ids, _ in wanted for i in ids}))
        return [tuple(i for i in ids if found.get(i) != audience) for ids, audience in wanted]

    async def _approve_all(self, wanted: Sequence[ApprovalRequest]) -> list[ApprovalResult]:
        def load(tx: Transaction) -> WorkingSet:
            return tx.load_events({i for ids, _, _ in wanted for i in ids})

        def decide(draft: Draft) -> list[ApprovalResult]:
            found = []
            for ids, approver, _ in wanted:
                # One draft serves several approvers; each is named for what it causes.
                draft.actor = approver.actor
                found.append(approve_events(draft, ids, approver))
                settlement.settle_maintenances(
                    draft
                )  # now, so that starts caused by this approval are recorded under its actor
            return found

        with self.tracing.batch_span([origin for _, _, origin in wanted]):
            return await self._run_decision(load, decide, actor=wanted[0][1].actor)

    @trace_command
    async def apply_inventory(  # noqa: PLR0913 - the options of the command
        self,
        inventory: Inventory,
        fingerprint: str,
        *,
        actor: str,
        key: IdempotencyKey | None = None,
        is_first: bool = False,
        removals: RemovalLimit | None = None,
    ) -> InventoryChange:
        """Make the declared state exactly this; with a key only once, so that a late repetition undoes nothing.

        Args:
            inventory: Inventory to declare.
            fingerprint: Fingerprint of the inventory file.
            actor: Actor named in the audit log.
            key: Idempotency key of the request; None for none.
            is_first: True to apply it only if nothing was ever declared.
            removals: Limit on removals; None for no limit, and the audit log records that they were confirmed. The
                sample inventory of the first start may always be replaced.

        Returns:
            Numbers of VMs added, changed, removed and unchanged.

        Raises:
            TooManyRemovals: It removes more than `removals` allows.
            Conflict: A VM of an active maintenance would vanish or change its scope.
        """

        def plan(reader: Reader) -> _Declaration | None:
            mark = reader.get_inventory_fingerprint()
            if recall_outcome(reader, key) is not None or (is_first and mark is not None):
                return None
            version, before = reader.get_inventory_version(), reader.get_inventory()
            if removals is not None and mark != SAMPLE_FINGERPRINT:
                check_removals(before, inventory, removals)
            # Active maintenances are left out here, and are checked within the transaction.
            merged, change = apply_inventory(before, inventory, ())
            less, more = extract_changes(before, merged)
            scopes = _index_by_name(before.scopes), _index_by_name(merged.scopes)
            return _Declaration(
                before=less,
                after=more,
                scopes=scopes,
                change=change,
                is_confirmed=removals is None,
                version=version,
                whole=merged,
            )

        # Planned before the transaction, so that approvals do not wait for the comparison of two large inventories.
        for _ in range(_PLANS_MAX):
            planned = await self.read_long(plan)
            try:
                return await self._apply_declaration(
                    partial(_require_current_plan, planned), fingerprint, actor=actor, key=key
                )
            except _OutdatedError:
                continue
        return await self._apply_declaration(plan, fingerprint, actor=actor, key=key)

    @trace_command
    async def apply_host(
        self,
        declared: HostDeclaration,
        *,
        actor: str,
        key: IdempotencyKey | None = None,
        removals: RemovalLimit | None = None,
        is_host: bool = False,
    ) -> InventoryChange:
        """Declare the VMs of one host; the rest of the inventory stays.

        Args:
            declared: VMs and scopes of the host.
            actor: Actor named in the audit log.
            key: Idempotency key of the request; None for none.
            removals: Limit on removals of the host's VMs; None for no limit, and the audit log records that they were
                confirmed.
            is_host: True if the host itself declares, not an operator. Then it may take over VMs of other hosts only
                if a maintenance moves them to it, or did up to five minutes ago; and where `hosts_may_join_scopes` is
                off, it may put VMs only into scopes that are new or of which it already runs VMs.

        Returns:
            Numbers of VMs added, changed, removed and unchanged, of the whole inventory.

        Raises:
            TooManyRemovals: It removes more than `removals` allows.
            Conflict: As `apply_inventory`; or it contradicts the declaration of another host.
        """

        def plan(tx: Transaction) -> _Declaration:
            part = tx.get_inventory_around(
                host=declared.host,
                vms=[vm.name for vm in declared.vms],
                addresses=[address for vm in declared.vms for address in vm.addresses],
                scopes=[scope.name for scope in declared.scopes],
            )
            held = tx.load_targets((), [vm.name for vm in part.vms]).maintenances.values()
            active = [maintenance for maintenance in held if maintenance.is_active]
            moving = None
            if is_host:
                moving = find_moving_vms([*active, *tx.list_ended_since(self._now(tx) - _MOVED_LATELY, _MOVED_MAX)])
            may_join = not is_host or self.rules.hosts_may_join_scopes
            after = merge_host_declaration(part, declared, active, moving, may_join=may_join)
            if removals is not None:
                check_host_removals(declared.host, part, after, removals)
            merged, change = apply_inventory(part, after, active)
            less, more = extract_changes(part, merged)
            # Only the surroundings of this host were read; all other VMs are unchanged.
            elsewhere = max(self.identity.vm_count - len(part.vms), 0)
            scopes = _index_by_name(part.scopes), _index_by_name(merged.scopes)
            change = replace(change, unchanged=change.unchanged + elsewhere)
            return _Declaration(
                before=less,
                after=more,
                scopes=scopes,
                change=change,
                is_confirmed=removals is None,
                host=declared.host,
            )

        return await self._apply_declaration(plan, None, actor=actor, key=key)

    async def compare_inventory(
        self, inventory: Inventory, removals: RemovalLimit | None
    ) -> tuple[InventoryDifference, Conflict | None]:
        """Return the changes that `apply_inventory` would make now and its error, if any, without applying them."""

        def read(reader: Reader) -> tuple[InventoryDifference, Conflict | None]:
            before = reader.get_inventory()
            refusal: Conflict | None = None
            merged, _ = apply_inventory(before, inventory, [])
            try:
                if removals is not None and reader.get_inventory_fingerprint() != SAMPLE_FINGERPRINT:
                    check_removals(before, inventory, removals)
                apply_inventory(before, inventory, _read_active_maintenances(reader))
            except Conflict as error:
                refusal = error
            return compare_inventories(before, merged), refusal

        return await self.read_long(read)

    @trace_command
    async def recover_host(self, name: str, *, actor: str, reason: str | None = None) -> Host:
        """Mark a failed host as working again; see `host_failure.mark_host_recovered` for errors."""

        def load(tx: Transaction) -> WorkingSet:
            return WorkingSet(hosts=tx.find_hosts([name]))

        return await self._run_decision(
            load, lambda draft: host_failure.mark_host_recovered(draft, name, reason), actor=actor
        )

    async def _apply_declaration(
        self,
        plan: Callable[[Transaction], _Declaration | None],
        fingerprint: str | None,
        *,
        actor: str,
        key: IdempotencyKey | None = None,
    ) -> InventoryChange:
        """Apply the declaration that `plan_maintenance` returns; if it returns None, change nothing.

        Without a fingerprint, that of the last applied file is kept, so that a start does not apply the file again;
        and a declaration that changes nothing is not recorded.
        """
        missed: list[AudienceDocument] = []
        index: list[InventoryIndex] = []

        def work(tx: Transaction) -> tuple[InventoryChange, _Declaration | None, ChangeSet]:
            known = recall_outcome(tx, key)
            if known is not None:
                return InventoryChange(**known), None, ChangeSet()
            missed[:] = self._read_missed_documents(tx)
            draft = self._make_draft(WorkingSet(), tx, actor)
            declaration = plan(tx)
            if declaration is None:
                return InventoryChange(unchanged=self.identity.vm_count), None, ChangeSet()
            change = declaration.change
            if fingerprint is None and declaration.is_empty:
                return change, None, ChangeSet()
            # A declaration of one host was compared with the active maintenances in this transaction already.
            active = tx.load_maintenances(tx.list_active_ids()).maintenances.values() if declaration.whole else ()
            before, after = _index_by_name(declaration.before.vms), _index_by_name(declaration.after.vms)
            check_held_vms(active, (before, declaration.scopes[0]), (after, declaration.scopes[1]))
            if key is not None:
                tx.save_idempotency_record(
                    IdempotencyRecord(key=key.key, fingerprint=key.fingerprint, content=asdict(change), at=draft.now)
                )
            tx.replace_inventory(
                declaration.after, fingerprint or tx.get_inventory_fingerprint() or "", declaration.before
            )
            draft.record(EntryKind.INVENTORY_APPLIED, reason=declaration.reason)
            changes = draft.finish()
            tx.save(changes)
            if declaration.whole is not None and len(before) + len(after) > _CHANGED_MAX:
                index.append(InventoryIndex.of(declaration.whole))
            return change, declaration, changes

        def publish(result: tuple[InventoryChange, _Declaration | None, ChangeSet]) -> InventoryChange:
            change, declaration, changes = result
            if declaration is not None:
                # Before the inventory: a VM that moves must not see an older document on its new host.
                self.feed.publish_documents(document for document in missed if self.feed.is_new(document))
                if index:
                    self.identity.load_inventory(index.pop())
                else:
                    self.identity.replace_part(declaration.before, declaration.after)
                self._publish_changes(changes)
            return change

        return await self._run_transaction(work, publish)

    @trace_command
    async def update_model(self, vm_name: str, *, actor: str) -> VirtualMachine:
        """Bring a VM to its scope's latest model: it takes over the scope's terminate notification (R91)."""

        def load(tx: Transaction) -> WorkingSet:
            return tx.load_targets((), (vm_name,))

        def decide(draft: Draft) -> VirtualMachine:
            vm = draft.vms.get(vm_name)
            if vm is None:
                msg = f"vm {vm_name!r} does not exist: see 'forewarn vm list'"
                raise NotFound(msg, vm=vm_name)
            if vm.scope is None:
                return vm
            updated = replace(vm, terminate_notification=draft.scopes[vm.scope].terminate_notification)
            draft.put(updated)
            draft.record(EntryKind.VM_CHANGED, vm=vm.name, reason="brought to the latest model")
            return updated

        return await self._run_decision(load, decide, actor=actor)

    async def was_carried_out(self, key: IdempotencyKey | None) -> bool:
        """Return whether the request under this ``Idempotency-Key`` was carried out before.

        Raises:
            IdempotencyMismatch: The key was used for a different request.
        """
        return key is not None and await self.read(lambda reader: recall_outcome(reader, key)) is not None

    @trace_command
    async def note_clock(self, by: timedelta, *, actor: str, key: IdempotencyKey | None = None) -> None:
        """Record in the audit log that an operator advanced the virtual clock."""

        def load(_tx: Transaction) -> WorkingSet:
            return WorkingSet()

        def decide(draft: Draft) -> list[str]:
            draft.record(EntryKind.CLOCK_ADVANCED, reason=f"by {by}")
            return []

        await self._maintenance_command(load, decide, actor=actor, key=key)

    # VMs

    async def enable(self, key: str, scope: str | None) -> None:
        """Enable the service for an audience, on its first valid GET (R67); repeating it changes nothing."""

        def load(tx: Transaction) -> WorkingSet:
            return tx.load_audiences([key], with_waiting=True)

        def decide(draft: Draft) -> None:
            enablement.enable_audience(draft, draft.audiences.get(key) or Audience(key=key, scope=scope))

        await self._run_decision(load, decide, actor="forewarn")
        if not self.feed.channel(key).is_enabled:
            await self.catch_up()  # another replica has enabled it, and the change has not arrived here yet

    async def store_last_polls(self) -> None:
        """Record when audiences last asked, so that they do not count as silent after a restart (R69)."""
        asked = self.feed.last_polls()
        if asked:
            await self._run_transaction(lambda tx: tx.extend_active_until(asked), lambda _: None)

    # The service

    async def restore_state(self) -> None:
        """Fill the feed and the identity from the store; silence while the service was down does not count."""
        threshold = self.clock.now() - self.rules.disable_after + self.rules.restart_grace

        def hear(tx: Transaction) -> None:
            tx.extend_active_until({audience.key: threshold for audience in tx.list_inactive(threshold, 1_000_000)})

        def look(reader: Reader) -> tuple[int, InventoryIndex, list[AudienceDocument]]:
            return reader.get_position(), InventoryIndex.of(reader.get_inventory()), list(reader.iter_documents())

        def mind(reader: Reader) -> tuple[ClockJump | None, datetime | None]:
            newest = reader.list_entries(limit=1, newest=True).items
            return reader.get_clock_jump(), newest[-1].at if newest else None

        await self._run_transaction(hear, lambda _: None)
        jump, written_at = await self.read(mind)
        if jump is not None:
            self.clock_guard.distrust(jump)
        # Replicas decide by the database's clock, and the newest entry may be another replica's.
        elif written_at is not None and self._store.shared is None:
            self.clock_guard.detect_setback(written_at, self.clock.now())
        async with self._lock:
            # In a read, not in the write transaction: reading a million VMs takes half a minute.
            position, index, documents = await self.read(look)
            self.identity.load_inventory(index)
            self.feed.replace_documents(documents)
            self._position = position

    async def probe_store(self) -> None:
        """Check that the store takes changes, by a write, so that a full disk is detected.

        Raises:
            StoreUnavailable: It takes none, or its pages are damaged.
        """

        def work(tx: Transaction) -> None:
            # Reads the clock as well, so that a jump is noticed while nothing else happens.
            self._now(tx)
            tx.check_writable()

        if self._store.damage is None:
            await self._run_transaction(work, lambda _: None)
        if self._store.damage is not None:
            msg = f"{self._store.damage}: stop the service, and restore the database from a backup"
            raise StoreUnavailable(msg)

    async def _change_maintenance(
        self,
        maintenance_id: str,
        change: Callable[[Draft, Maintenance], Maintenance],
        *,
        actor: str,
        key: IdempotencyKey | None,
    ) -> Maintenance:
        def load(tx: Transaction) -> WorkingSet:
            return tx.load_maintenances([maintenance_id], with_neighbours=True)

        def decide(draft: Draft) -> list[str]:
            maintenance = draft.maintenances.get(maintenance_id)
            if maintenance is None:
                msg = f"maintenance {maintenance_id!r} does not exist: see 'forewarn maintenance list'"
                raise NotFound(msg, id=maintenance_id)
            change(draft, maintenance)
            return [maintenance_id]

        found = await self._maintenance_command(load, decide, actor=actor, key=key)
        if not found:  # done before under this key, and deleted since
            msg = f"maintenance {maintenance_id!r} no longer exists"
            raise NotFound(msg, id=maintenance_id)
        return found[0]


def _read_active_maintenances(reader: Reader) -> list[Maintenance]:
    found: list[Maintenance] = []
    before: int | None = None
    while True:
        page = reader.list_maintenances(states=tuple(ACTIVE_STATES), before=before, limit=_PAGE)
        found += page.items
        if page.next is None:
            return found
        before = page.next
