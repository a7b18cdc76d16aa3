"""Faults that can be injected on purpose: one row for each kind.

A fault affects some VMs or all, and lasts for a number of requests, for a time, or until it is cleared.

Spec: R66
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.util.duration import format_duration

__all__ = ["FAULTS", "FaultKind", "FaultPoint", "InjectedFault"]


class FaultPoint(StrEnum):
    """Point in the handling of a request at which a fault acts."""

    CONNECTION = "connection"
    """Before anything is read."""

    STATUS = "status"
    """Status other than 200, before anything is done."""

    TIME = "time"
    """The response is late, and right when it is sent; or it is never sent, though the request has taken effect."""

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
    place: FaultPoint
    what: str
    advice: str
    delay: timedelta | None = None


_RETRY = "Retries with increasing pauses. Meanwhile, treats the events of the last good answer as current."
_APPROVE_AGAIN = "Also repeats an approval, which is always safe."

_KINDS = (
    FaultKind(
        name="404",
        place=FaultPoint.STATUS,
        what="404, the answer to a VM that the service does not know yet.",
        advice="Keeps polling, and reports prominently that it gets no events.",
    ),
    FaultKind(
        name="410",
        place=FaultPoint.STATUS,
        what="410 Gone, the answer during an update of the endpoint. On Azure, an update takes at most 70 s.",
        advice="Retries for at least 70 s before it raises an alarm.",
    ),
    FaultKind(
        name="429",
        place=FaultPoint.STATUS,
        what="429 with Retry-After.",
        advice="Waits as long as Retry-After says, and polls less often.",
    ),
    FaultKind(name="500", place=FaultPoint.STATUS, what="500 Internal Server Error.", advice=_RETRY),
    FaultKind(
        name="503", place=FaultPoint.STATUS, what="503 Service Unavailable.", advice=f"{_RETRY} {_APPROVE_AGAIN}"
    ),
    FaultKind(
        name="dropped",
        place=FaultPoint.STATUS,
        what="The request is lost: the connection is reset without a response, and an approval does not take effect.",
        advice=f"{_RETRY} If an approval gets no response, repeats the approval, because it may not have arrived.",
    ),
    FaultKind(
        name="refused",
        place=FaultPoint.CONNECTION,
        what="New connections are reset on accept, existing ones on their next request.",
        advice=_RETRY,
    ),
    FaultKind(
        name="reset",
        place=FaultPoint.BYTES,
        what="The connection is reset in the middle of the response body. An approval still takes effect.",
        advice=f"Discards the partial body and retries. {_APPROVE_AGAIN}",
    ),
    FaultKind(
        name="slow-headers",
        place=FaultPoint.BYTES,
        what="The headers arrive one byte at a time, spread over the delay.",
        advice="Waits, or times out and retries, without blocking its other work.",
        delay=timedelta(seconds=5),
    ),
    FaultKind(
        name="slow-body",
        place=FaultPoint.BYTES,
        what="The body arrives one byte at a time, spread over the delay.",
        advice="Waits, or times out and retries. Its timeout limits the whole response, not each byte.",
        delay=timedelta(seconds=5),
    ),
    FaultKind(
        name="time-out",
        place=FaultPoint.TIME,
        what="No response. When the client gives up or the delay is over, the connection is closed.",
        advice="Times out, and retries on a new connection.",
        delay=timedelta(minutes=5),
    ),
    FaultKind(
        name="late",
        place=FaultPoint.TIME,
        what="The right response, but late. On Azure, the first response to a VM may take two minutes (R67).",
        advice="Waits more than 120 s for the first response.",
        delay=timedelta(minutes=2),
    ),
    FaultKind(
        name="empty",
        place=FaultPoint.DOCUMENT,
        what="200 without a body.",
        advice="Does not treat the missing body as a document without events, but retries.",
    ),
    FaultKind(
        name="truncated",
        place=FaultPoint.DOCUMENT,
        what="200 with half of the JSON.",
        advice="Does not crash, keeps the last complete document, and retries.",
    ),
    FaultKind(
        name="no-events",
        place=FaultPoint.DOCUMENT,
        what="200 with an incarnation, but without the member Events.",
        advice="Does not treat the answer as a document without events, but retries.",
    ),
    FaultKind(
        name="text-plain",
        place=FaultPoint.DOCUMENT,
        what="The right document, with the Content-Type text/plain.",
        advice="Parses the body regardless of its Content-Type.",
    ),
    FaultKind(
        name="unknown-members",
        place=FaultPoint.DOCUMENT,
        what="Unknown members in the document and in each event.",
        advice="Ignores unknown members (R105).",
    ),
    FaultKind(
        name="unknown-type",
        place=FaultPoint.DOCUMENT,
        what="Each event has an unknown EventType, as if the platform had introduced a new type.",
        advice="Does not crash and does not ignore the event. Has a default action for events of an unknown type "
        "(R105).",
    ),
    FaultKind(
        name="large-document",
        place=FaultPoint.DOCUMENT,
        what="Each event has a Description of 64 KiB.",
        advice="Reads the whole body, regardless of its size.",
    ),
    FaultKind(
        name="repeated-event",
        place=FaultPoint.DOCUMENT,
        what="Each event appears twice in the document, with the same EventId.",
        advice="Prepares once for each EventId.",
    ),
    FaultKind(
        name="stale",
        place=FaultPoint.DOCUMENT,
        what="The previous document instead of the current one.",
        advice="Compares events by EventId. If it approves an event that is gone, the answer is 200, and the approval "
        "has no effect.",
    ),
    FaultKind(
        name="answered-twice",
        place=FaultPoint.BYTES,
        what="The same response twice, then the connection is closed.",
        advice="Uses the first response. Never uses the second one as the response to the next request.",
    ),
    FaultKind(
        name="incarnation-reset",
        place=FaultPoint.ONCE,
        what="DocumentIncarnation goes back to 1, as if the service had been disabled and enabled again (R46).",
        advice="Compares incarnations with !=, never with > (R101).",
    ),
    FaultKind(
        name="short-notice",
        place=FaultPoint.NOTICE,
        what="New events get the delay of the fault as their notice, even if that is less than the promised minimum "
        "(A21).",
        advice="Reads NotBefore, and does not rely on a notice of 15 minutes.",
        delay=timedelta(seconds=30),
    ),
    FaultKind(
        name="no-notice",
        place=FaultPoint.NOTICE,
        what="New events have no notice: a Preempt is already Started when first seen (R90).",
        advice="Accepts an event that is Started when first seen, and saves what it can.",
    ),
)

FAULTS: dict[str, FaultKind] = {kind.name: kind for kind in _KINDS}
"""All kinds, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """An injected fault that is active.

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
    def affects_documents(self) -> bool:
        """True if a client that requests its document may be affected."""
        return self.method in {"", "GET"} and self.kind.place not in {FaultPoint.NOTICE, FaultPoint.ONCE}

    def describe(self) -> str:
        """Return one line: kind, VMs, frequency, duration."""
        parts = [self.kind.name, f"for {', '.join(self.vms)}" if self.vms else "for every VM"]
        if self.method:
            parts.append(f"on {self.method}")
        if self.count is not None:
            parts.append(f"{self.count} times")
        if self.rate < 1.0:
            parts.append(f"in {self.rate:.0%} of the requests")
        if self.until is not None:
            parts.append(f"until {self.until:%H:%M:%S}")
        if self.delay:
            parts.append(f"for {format_duration(self.delay)} each")
        return " ".join(parts)

    def applies_to(self, vm: str, method: str, points: Iterable[FaultPoint]) -> bool:
        """Return True if the fault applies to such a request."""
        is_meant = not self.vms or vm in self.vms
        return is_meant and self.kind.place in points and (not method or self.method in {"", method})
