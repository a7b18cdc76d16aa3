"""The duties of a store. `tests/conformance/test_store.py` runs the same suite over every implementation.

A store is synchronous: the engine runs each transaction as a whole on its own thread, so that a decision between two
statements never waits for the event loop, and a test may run it inline. See `docs/adr/0003-synchronous-store.md`.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Protocol

from forewarn.store.lease import Lease
from forewarn.store.reader import FeedChanges, IdempotencyRecord, Page, Reader, StoredRollout
from forewarn.store.transaction import PruneResult, Transaction

__all__ = [
    "FeedChanges",
    "IdempotencyRecord",
    "Page",
    "PruneResult",
    "Reader",
    "SharedStore",
    "SharedTransaction",
    "Store",
    "StoredRollout",
    "Transaction",
]


class SharedTransaction(Transaction):
    """A write transaction on a database that several replicas share."""

    @abstractmethod
    def now(self) -> datetime:
        """Return the database's time."""

    @abstractmethod
    def get_lease(self, name: str) -> Lease | None:
        """Return the lease with its present or last holder; None if it was never held."""

    @abstractmethod
    def acquire_lease(self, name: str, holder: str, span: timedelta) -> Lease:
        """Take or renew the lease for `span` unless another replica holds it; return the resulting lease."""

    @abstractmethod
    def release_lease(self, name: str, holder: str) -> None:
        """End the lease now if `holder` holds it."""


class SharedStore(Protocol):
    """A database that several replicas share."""

    def write(self) -> AbstractContextManager[SharedTransaction]:
        """Begin a write transaction, as with `Store.write`."""

    def renew_lease(self, name: str, holder: str, term: int, span: timedelta) -> Lease | None:
        """Extend a lease that is held and not over, without waiting for writers; None if it is not held."""

    def count_replicas(self) -> int:
        """Return the number of replicas that listen for changes now, as far as the database shows them.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """

    def wait_for_change(self, timeout_s: float) -> int | None:
        """Wait until a replica, this one included, announces a commit, or the time is over.

        A hint: it may be spurious, and it may be lost.

        Returns:
            Counter after the commit, as in `Transaction.numbers`; None if it is not known whether anything was
            committed.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """


class Store(Protocol):
    """Storage for everything; usable from any thread, one write at a time."""

    @property
    def shared(self) -> SharedStore | None:
        """The same database as several replicas use it; None if only one process may."""

    def write(self) -> AbstractContextManager[Transaction]:
        """Begin a write transaction. It commits at the end and rolls back on an exception.

        Raises:
            StoreUnavailable: The database is locked, full or away; nothing was changed.
        """

    def read(self) -> AbstractContextManager[Reader]:
        """Open a consistent view for reading."""

    @property
    def damage(self) -> str | None:
        """Description of the damage found since the store was opened; None if there is none."""

    def check_pages(self, span_s: float) -> None:
        """Look for damage for at most `span_s`; the next call continues with the rest. May block.

        A table that takes longer is interrupted, and gets twice the time at its next turn.

        Raises:
            StoreUnavailable: The database cannot be read now.
        """

    def stop_check(self) -> None:
        """End a `check_pages` that runs on another thread, and prevent further ones."""

    def close(self) -> None:
        """Close every connection."""
