"""The store in dictionaries: the same contract without a database, for services of tests on virtual time.

Nothing of it outlives the process. What it tells is what `SqlStore` tells: the conformance suite runs on both, and a
test plays the same operations on both and compares. See `docs/adr/0012-a-store-in-memory.md`.
"""

from __future__ import annotations

import threading

from forewarn.store.memory_reading import MemoryReader
from forewarn.store.memory_tables import Tables
from forewarn.store.memory_writing import MemoryTransaction

__all__ = ["MemoryStore"]


class MemoryStore:
    """Everything in this process, and gone with it. May be used from any thread, one transaction at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables = Tables()

    @property
    def shared(self) -> None:
        """Nobody else can reach it."""

    def write(self) -> _Write:
        """A write transaction; nobody else reads or writes meanwhile."""
        return _Write(self._lock, self._tables)

    def read(self) -> _Read:
        """A consistent view for reading; nobody writes meanwhile."""
        return _Read(self._lock, self._tables)

    @property
    def damage(self) -> None:
        """There are no pages."""

    def check_pages(self, span_s: float) -> None:
        """There are none."""

    def end_check(self) -> None:
        """There is none."""

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._tables = Tables()


class _Read:
    """The block of a read. No `contextlib.contextmanager`: a life of one event has two dozen blocks."""

    def __init__(self, lock: threading.Lock, tables: Tables) -> None:
        self._lock = lock
        self._tables = tables

    def __enter__(self) -> MemoryReader:
        self._lock.acquire()
        return MemoryReader(self._tables)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._lock.release()


class _Write:
    """The block of a transaction."""

    def __init__(self, lock: threading.Lock, tables: Tables) -> None:
        self._lock = lock
        self._tables = tables

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
                self._tables.undo()
        finally:
            self._lock.release()
