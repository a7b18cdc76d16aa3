"""Commands for injected faults; the audit log records start and end, so that none is mistaken for a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forewarn.core import service
from forewarn.core.decision import Draft, State
from forewarn.core.fault import Fault, Place
from forewarn.core.model import EntryKind
from forewarn.engine.transaction import Committer, traced
from forewarn.store.contract import Transaction

__all__ = ["FaultCommands"]


class FaultCommands(Committer):
    """Commands that inject and clear faults."""

    @traced
    async def inject(
        self,
        /,
        kind: str,
        *,
        actor: str,
        vms: Sequence[str] = (),
        **how: Any,  # noqa: ANN401 - whatever `Faults.inject` takes
    ) -> Fault:
        """Inject a fault; see `Faults.inject` for its arguments and errors.

        Held requests are answered as unchanged, so that clients ask again and meet the fault now rather than after
        their wait.

        Raises:
            NotFound: A VM does not exist.
        """
        keys = {self.identity.audience(name) for name in vms or [vm.name for vm in self.identity.vms]}
        fault = self.faults.inject(kind, vms=vms, **how)
        is_over = fault.kind.place is Place.ONCE
        if is_over:
            self.faults.clear(fault.id)

        def load(tx: Transaction) -> State:
            return tx.load_audiences(keys) if is_over else State()

        def decide(draft: Draft) -> None:
            for audience in list(draft.audiences.values()) if is_over else ():
                service.renumber(draft, audience)
            draft.note(EntryKind.FAULT_INJECTED, reason=fault.describe())

        await self._decide(load, decide, actor=actor)
        if fault.strikes_documents:
            self.feed.wake(keys)
        return fault

    @traced
    async def clear_faults(self, fault_id: int | None = None, *, actor: str) -> int:
        """End one fault, or all; return the number ended.

        Raises:
            NotFound: No fault has this number.
        """
        count = self.faults.clear(fault_id)

        def decide(draft: Draft) -> None:
            draft.note(EntryKind.FAULT_CLEARED, reason="all" if fault_id is None else f"fault {fault_id}")

        if count:
            await self._decide(lambda _tx: State(), decide, actor=actor)
        return count
