"""The store in dictionaries: the same contract without a database, for services under test on virtual time.

Nothing outlives the process. Its results are those of `SqlStore`: the conformance suite runs on both, and a test runs
the same operations on both and compares. See `docs/adr/0012-a-store-in-memory.md`.
"""

from __future__ import annotations

import threading

from forewarn.store.memory_reader import MemoryReader
from forewarn.store.memory_tables import Tables
from forewarn.store.memory_transaction import MemoryTransaction

__all__ = ["MemoryStore"]


class MemoryStore:
    """Storage in this process only. May be used from any thread, one transaction at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables = Tables()

    @property
    def shared(self) -> None:
        """Always None: no other process can reach this store."""

    def write(self) -> _WriteBlock:
        """Begin a write transaction; no other thread reads or writes meanwhile."""
        return _WriteBlock(self._lock, self._tables)

    def read(self) -> _ReadBlock:
        """Open a consistent view for reading; no thread writes meanwhile."""
        return _ReadBlock(self._lock, self._tables)

    @property
    def damage(self) -> None:
        """Always None: there are no pages."""

    def check_pages(self, span_s: float) -> None:
        """Do nothing: there are no pages."""

    def stop_check(self) -> None:
        """Do nothing: no check ever runs."""

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._tables = Tables()


class _ReadBlock:
    """The block of a read. Not a `contextlib.contextmanager`, for speed: the life of one event has two dozen blocks."""

    def __init__(self, lock: threading.Lock, tables: Tables) -> None:
        self._lock = lock
        self._tables = tables

    def __enter__(self) -> MemoryReader:
        self._lock.acquire()
        return MemoryReader(self._tables)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._lock.release()


class _WriteBlock(_ReadBlock):
    """The block of a transaction."""

    def __enter__(self) -> MemoryTransaction:
        self._lock.acquire()
        self._transaction = MemoryTransaction(self._tables)
        return self._transaction

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._transaction.flush()
                self._tables.commit()
            else:
                self._tables.roll_back()
        finally:
            self._lock.release()
