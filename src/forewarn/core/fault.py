"""Faults that can be injected on purpose: one row for each kind.

A fault affects some VMs or all, and lasts for a number of requests, for a time, or until it is cleared.

Spec: R66
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.util.duration import format_span

__all__ = ["FAULTS", "Fault", "FaultKind", "Place"]


class Place(StrEnum):
    """Point in the handling of a request at which a fault acts."""

    CONNECTION = "connection"
    """Before anything is read."""

    STATUS = "status"
    """Status other than 200, before anything is done."""

    TIME = "time"
    """After everything is done: the response is late or never sent."""

    DOCUMENT = "document"
    """Content of the response to a GET."""

    BYTES = "bytes"
    """Transfer of the response bytes."""

    NOTICE = "notice"
    """Notice given, rather than its delivery."""

    ONCE = "once"
    """Moment of injection only; the fault is not in force afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault.

    Attributes:
        name: Name used by operators.
        place: Point at which it acts.
        what: Behaviour that a client sees.
        advice: Behaviour of a well-written client.
        delay: Default delay; None if the fault causes none.
    """

    name: str
    place: Place
    what: str
    advice: str
    delay: timedelta | None = None


_RETRY = "Asks again with growing pauses, and takes nothing as said: neither that events are gone nor that one came."
_APPROVE_AGAIN = "As before; an approval is sent again, for repeating it does no harm."

_KINDS = (
    FaultKind(
        name="404",
        place=Place.STATUS,
        what="404, as before the service knows the VM.",
        advice="Goes on asking, and says loudly that it is not served.",
    ),
    FaultKind(
        name="410",
        place=Place.STATUS,
        what="410 Gone, while the endpoint is updated; at most 70 s on Azure.",
        advice="Asks again for at least 70 s before it gives an alarm.",
    ),
    FaultKind(
        name="429",
        place=Place.STATUS,
        what="429 with Retry-After.",
        advice="Waits as long as it is told to, and asks less often.",
    ),
    FaultKind(name="500", place=Place.STATUS, what="500 Internal Server Error.", advice=_RETRY),
    FaultKind(name="503", place=Place.STATUS, what="503 Service Unavailable.", advice=f"{_RETRY} {_APPROVE_AGAIN}"),
    FaultKind(
        name="dropped",
        place=Place.STATUS,
        what="The request is lost: the connection is reset without an answer, and an approval was not carried out.",
        advice=f"{_RETRY} An approval without an answer is sent again: nobody can know whether it arrived.",
    ),
    FaultKind(
        name="refused",
        place=Place.CONNECTION,
        what="The connection is reset as soon as it stands, and one that stands at its next request.",
        advice=_RETRY,
    ),
    FaultKind(
        name="reset",
        place=Place.BYTES,
        what="The connection is reset in the middle of the body; an approval was carried out.",
        advice=f"Throws the half away. {_APPROVE_AGAIN}",
    ),
    FaultKind(
        name="slow-headers",
        place=Place.BYTES,
        what="The headers come one byte after the other.",
        advice="Waits, or gives up after a time-out of its own and asks again; other work goes on meanwhile.",
        delay=timedelta(seconds=5),
    ),
    FaultKind(
        name="slow-body",
        place=Place.BYTES,
        what="The body comes one byte after the other.",
        advice="As with slow headers: its time-out is for the whole answer, not for each byte.",
        delay=timedelta(seconds=5),
    ),
    FaultKind(
        name="time-out",
        place=Place.TIME,
        what="No answer, until the client gives up or the delay is over; then the connection is closed.",
        advice="Has a time-out, and asks again on a new connection.",
        delay=timedelta(minutes=5),
    ),
    FaultKind(
        name="late",
        place=Place.TIME,
        what="The right answer, two minutes late, as a first answer may be (R67).",
        advice="Its time-out for the first answer is longer than 120 s.",
        delay=timedelta(minutes=2),
    ),
    FaultKind(
        name="empty",
        place=Place.DOCUMENT,
        what="200 without a body.",
        advice="Does not take it for a document without events; asks again.",
    ),
    FaultKind(
        name="truncated",
        place=Place.DOCUMENT,
        what="200, and half of the JSON.",
        advice="Does not break; keeps what it knew, and asks again.",
    ),
    FaultKind(
        name="no-events",
        place=Place.DOCUMENT,
        what="200 with an incarnation, and without the member Events.",
        advice="Does not take it for a document without events; asks again.",
    ),
    FaultKind(
        name="text-plain",
        place=Place.DOCUMENT,
        what="The right document, as text/plain.",
        advice="Reads the body, whatever it is called.",
    ),
    FaultKind(
        name="unknown-members",
        place=Place.DOCUMENT,
        what="Members that no version has, in the document and in each event.",
        advice="Leaves alone what it does not know (R105).",
    ),
    FaultKind(
        name="unknown-type",
        place=Place.DOCUMENT,
        what="Each event has an EventType that no version has, as when a new one is introduced.",
        advice="Does not break; does what its author decided for such a case, rather than nothing at all (R105).",
    ),
    FaultKind(
        name="large-document",
        place=Place.DOCUMENT,
        what="Each event has a Description of 64 KiB.",
        advice="Reads the whole body, however long it is.",
    ),
    FaultKind(
        name="repeated-event",
        place=Place.DOCUMENT,
        what="Each event stands in the document twice, under the same EventId.",
        advice="Prepares once for each EventId.",
    ),
    FaultKind(
        name="stale",
        place=Place.DOCUMENT,
        what="The document before this one.",
        advice="Compares by EventId; an approval of what is gone is answered with 200 and does nothing.",
    ),
    FaultKind(
        name="answered-twice",
        place=Place.BYTES,
        what="The same answer twice, then the end of the connection.",
        advice="Takes the first, and never the second for the answer to its next request.",
    ),
    FaultKind(
        name="incarnation-reset",
        place=Place.ONCE,
        what="DocumentIncarnation starts over, as when the service was disabled and enabled (R46).",
        advice="Compares it with !=, never with > (R101).",
    ),
    FaultKind(
        name="short-notice",
        place=Place.NOTICE,
        what="What is announced from now on has the given delay as notice, however much is promised (A21).",
        advice="Reads NotBefore, and does not count on 15 minutes.",
        delay=timedelta(seconds=30),
    ),
    FaultKind(
        name="no-notice",
        place=Place.NOTICE,
        what="What is announced from now on has no notice at all; a Preempt comes as Started (R90).",
        advice="Takes an event that begins as Started for what it is, and saves what can be saved.",
    ),
)

FAULTS: dict[str, FaultKind] = {kind.name: kind for kind in _KINDS}
"""All kinds, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in force.

    Attributes:
        id: Number in this process, from 1.
        kind: Kind of fault.
        vms: VMs whose requests it affects; empty for all VMs.
        method: Only ``GET`` or only ``POST``; empty for both.
        count: Number of requests that it still affects; None if unlimited.
        rate: Share of the requests that it affects, above 0, at most 1.
        until: Time at which it ends automatically; None if never.
        delay: Delay that it causes, if its kind has one.
        struck: Number of requests affected so far.
    """

    id: int
    kind: FaultKind
    vms: tuple[str, ...] = ()
    method: str = ""
    count: int | None = None
    rate: float = 1.0
    until: datetime | None = None
    delay: timedelta = timedelta(0)
    struck: int = 0

    @property
    def strikes_documents(self) -> bool:
        """True if a client that requests its document may be affected."""
        return self.method in {"", "GET"} and self.kind.place not in {Place.NOTICE, Place.ONCE}

    def describe(self) -> str:
        """Return one line: kind, VMs, frequency, duration."""
        words = [self.kind.name, f"for {', '.join(self.vms)}" if self.vms else "for every VM"]
        if self.method:
            words.append(f"on {self.method}")
        if self.count is not None:
            words.append(f"{self.count} times")
        if self.rate < 1.0:
            words.append(f"in {self.rate:.0%} of the requests")
        if self.until is not None:
            words.append(f"until {self.until:%H:%M:%S}")
        if self.delay:
            words.append(f"for {format_span(self.delay)} each")
        return " ".join(words)

    def fits(self, vm: str, method: str, places: Iterable[Place]) -> bool:
        """Return True if the fault applies to such a request."""
        is_meant = not self.vms or vm in self.vms
        return is_meant and self.kind.place in places and (not method or self.method in {"", method})
