"""Actuator for libvirt: KVM, and any other hypervisor that libvirt drives.

===================  ==========================================================================================
Freeze               suspend, and resume after the announced seconds; with a destination, live migration
Reboot               shut down, create; the power is cut if the guest does not shut down in time
Redeploy             like Reboot; with a destination, the VM is defined and created there
Preempt, Terminate   shut down; the power is cut if the guest does not shut down in time
===================  ==========================================================================================

A VM is the domain of the same name. The steps begun are recorded in the domain's metadata (`libvirt_record`) and read
before each step (`libvirt_steps`), so that any replica can continue where another has stopped.

A reboot is a shutdown with a start, not libvirt's own reboot: that one leaves no trace by which another process could
determine if it has happened.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from forewarn.actuators.contract import Progress
from forewarn.actuators.libvirt_connection import Line, Session, load_libvirt
from forewarn.actuators.libvirt_domain import (
    Found,
    forget_copy,
    hand_over,
    migrate,
    note_downtime,
    perform,
    read_entry,
    receive,
)
from forewarn.actuators.libvirt_record import Entry, Step, Way
from forewarn.actuators.libvirt_steps import Act, Decision, Sight, Terms, decide, decide_abort, way_of
from forewarn.clock import Clock, RealClock
from forewarn.core.model import Claim, Maintenance
from forewarn.errors import ActuationFailed, ActuatorError, ConfigError, ForewarnError

__all__ = ["Destination", "Libvirt", "Terms", "read_destinations"]

T = TypeVar("T")
_Decide = Callable[[Entry | None, Sight], Decision]

_ANY_HOST = "*"
_MOVES_MAX = 4
_REASONS_MAX = 100
_NOT_YET = frozenset({Step.SUSPENDING, Step.ASKING, Step.MIGRATING, Step.INTERRUPTED})
"""Steps at which the guest has not been affected yet."""

_WORDS = {
    Way.SUSPEND: "suspend {vm} on {home}, resume it after {freeze:g} s",
    Way.MIGRATE: "migrate {vm} from {home} to {away} while it runs",
    Way.CYCLE: "shut down {vm} on {home}, within {timeout:g} s or by cutting its power, and start it again",
    Way.MOVE: "shut down {vm} on {home}, within {timeout:g} s or by cutting its power, define and start it on {away}",
    Way.STOP: "shut down {vm} on {home}, within {timeout:g} s or by cutting its power",
}


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of the VMs of a host.

    Attributes:
        uri: URI of the other libvirt, for Forewarn and for the daemon of the host.
        data_uri: Target for the memory, for example ``tcp://10.10.0.2``; empty to let libvirt choose.
    """

    uri: str
    data_uri: str = ""


def read_destinations(text: str) -> dict[str, Destination]:
    """Parse destinations by host from ``HOST=URI``, separated by spaces; a URI alone is for every other host.

    After a URI, ``|`` and the target for the memory may follow: ``host-1=qemu+tls://host-2/system|tcp://10.10.0.2``.

    Raises:
        ConfigError: The text has another form, or names a host twice.
    """
    read: dict[str, Destination] = {}
    for word in text.split():
        before, separator, after = word.partition("=")
        is_named = bool(separator) and "/" not in before
        host, where = (before, after) if is_named else (_ANY_HOST, word)
        uri, _, data_uri = where.partition("|")
        if host in read or not host or "://" not in uri:
            msg = f"setting libvirt_destination: {word!r} is expected to be HOST=URI, and each host once"
            raise ConfigError(msg, setting="libvirt_destination")
        read[host] = Destination(uri, data_uri)
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Progress of one VM of a maintenance; `until` is the time of the next check, None if it is over."""

    until: datetime | None = None
    is_impacted: bool = False
    paused_s: float | None = None


class Libvirt:
    """Carries maintenances out on the domains of one or several libvirts.

    Args:
        uri: URI of a host's libvirt; ``{host}`` in it is replaced by the host's name.
        destinations: Destinations of the VMs of each host, by host name; ``*`` is for every other host.
        terms: Durations and time limits.
        call_timeout: Time limit for one call of libvirt, or the few that belong together.
        lines_per_host: Connections to each libvirt, and so the number of domains that are worked on concurrently.
        clock: Clock that measures pauses; None for the machine's.

    Raises:
        ConfigError: libvirt's library for Python is missing.
    """

    is_observable = True

    def __init__(  # noqa: PLR0913 - settings, each with its default
        self,
        uri: str = "qemu:///system",
        *,
        destinations: Mapping[str, Destination] | None = None,
        terms: Terms | None = None,
        call_timeout: timedelta = timedelta(seconds=30),
        lines_per_host: int = 4,
        clock: Clock | None = None,
    ) -> None:
        load_libvirt()
        self._uri = uri
        self._destinations = dict(destinations or {})
        self._terms = terms or Terms()
        self._call_timeout = call_timeout
        self._lines_per_host = lines_per_host
        self._clock = clock or RealClock()
        self._lines: dict[tuple[str, int], Line] = {}
        self._migrations: dict[tuple[str, str], asyncio.Task[str]] = {}

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return what would be done to each VM."""
        terms = self._terms_of(maintenance)
        said = {"freeze": terms.freeze.total_seconds(), "timeout": terms.shutdown_timeout.total_seconds()}
        return tuple(
            _WORDS[self._way_of(maintenance, claim)].format(
                vm=claim.vm, home=self._home(claim.host), away=(self._away(claim.host) or Destination("")).uri, **said
            )
            for claim in maintenance.claims
        )

    async def check(self) -> None:
        """Connect to every libvirt whose URI follows from the settings."""
        uris = {self._home(host) for host in self._destinations if host != _ANY_HOST}
        uris |= {destination.uri for destination in self._destinations.values()}
        if self._home("") == self._uri:
            uris.add(self._uri)
        for uri in sorted(uris):
            await self._line(uri, "").call(lambda session: session.connect.getLibVersion())

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:  # noqa: ARG002 - the contract's
        """Take the first steps, unless they were taken."""
        return await self._drive(maintenance)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:  # noqa: ARG002 - as above
        """Read what was begun, and take the next steps."""
        seen = await self._each(maintenance, self._read)
        found = [one for one in seen if isinstance(one, Found)]
        if any(one.entry is not None for one in found):
            return await self._drive(maintenance)
        _raise_first(seen)
        for claim, one in zip(maintenance.claims, seen, strict=True):
            if one is None:
                self._absent(maintenance, claim, is_wanted=False)
        if not found:
            return Progress(is_impacted=True, is_complete=True)
        if maintenance.impacted_at is None:
            return None
        msg = f"forewarn's record is gone from the metadata of {', '.join(maintenance.vms)}: see to it by hand"
        raise ActuatorError(msg)

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:  # noqa: ARG002 - as above
        """Restore VMs that would stay away; stop migrations."""
        parts = await self._each(maintenance, self._abort_one)
        _raise_first(parts)

    async def close(self) -> None:
        """Close the connections. The daemons continue the operations that they have begun."""
        for task in self._migrations.values():
            task.cancel()
        self._migrations.clear()
        lines, self._lines = list(self._lines.values()), {}
        await asyncio.gather(*(line.close() for line in lines))

    # One maintenance

    async def _drive(self, maintenance: Maintenance) -> Progress:
        """Drive each VM as far as it goes now. Failures are raised last, so that none keeps another VM suspended."""
        results = await self._each(maintenance, self._drive_one)
        parts = [part for part in results if isinstance(part, _Part)]
        waiting = [part.until for part in parts if part.until is not None]
        is_impacted = any(part.is_impacted for part in parts)
        if waiting:
            return Progress(is_impacted=is_impacted, check_at=min(waiting))
        _raise_first(results)
        pauses = [part.paused_s for part in parts if part.paused_s is not None]
        return Progress(is_impacted=True, is_complete=True, impact_s=max(pauses, default=None))

    async def _each(
        self, maintenance: Maintenance, work: Callable[[Maintenance, Claim], Awaitable[T]]
    ) -> list[T | BaseException]:
        calls = [work(maintenance, claim) for claim in maintenance.claims]
        return await asyncio.gather(*calls, return_exceptions=True)

    # Steps of one VM

    async def _drive_one(self, maintenance: Maintenance, claim: Claim) -> _Part:
        terms, way = self._terms_of(maintenance), self._way_of(maintenance, claim)
        migration = self._migrations.get((maintenance.id, claim.vm))
        is_migrating = migration is not None and not migration.done()

        def next_step(entry: Entry | None, sight: Sight) -> Decision:
            seen = replace(sight, has_job=sight.has_job or is_migrating)
            return decide(maintenance.id, way, entry, seen, self._clock.now(), terms)

        for _ in range(_MOVES_MAX):
            found = await self._perform(maintenance, claim, next_step)
            if found is None or found.has_vanished:
                return self._absent(maintenance, claim, is_wanted=way is Way.STOP and found is not None)
            match found.act:
                case Act.MOVE:
                    await self._move(claim)
                case Act.MIGRATE:
                    self._start_migration(maintenance, claim)
                    return _Part(until=self._clock.now() + terms.look_every)
                case Act.FAIL:
                    raise ActuationFailed(self._why(maintenance, claim))
                case _:
                    return self._part(maintenance, claim, found)
        msg = f"vm {claim.vm} cannot be moved: it appears at {self._home(claim.host)} again and again"
        raise ActuatorError(msg)

    def _part(self, maintenance: Maintenance, claim: Claim, found: Found) -> _Part:
        entry = found.entry
        if found.act is Act.NOTHING:
            self._migrations.pop((maintenance.id, claim.vm), None)
            return _Part(is_impacted=True, paused_s=None if entry is None else entry.paused_s)
        is_impacted = entry is not None and entry.step not in _NOT_YET
        return _Part(until=found.until, is_impacted=is_impacted)

    async def _perform(self, maintenance: Maintenance, claim: Claim, next_step: _Decide) -> Found | None:
        """Run the steps at home, or at the destination; None if it is at neither."""
        last: Found | None = None
        for uri in self._places(claim.host):
            is_moved = uri != self._home(claim.host)
            job = partial(_carry_on, name=claim.vm, id=maintenance.id, is_moved=is_moved, decide=next_step)
            found = await self._line(uri, claim.vm).call(partial(job, now=self._clock.now))
            last = found or last
            if found is not None and not found.has_vanished:
                break
        return last

    async def _read(self, maintenance: Maintenance, claim: Claim) -> Found | None:
        for uri in self._places(claim.host):
            found = await self._line(uri, claim.vm).call(partial(_look_up, name=claim.vm, id=maintenance.id))
            if found is not None:
                return found
        return None

    def _absent(self, maintenance: Maintenance, claim: Claim, *, is_wanted: bool) -> _Part:
        """Handle a missing domain: either that was intended, or it has vanished.

        Raises:
            ActuatorError: It has vanished, or never existed.
        """
        is_stop = self._way_of(maintenance, claim) is Way.STOP
        if is_wanted or (is_stop and maintenance.impacted_at is not None):
            return _Part(is_impacted=True)
        msg = f"vm {claim.vm} is no domain of {' or '.join(self._places(claim.host))}"
        raise ActuatorError(msg)

    async def _abort_one(self, maintenance: Maintenance, claim: Claim) -> None:
        await self._perform(maintenance, claim, decide_abort)
        self._migrations.pop((maintenance.id, claim.vm), None)

    async def _move(self, claim: Claim) -> None:
        """Define the domain there and undefine it here; both may be repeated. It is off until both are done."""
        away = self._away(claim.host)
        if away is None:
            msg = f"vm {claim.vm} is on its way from {claim.host}, which has no destination any more: set it again"
            raise ActuatorError(msg)
        home = self._line(self._home(claim.host), claim.vm)
        xml = await home.call(partial(_describe, name=claim.vm))
        if xml is not None:
            await self._line(away.uri, claim.vm).call(partial(receive, xml=xml))
            await home.call(partial(forget_copy, name=claim.vm))

    def _start_migration(self, maintenance: Maintenance, claim: Claim) -> None:
        away = self._away(claim.host)
        over = [key for key, task in self._migrations.items() if task.done()]
        for key in over[: max(len(over) - _REASONS_MAX, 0)]:
            del self._migrations[key]
        if away is not None:
            work = self._migrate(self._home(claim.host), claim.vm, away)
            self._migrations[maintenance.id, claim.vm] = asyncio.create_task(work)

    async def _migrate(self, home: str, vm: str, away: Destination) -> str:
        """Migrate on a separate line, since the call blocks; return the reason of a failure, else ``""``."""
        line = Line(home, None)
        try:
            await line.call(partial(migrate, name=vm, destination=away.uri, data_uri=away.data_uri))
        except ForewarnError as error:
            return error.message
        finally:
            await line.close()
        return ""

    def _why(self, maintenance: Maintenance, claim: Claim) -> str:
        """Return the reason why a migration failed."""
        task = self._migrations.get((maintenance.id, claim.vm))
        reason = task.result() if task is not None and task.done() and not task.cancelled() else ""
        return f"vm {claim.vm} was not migrated: {reason or 'it was interrupted, or took too long'}"

    # Places and methods

    def _home(self, host: str) -> str:
        return self._uri.replace("{host}", host)

    def _away(self, host: str) -> Destination | None:
        away = self._destinations.get(host) or self._destinations.get(_ANY_HOST)
        return None if away is None or away.uri == self._home(host) else away

    def _places(self, host: str) -> list[str]:
        away = self._away(host)
        return [self._home(host), *([] if away is None else [away.uri])]

    def _way_of(self, maintenance: Maintenance, claim: Claim) -> Way:
        return way_of(maintenance.impact, has_destination=self._away(claim.host) is not None)

    def _terms_of(self, maintenance: Maintenance) -> Terms:
        if maintenance.duration_s < 0:
            return self._terms
        return replace(self._terms, freeze=timedelta(seconds=maintenance.duration_s))

    def _line(self, uri: str, vm: str) -> Line:
        """Return the line of a VM, always the same one, so that no two calls work on it concurrently."""
        key = (uri, zlib.crc32(vm.encode()) % self._lines_per_host)
        if key not in self._lines:
            self._lines[key] = Line(uri, self._call_timeout)
        return self._lines[key]


def _carry_on(  # noqa: PLR0913 - the parameters of `perform`
    session: Session, *, name: str, id: str, is_moved: bool, decide: _Decide, now: Callable[[], datetime]
) -> Found | None:
    domain = session.find(name)
    if domain is None:
        return None
    try:
        found = perform(session, domain, id, is_moved=is_moved, decide=decide, now=now)
    except session.library.libvirtError as error:
        if session.is_absence(error):
            return Found(act=Act.NOTHING, entry=None, has_vanished=True)  # vanished between two calls
        raise
    entry = found.entry
    is_measured = entry is None or entry.paused_s is not None
    if found.act is Act.NOTHING and entry is not None and entry.way is Way.MIGRATE and is_moved and not is_measured:
        return replace(found, entry=note_downtime(session, domain, entry))
    return found


def _look_up(session: Session, *, name: str, id: str) -> Found | None:
    domain = session.find(name)
    if domain is None:
        return None
    try:
        return Found(act=Act.NOTHING, entry=read_entry(session, domain, id))
    except session.library.libvirtError as error:
        if session.is_absence(error):
            return None
        raise


def _describe(session: Session, *, name: str) -> str | None:
    domain = session.find(name)
    return None if domain is None else hand_over(session, domain)


def _raise_first(results: list[T | BaseException]) -> None:
    """Raise the first error, with the number of others; errors that a retry may cure come first."""
    errors = [result for result in results if isinstance(result, BaseException)]
    errors.sort(key=lambda error: isinstance(error, ActuationFailed))
    if not errors:
        return
    first = errors[0]
    if len(errors) > 1 and isinstance(first, ActuatorError):
        msg = f"{first.message} (and {len(errors) - 1} more)"
        raise type(first)(msg) from first
    raise first
