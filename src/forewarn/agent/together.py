"""The choice of the VM that approves an event which names several: one approval counts for all of them (R50).

No VM may make the others wait forever: whatever the peers report or do not report, there is a time at which one of the
VMs approves, and after NotBefore the platform no longer asks.

Spec: R50, R103
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

import msgspec

from forewarn.agent.codec import Mistake, Span
from forewarn.agent.record import Record
from forewarn.client.transport import check_url
from forewarn.errors import ConfigError
from forewarn.net.listen import parse_listen
from forewarn.util.duration import format_span

__all__ = ["UNASKED", "PeerState", "Report", "Together", "Verdict", "may_approve"]


_SPAN_MAX = Span(days=1)
_PEERS_MAX = 50


class PeerState(StrEnum):
    """State of an event that a VM reports to its peers."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    HELD = "held"
    """The VM does not want the event approved: preparing failed, or a person has to approve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Latest report of a peer on an event.

    Attributes:
        since: Time at which this state was first received.
    """

    state: PeerState
    since: datetime


UNASKED = Report(state=PeerState.HELD, since=datetime.min.replace(tzinfo=UTC))
"""Placeholder for the report of a peer that has not been asked yet.

It lasts until the first question has been answered or has failed, a matter of seconds. Without it, an agent that starts
after the deadline would at once approve an event that a peer wants held.
"""


class Together(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agreement between the VMs of one event.

    Attributes:
        mode: ``each``: any VM that is ready approves for all; ``leader``: the first in Resources; ``primary`` and
            ``secondary``: one of a pair, and its backup; ``all-prepared``: the leader, when all have reported that they
            are prepared.
        secondary_after: Time that a secondary waits for its primary once it is ready.
        secondary_sources: Sources of the events that a secondary approves (R103).
        deadline: ``all-prepared``: time from the first sight of an event until it is approved without the VMs that have
            not reported.
        stagger: Delay of each further VM before it approves in place of one that does not.
        listen: Address on which this agent answers its peers.
        peers: URL of each of the other VMs, by its name.
        secret_file: Path of the file with the secret that all of them share.
    """

    mode: Literal["each", "leader", "primary", "secondary", "all-prepared"] = "leader"
    secondary_after: Span = Span(minutes=1)
    secondary_sources: tuple[Literal["Platform", "User"], ...] = ("User",)
    deadline: Span = Span(minutes=5)
    stagger: Span = Span(seconds=10)
    listen: str = ""
    peers: dict[str, str] = {}
    secret_file: str = ""

    def __post_init__(self) -> None:
        """Check what types cannot express.

        Raises:
            Mistake: The mode needs settings that are missing, or a value is invalid or out of its range.
        """
        if self.mode == "all-prepared":
            for key in ("listen", "peers", "secret_file"):
                if not getattr(self, key):
                    msg = f"'all-prepared' needs listen, peers and secret_file, and {key} is missing"
                    raise Mistake(msg, "mode")
        for key in ("secondary_after", "deadline", "stagger"):
            if getattr(self, key) > _SPAN_MAX:
                msg = f"{format_span(getattr(self, key))} is out of range: expected at most {format_span(_SPAN_MAX)}"
                raise Mistake(msg, key)
        self._check_addresses()

    def _check_addresses(self) -> None:
        if self.listen:
            try:
                parse_listen(self.listen)
            except ConfigError as error:
                raise Mistake(error.message, "listen") from error
        if len(self.peers) > _PEERS_MAX:
            msg = f"{len(self.peers)} peers are too many: expected at most {_PEERS_MAX}"
            raise Mistake(msg, "peers")
        for name, url in self.peers.items():
            try:
                check_url(url)
            except ConfigError as error:
                msg = f"{url!r} is not the address of a peer: expected for example http://10.0.0.5:9470"
                raise Mistake(msg, "peers", name) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Decision on whether this VM approves.

    Attributes:
        may: True to approve now.
        at: Otherwise, time to ask again if nothing changes; None if only a change can help.
        why: Reason in words.
    """

    may: bool
    at: datetime | None = None
    why: str


def may_approve(  # noqa: PLR0913 - each is a separate fact
    record: Record, vm: str, together: Together, reports: Mapping[str, Report], now: datetime, cutoff: datetime | None
) -> Verdict:
    """Decide if this VM, which is ready, sends the approval.

    Args:
        record: The event; it is Scheduled.
        vm: This VM's name.
        together: The mode and its durations.
        reports: Reports of the peers on this event.
        now: Current time.
        cutoff: Time after which waiting is useless, because NotBefore is near; None if there is no NotBefore.
    """
    event = record.event
    if event.resources == (vm,):
        return Verdict(may=True, why="it concerns this VM only")
    match together.mode:
        case "each" | "primary":
            return Verdict(may=True, why="this VM approves for all")
        case "secondary":
            return _secondary(record, together, now)
        case "leader":
            leader = event.resources[0] if event.resources else vm
            return Verdict(may=leader == vm, why=f"{leader} is the first in Resources and approves for all")
        case "all-prepared":
            return _all_prepared(record, vm, together, reports, now, cutoff)


def _secondary(record: Record, together: Together, now: datetime) -> Verdict:
    if record.event.source not in together.secondary_sources:
        return Verdict(may=False, why=f"a secondary leaves events of source {record.event.source} to the primary")
    at = (record.ready_at or record.seen_at) + together.secondary_after
    return Verdict(may=now >= at, at=at, why="the primary has its time to approve first")


def _all_prepared(  # noqa: PLR0913 - as above
    record: Record, vm: str, together: Together, reports: Mapping[str, Report], now: datetime, cutoff: datetime | None
) -> Verdict:
    members = record.event.resources
    if vm not in members:
        return Verdict(may=False, why="the VMs that it concerns approve")
    others = [name for name in members if name != vm]
    unasked = [name for name in others if reports.get(name) is UNASKED]
    if unasked:
        return Verdict(may=False, why=f"asking {', '.join(unasked)}")
    held = [name for name in others if name in reports and reports[name].state is PeerState.HELD]
    if held:
        return Verdict(may=False, why=f"{', '.join(held)} wants it held")
    missing = [name for name in others if name not in reports or reports[name].state is not PeerState.PREPARED]
    deadline = record.seen_at + together.deadline
    at = deadline if cutoff is None else min(deadline, cutoff)
    if not missing:
        # A peer that keeps restarting its report must not delay what the deadline has allowed.
        at = min(at, max([record.ready_at or record.seen_at, *(reports[name].since for name in others)]))
    # Staggered by position, so that a VM approves only if those before it have not.
    at += members.index(vm) * together.stagger
    return Verdict(may=now >= at, at=at, why=f"waiting for {', '.join(missing)}" if missing else "all are prepared")
