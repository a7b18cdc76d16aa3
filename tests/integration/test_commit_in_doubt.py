"""A replica whose commit is in doubt, and whose next command is refused, misses nothing of what others commit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from forewarn.clock import RealClock
from forewarn.config.loading import make_settings
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Host
from forewarn.engine.transaction import make_thread_runner
from forewarn.errors import NotFound, StoreUnavailable
from forewarn.server.backend import Backend
from forewarn.store import SqlStore
from forewarn.store.contract import Transaction
from tests.support.databases import Database, postgresql
from tests.unit.core.builders import vm

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Breaking:
    """A store that says once, after a commit, that it cannot tell whether it was one."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.is_breaking = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self.store, name)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with self.store.write() as tx:
            yield tx
        if self.is_breaking:
            self.is_breaking = False
            raise StoreUnavailable("the connection broke at the commit")


@pytest.fixture
def database() -> Iterator[Database]:
    with postgresql() as server, server.database() as made:
        yield made


async def test_what_others_commit_is_shown_after_a_doubt_and_a_refusal(database: Database) -> None:
    """Invariant 9."""
    with ExitStack() as stack:

        def backend(store: Any) -> Backend:  # noqa: ANN401 - a store
            write, read = (make_thread_runner(stack.enter_context(ThreadPoolExecutor(1))) for _ in range(2))
            stack.callback(store.close)
            return Backend(make_settings(), store=store, clock=RealClock(), write=write, read=read)

        breaking = Breaking(database.open(busy_timeout_ms=60_000))
        one, other = backend(breaking), backend(database.open(busy_timeout_ms=60_000))
        inventory = Inventory(hosts=(Host(name="host-1"),), vms=(vm("a"), vm("b")))
        await one.engine.restore_state()
        await other.engine.inventory.apply(inventory, "mark", actor="test")
        await other.engine.authority.enable("vm:a", None)
        await other.engine.authority.enable("vm:b", None)
        assert await one.engine.committer.catch_up()
        breaking.is_breaking = True
        with pytest.raises(StoreUnavailable):
            await one.engine.maintenances.schedule(MaintenanceRequest(cause="user-restart", vms=("b",)), actor="test")
        await other.engine.maintenances.schedule(MaintenanceRequest(cause="user-restart", vms=("a",)), actor="test")
        with pytest.raises(NotFound):
            await one.engine.maintenances.cancel("nothing", actor="test")
        await one.engine.committer.catch_up()
        assert one.feed.channel("vm:a").incarnation == other.feed.channel("vm:a").incarnation == 2
        assert one.feed.channel("vm:b").incarnation == 2
