"""What was begun on a VM, kept on the VM itself: an element of its libvirt metadata.

Each maintenance has a namespace, and so an element, of its own: no two of them can overwrite each other's, and whoever
connects to that libvirt, on whatever machine, reads the same. The element goes along when the VM is moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from xml.etree import ElementTree as ET
from xml.sax.saxutils import quoteattr

from forewarn.errors import ActuatorError

__all__ = ["NAMESPACE", "Entry", "Step", "Way", "decode_entry", "encode_entry", "ended_namespaces", "namespace_of"]

NAMESPACE = "urn:forewarn:maintenance:"
"""Begins the namespace of each maintenance; its id follows."""


class Way(StrEnum):
    """What is done to a VM."""

    SUSPEND = "suspend"
    """Suspended, and resumed when the announced seconds are over."""
    MIGRATE = "migrate"
    """Moved while it runs."""
    CYCLE = "cycle"
    """Shut down, and started again."""
    MOVE = "move"
    """Shut down, defined on the destination, started there."""
    STOP = "stop"
    """Shut down for good."""


class Step(StrEnum):
    """How far it is. Each is on the VM before what it names is done."""

    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    ASKING = "asking"
    STOPPING = "stopping"
    MOVING = "moving"
    STARTING = "starting"
    MIGRATING = "migrating"
    INTERRUPTED = "interrupted"
    DONE = "done"
    ABORTED = "aborted"

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done."""
        return self in {Step.DONE, Step.ABORTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What was begun on one VM under the id of a maintenance.

    Attributes:
        since: When it was begun; while suspended: since when it is.
        instance: libvirt's number of the running VM when it was begun, another after each start; -1: it was off.
        paused_s: How long the VM was away, once that is known.
        tries: Migrations that were begun.
    """

    id: str
    way: Way
    step: Step
    since: datetime
    instance: int = -1
    paused_s: float | None = None
    tries: int = 0


def namespace_of(id: str) -> str:
    """The namespace of the element of that maintenance."""
    return f"{NAMESPACE}{id}"


def encode_entry(entry: Entry) -> str:
    """The element, without its namespace: libvirt adds that."""
    attributes = {
        "id": entry.id,
        "way": entry.way.value,
        "step": entry.step.value,
        "since": entry.since.isoformat(),
        "instance": str(entry.instance),
        "tries": str(entry.tries),
    }
    if entry.paused_s is not None:
        attributes["paused_s"] = f"{entry.paused_s:.3f}"
    return f"<maintenance {' '.join(f'{name}={quoteattr(value)}' for name, value in attributes.items())}/>"


def decode_entry(text: str) -> Entry:
    """Read an element.

    Raises:
        ActuatorError: Somebody has changed it.
    """
    try:
        element = ET.fromstring(text)  # noqa: S314 - libvirt has parsed it before, with what it forbids
        paused_s = element.get("paused_s")
        since = datetime.fromisoformat(element.attrib["since"]).astimezone(UTC)
        entry = Entry(
            id=element.attrib["id"],
            way=Way(element.attrib["way"]),
            step=Step(element.attrib["step"]),
            since=since,
            instance=int(element.attrib["instance"]),
            paused_s=None if paused_s is None else float(paused_s),
            tries=int(element.get("tries", "0")),
        )
    except (ET.ParseError, KeyError, ValueError, OverflowError) as error:
        msg = f"forewarn's record in the metadata of the domain cannot be read: {type(error).__name__}: {error}"
        raise ActuatorError(msg) from error
    if entry.paused_s is not None and not math.isfinite(entry.paused_s):
        msg = "forewarn's record in the metadata of the domain cannot be read: paused_s is no number"
        raise ActuatorError(msg)
    return entry


def ended_namespaces(domain_xml: str) -> list[str]:
    """Namespaces of the records of a domain that say that nothing more is done; the oldest first."""
    found: list[tuple[str, str]] = []
    for element in ET.fromstring(domain_xml).iterfind("./metadata/*"):  # noqa: S314 - as in `decode_entry`
        namespace, _, name = element.tag.removeprefix("{").partition("}")
        is_over = element.get("step") in {Step.DONE.value, Step.ABORTED.value}
        if name == "maintenance" and namespace.startswith(NAMESPACE) and is_over:
            found.append((element.get("since", ""), namespace))
    return [namespace for _, namespace in sorted(found)]
