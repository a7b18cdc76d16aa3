"""Commands for injected faults; the audit log records start and end, so that none is mistaken for a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forewarn.core import enablement
from forewarn.core.decision import Draft, WorkingSet
from forewarn.core.fault import FaultPoint, InjectedFault
from forewarn.core.model import EntryKind
from forewarn.engine.transaction import Committer, trace_command
from forewarn.store.contract import Transaction

__all__ = ["FaultCommands"]


class FaultCommands(Committer):
    """Commands that inject and clear faults."""

    @trace_command
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
        keys = {self.identity.get_audience_key(name) for name in vms or [vm.name for vm in self.identity.vms]}
        fault = self.faults.inject(kind, vms=vms, **how)
        # Such a fault happens once, in the transaction below, and has no effect afterwards.
        is_over = fault.kind.place is FaultPoint.ONCE
        if is_over:
            self.faults.clear(fault.id)

        def load(tx: Transaction) -> WorkingSet:
            return tx.load_audiences(keys) if is_over else WorkingSet()

        def decide(draft: Draft) -> None:
            for audience in list(draft.audiences.values()) if is_over else ():
                enablement.restart_incarnation(draft, audience)
            draft.record(EntryKind.FAULT_INJECTED, reason=fault.describe())

        await self._run_decision(load, decide, actor=actor)
        if fault.affects_documents:
            self.feed.wake_audiences(keys)
        return fault

    @trace_command
    async def clear_faults(self, fault_id: int | None = None, *, actor: str) -> int:
        """End one fault, or all; return the number ended.

        Raises:
            NotFound: No fault has this number.
        """
        count = self.faults.clear(fault_id)

        def decide(draft: Draft) -> None:
            draft.record(EntryKind.FAULT_CLEARED, reason="all" if fault_id is None else f"fault {fault_id}")

        if count:
            await self._run_decision(lambda _tx: WorkingSet(), decide, actor=actor)
        return count
