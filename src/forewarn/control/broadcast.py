"""New audit log entries, read once from the store and shared by every stream and live page of this process.

If each stream queried the database at each change, the streams of one tenant would slow down everyone else. Instead the
first stream that wakes reads the new entries, and the others take them from here. Only the newest entries are kept. A
stream that is further behind reads the store itself; `_CATCH_UPS_MAX` limits how many do so at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from forewarn.core.access import Principal
from forewarn.core.model import AuditEntry, EntryKind, Maintenance, Scope, VirtualMachine
from forewarn.core.selection import EVERYTHING, Selection, matches_entry
from forewarn.engine.engine import Engine
from forewarn.store.contract import Reader
from forewarn.wire.control_response import AuditEntryOut

__all__ = ["EntryBroadcast", "SharedEntry", "encode_entry"]

_BATCH_ENTRIES = 500
_KEPT_ENTRIES_MAX = 2000
_CATCH_UPS_MAX = 1
"""Number of streams that may catch up from the store at the same time; the store has two readers."""

_PAUSE_PER_STREAM_S = 0.001
_PAUSE_S_MAX = 1.0

FindVm = Callable[[str], tuple[VirtualMachine, Scope | None] | None]


@dataclass(slots=True)
class SharedEntry:
    """An audit log entry, the maintenance to which it belongs, if any, and its encoding for each kind of viewer."""

    entry: AuditEntry
    maintenance: Maintenance | None
    _encoded: dict[Principal | None, str] = field(default_factory=dict)

    def is_visible_to(self, caller: Principal, selection: Selection, find_vm: FindVm) -> bool:
        """Return True if the caller may see the entry and has asked for it."""
        if selection != EVERYTHING and not matches_entry(selection, self.entry, self.maintenance):
            return False
        owned = caller.ownership
        return owned is None or owned.has_entry(self.entry, self.maintenance, find_vm, selection)

    def encode_for(self, caller: Principal) -> str:
        """Return the entry as a server-sent event, without anything the caller may not see."""
        # Callers that see everything share one encoding; tenants need one each.
        viewer = None if caller.ownership is None else caller
        encoded = self._encoded.get(viewer)
        if encoded is None:
            encoded = self._encoded[viewer] = encode_entry(caller, self.entry)
        return encoded


def encode_entry(caller: Principal, entry: AuditEntry) -> str:
    """Encode one entry as a server-sent event, without anything the caller may not see."""
    shown = AuditEntryOut.from_model(caller.redact_entry(entry))
    return f"id: {entry.sequence}\nevent: {entry.kind}\ndata: {shown.model_dump_json()}\n\n"


class EntryBroadcast:
    """Reads new audit log entries once for all streams and live pages.

    Attributes:
        position: Sequence number up to which entries have been read; 0 before the first read.
        revocation_count: Number of revoked tokens among them; when it grows, streams check their tokens.
        read_count: Number of reads of the store for new entries, for tests and measurements.
        stream_count: Number of open streams.
        catching_up: Limit on the streams that read the store themselves at the same time.
    """

    def __init__(self, engine: Engine) -> None:
        self.position = 0
        self.revocation_count = 0
        self.read_count = 0
        self.stream_count = 0
        self.catching_up = asyncio.Semaphore(_CATCH_UPS_MAX)
        self._engine = engine
        self._lock = asyncio.Lock()
        self._recent: deque[SharedEntry] = deque()
        self._recent_from = 0
        self._last_hint: asyncio.Event | None = None

    @property
    def pause_s(self) -> float:
        """Time a stream waits after a change, so that changes in quick succession are sent together."""
        return min(self.stream_count * _PAUSE_PER_STREAM_S, _PAUSE_S_MAX)

    def find_vm(self, name: str) -> tuple[VirtualMachine, Scope | None] | None:
        """Return a declared VM and its scope; None if no VM has that name."""
        caller = self._engine.identity.find_caller(name)
        return None if caller is None else (caller.vm, caller.scope)

    async def read_new_entries(self, changed: asyncio.Event) -> None:
        """Read new entries, unless another caller has done so since that hint (`Context.changed`)."""
        async with self._lock:
            if changed is self._last_hint:
                return
            is_over = await self._read_batch(is_anew=self._last_hint is None)
            for _ in range(_KEPT_ENTRIES_MAX // _BATCH_ENTRIES):
                if is_over:
                    break
                is_over = await self._read_batch()
            if not is_over:  # there were no followers for a long time: restart at the present
                await self._read_batch(is_anew=True)
            # The hint from before the read: a change during the read has replaced it, so the next refresh reads again.
            self._last_hint = changed

    async def _read_batch(self, *, is_anew: bool = False) -> bool:
        """Read the next entries, or restart at the present; return True if there are no more."""
        since = self.position

        def read(reader: Reader) -> tuple[int, Sequence[AuditEntry], dict[str, Maintenance], bool]:
            newest = reader.get_position()
            if is_anew or newest < since:  # a database that was restored may have an older position
                return newest, (), {}, False
            page = reader.list_entries(after=since, limit=_BATCH_ENTRIES)
            ids = {entry.maintenance_id for entry in page.items if entry.maintenance_id is not None}
            return newest, page.items, reader.find_maintenances(ids), page.next is None

        newest, entries, maintenances, is_all = await self._engine.read(read)
        self.read_count += 1
        if is_anew or newest < since:
            self._skip_to(newest)
            return True
        for entry in entries:
            self._recent.append(SharedEntry(entry, maintenances.get(entry.maintenance_id or "")))
            self.revocation_count += entry.kind is EntryKind.TOKEN_REVOKED
        while len(self._recent) > _KEPT_ENTRIES_MAX:
            self._recent_from = self._recent.popleft().entry.sequence
        # Maintenances and events are numbered by the same counter, so the newest number may belong to no entry.
        self.position = max(newest, since) if is_all else entries[-1].sequence
        return is_all

    def _skip_to(self, position: int) -> None:
        self._recent.clear()
        self.position = self._recent_from = position
        self.revocation_count += 1  # tokens may have been revoked in the entries that were skipped

    def entries_after(self, position: int) -> Iterator[SharedEntry] | None:
        """Return the entries after a position, oldest first; None if some of them are no longer kept."""
        if position < self._recent_from:
            return None
        # From the newest one: most streams are only a few entries behind.
        return reversed(list(takewhile(lambda each: each.entry.sequence > position, reversed(self._recent))))
