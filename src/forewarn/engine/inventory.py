"""Commands for the inventory: declare it, or the VMs of one host, and change single hosts and VMs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from forewarn.core.hints import SEE_VMS
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
from forewarn.core.maintenance import host_failure
from forewarn.core.maintenance.decision import Draft, WorkingSet
from forewarn.core.model import EntryKind, Host, Scope, VirtualMachine
from forewarn.engine.idempotency import IdempotencyKey, recall_outcome, save_outcome
from forewarn.engine.publisher import InventoryUpdate, plan_update
from forewarn.engine.transaction import Commands, TransactionResult, save_draft, trace_command
from forewarn.errors import Conflict, NotFound
from forewarn.store.contract import Reader, Transaction

__all__ = ["SAMPLE_FINGERPRINT", "InventoryCommands"]

N = TypeVar("N", Scope, VirtualMachine)

SAMPLE_FINGERPRINT = "sample"
"""Fingerprint of the sample inventory that the service declares when none was ever declared."""

_PLANS_MAX = 3
"""Attempts to compare an inventory outside a transaction, before it is compared within one."""

_MOVED_LATELY = timedelta(minutes=5)
"""Time after a maintenance has ended in which the destination host may still declare the VMs moved to it."""

_MOVED_MAX = 1000


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

    @classmethod
    def compare(
        cls, before: Inventory, after: Inventory, change: InventoryChange, removals: RemovalLimit | None
    ) -> _Declaration:
        """Return the declaration that replaces an inventory, or a part of it."""
        less, more = extract_changes(before, after)
        scopes = _index_by_name(before.scopes), _index_by_name(after.scopes)
        return cls(before=less, after=more, scopes=scopes, change=change, is_confirmed=removals is None)

    @property
    def is_empty(self) -> bool:
        """True if nothing differs."""
        return self.before == self.after

    @property
    def reason(self) -> str:
        """Summary for the audit log."""
        change = self.change
        words = [_format_counts(change)]
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


def _format_counts(change: InventoryChange) -> str:
    return f"{change.added} added, {change.changed} changed, {change.removed} removed"


def _index_by_name(named: Iterable[N]) -> dict[str, N]:
    return {each.name: each for each in named}


class InventoryCommands(Commands):
    """Commands of operators, and of hosts, on the inventory."""

    @trace_command("apply inventory")
    async def apply(  # noqa: PLR0913 - the options of the command
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
            version, before = reader.get_inventory_version(), reader.get_inventory(self._committer.identity.index.vms)
            if removals is not None and mark != SAMPLE_FINGERPRINT:
                check_removals(before, inventory, removals)
            # Active maintenances are left out here, and are checked within the transaction.
            merged, change = apply_inventory(before, inventory, ())
            return replace(_Declaration.compare(before, merged, change, removals), version=version, whole=merged)

        # Planned before the transaction, so that approvals do not wait for the comparison of two large inventories.
        for _ in range(_PLANS_MAX):
            planned = await self._committer.read_long(plan)
            try:
                return await self._apply_declaration(
                    partial(_require_current_plan, planned), fingerprint, actor=actor, key=key
                )
            except _OutdatedError:
                continue
        # Hosts that keep declaring themselves may outdate every plan, so the last one is made in the transaction.
        return await self._apply_declaration(plan, fingerprint, actor=actor, key=key)

    @trace_command("apply inventory again")
    async def apply_again(
        self, fingerprint: str, *, actor: str, key: IdempotencyKey | None = None
    ) -> InventoryChange | None:
        """Apply an inventory file that need not be read, because it is declared already; return None if it is not.

        A file of 100,000 VMs takes half a minute to read, and may be applied on a schedule.
        """

        def work(tx: Transaction) -> TransactionResult[InventoryChange | None]:
            known = recall_outcome(tx, key)
            if known is not None:
                return TransactionResult(answer=InventoryChange(**known))
            if not tx.is_inventory_unchanged_since(fingerprint):
                return TransactionResult(answer=None)
            draft = self._committer.make_draft(tx, actor)
            change = InventoryChange(unchanged=self._committer.identity.vm_count)
            save_outcome(tx, key, asdict(change), draft.now)
            draft.record(EntryKind.INVENTORY_APPLIED, reason=_format_counts(change))
            return TransactionResult(answer=change, changes=[save_draft(tx, draft)])

        return await self._committer.commit(work)

    @trace_command("apply host")
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
            Conflict: As `apply`; or it contradicts the declaration of another host.
        """

        def plan(tx: Transaction) -> _Declaration:
            part = tx.get_inventory_around(
                [declared.host],
                vms=[vm.name for vm in declared.vms],
                addresses=[address for vm in declared.vms for address in vm.addresses],
                scopes=[scope.name for scope in declared.scopes],
            )
            held = tx.load_targets((), [vm.name for vm in part.vms]).maintenances.values()
            active = [maintenance for maintenance in held if maintenance.is_active]
            moving = None
            if is_host:
                moving = find_moving_vms(
                    [*active, *tx.list_ended_since(self._committer.read_now(tx) - _MOVED_LATELY, _MOVED_MAX)]
                )
            may_join = not is_host or self._committer.rules.hosts_may_join_scopes
            after = merge_host_declaration(part, declared, active, moving, may_join=may_join)
            if removals is not None:
                check_host_removals(declared.host, part, after, removals)
            merged, change = apply_inventory(part, after, active)
            # Only the surroundings of this host were read; all other VMs are unchanged.
            # The count of this replica may lag behind the rows just read, hence the lower bound.
            elsewhere = max(self._committer.identity.vm_count - len(part.vms), 0)
            change = replace(change, unchanged=change.unchanged + elsewhere)
            return replace(_Declaration.compare(part, merged, change, removals), host=declared.host)

        return await self._apply_declaration(plan, None, actor=actor, key=key)

    async def compare(
        self, inventory: Inventory, removals: RemovalLimit | None
    ) -> tuple[InventoryDifference, Conflict | None]:
        """Return the changes that `apply` would make now and its error, if any, without applying them."""

        def read(reader: Reader) -> tuple[InventoryDifference, Conflict | None]:
            before = reader.get_inventory()
            refusal: Conflict | None = None
            # Without the active maintenances, so that an inventory that is refused still shows its differences.
            merged, _ = apply_inventory(before, inventory, [])
            try:
                if removals is not None and reader.get_inventory_fingerprint() != SAMPLE_FINGERPRINT:
                    check_removals(before, inventory, removals)
                apply_inventory(before, inventory, reader.list_active_maintenances())
            except Conflict as error:
                refusal = error
            return compare_inventories(before, merged), refusal

        return await self._committer.read_long(read)

    @trace_command("recover host")
    async def recover_host(self, name: str, *, actor: str, reason: str | None = None) -> Host:
        """Mark a failed host as working again; see `host_failure.mark_host_recovered` for errors."""

        def load(tx: Transaction) -> WorkingSet:
            return WorkingSet(hosts=tx.find_hosts([name]))

        return await self._committer.decide(
            load, lambda draft: host_failure.mark_host_recovered(draft, name, reason), actor=actor
        )

    @trace_command("update model")
    async def update_model(self, vm_name: str, *, actor: str) -> VirtualMachine:
        """Bring a VM to its scope's latest model: it takes over the scope's terminate notification (R91)."""

        def load(tx: Transaction) -> WorkingSet:
            return tx.load_targets((), (vm_name,))

        def decide(draft: Draft) -> VirtualMachine:
            vm = draft.vms.get(vm_name)
            if vm is None:
                raise NotFound(f"vm {vm_name!r} does not exist", hint=SEE_VMS, vm=vm_name)
            if vm.scope is None:
                return vm
            updated = replace(vm, terminate_notification=draft.scopes[vm.scope].terminate_notification)
            draft.put(updated)
            draft.record(EntryKind.VM_CHANGED, vm=vm.name, reason="brought to the latest model")
            return updated

        return await self._committer.decide(load, decide, actor=actor)

    async def _apply_declaration(
        self,
        plan: Callable[[Transaction], _Declaration | None],
        fingerprint: str | None,
        *,
        actor: str,
        key: IdempotencyKey | None = None,
    ) -> InventoryChange:
        """Apply the declaration that `plan` returns; if it returns None, change nothing.

        Without a fingerprint, that of the last applied file is kept, so that a start does not apply the file again;
        and a declaration that changes nothing is not recorded.
        """

        def work(tx: Transaction) -> TransactionResult[InventoryChange]:
            known = recall_outcome(tx, key)
            if known is not None:
                return TransactionResult(answer=InventoryChange(**known))
            # First: later in this transaction, its own marks would count as missed changes too.
            missed = self._committer.read_missed_documents(tx)
            draft = self._committer.make_draft(tx, actor)
            declaration = plan(tx)
            if declaration is None:
                return TransactionResult(answer=InventoryChange(unchanged=self._committer.identity.vm_count))
            change = declaration.change
            # Thousands of hosts may repeat their declaration each minute, and unchanged ones write nothing (ADR 15).
            if fingerprint is None and declaration.is_empty:
                return TransactionResult(answer=change)
            # A declaration of one host was compared with the active maintenances in this transaction already.
            active = tx.load_maintenances(tx.list_active_ids()).maintenances.values() if declaration.whole else ()
            before, after = _index_by_name(declaration.before.vms), _index_by_name(declaration.after.vms)
            check_held_vms(active, (before, declaration.scopes[0]), (after, declaration.scopes[1]))
            save_outcome(tx, key, asdict(change), draft.now)
            tx.replace_inventory(declaration.after, fingerprint, declaration.before)
            draft.record(EntryKind.INVENTORY_APPLIED, reason=declaration.reason)
            changes = save_draft(tx, draft)
            whole = declaration.whole
            update = InventoryUpdate(before=declaration.before, after=declaration.after, missed=missed)
            if whole is not None:
                update = plan_update(update, lambda: self._committer.publisher.index_inventory(whole))
            return TransactionResult(answer=change, changes=[changes], inventory=update)

        return await self._committer.commit(work)
