"""Storage: one contract; SQLAlchemy Core for SQLite and PostgreSQL, and dictionaries for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.store.contract import Page, Store, Transaction
from forewarn.store.memory import MemoryStore

if TYPE_CHECKING:
    from forewarn.store.sql import SqlStore

__all__ = ["MemoryStore", "Page", "SqlStore", "Store", "Transaction"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has of that name
    """Import `SqlStore` on first use: a test without it starts a quarter of a second sooner."""
    if name == "SqlStore":
        from forewarn.store.sql import SqlStore  # noqa: PLC0415 - see above

        return SqlStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
