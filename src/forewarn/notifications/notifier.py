"""Notification of subscribers; each has its own worker, so that a slow receiver delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from forewarn.clock import Clock
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import EntryKind
from forewarn.core.subscription import Subscription, SubscriptionState
from forewarn.engine.engine import Engine
from forewarn.engine.subscriptions import find_subscription
from forewarn.errors import ForewarnError
from forewarn.notifications.delivery_log import DeliveryLog
from forewarn.notifications.delivery_worker import DeliveryPolicy, DeliveryWorker, ReceiverClient
from forewarn.notifications.message_headers import build_headers
from forewarn.util.ids import make_random_id
from forewarn.util.tasks import cancel_tasks

if TYPE_CHECKING:
    from forewarn.net.outbound import OutboundOptions, PostOutcome, Resolve

__all__ = ["DeliveryPolicy", "Notifier"]

_log = structlog.get_logger("forewarn.notifications.notifier")

_LOOK_S = 30.0
"""Interval between reads of the subscriptions if no change is announced, in seconds."""

_LEAD_LOOK_S = 1.0
"""Interval while another replica is the leader, to notice when this one takes over, in seconds."""


class Notifier:
    """Owner of the delivery workers in this process. Only the leader has any.

    Args:
        engine: Engine that records the results of deliveries.
        clock: Source of the time.
        terms: Returns the settings for outbound requests.
        delivery_policy: Policy for deliveries; None for the default.
        resolve: Resolver of host names; None for the system's.

    Attributes:
        log: Recent attempts and counts of outcomes, since this process started.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        terms: Callable[[], OutboundOptions],
        delivery_policy: DeliveryPolicy | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.delivery_policy = delivery_policy or DeliveryPolicy()
        self.log = DeliveryLog()
        self._terms = terms
        self._resolve = resolve
        self._workers: dict[str, DeliveryWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        engine.listeners.append(self._handle_changes)

    def wake(self) -> None:
        """Check again: another process has committed something, or the leader has changed."""
        self._woken.set()
        self._wake_workers()

    def _handle_changes(self, changes: ChangeSet) -> None:
        if any(entry.kind is EntryKind.SUBSCRIPTION for entry in changes.entries):
            self._woken.set()
            for worker in self._workers.values():
                # It may be a resume or a redelivery, by which an operator says that the receiver works again.
                worker.retry_now()
        elif changes.entries:
            self._wake_workers()

    def _wake_workers(self) -> None:
        for worker in self._workers.values():
            worker.wake()

    def ages_s(self) -> dict[str, float]:
        """Return the age of the oldest undelivered occurrence of each subscription, in seconds."""
        now = self.clock.now()
        oldest = {worker.name: worker.oldest_at or now for worker in self._workers.values()}
        return {name: max((now - at).total_seconds(), 0.0) for name, at in oldest.items()}

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            self._woken.clear()
            try:
                await self._sync_workers()
            except ForewarnError as error:
                _log.warning("cannot read the subscriptions; retrying", error=error.message)
            except Exception:  # noqa: BLE001 - the loop must survive a bug; the log has the trace
                _log.exception("cannot read the subscriptions; retrying")
            # No timeout: on a virtual clock nothing may depend on real time.
            if self.clock.is_virtual:
                await self._woken.wait()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if self.engine.leadership.is_held else _LEAD_LOOK_S):
                    await self._woken.wait()

    async def stop(self) -> None:
        """Cancel all workers; deliveries under way are repeated after the next start."""
        await cancel_tasks(*self._tasks.values())
        self._workers.clear()
        self._tasks.clear()

    async def _sync_workers(self) -> None:
        """Start a worker for each active subscription, and cancel all others."""
        wanted: dict[str, Subscription] = {}
        if self.engine.leadership.is_held:
            found = await self.engine.read(lambda reader: reader.list_subscriptions())
            wanted = {each.id: each for each in found if each.state is SubscriptionState.ACTIVE}
            self.log.keep_only({each.name for each in found})
        for id in [id for id, task in self._tasks.items() if id not in wanted or task.done()]:
            await cancel_tasks(self._tasks.pop(id))
            del self._workers[id]
        for id, subscription in wanted.items():
            # A changed URL or secret needs no new worker: each round reads the subscription again.
            if id not in self._tasks:
                self._workers[id] = DeliveryWorker(
                    self.engine, self.delivery_policy, subscription, self.make_client(), self.log
                )
                self._tasks[id] = asyncio.create_task(self._workers[id].run())
                # A worker that has ended may be wanted again by now.
                self._tasks[id].add_done_callback(lambda _: self._woken.set())

    def make_client(self) -> ReceiverClient:
        """Return a client for one receiver."""
        from forewarn.net.outbound import OutboundClient  # noqa: PLC0415 - unused by most services

        return OutboundClient(self._terms(), self._resolve)

    async def send_ping(self, id_or_name: str) -> PostOutcome:
        """Post a ping now and return the answer.

        Raises:
            NotFound: There is no such subscription.
        """
        from forewarn.wire.notification import encode_ping  # noqa: PLC0415 - as above

        subscription = await self.engine.read(lambda reader: find_subscription(reader, id_or_name))
        now = self.clock.now()
        message_id = f"ping-{make_random_id('ping')}"
        # A paused subscription has no worker, and neither has a replica that is not the leader.
        poster = self.make_client()
        try:
            body = encode_ping(message_id, subscription, self.delivery_policy.source, now)
            return await poster.post(subscription.url, body, build_headers(subscription, message_id, body, now), now)
        finally:
            await poster.close()
