"""The service of the simulation: the real parts on a real loop's time, which crash, and the hypervisor below them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime

from forewarn.actuators import Progress, Simulate
from forewarn.core.maintenance.approval import Approver
from forewarn.core.model import Maintenance
from forewarn.errors import ActuatorError, ForewarnError, StoreUnavailable
from forewarn.publishing.feed import Channel
from forewarn.publishing.identity import Caller
from forewarn.wire import imds
from tests.support.agents.weather import CALM, Weather
from tests.support.faults import FaultyStore, ProcessDied
from tests.support.observed import Observed
from tests.support.simulated import LATEST, Simulated

__all__ = ["Answered", "Hypervisor", "Provider", "Reset"]

_PAST_MAX = 4
_RECOVER_RETRY_S = 1.0
_REQUESTS_MAX = 100


class Reset(Exception):
    """The service is down, or went down while it answered."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What the service sends back."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Hypervisor(Observed):
    """Carries maintenances out, each in times of its own, and fails now and then.

    Attributes:
        weather: How likely it fails.
        on_impact: Told of each maintenance whose impact happens.
    """

    def __init__(self, rng: random.Random) -> None:
        self.weather = CALM
        self.on_impact: Callable[[Maintenance], None] = lambda _: None
        self._rng = rng
        self._simulates: dict[str, Simulate] = {}
        self._struck: set[str] = set()

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Tell how far it would be by now, or fail."""
        if self._rng.random() < self.weather.actuator:
            raise ActuatorError("the hypervisor is busy")
        if maintenance.id not in self._simulates:
            impact_s = self._rng.choice([0.5, 7, 7, 40])
            span_s = impact_s + self._rng.choice([1, 15, 60, 300, 600])
            self._simulates[maintenance.id] = Simulate(timedelta(seconds=impact_s), timedelta(seconds=span_s))
        progress = await self._simulates[maintenance.id].observe(maintenance, now)
        if progress.is_impacted and maintenance.id not in self._struck:
            self._struck.add(maintenance.id)
            self.on_impact(maintenance)
        return progress


class Provider:
    """The service, up or down.

    Attributes:
        is_up: Whether it answers.
        crashes: How often it went down.
        requests: How many it was asked.
    """

    def __init__(self, made: Simulated, store: FaultyStore, hypervisor: Hypervisor) -> None:
        self.made = made
        self.hypervisor = hypervisor
        self.is_up = True
        self.crashes = 0
        self.requests = 0
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._held: dict[asyncio.Future[None], None] = {}
        self._past: dict[str, list[bytes]] = defaultdict(list)
        self._version = next(n for n, each in enumerate(made.feed.versions) if each.name == LATEST)

    # Its life

    def set_weather(self, weather: Weather) -> None:
        """From now on it fails that often."""
        self._store.likelihood = weather.store
        self.hypervisor.weather = weather

    def start(self) -> None:
        """Begin to work."""
        self.is_up = True
        self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            await self.made.scheduler.run()
        except ProcessDied:
            self._task = None
            self.crash()

    def crash(self, down_s: float = 5.0, *, is_dying: bool = False) -> None:
        """Lose everything but the store; come back after that time.

        Args:
            down_s: For how long.
            is_dying: It goes down right after its next commit instead, and nobody is told of that.
        """
        if is_dying:
            self._store.is_dying = True
            return
        self._store.is_dying = False
        if not self.is_up:
            return
        self.is_up = False
        self.crashes += 1
        if self._task is not None:
            self._task.cancel()
        for waiter in list(self._held):
            _release(waiter)
        self._loop.call_later(down_s, self._come_back)

    def _come_back(self) -> None:
        self.made.rebuild()
        self._task = self._loop.create_task(self._recover())

    async def _recover(self) -> None:
        while True:
            try:
                await self.made.engine.restore_state()
            except (StoreUnavailable, ProcessDied):
                await asyncio.sleep(_RECOVER_RETRY_S)
            else:
                self.start()
                return

    async def probe(self) -> None:
        """Show what was written."""
        with contextlib.suppress(StoreUnavailable, ProcessDied):
            await self.made.engine.committer.probe_store()

    async def stop(self) -> None:
        """The end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.made.engine.drain()

    # What it answers

    async def answer(self, address: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answered:
        """Answer one request as the endpoint does.

        Raises:
            Reset: There is no answer.
        """
        if not self.is_up:
            raise Reset
        self.requests += 1
        crashes = self.crashes
        try:
            answered = await self._answer(address, method, path, headers, body)
        except ProcessDied:
            self.crash()
            raise Reset from None
        except ForewarnError:
            answered = Answered(503, {}, imds.encode_error("Service unavailable"))
        if self.crashes != crashes:
            raise Reset
        date = format_datetime(self.made.now, usegmt=True)
        return Answered(answered.status, {**answered.headers, "date": date}, answered.body)

    async def _answer(self, address: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answered:
        caller = self._caller(address)
        if path.startswith("/metadata/instance/compute/name"):
            return Answered(200, {"content-type": "text/plain"}, caller.vm.name.encode())
        assert f"api-version={LATEST}" in path
        if method == "POST":
            return await self._approve(caller, body)
        return await self._document(address, caller, headers)

    def _caller(self, address: str) -> Caller:
        caller = self.made.identity.resolve_caller(address, "169.254.169.254")
        if caller is None:
            raise Reset
        return caller

    async def _document(self, address: str, caller: Caller, headers: Mapping[str, str]) -> Answered:
        channel = await self._enabled(caller)
        known = headers.get("If-None-Match", "")
        more = {}
        if known and imds.is_not_modified(known, channel.incarnation):
            wait_s = float(headers.get("Prefer", "wait=0").partition("=")[2])
            if wait_s > 0:
                more = {"preference-applied": "wait"}
            seen = (channel.epoch, channel.incarnation)
            await self._hold(channel, wait_s)
            if not self.is_up:
                raise Reset
            channel = await self._enabled(self._caller(address))
            if (channel.epoch, channel.incarnation) == seen:
                return Answered(304, {**more, "etag": known})
        body = channel.replies[self._version].body
        past = self._past[channel.key]
        if not past or past[-1] != body:
            past.append(body)
            del past[:-_PAST_MAX]
        return Answered(200, {**more, "etag": f'"{channel.incarnation}"'}, body)

    async def _enabled(self, caller: Caller) -> Channel:
        channel = caller.channel
        if not channel.is_enabled:
            await self.made.engine.authority.enable(channel.key, caller.vm.scope)
        channel.last_polled_at = self.made.now.replace(microsecond=0)
        return channel

    async def _hold(self, channel: Channel, wait_s: float) -> None:
        waiter = channel.add_waiter()
        self._held[waiter] = None
        timer = self._loop.call_later(wait_s, _release, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            channel.remove_waiter(waiter)
            self._held.pop(waiter, None)

    async def _approve(self, caller: Caller, body: bytes) -> Answered:
        wanted = imds.decode_approval(body, _REQUESTS_MAX)
        channel = caller.channel
        if not channel.settled.issuperset(wanted):
            approver = Approver(
                actor=f"vm:{caller.vm.name}",
                audience=channel.key,
                vm=caller.vm.name,
                source_address=caller.vm.addresses[0],
                api_version=LATEST,
            )
            approval = await self.made.engine.authority.approve(wanted, approver)
            if approval.unknown:
                return Answered(400, {}, imds.encode_error("Bad request: . EventId is not known"))
            channel.mark_settled((*approval.approved, *approval.unchanged))
        return Answered(200)

    def past(self, address: str, rng: random.Random) -> Answered | None:
        """A document of before, as a front end shows it that lags behind; None while there is none."""
        past = self._past[self._caller(address).channel.key] if self.is_up else []
        if len(past) < 2:
            return None
        return Answered(200, {"date": format_datetime(self.made.now, usegmt=True)}, rng.choice(past[:-1]))


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
