"""Leader election: only the replica that holds the lease carries out what is due.

The leader renews the lease several times in its span. If it does not, because it is dead, halted or cut off, it loses
the lease, and another replica takes over within that span. Two checks keep a leader that was halted from acting
without the lease: each of its transactions compares its term with the database, and before it calls an actuator it
reads its own monotonic clock, which goes on while a process is halted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, cast

import structlog

from forewarn.clock import Clock, uptime_s
from forewarn.engine.shared_clock import SharedClock
from forewarn.errors import ClockOff, ForewarnError, LeaseLost
from forewarn.store.contract import SharedStore, SharedTransaction, Transaction
from forewarn.store.lease import Lease
from forewarn.util.failpoint import FailPoint, reach_failpoint

__all__ = ["Leadership", "LeasedLeadership"]

_log = structlog.get_logger("forewarn.engine.leader_election")

_NAME = "scheduler"
_RENEWALS = 4
"""Number of renewals in the span of a lease."""

_AFTER_S = 0.02
"""Delay from the end of another replica's lease to the next attempt, in seconds."""

_SKEW_MAX = timedelta(seconds=1)
"""Maximum difference between a replica's clock and the database's."""


class Leadership:
    """Role of this process, leader or not; without a lease, that of the only process on its database.

    Attributes:
        has_replicas: True if other replicas may share the database.
        until_s: Uptime at which the lease ends unless it is renewed.
        skew: Lead of this process's clock over the database's.
        holder: Unique name of this replica; empty without a lease.
        lease: Lease of the leader, as this process last read it; None if it has not read one.
    """

    has_replicas = False
    holder = ""
    lease: Lease | None = None
    until_s = math.inf
    skew = timedelta(0)

    @property
    def is_held(self) -> bool:
        """True if this process is the leader, by its own clock."""
        return True

    @property
    def leader(self) -> str | None:
        """Unique name of the leader, as this process last read it; None if none is known."""
        return None if self.lease is None or self.lease.is_over else self.lease.holder

    def ensure_leader(self) -> None:
        """Check by its own clock that this process is still the leader.

        Raises:
            LeaseLost: It is not.
        """

    def ensure_leader_in(self, tx: Transaction) -> None:
        """Check in a transaction that this process is still the leader.

        Raises:
            LeaseLost: It is not.
        """

    def check_clock(self) -> None:
        """Check that this machine's clock agrees with the database's.

        Raises:
            ClockOff: It does not.
        """

    async def release(self) -> None:
        """Release the lease, so that another replica can take over at once."""


class LeasedLeadership(Leadership):
    """Leadership of one among several replicas.

    Args:
        store: Database that the replicas share.
        clock: Clock of this machine.
        holder: Unique name of this replica.
        write: Runner of write transactions.
        renew: Runner of renewals, which must not wait for write transactions; None for `write`.
        span: Lifetime of the lease without renewal.
        shared_clock: Clock that each reading of the database's time corrects; None for none.

    Attributes:
        on_change: Called when the lease was won or lost.
    """

    has_replicas = True

    def __init__(  # noqa: PLR0913 - its parts
        self,
        store: SharedStore,
        clock: Clock,
        holder: str,
        write: Callable[[Callable[[], Any]], Awaitable[Any]],
        span: timedelta = timedelta(seconds=4),
        renew: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None,
        shared_clock: SharedClock | None = None,
    ) -> None:
        self.holder = holder
        self.on_change: Callable[[], None] = lambda: None
        self._store = store
        self._clock = clock
        self._shared_clock = shared_clock
        self._write = write
        self._renew = renew or write
        self._span = span
        self._term: int | None = None
        self.until_s = 0.0
        self._retry_in_s = math.inf
        self._was_held = False

    @property
    def is_held(self) -> bool:
        """True if the lease was taken and has not ended by this machine's monotonic clock."""
        return self._term is not None and uptime_s() < self.until_s

    def ensure_leader(self) -> None:
        """Check the lease right before an action outside the database."""
        if not self.is_held:
            raise LeaseLost("the lease has expired")

    def ensure_leader_in(self, tx: Transaction) -> None:
        """Check the row of the lease: any takeover is committed before this transaction, or comes after it."""
        # A shared store makes no other transactions.
        lease = cast("SharedTransaction", tx).get_lease(_NAME)
        if lease is None or (lease.holder, lease.term) != (self.holder, self._term):
            raise LeaseLost("another replica is the leader now")

    def check_clock(self) -> None:
        """Check the clock's skew, as of the last renewal."""
        if abs(self.skew) > _SKEW_MAX:
            seconds = self.skew.total_seconds()
            where = "ahead of" if seconds > 0 else "behind"
            msg = f"this machine's clock is {abs(seconds):.1f} s {where} the database's: this replica cannot lead"
            raise ClockOff(msg)

    async def run(self) -> None:
        """Take and renew the lease until cancelled."""
        while True:
            try:
                await self._renew_or_take_lease()
            except ForewarnError as error:
                # No reason to step down yet: the lease lasts until its end, and the next attempt may still renew it.
                _log.warning("cannot renew the lease; retrying", error=error.message)
            except Exception:  # noqa: BLE001 - the loop must survive a bug; the log has the trace
                _log.exception("cannot renew the lease; retrying")
            self._note_role()
            await asyncio.sleep(min(self._span.total_seconds() / _RENEWALS, self._retry_in_s))

    async def _renew_or_take_lease(self) -> None:
        self._retry_in_s = math.inf
        # Read before the request, so that the lease never lasts longer here than in the database.
        began_s = uptime_s()
        is_wrong = abs(self.skew) > _SKEW_MAX
        if self.is_held and not is_wrong and self._term is not None:
            term = self._term
            # A renewal does not queue behind writers, so a long transaction cannot cost the leader its lease.
            renewed = await self._renew(lambda: self._store.renew_lease(_NAME, self.holder, term, self._span))
            if renewed is not None:
                self.lease = renewed
                self._note_reading(renewed.now, began_s)
                if abs(self.skew) <= _SKEW_MAX:
                    self._note_lease(term, began_s)
                else:
                    self._term = None
                return

        # Also after a renewal that came too late: if no other replica holds the lease, it is taken under a new term.
        def take() -> Lease | None:
            with self._store.write() as tx:
                if is_wrong:
                    tx.release_lease(_NAME, self.holder)
                    # Do not compete while the clock is off; only read the database's time, to measure the skew again.
                    return Lease(holder="", term=0, expires_at=tx.now(), now=tx.now())
                return tx.acquire_lease(_NAME, self.holder, self._span)

        lease = await self._write(take)
        # The time that the database took is no skew; it lies between the two readings of our clock.
        self._note_reading(lease.now, began_s)
        if lease.holder:
            self.lease = lease
        if lease.holder == self.holder and abs(self.skew) <= _SKEW_MAX:
            self._note_lease(lease.term, began_s)
            reach_failpoint(FailPoint.LEASE_TAKEN)
            return
        self._term = None
        if lease.holder:  # the holder may be dead: try when its lease ends, not a renewal later
            self._retry_in_s = max((lease.expires_at - lease.now).total_seconds(), 0) + _AFTER_S

    def _note_lease(self, term: int, began_s: float) -> None:
        """Note a lease that was taken or renewed."""
        # The lease may have ended while this process was halted or waited for the answer. If the scheduler has seen
        # that, it sleeps until `on_change` wakes it.
        self._was_held = self._was_held and self.is_held
        self._term = term
        self.until_s = began_s + self._span.total_seconds()

    def _note_reading(self, now: datetime, asked_s: float) -> None:
        """Note the skew. Our clock is read after the database's: a part of the difference may be latency."""
        ahead, answered_s = self._clock.now() - now, uptime_s()
        if self._shared_clock is not None:
            self._shared_clock.observe(now, asked_s, answered_s)
        way = timedelta(seconds=answered_s - asked_s)
        # The true skew lies between `ahead - way` and `ahead`. Assume the value nearest to 0, so that a slow database
        # is no reason to step down.
        skew = max(ahead - way, min(ahead, timedelta(0)))
        if (abs(skew) > _SKEW_MAX) != (abs(self.skew) > _SKEW_MAX):
            if abs(skew) > _SKEW_MAX:
                _log.warning("this machine's clock is off: this replica cannot lead", ahead_s=skew.total_seconds())
            else:
                _log.warning("this machine's clock is right again", ahead_s=skew.total_seconds())
        self.skew = skew

    def _note_role(self) -> None:
        is_held = self.is_held
        if is_held != self._was_held:
            self._was_held = is_held
            words = "this replica is the leader" if is_held else "this replica is no longer the leader"
            _log.info(words, replica=self.holder)
            self.on_change()

    async def release(self) -> None:
        """Release the lease, so that another replica can take over at once."""
        if self._term is None:
            return
        # First stop acting as the leader: the write below may fail, or succeed without an answer.
        self._term = self.lease = None

        def give() -> None:
            with self._store.write() as tx:
                tx.release_lease(_NAME, self.holder)

        try:
            await self._write(give)
        except ForewarnError as error:
            _log.warning("cannot release the lease; it will expire", error=error.message)
