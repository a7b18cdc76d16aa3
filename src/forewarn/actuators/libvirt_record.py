"""The record of a maintenance on a VM: an element of the VM's libvirt metadata.

Each maintenance has its own namespace, and so its own element: no two of them can overwrite each other, and every
process that connects to that libvirt, on any machine, reads the same. The element moves with the VM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from xml.etree import ElementTree as ET
from xml.sax.saxutils import quoteattr

from forewarn.errors import ActuatorError

__all__ = [
    "NAMESPACE",
    "DomainEntry",
    "DomainStep",
    "Procedure",
    "decode_entry",
    "encode_entry",
    "find_ended_namespaces",
    "namespace_of",
]

NAMESPACE = "urn:forewarn:maintenance:"
"""Prefix of the namespace of each maintenance; its id follows."""


class Procedure(StrEnum):
    """Method by which a maintenance is carried out on a VM."""

    SUSPEND = "suspend"
    """Suspend it, and resume it after the announced seconds."""
    MIGRATE = "migrate"
    """Migrate it live."""
    CYCLE = "cycle"
    """Shut it down, and start it again."""
    MOVE = "move"
    """Shut it down, define it on the destination, and start it there."""
    STOP = "stop"
    """Shut it down for good."""


class DomainStep(StrEnum):
    """Progress of a VM. Each step is recorded on the VM before its action is taken."""

    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    ASKING = "asking"
    STOPPING = "stopping"
    MOVING = "moving"
    STARTING = "starting"
    MIGRATING = "migrating"
    LANDING = "landing"
    """No migration runs any more, but the VM was still listed at home when this was seen."""
    INTERRUPTED = "interrupted"
    DONE = "done"
    ABORTED = "aborted"

    @property
    def is_over(self) -> bool:
        """True if nothing more is done."""
        return self in {DomainStep.DONE, DomainStep.ABORTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainEntry:
    """Record of a maintenance on one VM.

    Attributes:
        since: Time at which it was begun; once suspended, the time of the suspension.
        instance: libvirt's number of the running VM at the beginning, which changes at each start; -1 if it was off.
        paused_s: Time for which the VM was away; None if not known yet.
        tries: Number of migrations begun.
    """

    id: str
    procedure: Procedure
    step: DomainStep
    since: datetime
    instance: int = -1
    paused_s: float | None = None
    tries: int = 0


def namespace_of(id: str) -> str:
    """Return the namespace of that maintenance's element."""
    return f"{NAMESPACE}{id}"


def encode_entry(entry: DomainEntry) -> str:
    """Encode the element without its namespace, which libvirt adds."""
    attributes = {
        "id": entry.id,
        "way": entry.procedure.value,
        "step": entry.step.value,
        "since": entry.since.isoformat(),
        "instance": str(entry.instance),
        "tries": str(entry.tries),
    }
    if entry.paused_s is not None:
        attributes["paused_s"] = f"{entry.paused_s:.3f}"
    return f"<maintenance {' '.join(f'{name}={quoteattr(value)}' for name, value in attributes.items())}/>"


def decode_entry(text: str) -> DomainEntry:
    """Decode an element.

    Raises:
        ActuatorError: It is invalid: something else has changed it.
    """
    try:
        element = ET.fromstring(text)  # noqa: S314 - libvirt has parsed it before, with its own limits
        paused_s = element.get("paused_s")
        since = datetime.fromisoformat(element.attrib["since"]).astimezone(UTC)
        entry = DomainEntry(
            id=element.attrib["id"],
            procedure=Procedure(element.attrib["way"]),
            step=DomainStep(element.attrib["step"]),
            since=since,
            instance=int(element.attrib["instance"]),
            paused_s=None if paused_s is None else float(paused_s),
            tries=int(element.get("tries", "0")),
        )
    except (ET.ParseError, KeyError, ValueError, OverflowError) as error:
        msg = f"forewarn's record in the metadata of the domain cannot be read: {type(error).__name__}: {error}"
        raise ActuatorError(msg) from error
    if entry.paused_s is not None and not math.isfinite(entry.paused_s):
        msg = "forewarn's record in the metadata of the domain cannot be read: paused_s is not a finite number"
        raise ActuatorError(msg)
    return entry


def find_ended_namespaces(domain_xml: str) -> list[str]:
    """Return the namespaces of a domain's records that are over; the oldest first."""
    found: list[tuple[str, str]] = []
    for element in ET.fromstring(domain_xml).iterfind("./metadata/*"):  # noqa: S314 - as in `decode_entry`
        namespace, _, name = element.tag.removeprefix("{").partition("}")
        # Compared as text, so that a record with an unknown step is kept instead of raising an error.
        is_over = element.get("step") in {DomainStep.DONE.value, DomainStep.ABORTED.value}
        if name == "maintenance" and namespace.startswith(NAMESPACE) and is_over:
            found.append((element.get("since", ""), namespace))
    return [namespace for _, namespace in sorted(found)]
