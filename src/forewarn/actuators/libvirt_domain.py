"""One domain of libvirt: its state, its metadata, and each act on it.

All of it blocks and runs on the thread of a `Line`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from forewarn.actuators.libvirt_connection import Domain, Session
from forewarn.actuators.libvirt_record import (
    Entry,
    Step,
    Way,
    decode_entry,
    encode_entry,
    ended_namespaces,
    namespace_of,
)
from forewarn.actuators.libvirt_steps import Act, Decision, Power, Sight
from forewarn.errors import ActuatorError

__all__ = [
    "Found",
    "forget_copy",
    "hand_over",
    "look",
    "migrate",
    "note_downtime",
    "perform",
    "read_entry",
    "receive",
]

ENDED_RECORDS_MAX = 3
"""Maximum number of records of ended maintenances that a VM keeps."""

_PREFIX = "forewarn"
_ROUNDS_MAX = 16
_MS = 1000.0

_NEEDS_PERSISTENCE = frozenset({Way.CYCLE, Way.MOVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a job on a domain.

    Attributes:
        act: Remaining act: wait, nothing, or one that needs more than this domain.
        entry: Record in its metadata now.
        until: Time of the next check.
        has_vanished: True if it existed when the job began, and no longer does.
    """

    act: Act
    entry: Entry | None
    until: datetime | None = None
    has_vanished: bool = False


def look(session: Session, domain: Domain, *, is_moved: bool) -> Sight:
    """Return the observable state of the domain."""
    library = session.library
    state = domain.state()[0]
    power = Power.RUNNING
    if state == library.VIR_DOMAIN_SHUTOFF:
        power = Power.OFF
    elif state in {library.VIR_DOMAIN_PAUSED, library.VIR_DOMAIN_CRASHED}:
        power = Power.PAUSED  # neither runs
    instance = -1 if power is Power.OFF else domain.ID()
    return Sight(power=power, instance=instance, is_moved=is_moved, has_job=_has_job(session, domain))


def _has_job(session: Session, domain: Domain) -> bool:
    try:
        return bool(domain.jobInfo()[0] != session.library.VIR_DOMAIN_JOB_NONE)
    except session.library.libvirtError as error:
        if error.get_error_code() in {session.library.VIR_ERR_NO_SUPPORT, session.library.VIR_ERR_OPERATION_INVALID}:
            return False  # a driver without jobs, or a domain that is off
        raise


def read_entry(session: Session, domain: Domain, id: str) -> Entry | None:
    """Return the record of that maintenance on the domain; None if there is none."""
    library = session.library
    try:
        return decode_entry(domain.metadata(library.VIR_DOMAIN_METADATA_ELEMENT, namespace_of(id)))
    except library.libvirtError as error:
        if error.get_error_code() == library.VIR_ERR_NO_DOMAIN_METADATA:
            return None
        raise


def _write_entry(session: Session, domain: Domain, entry: Entry) -> None:
    _set(session, domain, encode_entry(entry), namespace_of(entry.id))


def _set(session: Session, domain: Domain, element: str | None, namespace: str) -> None:
    library = session.library
    flags = library.VIR_DOMAIN_AFFECT_LIVE if domain.isActive() else 0
    if domain.isPersistent():
        flags |= library.VIR_DOMAIN_AFFECT_CONFIG  # a VM that is started again uses the persistent metadata
    domain.setMetadata(library.VIR_DOMAIN_METADATA_ELEMENT, element, _PREFIX, namespace, flags)


def perform(  # noqa: PLR0913 - the target, and three inputs of the decision
    session: Session,
    domain: Domain,
    id: str,
    *,
    is_moved: bool,
    decide: Callable[[Entry | None, Sight], Decision],
    now: Callable[[], datetime],
) -> Found:
    """Take step after step, until nothing is left to do here and now.

    Raises:
        ActuatorError: A step cannot be taken; those before it are recorded in the metadata.
    """
    for _ in range(_ROUNDS_MAX):
        entry = read_entry(session, domain, id)
        decision = decide(entry, look(session, domain, is_moved=is_moved))
        if decision.before is not None:
            session.go_on()
            if entry is None:
                _prepare(session, domain, decision.before)
            _write_entry(session, domain, decision.before)
            entry = decision.before
        if decision.act not in _ACTS:
            return Found(act=decision.act, entry=entry, until=decision.until)
        session.go_on()
        _ACTS[decision.act](domain)
        if decision.after is not None:
            # The suspension is measured from the moment when `suspend` has returned.
            is_suspended = decision.after.step is Step.SUSPENDED
            after = replace(decision.after, since=now()) if is_suspended else decision.after
            session.go_on()
            _write_entry(session, domain, after)
            if decision.act is Act.GIVE_UP:
                return Found(act=Act.FAIL, entry=after)
    msg = f"vm {domain.name()} changes by itself again and again"
    raise ActuatorError(msg)


_ACTS: dict[Act, Callable[[Domain], int]] = {
    Act.SUSPEND: lambda domain: domain.suspend(),
    Act.RESUME: lambda domain: domain.resume(),
    Act.SHUT_DOWN: lambda domain: domain.shutdown(),
    Act.DESTROY: lambda domain: domain.destroy(),
    Act.CREATE: lambda domain: domain.create(),
    Act.GIVE_UP: lambda domain: domain.abortJob(),
}


def _prepare(session: Session, domain: Domain, entry: Entry) -> None:
    """Check that the domain survives a shutdown, and delete the oldest ended records.

    Raises:
        ActuatorError: It is transient.
    """
    if entry.way in _NEEDS_PERSISTENCE and not domain.isPersistent():
        msg = f"vm {domain.name()} is a transient domain, which libvirt forgets when it is off: define it"
        raise ActuatorError(msg)
    ended = ended_namespaces(domain.XMLDesc())
    for namespace in ended[: max(len(ended) - ENDED_RECORDS_MAX, 0)]:
        with contextlib.suppress(session.library.libvirtError):  # mere tidying
            _set(session, domain, None, namespace)


def hand_over(session: Session, domain: Domain) -> str:
    """Return the domain's complete XML with its secrets, for the destination."""
    library = session.library
    return domain.XMLDesc(library.VIR_DOMAIN_XML_INACTIVE | library.VIR_DOMAIN_XML_SECURE)


def receive(session: Session, xml: str) -> None:
    """Define the domain here; may be repeated."""
    session.go_on()
    session.connect.defineXML(xml)


def forget_copy(session: Session, name: str) -> None:
    """Undefine the domain at its former place.

    Raises:
        ActuatorError: It runs there.
    """
    domain = session.find(name)
    if domain is None:
        return
    if domain.isActive():
        msg = f"vm {name} was started at {session.connect.getHostname()} while it was moved away"
        raise ActuatorError(msg)
    library = session.library
    session.go_on()
    try:
        # Its firmware variables and its TPM state are kept: they may be on storage that both hosts share.
        domain.undefineFlags(library.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM | library.VIR_DOMAIN_UNDEFINE_KEEP_TPM)
    except library.libvirtError as error:
        if error.get_error_code() != library.VIR_ERR_INVALID_ARG:
            raise
        domain.undefine()  # a driver that supports neither flag


def _downtime_s(session: Session, domain: Domain) -> float | None:
    """Return the downtime at the end of the last migration; None if libvirt does not report it."""
    library = session.library
    try:
        downtime_ms = domain.jobStats(library.VIR_DOMAIN_JOB_STATS_COMPLETED).get("downtime")
    except library.libvirtError:
        return None
    return None if downtime_ms is None else downtime_ms / _MS


def note_downtime(session: Session, domain: Domain, entry: Entry) -> Entry:
    """Record the downtime of a migration, if libvirt reports it."""
    measured = replace(entry, paused_s=_downtime_s(session, domain))
    if measured != entry:
        session.go_on()
        _write_entry(session, domain, measured)
    return measured


def migrate(session: Session, name: str, destination: str, data_uri: str) -> None:
    """Migrate the domain live; blocks until it is done. The daemons finish it even if the caller stops waiting."""
    library = session.library
    domain = session.find(name)
    if domain is None:
        return
    flags = library.VIR_MIGRATE_LIVE | library.VIR_MIGRATE_PEER2PEER | library.VIR_MIGRATE_AUTO_CONVERGE
    if domain.isPersistent():
        flags |= library.VIR_MIGRATE_PERSIST_DEST | library.VIR_MIGRATE_UNDEFINE_SOURCE
    parameters = {library.VIR_MIGRATE_PARAM_URI: data_uri} if data_uri else {}
    domain.migrateToURI3(destination, parameters, flags)
