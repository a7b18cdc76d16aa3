"""Where everything is kept: one contract, one SQLAlchemy Core implementation for SQLite and PostgreSQL."""

from forewarn.store.contract import Page, Store, Transaction
from forewarn.store.sql import SqlStore

__all__ = ["Page", "SqlStore", "Store", "Transaction"]
