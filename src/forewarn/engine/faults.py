"""Commands for injected faults; the audit log records start and end, so that none is mistaken for a real one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from forewarn.core.fault import FaultPoint, InjectedFault
from forewarn.core.maintenance import enablement
from forewarn.core.maintenance.decision import Draft, WorkingSet
from forewarn.core.model import EntryKind
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.engine.transaction import Commands, Committer, trace_command
from forewarn.errors import NotFound
from forewarn.store.contract import Transaction

__all__ = ["FaultCommands"]


class FaultCommands(Commands):
    """Commands that inject and clear faults.

    Args:
        committer: Carries out the commands.
        registry: Faults in force.
    """

    def __init__(self, *, committer: Committer, registry: FaultRegistry) -> None:
        super().__init__(committer=committer)
        self.registry = registry

    @trace_command("inject")
    async def inject(
        self,
        /,
        kind: str,
        *,
        actor: str,
        vms: Sequence[str] = (),
        **how: Any,  # noqa: ANN401 - whatever `FaultRegistry.inject` takes
    ) -> InjectedFault:
        """Inject a fault; see `FaultRegistry.inject` for its arguments and errors.

        Held requests are answered as unchanged, so that clients ask again and meet the fault now rather than after
        their wait.

        Raises:
            NotFound: A VM does not exist.
        """
        # Looked up first: an unknown VM must be refused before the fault is in force.
        keys = {
            self._committer.identity.get_audience_key(name)
            for name in vms or [vm.name for vm in self._committer.identity.vms]
        }
        fault = self.registry.inject(kind, vms=vms, **how)
        # Such a fault happens once, in the transaction below, and has no effect afterwards.
        is_over = fault.kind.place is FaultPoint.ONCE
        if is_over:
            self.registry.clear(fault.id)

        def load(tx: Transaction) -> WorkingSet:
            return tx.load_audiences(keys) if is_over else WorkingSet()

        def decide(draft: Draft) -> None:
            for audience in list(draft.audiences.values()) if is_over else ():
                enablement.restart_incarnation(draft, audience)
            draft.record(EntryKind.FAULT_INJECTED, reason=fault.describe())

        try:
            await self._committer.decide(load, decide, actor=actor)
        except BaseException:
            # A fault that the audit log does not show would be mistaken for a real one.
            with contextlib.suppress(NotFound):
                self.registry.clear(fault.id)
            raise
        if fault.affects_documents:
            self._committer.feed.wake_audiences(keys)
        return fault

    @trace_command("clear faults")
    async def clear(self, fault_id: int | None = None, *, actor: str) -> int:
        """End one fault, or all; return the number ended.

        Raises:
            NotFound: No fault has this number.
        """

        def change(_tx: Transaction, draft: Draft) -> None:
            draft.record(EntryKind.FAULT_CLEARED, reason="all" if fault_id is None else f"fault {fault_id}")

        # Recorded first: a fault that is in force must not be recorded as ended, nor end without a record.
        if any(fault_id in {None, fault.id} for fault in self.registry.all):
            await self._committer.record(change, actor=actor)
        return self.registry.clear(fault_id)
