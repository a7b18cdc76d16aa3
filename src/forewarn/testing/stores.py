"""Databases in memory for services of tests: made once, and used again.

Making the tables takes longer than most tests; so does compiling the queries, which a database keeps while it is open.
"""

from __future__ import annotations

import threading

from forewarn.store import SqlStore

__all__ = ["give_back", "take"]

_KEPT_MAX = 8
_lock = threading.Lock()
_free: list[SqlStore] = []
_blank: dict[int, bytes] = {}


def take() -> SqlStore:
    """A database with nothing in it."""
    with _lock:
        if _free:
            return _free.pop()
    store = SqlStore("sqlite://")
    _blank[id(store)] = store.snapshot()
    return store


def give_back(store: SqlStore) -> None:
    """Nobody uses it any more."""
    store.restore(_blank[id(store)])
    with _lock:
        if len(_free) < _KEPT_MAX:
            _free.append(store)
            return
    del _blank[id(store)]
    store.close()
