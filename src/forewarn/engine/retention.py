"""Retention of history, and repair of what replicas of an older version leave out."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from forewarn.core.decision import Changes, State
from forewarn.core.model import EntryKind
from forewarn.engine.transaction import Committer
from forewarn.store.contract import Forgotten, Transaction
from forewarn.util.duration import format_span

__all__ = ["RetentionCommands"]

T = TypeVar("T")

_FORGOTTEN_MAX = 200
"""Maintenances deleted or repaired in one transaction; other commands wait for it."""

_MENDED_AGAIN = timedelta(hours=1)
_MICROSECOND = timedelta(microseconds=1)


class RetentionCommands(Committer):
    """Commands of housekeeping."""

    async def prune(
        self, history: timedelta, outcomes: timedelta, entries_max: int, audit: timedelta | None = None
    ) -> Forgotten:
        """Delete what is older than its retention, and the oldest entries where the audit log is too long.

        Audit entries are deleted by age alone: after `audit`, or after `history` if that is None.

        Works in small steps, so that other commands can run in between. If anything was deleted, one audit log entry
        records how much.
        """
        if self.clock_guard.jump is not None:
            return Forgotten()  # by a clock that has jumped, anything may look old
        now = self.clock.now()
        before, why = now - history, f"older than {format_span(history)} (history_retention)"
        excess = await self.read(lambda reader: reader.excess_until(entries_max))
        if excess is not None and excess >= before:
            before, why = excess + _MICROSECOND, f"beyond {entries_max} entries (history_entries_max)"
        audit_before = now - (history if audit is None else audit)
        forgotten = Forgotten()
        while some := await self._command(
            lambda tx: tx.prune(before, now - outcomes, _FORGOTTEN_MAX, audit_before), _same
        ):
            forgotten += some
        if forgotten:
            await self._tell_pruned(forgotten, f"from before {before:%Y-%m-%d %H:%M:%SZ}, {why}")
        return forgotten

    async def _tell_pruned(self, forgotten: Forgotten, words: str) -> None:
        def work(tx: Transaction) -> Changes:
            draft = self._draft(State(), tx, "forewarn")
            count = f"{forgotten.maintenances} maintenances and {forgotten.entries} audit log entries"
            draft.note(EntryKind.PRUNED, reason=f"{count} {words}")
            changes = draft.finish()
            changes.forgotten_maintenances = forgotten.maintenances
            changes.forgotten_entries = forgotten.entries
            tx.save(changes)
            return changes

        await self._command(work, self._publish)

    async def mend_history(self) -> int:
        """Fill in what replicas of an earlier version leave out during an upgrade; return the number repaired."""
        if self._store.shared is None:
            return 0
        until = self.clock.now() - _MENDED_AGAIN
        count = 0
        while some := await self._command(lambda tx: tx.mend_claims(until, _FORGOTTEN_MAX), _same):
            count += some
        return count


def _same(value: T) -> T:
    return value
