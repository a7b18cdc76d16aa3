"""Commands for the clock: confirm a jump, and record how far a virtual clock was advanced."""

from __future__ import annotations

from datetime import timedelta

from forewarn.core.maintenance.decision import Draft
from forewarn.core.model import SERVICE, EntryKind
from forewarn.engine.clock_guard import describe_jump
from forewarn.engine.idempotency import IdempotencyKey, recall_outcome, save_outcome
from forewarn.engine.transaction import Commands, Committer, TransactionResult, save_draft, trace_command
from forewarn.errors import Conflict
from forewarn.store.contract import Transaction

__all__ = ["ClockCommands"]


class ClockCommands(Commands):
    """Commands for the clock of decisions.

    Args:
        committer: Carries out the commands.

    Attributes:
        guard: Detector of clock jumps.
    """

    def __init__(self, *, committer: Committer) -> None:
        super().__init__(committer=committer)
        self.guard = committer.clock_guard

    async def sync_jump(self) -> None:
        """Store a clock jump in the database, or adopt its state there: another replica may have confirmed it."""
        guard = self.guard
        if guard.jump is None or guard.is_stored:
            kept = await self._committer.read(lambda reader: reader.get_clock_jump())
            # Stored before and gone now: the operator has confirmed it through another replica.
            if kept is None and guard.is_stored:
                guard.trust_again()
            elif kept is not None:
                guard.distrust(kept)
            return
        jump = guard.jump

        def change(tx: Transaction, draft: Draft) -> None:
            # Another replica may have detected a jump at the same time; only the first is recorded.
            if tx.get_clock_jump() is None:
                tx.save_clock_jump(jump)
                draft.record(EntryKind.CLOCK_JUMPED, reason=describe_jump(jump))

        await self._committer.record(change, actor=SERVICE)
        # Only after the commit: if it fails, the next round of the scheduler tries to store the jump again.
        guard.is_stored = True

    @trace_command("confirm clock")
    async def confirm(self, *, actor: str, reason: str | None = None) -> None:
        """Trust the clock again, as it is now; what is due by it starts.

        Raises:
            Conflict: The clock has not jumped.
        """

        def work(tx: Transaction) -> TransactionResult[None]:
            draft = self._committer.make_draft(tx, actor)
            # The stored jump may be another replica's, and the one detected here may not be stored yet.
            jump = tx.get_clock_jump() or self.guard.jump
            if jump is None:
                raise Conflict("nothing to confirm: the clock has not jumped since it was last confirmed")
            tx.save_clock_jump(None)
            draft.record(EntryKind.CLOCK_CONFIRMED, reason=reason or describe_jump(jump))
            return TransactionResult(answer=None, changes=[save_draft(tx, draft)], confirms_clock=True)

        await self._committer.commit(work)

    async def was_advanced(self, key: IdempotencyKey | None) -> bool:
        """Return whether the clock was advanced before under this ``Idempotency-Key``.

        Raises:
            IdempotencyMismatch: The key was used for a different request.
        """
        return key is not None and await self._committer.read(lambda reader: recall_outcome(reader, key)) is not None

    @trace_command("note clock")
    async def record_advance(self, by: timedelta, *, actor: str, key: IdempotencyKey | None = None) -> None:
        """Record in the audit log that an operator advanced the virtual clock."""

        def change(tx: Transaction, draft: Draft) -> None:
            if recall_outcome(tx, key) is None:
                draft.record(EntryKind.CLOCK_ADVANCED, reason=f"by {by}")
                save_outcome(tx, key, {"maintenances": []}, draft.now)

        await self._committer.record(change, actor=actor)
