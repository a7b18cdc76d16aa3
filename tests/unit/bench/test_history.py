"""The history that a benchmark reads is one that the store can read."""

from __future__ import annotations

from pathlib import Path

from bench.history import build_history
from forewarn.store import SqlStore


def test_the_store_reads_what_was_built(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.db'}"
    build_history(url, 20)
    store = SqlStore(url)
    with store.read() as reader:
        maintenances = reader.list_maintenances(limit=100).items
        assert len(maintenances) == 20
        assert {m.moved_by for m in maintenances} == {()}
        assert sum(map(len, reader.find_events_of([m.id for m in maintenances]).values())) == 20
        assert len(reader.list_entries(limit=1000).items) == 120
    store.close()
