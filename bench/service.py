"""The measured child process: the service exactly as `forewarn serve` runs it, which also answers questions as JSON.

The first argument contains the settings as JSON. Questions arrive on stdin; when stdin ends, the service ends. Unless
the settings differ, this process also answers the VMs, so that it can count the long polls that it holds.

In addition, it records the time of each commit (in the writer's thread, when COMMIT has returned) and publication.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from forewarn.config.loading import load_settings
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import MaintenanceState
from forewarn.engine.publisher import InventoryUpdate
from forewarn.observability.logs import configure_logging
from forewarn.publishing.inventory_index import InventoryIndex
from forewarn.server.service import Service, run_service
from forewarn.store.contract import Reader, SharedStore, Store, Transaction

_BEGAN_S = time.monotonic()

_UNCHANGED = 20
"""One of this many VMs differs in the changed inventory."""

_TICK_S = 0.001
_AFTERWARDS_S = 3.0


class _StampedStore:
    """A store that records when its last commit returned, by the monotonic and the wall clock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read = store.read
        self.check_pages = store.check_pages
        self.stop_check = store.stop_check
        self.close = store.close
        self.committed_s = 0.0
        self.committed_at_s = 0.0

    @property
    def shared(self) -> SharedStore | None:
        return self._store.shared

    @property
    def damage(self) -> str | None:
        return self._store.damage

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with self._store.write() as transaction:
            yield transaction
        self.committed_s, self.committed_at_s = time.monotonic(), time.time()


class Watch:
    """Answers questions about the service in the same process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = _StampedStore(service.store)
        self._changes: list[dict[str, Any]] = []
        self._starts: dict[str, dict[str, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unread = b""
        service.engine.committer.store = self._store
        service.engine.listeners.append(self._notice)

    def listen(self) -> None:
        """Begin to read questions from stdin."""
        os.set_blocking(sys.stdin.fileno(), False)
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    def _notice(self, changes: ChangeSet) -> None:
        shown_s, shown_at_s = time.monotonic(), time.time()
        for document in changes.documents[:1]:
            self._changes.append(
                {
                    "incarnation": document.audience.incarnation,
                    "committed_s": self._store.committed_s,
                    "committed_at_s": self._store.committed_at_s,
                    "shown_s": shown_s,
                }
            )
        for maintenance in changes.maintenances.values():
            if maintenance.state is MaintenanceState.STARTED and maintenance.not_before is not None:
                not_before_s = maintenance.not_before.timestamp()
                late = {"committed": self._store.committed_at_s - not_before_s, "shown": shown_at_s - not_before_s}
                self._starts.setdefault(maintenance.id, late)

    def _read(self) -> None:
        piece = os.read(sys.stdin.fileno(), 1 << 16)
        if not piece:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            os.kill(os.getpid(), signal.SIGTERM)
            return
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            task = asyncio.get_running_loop().create_task(self._answer(json.loads(line)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: dict[str, Any]) -> None:
        name = question.pop("do")
        say(**await getattr(self, f"_{name}")(**question))

    async def _rss(self) -> dict[str, Any]:
        gc.collect()
        return {"rss_bytes": rss_bytes()}

    async def _held(self) -> dict[str, Any]:
        channels = self._service.feed._channels.values()  # noqa: SLF001 - only the benchmark needs this number
        return {"held": sum(len(channel._waiters or ()) for channel in channels)}  # noqa: SLF001 - as above

    async def _changes_seen(self) -> dict[str, Any]:
        return {"changes": self._changes}

    async def _schedule(self, vms: list[str], lead_s: float, apart_s: float = 0.0) -> dict[str, Any]:
        """Schedule one maintenance for each VM: the first NotBefore in `lead_s`, the others `apart_s` apart."""
        engine = self._service.engine
        first = (engine.committer.clock.now() + timedelta(seconds=lead_s)).replace(microsecond=0)
        for number, name in enumerate(vms):
            not_before = first + number * timedelta(seconds=apart_s)
            request = MaintenanceRequest(
                cause="host-maintenance", vms=(name,), not_before=not_before, force_reason="benchmark"
            )
            await engine.maintenances.schedule(request, actor="bench")
        return {"left_s": (first - engine.committer.clock.now()).total_seconds(), "first_s": first.timestamp()}

    async def _take_inventory(self) -> dict[str, Any]:
        """Reload the inventory, as after a change by another replica."""
        began_s = time.monotonic()
        is_over = asyncio.Event()
        ticking = asyncio.create_task(_find_longest_pause(is_over))
        publisher = self._service.engine.committer.publisher

        def read(reader: Reader) -> InventoryIndex:
            inventory = reader.get_inventory(self._service.identity.index.vms)
            vms = [replace(vm, size="another") if n % _UNCHANGED == 0 else vm for n, vm in enumerate(inventory.vms)]
            return publisher.index_inventory(replace(inventory, vms=tuple(vms)))

        index = await self._service.engine.committer.read_long(read)
        read_s = time.monotonic() - began_s
        publisher.publish_inventory(InventoryUpdate(before=Inventory(), after=Inventory(), index=index))
        del index
        await asyncio.sleep(_AFTERWARDS_S)  # while the inventory before is freed
        is_over.set()
        return {"read_s": read_s, "halted_s": await ticking}

    async def _leads(self) -> dict[str, Any]:
        return {"leads": self._service.engine.leadership.is_held}

    async def _started(self) -> dict[str, Any]:
        return {"starts": list(self._starts.values())}


async def _find_longest_pause(is_over: asyncio.Event) -> float:
    """Return the longest time for which the event loop stood still, until the event is set."""
    longest_s, seen_s = 0.0, time.monotonic()
    while not is_over.is_set():
        await asyncio.sleep(_TICK_S)
        now_s = time.monotonic()
        longest_s = max(longest_s, now_s - seen_s - _TICK_S)
        seen_s = now_s
    return longest_s


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def say(**message: Any) -> None:  # noqa: ANN401 - JSON
    """Print a line."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the service until stdin ends or SIGTERM arrives."""
    configure_logging()

    def ready(service: Service) -> None:
        answering_s = time.monotonic()
        Watch(service).listen()
        say(
            metadata=service.metadata_urls,
            control=service.control_url,
            began_s=_BEGAN_S,
            ready_s=answering_s,
            rss_bytes=rss_bytes(),
        )

    run_service(load_settings(**({"metadata_process": "shared"} | json.loads(sys.argv[1]))), ready)


if __name__ == "__main__":
    main()
