"""What every store owes while the clock is not trusted, or the disk is full: see `forewarn.core.clock_jump`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.clock_jump import ClockJump
from forewarn.core.model import MaintenanceState
from forewarn.store import Store
from tests.support.databases import Database, save
from tests.support.world import NOW, minutes
from tests.unit.core.builders import maintenance

S = MaintenanceState


def test_what_has_started_is_found_among_what_is_due(store: Store) -> None:
    due = [
        ("waits", 1, 1, S.SCHEDULED),
        ("late", 2, 3, S.STARTED),
        ("soon", 3, 2, S.STARTED),
        ("next", 4, 9, S.STARTED),
    ]
    for id_, sequence, minute, state in due:
        made = maintenance(id=id_, sequence=sequence, not_before=NOW, state=state)
        save(store, replace(made, due_at=NOW + minutes(minute)))
    with store.read() as reader:
        assert [m.id for m in reader.list_due(NOW + minutes(3), 9)] == ["waits", "soon", "late"]
        assert [m.id for m in reader.list_due(NOW + minutes(3), 9, only_started=True)] == ["soon", "late"]
        assert [m.id for m in reader.list_due(NOW + minutes(3), 1, only_started=True)] == ["soon"]
        assert reader.next_due_at() == NOW + minutes(1)
        assert reader.next_due_at(only_started=True) == NOW + minutes(2)
        assert reader.next_due_at(["soon", "late"], only_started=True) == NOW + minutes(9)
        assert reader.next_due_at(["soon", "late", "next"], only_started=True) is None


@pytest.mark.parametrize("by", [timedelta(minutes=20), timedelta(seconds=-31.5)])
def test_a_jump_of_the_clock_is_kept_until_it_is_confirmed(by: timedelta, store: Store) -> None:
    with store.write() as tx:
        assert tx.get_clock_jump() is None
        tx.save_clock_jump(ClockJump(by=by, at=NOW))
    with store.read() as reader:
        assert reader.get_clock_jump() == ClockJump(by=by, at=NOW)
    for _ in range(2):
        with store.write() as tx:
            tx.save_clock_jump(None)
    with store.read() as reader:
        assert reader.get_clock_jump() is None


def test_it_outlives_a_restart(shared_database: Database) -> None:
    store = shared_database.open()
    with store.write() as tx:
        tx.save_clock_jump(ClockJump(by=minutes(20), at=NOW))
    store.close()
    store = shared_database.open()
    with store.read() as reader:
        assert reader.get_clock_jump() == ClockJump(by=minutes(20), at=NOW)
    store.close()


def test_a_probe_may_be_repeated_and_a_check_of_pages_that_are_whole_finds_nothing(store: Store) -> None:
    for _ in range(3):
        with store.write() as tx:
            tx.check_writable()
    store.check_pages(60)
    assert store.damage is None
    store.stop_check()
    store.stop_check()


def test_it_is_the_database_s_clock_that_is_compared_where_replicas_share_it(shared_database: Database) -> None:
    """A replica's own clock may be off; what decides is the same for all."""
    store = shared_database.open()
    with store.write() as tx:
        assert (tx.now() is None) is shared_database.is_sqlite
    store.close()
