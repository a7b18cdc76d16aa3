"""One domain of libvirt: its state, its metadata, and each act on it.

All of it blocks and runs on the thread of a `LibvirtConnection`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from forewarn.actuators.libvirt_connection import Domain, LibvirtSession
from forewarn.actuators.libvirt_record import (
    DomainEntry,
    DomainStep,
    Procedure,
    decode_entry,
    encode_entry,
    find_ended_namespaces,
    namespace_of,
)
from forewarn.actuators.libvirt_steps import DomainAction, DomainDecision, DomainPower, DomainState
from forewarn.errors import ActuatorError

__all__ = [
    "DomainResult",
    "define_domain",
    "export_definition",
    "migrate_domain",
    "observe_domain",
    "perform_steps",
    "read_entry",
    "record_downtime",
    "undefine_copy",
]

ENDED_RECORDS_MAX = 3
"""Maximum number of records of ended maintenances that a VM keeps."""

_PREFIX = "forewarn"
# More than any method has steps.
_ROUNDS_MAX = 16
_MS = 1000.0

_NEEDS_PERSISTENCE = frozenset({Procedure.CYCLE, Procedure.MOVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainResult:
    """Result of a job on a domain.

    Attributes:
        action: Remaining act: wait, nothing, or one that needs more than this domain.
        entry: Record in its metadata now.
        until: Time of the next check.
        has_vanished: True if it existed when the job began, and no longer does.
    """

    action: DomainAction
    entry: DomainEntry | None
    until: datetime | None = None
    has_vanished: bool = False


def observe_domain(session: LibvirtSession, domain: Domain, *, is_moved: bool) -> DomainState:
    """Return the observable state of the domain."""
    library = session.library
    state = domain.state()[0]
    # Every other state counts as running, also a shutdown that has not ended: the VM is not off yet.
    power = DomainPower.RUNNING
    if state == library.VIR_DOMAIN_SHUTOFF:
        power = DomainPower.OFF
    elif state in {library.VIR_DOMAIN_PAUSED, library.VIR_DOMAIN_CRASHED}:
        power = DomainPower.PAUSED  # neither runs
    instance = -1 if power is DomainPower.OFF else domain.ID()
    return DomainState(power=power, instance=instance, is_moved=is_moved, has_job=_has_job(session, domain))


def _has_job(session: LibvirtSession, domain: Domain) -> bool:
    try:
        return bool(domain.jobInfo()[0] != session.library.VIR_DOMAIN_JOB_NONE)
    except session.library.libvirtError as error:
        if error.get_error_code() in {session.library.VIR_ERR_NO_SUPPORT, session.library.VIR_ERR_OPERATION_INVALID}:
            return False  # a driver without jobs, or a domain that is off
        raise


def read_entry(session: LibvirtSession, domain: Domain, id: str) -> DomainEntry | None:
    """Return the record of that maintenance on the domain; None if there is none."""
    library = session.library
    try:
        return decode_entry(domain.metadata(library.VIR_DOMAIN_METADATA_ELEMENT, namespace_of(id)))
    except library.libvirtError as error:
        if error.get_error_code() == library.VIR_ERR_NO_DOMAIN_METADATA:
            return None
        raise


def _write_entry(session: LibvirtSession, domain: Domain, entry: DomainEntry) -> None:
    _set_metadata(session, domain, encode_entry(entry), namespace_of(entry.id))


def _set_metadata(session: LibvirtSession, domain: Domain, element: str | None, namespace: str) -> None:
    library = session.library
    flags = library.VIR_DOMAIN_AFFECT_LIVE if domain.isActive() else 0
    if domain.isPersistent():
        flags |= library.VIR_DOMAIN_AFFECT_CONFIG  # a VM that is started again uses the persistent metadata
    domain.setMetadata(library.VIR_DOMAIN_METADATA_ELEMENT, element, _PREFIX, namespace, flags)


def perform_steps(  # noqa: PLR0913 - the target, and three inputs of the decision
    session: LibvirtSession,
    domain: Domain,
    id: str,
    *,
    is_moved: bool,
    decide: Callable[[DomainEntry | None, DomainState], DomainDecision],
    now: Callable[[], datetime],
) -> DomainResult:
    """Take step after step, until nothing is left to do here and now.

    Raises:
        ActuatorError: A step cannot be taken; those before it are recorded in the metadata.
    """
    for _ in range(_ROUNDS_MAX):
        entry = read_entry(session, domain, id)
        decision = decide(entry, observe_domain(session, domain, is_moved=is_moved))
        if decision.before is not None:
            session.ensure_wanted()
            if entry is None:
                _prepare_domain(session, domain, decision.before)
            # The record precedes the act. If the service dies in between, the next observation shows if the act has
            # happened.
            _write_entry(session, domain, decision.before)
            entry = decision.before
        if decision.action not in _ACTS:
            return DomainResult(action=decision.action, entry=entry, until=decision.until)
        session.ensure_wanted()
        _ACTS[decision.action](domain)
        if decision.after is not None:
            # The suspension is measured from the moment when `suspend` has returned.
            is_suspended = decision.after.step is DomainStep.SUSPENDED
            after = replace(decision.after, since=now()) if is_suspended else decision.after
            session.ensure_wanted()
            _write_entry(session, domain, after)
            # The next round would begin the migration again, although its time is over.
            if decision.action is DomainAction.GIVE_UP:
                return DomainResult(action=DomainAction.FAIL, entry=after)
    raise ActuatorError(f"vm {domain.name()} keeps changing")


_ACTS: dict[DomainAction, Callable[[Domain], int]] = {
    DomainAction.SUSPEND: lambda domain: domain.suspend(),
    DomainAction.RESUME: lambda domain: domain.resume(),
    DomainAction.SHUT_DOWN: lambda domain: domain.shutdown(),
    DomainAction.DESTROY: lambda domain: domain.destroy(),
    DomainAction.CREATE: lambda domain: domain.create(),
    DomainAction.GIVE_UP: lambda domain: domain.abortJob(),
}


def _prepare_domain(session: LibvirtSession, domain: Domain, entry: DomainEntry) -> None:
    """Check that the domain survives a shutdown, and delete the oldest ended records.

    Raises:
        ActuatorError: It is transient.
    """
    if entry.procedure in _NEEDS_PERSISTENCE and not domain.isPersistent():
        msg = f"vm {domain.name()} is a transient domain, which libvirt forgets when it is off: define it"
        raise ActuatorError(msg)
    ended = find_ended_namespaces(domain.XMLDesc())
    for namespace in ended[: max(len(ended) - ENDED_RECORDS_MAX, 0)]:
        with contextlib.suppress(session.library.libvirtError):  # mere tidying
            _set_metadata(session, domain, None, namespace)


def export_definition(session: LibvirtSession, name: str) -> str | None:
    """Return the domain's complete XML with its secrets, for the destination; None if there is no such domain."""
    library, domain = session.library, session.find_domain(name)
    flags = library.VIR_DOMAIN_XML_INACTIVE | library.VIR_DOMAIN_XML_SECURE
    return None if domain is None else domain.XMLDesc(flags)


def define_domain(session: LibvirtSession, xml: str) -> None:
    """Define the domain here; may be repeated."""
    session.ensure_wanted()
    session.connect.defineXML(xml)


def undefine_copy(session: LibvirtSession, name: str) -> None:
    """Undefine the domain at its former place.

    Raises:
        ActuatorError: It runs there.
    """
    domain = session.find_domain(name)
    if domain is None:
        return
    if domain.isActive():
        raise ActuatorError(f"vm {name} was started on {session.connect.getHostname()} during its move")
    library = session.library
    session.ensure_wanted()
    try:
        # Its firmware variables and its TPM state are kept: they may be on storage that both hosts share.
        domain.undefineFlags(library.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM | library.VIR_DOMAIN_UNDEFINE_KEEP_TPM)
    except library.libvirtError as error:
        if error.get_error_code() != library.VIR_ERR_INVALID_ARG:
            raise
        domain.undefine()  # a driver that supports neither flag


def _read_downtime_s(session: LibvirtSession, domain: Domain) -> float | None:
    """Return the downtime at the end of the last migration; None if libvirt does not report it."""
    library = session.library
    try:
        downtime_ms = domain.jobStats(library.VIR_DOMAIN_JOB_STATS_COMPLETED).get("downtime")
    except library.libvirtError:
        return None
    return None if downtime_ms is None else downtime_ms / _MS


def record_downtime(session: LibvirtSession, domain: Domain, entry: DomainEntry) -> DomainEntry:
    """Record the downtime of a migration, if libvirt reports it."""
    measured = replace(entry, paused_s=_read_downtime_s(session, domain))
    if measured != entry:
        session.ensure_wanted()
        _write_entry(session, domain, measured)
    return measured


def migrate_domain(session: LibvirtSession, name: str, destination: str, data_uri: str) -> None:
    """Migrate the domain live; blocks until it is done. The daemons finish it even if the caller stops waiting."""
    library = session.library
    domain = session.find_domain(name)
    if domain is None:
        return
    # Peer to peer, the daemons go on without us. Auto-converge slows a guest that writes its memory too fast to copy.
    flags = library.VIR_MIGRATE_LIVE | library.VIR_MIGRATE_PEER2PEER | library.VIR_MIGRATE_AUTO_CONVERGE
    if domain.isPersistent():
        # Otherwise the VM would be transient at its destination, and stay defined at its home.
        flags |= library.VIR_MIGRATE_PERSIST_DEST | library.VIR_MIGRATE_UNDEFINE_SOURCE
    parameters = {library.VIR_MIGRATE_PARAM_URI: data_uri} if data_uri else {}
    domain.migrateToURI3(destination, parameters, flags)
