"""Which replica carries out what is due.

The one that holds the lease. It renews it several times in its span; whoever does not, because it is dead, halted or
cut off, loses it, and another takes over within that span. Two things keep one that was halted from acting on what it
no longer holds: each of its transactions looks for its term in the database, and before an actuator is called it looks
at its own clock, which goes on while a process is halted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol

import structlog

from forewarn.clock import Clock, uptime_s
from forewarn.errors import ClockOff, ForewarnError, LeaseLost
from forewarn.store.contract import SharedStore, Transaction
from forewarn.store.lease import Lease

__all__ = ["Leadership", "Leased", "SoleLeader"]

_log = structlog.get_logger("forewarn.engine.leader_election")

_NAME = "scheduler"
_RENEWALS = 4
"""How often it is renewed in its span."""

_AFTER_S = 0.02
"""From the end of somebody else's lease to the next look."""

_SKEW_MAX = timedelta(seconds=1)
"""Furthest that a replica's clock may be off."""


class Leadership(Protocol):
    """Whether this process carries out what is due."""

    @property
    def is_held(self) -> bool:
        """Whether it does, as far as its own clock tells."""
        ...

    @property
    def until_s(self) -> float:
        """Uptime at which it ends unless it is renewed."""
        ...

    @property
    def skew(self) -> timedelta:
        """How far this process's clock is ahead of the database's."""
        ...

    def ensure_leader(self) -> None:
        """See by its own clock that it still does.

        Raises:
            LeaseLost: It does not.
        """
        ...

    def check(self, tx: Transaction) -> None:
        """See in a transaction that it still does.

        Raises:
            LeaseLost: It does not.
        """
        ...

    def check_clock(self) -> None:
        """See that this machine's clock is right.

        Raises:
            ClockOff: It is not.
        """
        ...

    async def run(self) -> None:
        """Keep it so, until cancelled."""
        ...

    async def give_back(self) -> None:
        """Let another one take over at once."""
        ...


class SoleLeader:
    """The only process on its database."""

    is_held = True
    until_s = math.inf
    skew = timedelta(0)

    def ensure_leader(self) -> None:
        """There is nobody else."""

    def check(self, tx: Transaction) -> None:
        """There is nobody else."""

    def check_clock(self) -> None:
        """There is no other clock to hold it against."""

    async def run(self) -> None:
        """There is nothing to do."""

    async def give_back(self) -> None:
        """There is nobody to take over."""


class Leased:
    """One of several replicas.

    Args:
        store: The database that they share.
        clock: This machine's.
        holder: A name that no other replica has.
        write: Runs write transactions.
        renew: Runs renewals, which must not wait for write transactions; None: as `write`.
        span: How long the lease lasts without being renewed.
        on_change: Called when it was won or lost.
    """

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        store: SharedStore,
        clock: Clock,
        holder: str,
        write: Callable[[Callable[[], Any]], Awaitable[Any]],
        span: timedelta = timedelta(seconds=4),
        on_change: Callable[[], None] = lambda: None,
        renew: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None,
    ) -> None:
        self.holder = holder
        self.on_change = on_change
        self.skew = timedelta(0)
        self._store = store
        self._clock = clock
        self._write = write
        self._renew = renew or write
        self._span = span
        self._term: int | None = None
        self._until_s = 0.0
        self._others_s = math.inf
        self._was_held = False

    @property
    def is_held(self) -> bool:
        """Whether it is held: taken, and not yet over by this machine's own count of seconds."""
        return self._term is not None and uptime_s() < self._until_s

    @property
    def until_s(self) -> float:
        """As it was renewed last."""
        return self._until_s

    def ensure_leader(self) -> None:
        """Right before something is done outside of the database."""
        if not self.is_held:
            msg = "the lease is over"
            raise LeaseLost(msg)

    def check(self, tx: Transaction) -> None:
        """Others take it in transactions that come after this one, or came before: so the row says it all."""
        lease: Lease | None = tx.lease(_NAME)  # type: ignore[attr-defined] # a shared store makes no other transactions
        if lease is None or (lease.holder, lease.term) != (self.holder, self._term):
            msg = "another replica carries out what is due by now"
            raise LeaseLost(msg)

    def check_clock(self) -> None:
        """As it was at the last renewal."""
        if abs(self.skew) > _SKEW_MAX:
            seconds = self.skew.total_seconds()
            where = "ahead of" if seconds > 0 else "behind"
            msg = f"this machine's clock is {abs(seconds):.1f} s {where} the database's: nothing is scheduled here"
            raise ClockOff(msg)

    async def run(self) -> None:
        """Take it, and renew it, until cancelled."""
        while True:
            try:
                await self._take()
            except ForewarnError as error:
                _log.warning("the lease cannot be renewed, trying again", error=error.message)
            except Exception:  # noqa: BLE001 - a bug must not end it for good; the log has the trace
                _log.exception("the lease cannot be renewed, trying again")
            self._tell()
            await asyncio.sleep(min(self._span.total_seconds() / _RENEWALS, self._others_s))

    async def _take(self) -> None:
        self._others_s = math.inf
        began_s = uptime_s()
        is_wrong = abs(self.skew) > _SKEW_MAX
        if self.is_held and not is_wrong and self._term is not None:
            term = self._term
            renewed = await self._renew(lambda: self._store.renew_lease(_NAME, self.holder, term, self._span))
            if renewed is not None:
                self._note_skew(self._clock.now() - renewed.now, uptime_s() - began_s)
                if abs(self.skew) <= _SKEW_MAX:
                    self._until_s = began_s + self._span.total_seconds()
                else:
                    self._term = None
                return

        def take() -> Lease | None:
            with self._store.write() as tx:
                if is_wrong:
                    tx.give_lease_back(_NAME, self.holder)
                    return Lease(holder="", term=0, expires_at=tx.now(), now=tx.now())
                return tx.take_lease(_NAME, self.holder, self._span)

        lease = await self._write(take)
        # Between the two readings of our clock: how long the database took is no skew.
        self._note_skew(self._clock.now() - lease.now, uptime_s() - began_s)
        if lease.holder == self.holder and abs(self.skew) <= _SKEW_MAX:
            self._term = lease.term
            self._until_s = began_s + self._span.total_seconds()
            return
        self._term = None
        if lease.holder:  # it may be gone: look when its time is over, and not a renewal later
            self._others_s = max((lease.expires_at - lease.now).total_seconds(), 0) + _AFTER_S

    def _note_skew(self, ahead: timedelta, took_s: float) -> None:
        """Ours was read after the database's: so much of the difference may be the way back."""
        way = timedelta(seconds=took_s)
        skew = max(ahead - way, min(ahead, timedelta(0)))
        if (abs(skew) > _SKEW_MAX) != (abs(self.skew) > _SKEW_MAX):
            if abs(skew) > _SKEW_MAX:
                _log.warning("this machine's clock is off: nothing is scheduled here", ahead_s=skew.total_seconds())
            else:
                _log.warning("this machine's clock is right again", ahead_s=skew.total_seconds())
        self.skew = skew

    def _tell(self) -> None:
        is_held = self.is_held
        if is_held != self._was_held:
            self._was_held = is_held
            words = "this replica carries out what is due" if is_held else "another replica carries out what is due"
            _log.info(words, replica=self.holder)
            self.on_change()

    async def give_back(self) -> None:
        """Let another one take over at once."""
        if self._term is None:
            return
        self._term = None

        def give() -> None:
            with self._store.write() as tx:
                tx.give_lease_back(_NAME, self.holder)

        try:
            await self._write(give)
        except ForewarnError as error:
            _log.warning("the lease could not be given back; it ends by itself", error=error.message)
