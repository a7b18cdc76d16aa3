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
from forewarn.actuators.libvirt_connection import LibvirtConnection, LibvirtSession, load_libvirt
from forewarn.actuators.libvirt_domain import (
    DomainResult,
    define_domain,
    export_definition,
    migrate_domain,
    perform_steps,
    read_entry,
    record_downtime,
    undefine_copy,
)
from forewarn.actuators.libvirt_record import DomainEntry, DomainStep, Procedure
from forewarn.actuators.libvirt_steps import (
    DomainAction,
    DomainDecision,
    DomainState,
    LibvirtTimings,
    choose_procedure,
    decide_abort,
    decide_step,
)
from forewarn.clock import Clock, RealClock
from forewarn.core.model import Claim, Maintenance
from forewarn.errors import ActuationFailed, ActuatorError, ConfigError, ForewarnError

__all__ = ["Destination", "Libvirt", "LibvirtTimings", "read_destinations"]

T = TypeVar("T")
_Decide = Callable[[DomainEntry | None, DomainState], DomainDecision]

_ANY_HOST = "*"
# One is enough, unless the VM is defined at home again meanwhile.
_MOVES_MAX = 4
_REASONS_MAX = 100
_NOT_YET = frozenset(
    {DomainStep.SUSPENDING, DomainStep.ASKING, DomainStep.MIGRATING, DomainStep.LANDING, DomainStep.INTERRUPTED}
)
"""Steps at which the guest has not been affected yet."""

_WORDS = {
    Procedure.SUSPEND: "suspend {vm} on {home}, resume it after {freeze:g} s",
    Procedure.MIGRATE: "migrate {vm} from {home} to {away} while it runs",
    Procedure.CYCLE: "shut down {vm} on {home}, cut its power after {timeout:g} s, and start it again",
    Procedure.MOVE: "shut down {vm} on {home}, cut its power after {timeout:g} s, define and start it on {away}",
    Procedure.STOP: "shut down {vm} on {home}, cut its power after {timeout:g} s",
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
        # A URI may contain = as well, but only in its query, after a slash.
        is_named = bool(separator) and "/" not in before
        host, where = (before, after) if is_named else (_ANY_HOST, word)
        uri, _, data_uri = where.partition("|")
        if host in read or not host or "://" not in uri:
            msg = f"setting libvirt_destination: expected HOST=URI, each host once, not {word!r}"
            raise ConfigError(msg, setting="libvirt_destination")
        read[host] = Destination(uri, data_uri)
    return read


class Libvirt:
    """Carries maintenances out on the domains of one or several libvirts.

    Args:
        uri: URI of a host's libvirt; ``{host}`` in it is replaced by the host's name.
        destinations: Destinations of the VMs of each host, by host name; ``*`` is for every other host.
        timings: Durations and time limits.
        call_timeout: Time limit for one call of libvirt, or the few that belong together.
        connections_per_host: Connections to each libvirt, and so the number of domains that are worked on concurrently.
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
        timings: LibvirtTimings | None = None,
        call_timeout: timedelta = timedelta(seconds=30),
        connections_per_host: int = 4,
        clock: Clock | None = None,
    ) -> None:
        # A missing library fails the start of the service, and not its first maintenance.
        load_libvirt()
        self._uri = uri
        self._destinations = dict(destinations or {})
        self._timings = timings or LibvirtTimings()
        self._call_timeout = call_timeout
        self._connections_per_host = connections_per_host
        self._clock = clock or RealClock()
        self._connections: dict[tuple[str, int], LibvirtConnection] = {}
        # After a restart this is empty, and libvirt's own job shows whether a migration runs.
        self._migrations: dict[tuple[str, str], asyncio.Task[str]] = {}

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return what would be done to each VM."""
        terms = self._get_timings(maintenance)
        said = {"freeze": terms.freeze.total_seconds(), "timeout": terms.shutdown_timeout.total_seconds()}
        return tuple(
            _WORDS[self._choose_procedure(maintenance, claim)].format(
                vm=claim.vm,
                home=self._get_home_uri(claim.host),
                away=(self._find_destination(claim.host) or Destination("")).uri,
                **said,
            )
            for claim in maintenance.claims
        )

    async def check(self) -> None:
        """Connect to every libvirt whose URI follows from the settings."""
        uris = {self._get_home_uri(host) for host in self._destinations if host != _ANY_HOST}
        uris |= {destination.uri for destination in self._destinations.values()}
        # A URI with `{host}` cannot be tried: the names of the other hosts are not known here.
        if self._get_home_uri("") == self._uri:
            uris.add(self._uri)
        for uri in sorted(uris):
            await self._get_connection(uri, "").run_job(lambda session: session.connect.getLibVersion())

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:  # noqa: ARG002 - the contract's
        """Take the first steps, unless they were taken."""
        return await self._drive_vms(maintenance)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:  # noqa: ARG002 - as above
        """Read what was begun, and take the next steps."""
        seen = await self._run_for_each_vm(maintenance, self._read_record)
        found = [one for one in seen if isinstance(one, DomainResult)]
        if any(one.entry is not None for one in found):
            return await self._drive_vms(maintenance)
        # No record was found, but a libvirt that did not answer may hold one. Only certainty permits the answer that
        # nothing was begun.
        _raise_first_error(seen)
        for claim, one in zip(maintenance.claims, seen, strict=True):
            if one is None:
                self._handle_absence(maintenance, claim, is_wanted=False)
        # Only a Preempt or Terminate is left here, whose VMs are gone as intended: others have raised an error.
        if not found:
            return Progress(is_impacted=True, is_complete=True)
        if maintenance.impacted_at is None:
            return None
        # To begin anew would suspend or restart a second time the VMs that have felt the impact.
        msg = f"forewarn's record is gone from the metadata of {', '.join(maintenance.vms)}: check them by hand"
        raise ActuatorError(msg)

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:  # noqa: ARG002 - as above
        """Restore VMs that would stay away; stop migrations."""
        parts = await self._run_for_each_vm(maintenance, self._abort_vm)
        _raise_first_error(parts)

    async def close(self) -> None:
        """Close the connections. The daemons continue the operations that they have begun."""
        for task in self._migrations.values():
            task.cancel()
        self._migrations.clear()
        lines, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(line.close() for line in lines))

    # One maintenance

    async def _drive_vms(self, maintenance: Maintenance) -> Progress:
        """Drive each VM as far as it goes now. Failures are raised last, so that none keeps another VM suspended."""
        results = await self._run_for_each_vm(maintenance, self._drive_vm)
        parts = [part for part in results if isinstance(part, Progress)]
        waiting = [part.check_at for part in parts if part.check_at is not None]
        is_impacted = any(part.is_impacted for part in parts)
        if waiting:
            return Progress(is_impacted=is_impacted, check_at=min(waiting))
        _raise_first_error(results)
        pauses = [part.impact_s for part in parts if part.impact_s is not None]
        return Progress(is_impacted=True, is_complete=True, impact_s=max(pauses, default=None))

    async def _run_for_each_vm(
        self, maintenance: Maintenance, work: Callable[[Maintenance, Claim], Awaitable[T]]
    ) -> list[T | BaseException]:
        calls = [work(maintenance, claim) for claim in maintenance.claims]
        return await asyncio.gather(*calls, return_exceptions=True)

    # Steps of one VM

    async def _drive_vm(self, maintenance: Maintenance, claim: Claim) -> Progress:
        terms, way = self._get_timings(maintenance), self._choose_procedure(maintenance, claim)
        migration = self._migrations.get((maintenance.id, claim.vm))
        # A migration that waits for its connection shows no job in libvirt yet, and must not be taken for a failed one.
        is_migrating = migration is not None and not migration.done()

        def next_step(entry: DomainEntry | None, sight: DomainState) -> DomainDecision:
            seen = replace(sight, has_job=sight.has_job or is_migrating)
            return decide_step(maintenance.id, way, entry, seen, self._clock.now(), terms)

        for _ in range(_MOVES_MAX):
            found = await self._perform_steps(maintenance, claim, next_step)
            if found is None or found.has_vanished:
                # A transient domain vanishes when it stops, which is the purpose of a Preempt or Terminate.
                return self._handle_absence(maintenance, claim, is_wanted=way is Procedure.STOP and found is not None)
            match found.action:
                case DomainAction.MOVE:
                    await self._move_definition(claim)
                case DomainAction.MIGRATE:
                    self._start_migration(maintenance, claim)
                    return Progress(check_at=self._clock.now() + terms.check_every)
                case DomainAction.FAIL:
                    raise ActuationFailed(self._explain_failed_migration(maintenance, claim))
                case _:
                    return self._make_progress(maintenance, claim, found)
        raise ActuatorError(f"cannot move vm {claim.vm}: it keeps reappearing at {self._get_home_uri(claim.host)}")

    def _make_progress(self, maintenance: Maintenance, claim: Claim, found: DomainResult) -> Progress:
        entry = found.entry
        if found.action is DomainAction.NOTHING:
            self._migrations.pop((maintenance.id, claim.vm), None)
            return Progress(is_impacted=True, is_complete=True, impact_s=None if entry is None else entry.paused_s)
        is_impacted = entry is not None and entry.step not in _NOT_YET
        return Progress(is_impacted=is_impacted, check_at=found.until)

    async def _perform_steps(self, maintenance: Maintenance, claim: Claim, next_step: _Decide) -> DomainResult | None:
        """Run the steps at home, or at the destination; None if it is at neither."""
        last: DomainResult | None = None
        # Home first: while a VM is moved it is defined at both places, and the one at home counts.
        for uri in self._list_uris(claim.host):
            is_moved = uri != self._get_home_uri(claim.host)
            job = partial(_continue_domain, name=claim.vm, id=maintenance.id, is_moved=is_moved, decide=next_step)
            found = await self._get_connection(uri, claim.vm).run_job(partial(job, now=self._clock.now))
            last = found or last
            if found is not None and not found.has_vanished:
                break
        return last

    async def _read_record(self, maintenance: Maintenance, claim: Claim) -> DomainResult | None:
        for uri in self._list_uris(claim.host):
            found = await self._get_connection(uri, claim.vm).run_job(
                partial(_read_domain_record, name=claim.vm, id=maintenance.id)
            )
            if found is not None:
                return found
        return None

    def _handle_absence(self, maintenance: Maintenance, claim: Claim, *, is_wanted: bool) -> Progress:
        """Handle a missing domain: either that was intended, or it has vanished.

        Raises:
            ActuatorError: It has vanished, or never existed.
        """
        is_stop = self._choose_procedure(maintenance, claim) is Procedure.STOP
        if is_wanted or (is_stop and maintenance.impacted_at is not None):
            return Progress(is_impacted=True, is_complete=True)
        raise ActuatorError(f"vm {claim.vm} is not a domain of {' or '.join(self._list_uris(claim.host))}")

    async def _abort_vm(self, maintenance: Maintenance, claim: Claim) -> None:
        await self._perform_steps(maintenance, claim, decide_abort)
        self._migrations.pop((maintenance.id, claim.vm), None)

    async def _move_definition(self, claim: Claim) -> None:
        """Define the domain there and undefine it here; both may be repeated. It is off until both are done."""
        away = self._find_destination(claim.host)
        if away is None:
            msg = f"vm {claim.vm} is being moved from {claim.host}, which no longer has a destination: set it again"
            raise ActuatorError(msg)
        home = self._get_connection(self._get_home_uri(claim.host), claim.vm)
        xml = await home.run_job(partial(export_definition, name=claim.vm))
        # None means that an earlier call has undefined it here already.
        if xml is not None:
            # In this order, so that a crash in between leaves the VM defined at both places and not at none.
            await self._get_connection(away.uri, claim.vm).run_job(partial(define_domain, xml=xml))
            await home.run_job(partial(undefine_copy, name=claim.vm))

    def _start_migration(self, maintenance: Maintenance, claim: Claim) -> None:
        away = self._find_destination(claim.host)
        # Ended tasks hold the reasons of failures, which are reported later; only the newest are kept.
        over = [key for key, task in self._migrations.items() if task.done()]
        for key in over[: max(len(over) - _REASONS_MAX, 0)]:
            del self._migrations[key]
        if away is not None:
            work = self._run_migration(self._get_home_uri(claim.host), claim.vm, away)
            self._migrations[maintenance.id, claim.vm] = asyncio.create_task(work)

    async def _run_migration(self, home_uri: str, vm: str, destination: Destination) -> str:
        """Migrate on a separate line, since the call blocks; return the reason of a failure, else ``""``."""
        # No deadline, because a migration may take long; at `migration_timeout` another connection aborts its job.
        line = LibvirtConnection(home_uri, None)
        try:
            await line.run_job(
                partial(migrate_domain, name=vm, destination=destination.uri, data_uri=destination.data_uri)
            )
        except ForewarnError as error:
            return error.message
        finally:
            await line.close()
        return ""

    def _explain_failed_migration(self, maintenance: Maintenance, claim: Claim) -> str:
        """Return the reason why a migration failed."""
        task = self._migrations.get((maintenance.id, claim.vm))
        reason = task.result() if task is not None and task.done() and not task.cancelled() else ""
        return f"vm {claim.vm} was not migrated: {reason or 'it was interrupted, or took too long'}"

    # Places and methods

    def _get_home_uri(self, host: str) -> str:
        return self._uri.replace("{host}", host)

    def _find_destination(self, host: str) -> Destination | None:
        away = self._destinations.get(host) or self._destinations.get(_ANY_HOST)
        # A host that is the destination of all other hosts has none for its own VMs.
        return None if away is None or away.uri == self._get_home_uri(host) else away

    def _list_uris(self, host: str) -> list[str]:
        away = self._find_destination(host)
        return [self._get_home_uri(host), *([] if away is None else [away.uri])]

    def _choose_procedure(self, maintenance: Maintenance, claim: Claim) -> Procedure:
        return choose_procedure(maintenance.impact, has_destination=self._find_destination(claim.host) is not None)

    def _get_timings(self, maintenance: Maintenance) -> LibvirtTimings:
        if maintenance.duration_s < 0:
            return self._timings
        return replace(self._timings, freeze=timedelta(seconds=maintenance.duration_s))

    def _get_connection(self, uri: str, vm: str) -> LibvirtConnection:
        """Return the line of a VM, always the same one, so that no two calls work on it concurrently."""
        key = (uri, zlib.crc32(vm.encode()) % self._connections_per_host)
        if key not in self._connections:
            self._connections[key] = LibvirtConnection(uri, self._call_timeout)
        return self._connections[key]


def _continue_domain(  # noqa: PLR0913 - the parameters of `perform_steps`
    session: LibvirtSession, *, name: str, id: str, is_moved: bool, decide: _Decide, now: Callable[[], datetime]
) -> DomainResult | None:
    domain = session.find_domain(name)
    if domain is None:
        return None
    try:
        found = perform_steps(session, domain, id, is_moved=is_moved, decide=decide, now=now)
    except session.library.libvirtError as error:
        if session.means_absence(error):
            return DomainResult(
                action=DomainAction.NOTHING, entry=None, has_vanished=True
            )  # vanished between two calls
        raise
    entry = found.entry
    has_arrived = found.action is DomainAction.NOTHING and is_moved
    if has_arrived and entry is not None and entry.procedure is Procedure.MIGRATE and entry.paused_s is None:
        return replace(found, entry=record_downtime(session, domain, entry))
    return found


def _read_domain_record(session: LibvirtSession, *, name: str, id: str) -> DomainResult | None:
    domain = session.find_domain(name)
    if domain is None:
        return None
    try:
        return DomainResult(action=DomainAction.NOTHING, entry=read_entry(session, domain, id))
    except session.library.libvirtError as error:
        if session.means_absence(error):
            return None
        raise


def _raise_first_error(results: list[T | BaseException]) -> None:
    """Raise the first error, with the number of others; errors that a retry may cure come first."""
    errors = [result for result in results if isinstance(result, BaseException)]
    # With a final failure first, the maintenance would fail although a retry may still help other VMs.
    errors.sort(key=lambda error: isinstance(error, ActuationFailed))
    if not errors:
        return
    first = errors[0]
    if len(errors) > 1 and isinstance(first, ActuatorError):
        msg = f"{first.message} (and {len(errors) - 1} more)"
        # Of the same class: the scheduler gives up on an ActuationFailed, and repeats the call after other errors.
        raise type(first)(msg) from first
    raise first
