"""What can go wrong in a simulation: a store or an actuator fails, the process dies. All drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from forewarn.actuators import Progress, Simulate
from forewarn.core.model import Maintenance
from forewarn.errors import ActuatorError, StoreUnavailable
from forewarn.store.contract import Reader, Store, Transaction
from tests.support.observed import Observed

__all__ = ["FaultyActuator", "FaultyStore", "ProcessDied"]


class ProcessDied(BaseException):
    """The power went; nothing after this runs."""


class FaultyStore:
    """A store that fails now and then.

    Attributes:
        likelihood: Of each kind of fault, for each transaction.
        is_dying: The next commit succeeds, and then the process dies before anything else happens.
    """

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store = store
        self.likelihood = 0.0
        self.is_dying = False
        self._rng = rng

    def _strikes(self) -> bool:
        return self._rng.random() < self.likelihood

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        if self._strikes():
            raise StoreUnavailable("no transaction can begin")
        with self.store.write() as tx:
            yield tx
            if self._strikes():
                raise StoreUnavailable("the disk is full")
        if self.is_dying:
            self.is_dying = False
            raise ProcessDied
        if self._strikes():
            raise StoreUnavailable("the answer to the commit was lost")

    @property
    def shared(self) -> None:
        return None

    @property
    def damage(self) -> str | None:
        return self.store.damage

    def check_pages(self, span_s: float) -> None:
        self.store.check_pages(span_s)

    def stop_check(self) -> None:
        self.store.stop_check()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        if self._strikes():
            raise StoreUnavailable("no view can be had")
        with self.store.read() as reader:
            yield reader

    def close(self) -> None:
        self.store.close()


class FaultyActuator(Observed):
    """`Simulate` with times of its own for each maintenance, that fails now and then.

    Attributes:
        likelihood: Of a failure, for each call.
        calls: Every call: the maintenance's id and the moment.
    """

    def __init__(self, rng: random.Random) -> None:
        self.likelihood = 0.0
        self.calls: list[tuple[str, datetime]] = []
        self._rng = rng
        self._simulates: dict[str, Simulate] = {}

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Tell how far it would be by now, or fail."""
        self.calls.append((maintenance.id, now))
        roll = self._rng.random()
        if roll < self.likelihood / 2:
            raise ActuatorError("the hypervisor is busy")
        if roll < self.likelihood:
            raise RuntimeError("a bug")
        if maintenance.id not in self._simulates:
            span = timedelta(seconds=self._rng.choice([0, 1, 60, 600, 600, 3600]))
            self._simulates[maintenance.id] = Simulate(span / 10, span)
        return await self._simulates[maintenance.id].observe(maintenance, now)
