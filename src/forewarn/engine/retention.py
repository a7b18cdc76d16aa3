"""Retention of history."""

from __future__ import annotations

from datetime import timedelta

from forewarn.core.model import SERVICE, EntryKind
from forewarn.engine.transaction import Commands, TransactionResult, save_draft
from forewarn.store.contract import PruneResult, Transaction
from forewarn.util.duration import format_duration

__all__ = ["RetentionCommands"]

_FORGOTTEN_MAX = 200
"""Maintenances deleted in one transaction; other commands wait for it."""


class RetentionCommands(Commands):
    """Commands of housekeeping."""

    async def prune_history(
        self, history: timedelta, outcomes: timedelta, entries_max: int, audit: timedelta | None = None
    ) -> PruneResult:
        """Delete what is older than its retention, and the oldest entries where the audit log is too long.

        Audit entries are deleted by age alone: after `audit`, or after `history` if that is None.

        Works in small steps, so that other commands can run in between. If anything was deleted, one audit log entry
        records how much.
        """
        if self._committer.clock_guard.jump is not None:
            return PruneResult()  # by a clock that has jumped, anything may look old
        # Read once: what grows old during a long deletion is left to the next one, so the loop below ends.
        now = self._committer.clock.now()
        before, why = now - history, f"older than {format_duration(history)} (history_retention)"
        excess = await self._committer.read(lambda reader: reader.get_newest_excess_at(entries_max))
        if excess is not None and excess >= before:
            # What ended exactly at `before` is spared, but the newest entry in excess must go too.
            before, why = excess + timedelta.resolution, f"beyond {entries_max} entries (history_entries_max)"
        audit_before = now - (history if audit is None else audit)
        forgotten = PruneResult()
        try:
            while some := await self._committer.write(
                lambda tx: tx.prune_history(before, now - outcomes, _FORGOTTEN_MAX, audit_before)
            ):
                forgotten += some
        finally:
            # Also if the service stops meanwhile: what is deleted by then is deleted.
            if forgotten:
                await self._record_pruning(forgotten, f"from before {before:%Y-%m-%d %H:%M:%SZ}, {why}")
        return forgotten

    async def _record_pruning(self, forgotten: PruneResult, scope: str) -> None:
        def work(tx: Transaction) -> TransactionResult[None]:
            draft = self._committer.make_draft(tx, SERVICE)
            count = f"{forgotten.maintenances} maintenances and {forgotten.entries} audit log entries"
            draft.record(EntryKind.PRUNED, reason=f"{count} {scope}")
            changes = save_draft(tx, draft)
            changes.pruned_maintenances = forgotten.maintenances
            changes.pruned_entries = forgotten.entries
            return TransactionResult(answer=None, changes=[changes])

        await self._committer.commit(work)
