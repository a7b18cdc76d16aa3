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

from forewarn.core.access import Principal
from forewarn.core.model import Entry, EntryKind, Maintenance, Scope, VirtualMachine
from forewarn.core.selection import EVERYTHING, Selection, takes_entry
from forewarn.engine.engine import Engine
from forewarn.store.contract import Reader
from forewarn.wire.control import EntryOut

__all__ = ["EntryBroadcast", "SharedEntry", "encode_entry"]

_BATCH_ENTRIES = 500
_KEPT_ENTRIES_MAX = 2000
_CATCH_UPS_MAX = 1
"""Number of streams that may catch up from the store at the same time; the store has two readers."""

_PAUSE_PER_STREAM_S = 0.001
_PAUSE_S_MAX = 1.0

_REVOKING = frozenset({EntryKind.TOKEN_REVOKED})

FindVm = Callable[[str], tuple[VirtualMachine, Scope | None] | None]


@dataclass(slots=True)
class SharedEntry:
    """An audit log entry, the maintenance that decides who may see it, and its encoding for each kind of viewer.

    Attributes:
        entry: The entry.
        maintenance: The maintenance that it belongs to; None if it belongs to none.
    """

    entry: Entry
    maintenance: Maintenance | None
    _encoded: dict[Principal | None, str] = field(default_factory=dict)

    def is_for(self, caller: Principal, selection: Selection, find_vm: FindVm) -> bool:
        """Return True if the caller may see the entry and has asked for it."""
        if selection != EVERYTHING and not takes_entry(selection, self.entry, self.maintenance):
            return False
        owned = caller.owned
        return owned is None or owned.has_entry(self.entry, self.maintenance, find_vm, selection)

    def encoded_for(self, caller: Principal) -> str:
        """Return the entry as a server-sent event, without anything the caller may not see."""
        viewer = None if caller.owned is None else caller
        encoded = self._encoded.get(viewer)
        if encoded is None:
            encoded = self._encoded[viewer] = encode_entry(caller, self.entry)
        return encoded


def encode_entry(caller: Principal, entry: Entry) -> str:
    """Encode one entry as a server-sent event, without anything the caller may not see."""
    shown = EntryOut.of(caller.shown_entry(entry))
    return f"id: {entry.sequence}\nevent: {entry.kind}\ndata: {shown.model_dump_json()}\n\n"


class EntryBroadcast:
    """Reads new audit log entries once for all streams and live pages.

    Args:
        engine: Reads the store, and knows the VMs that are declared now.

    Attributes:
        position: Sequence number up to which entries have been read; 0 before the first read.
        revocations: Number of revoked tokens among them; when it grows, streams check their tokens.
        reads: Number of reads of the store for new entries, for tests and measurements.
        streams: Number of open streams.
        catching_up: Limit on the streams that read the store themselves at the same time.
    """

    def __init__(self, engine: Engine) -> None:
        self.position = 0
        self.revocations = 0
        self.reads = 0
        self.streams = 0
        self.catching_up = asyncio.Semaphore(_CATCH_UPS_MAX)
        self._engine = engine
        self._lock = asyncio.Lock()
        self._kept: deque[SharedEntry] = deque()
        self._kept_from = 0
        self._seen: asyncio.Event | None = None

    @property
    def pause_s(self) -> float:
        """Time a stream waits after a change, so that changes in quick succession are sent together."""
        return min(self.streams * _PAUSE_PER_STREAM_S, _PAUSE_S_MAX)

    def find_vm(self, name: str) -> tuple[VirtualMachine, Scope | None] | None:
        """Return a declared VM and its scope; None if no VM has that name."""
        caller = self._engine.identity.named(name)
        return None if caller is None else (caller.vm, caller.scope)

    async def refresh(self, changed: asyncio.Event) -> None:
        """Read new entries, unless another caller has done so since that hint.

        Args:
            changed: The current hint (`Context.changed`).
        """
        async with self._lock:
            if changed is self._seen:
                return
            is_over = await self._read_on(is_anew=self._seen is None)
            for _ in range(_KEPT_ENTRIES_MAX // _BATCH_ENTRIES):
                if is_over:
                    break
                is_over = await self._read_on()
            if not is_over:  # there were no followers for a long time: restart at the present
                await self._read_on(is_anew=True)
            self._seen = changed

    async def _read_on(self, *, is_anew: bool = False) -> bool:
        """Read the next entries, or restart at the present; return True if there are no more."""
        since = self.position

        def read(reader: Reader) -> tuple[int, Sequence[Entry], dict[str, Maintenance], bool]:
            newest = reader.position()
            if is_anew or newest < since:  # a database that was restored may have an older position
                return newest, (), {}, False
            page = reader.entries(after=since, limit=_BATCH_ENTRIES)
            ids = {entry.maintenance_id for entry in page.items if entry.maintenance_id is not None}
            return newest, page.items, reader.maintenances_by_id(ids), page.next is None

        newest, entries, maintenances, is_all = await self._engine.read(read)
        self.reads += 1
        if is_anew or newest < since:
            self._restart(newest)
            return True
        for entry in entries:
            self._kept.append(SharedEntry(entry, maintenances.get(entry.maintenance_id or "")))
            self.revocations += entry.kind in _REVOKING
        while len(self._kept) > _KEPT_ENTRIES_MAX:
            self._kept_from = self._kept.popleft().entry.sequence
        self.position = max(newest, since) if is_all else entries[-1].sequence
        return is_all

    def _restart(self, position: int) -> None:
        self._kept.clear()
        self.position = self._kept_from = position
        self.revocations += 1  # tokens may have been revoked in the entries that were skipped

    def since(self, position: int) -> Iterator[SharedEntry] | None:
        """Return the entries after a position, oldest first; None if some of them are no longer kept."""
        if position < self._kept_from:
            return None
        found: list[SharedEntry] = []
        for shared in reversed(self._kept):
            if shared.entry.sequence <= position:
                break
            found.append(shared)
        return reversed(found)
