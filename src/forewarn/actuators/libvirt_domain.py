"""One domain of libvirt: what it looks like, what stands in its metadata, and each act on it.

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
"""Records of maintenances that are over, which a VM keeps."""

_PREFIX = "forewarn"
_ROUNDS_MAX = 16
_MS = 1000.0

_NEEDS_PERSISTENCE = frozenset({Way.CYCLE, Way.MOVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a job hands back about a domain.

    Attributes:
        act: What is left to do: wait, nothing, or an act for which more than this domain is needed.
        entry: What stands in its metadata now.
        until: When to look again.
        has_vanished: It was there when the job began, and no longer.
    """

    act: Act
    entry: Entry | None
    until: datetime | None = None
    has_vanished: bool = False


def look(session: Session, domain: Domain, *, is_moved: bool) -> Sight:
    """What can be seen of it."""
    library = session.library
    state = domain.state()[0]
    power = Power.RUNNING
    if state == library.VIR_DOMAIN_SHUTOFF:
        power = Power.OFF
    elif state in {library.VIR_DOMAIN_PAUSED, library.VIR_DOMAIN_CRASHED}:
        power = Power.PAUSED  # neither does anything
    instance = -1 if power is Power.OFF else domain.ID()
    return Sight(power=power, instance=instance, is_moved=is_moved, has_job=_has_job(session, domain))


def _has_job(session: Session, domain: Domain) -> bool:
    try:
        return bool(domain.jobInfo()[0] != session.library.VIR_DOMAIN_JOB_NONE)
    except session.library.libvirtError as error:
        if error.get_error_code() in {session.library.VIR_ERR_NO_SUPPORT, session.library.VIR_ERR_OPERATION_INVALID}:
            return False  # a driver that never has one, or a domain that is off
        raise


def read_entry(session: Session, domain: Domain, id: str) -> Entry | None:
    """What was begun on it under that id."""
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
        flags |= library.VIR_DOMAIN_AFFECT_CONFIG  # a VM that is started again has what stands there
    domain.setMetadata(library.VIR_DOMAIN_METADATA_ELEMENT, element, _PREFIX, namespace, flags)


def perform(  # noqa: PLR0913 - what, on what, and three things that decide
    session: Session,
    domain: Domain,
    id: str,
    *,
    is_moved: bool,
    decide: Callable[[Entry | None, Sight], Decision],
    now: Callable[[], datetime],
) -> Found:
    """Take step after step, until there is nothing left to do here and now.

    Raises:
        ActuatorError: A step that cannot be taken; those before it stand in the metadata.
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
            # Suspended is the one step that is measured from here on.
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
    """Before anything is begun: it must be there afterwards; and records that are long over make room."""
    if entry.way in _NEEDS_PERSISTENCE and not domain.isPersistent():
        msg = f"vm {domain.name()} is a transient domain, which libvirt forgets when it is off: define it"
        raise ActuatorError(msg)
    ended = ended_namespaces(domain.XMLDesc())
    for namespace in ended[: max(len(ended) - ENDED_RECORDS_MAX, 0)]:
        with contextlib.suppress(session.library.libvirtError):  # it is tidying only
            _set(session, domain, None, namespace)


def hand_over(session: Session, domain: Domain) -> str:
    """What the destination needs to define it: all of its XML, with its secrets."""
    library = session.library
    return domain.XMLDesc(library.VIR_DOMAIN_XML_INACTIVE | library.VIR_DOMAIN_XML_SECURE)


def receive(session: Session, xml: str) -> None:
    """Define it here; once more changes nothing."""
    session.go_on()
    session.connect.defineXML(xml)


def forget_copy(session: Session, name: str) -> None:
    """Undefine it where it was.

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
        # Its firmware's variables and its TPM stay where they are: they may lie on storage that both hosts share.
        domain.undefineFlags(library.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM | library.VIR_DOMAIN_UNDEFINE_KEEP_TPM)
    except library.libvirtError as error:
        if error.get_error_code() != library.VIR_ERR_INVALID_ARG:
            raise
        domain.undefine()  # a driver that knows of neither


def _downtime_s(session: Session, domain: Domain) -> float | None:
    """How long the VM stood still at the end of its last migration; None: libvirt does not say."""
    library = session.library
    try:
        downtime_ms = domain.jobStats(library.VIR_DOMAIN_JOB_STATS_COMPLETED).get("downtime")
    except library.libvirtError:
        return None
    return None if downtime_ms is None else downtime_ms / _MS


def note_downtime(session: Session, domain: Domain, entry: Entry) -> Entry:
    """Write down how long a migration has kept the VM, if that is known."""
    measured = replace(entry, paused_s=_downtime_s(session, domain))
    if measured != entry:
        session.go_on()
        _write_entry(session, domain, measured)
    return measured


def migrate(session: Session, name: str, destination: str, data_uri: str) -> None:
    """Move it while it runs; blocks until it is there. The daemons do it between them, also when nobody waits."""
    library = session.library
    domain = session.find(name)
    if domain is None:
        return
    flags = library.VIR_MIGRATE_LIVE | library.VIR_MIGRATE_PEER2PEER | library.VIR_MIGRATE_AUTO_CONVERGE
    if domain.isPersistent():
        flags |= library.VIR_MIGRATE_PERSIST_DEST | library.VIR_MIGRATE_UNDEFINE_SOURCE
    parameters = {library.VIR_MIGRATE_PARAM_URI: data_uri} if data_uri else {}
    domain.migrateToURI3(destination, parameters, flags)
