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

from forewarn.agent.codec import Duration, InvalidValue
from forewarn.agent.record import EventRecord
from forewarn.client.transport import check_url
from forewarn.errors import ConfigError
from forewarn.net.listen_address import parse_listen
from forewarn.util.duration import format_duration

__all__ = ["UNASKED", "ApprovalVerdict", "PeerReport", "PeerState", "TogetherSettings", "may_approve"]


_SPAN_MAX = Duration(days=1)
# Each agent asks every other one each second, so the number of messages grows with the square of this.
_PEERS_MAX = 50


class PeerState(StrEnum):
    """State of an event that a VM reports to its peers."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    HELD = "held"
    """The VM does not want the event approved: preparing failed, or a person has to approve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """Latest report of a peer on an event.

    Attributes:
        since: Time at which this state was first received.
    """

    state: PeerState
    since: datetime


UNASKED = PeerReport(state=PeerState.HELD, since=datetime.min.replace(tzinfo=UTC))
"""Placeholder for the report of a peer that has not been asked yet.

It lasts until the first question has been answered or has failed, a matter of seconds. Without it, an agent that starts
after the deadline would at once approve an event that a peer wants held.
"""


class TogetherSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agreement between the VMs of one event.

    Attributes:
        mode: Which VM approves. ``each``: each VM may approve as soon as it is ready, so the first one that is ready
            approves. ``leader``: the first VM in `Resources` approves. ``primary``: this VM approves. ``secondary``:
            this VM approves if its primary does not. ``all-prepared``: the first VM in `Resources` approves when all
            VMs have reported that they are prepared.
        secondary_after: With mode ``secondary``: how long this VM, once prepared, waits for its primary to approve.
        secondary_sources: With mode ``secondary``: sources of the events that this VM approves.
        deadline: With mode ``all-prepared``: maximum time to wait for the reports of all VMs, counted from the moment
            when this VM first sees the event. Then the event is approved even if reports are missing, unless a VM
            reports that it holds the event, because its preparation failed or its rules do not allow automatic
            approval.
        stagger: With mode ``all-prepared``: if a VM does not approve, the next VM in `Resources` approves after this
            delay.
        listen: Address on which this agent answers the agents of the other VMs.
        peers: Table with the name and the URL of each other VM.
        secret_file: Path of the file with the secret that this VM shares with its `peers`.
    """

    mode: Literal["each", "leader", "primary", "secondary", "all-prepared"] = "leader"
    secondary_after: Duration = Duration(minutes=1)
    secondary_sources: tuple[Literal["Platform", "User"], ...] = ("User",)
    deadline: Duration = Duration(minutes=5)
    stagger: Duration = Duration(seconds=10)
    listen: str = ""
    peers: dict[str, str] = {}
    secret_file: str = ""

    def __post_init__(self) -> None:
        """Refuse, by an InvalidValue, a mode without its settings, and values that are invalid or out of range."""
        if self.mode == "all-prepared":
            for key in ("listen", "peers", "secret_file"):
                if not getattr(self, key):
                    raise InvalidValue(f"'all-prepared' needs listen, peers and secret_file; {key} is missing", "mode")
        for key in ("secondary_after", "deadline", "stagger"):
            if getattr(self, key) > _SPAN_MAX:
                given = format_duration(getattr(self, key))
                raise InvalidValue(f"{given} is out of range: expected at most {format_duration(_SPAN_MAX)}", key)
        self._check_addresses()

    def _check_addresses(self) -> None:
        if self.listen:
            try:
                parse_listen(self.listen)
            except ConfigError as error:
                raise InvalidValue(error.message, "listen") from error
        if len(self.peers) > _PEERS_MAX:
            raise InvalidValue(f"too many peers: {len(self.peers)}, expected at most {_PEERS_MAX}", "peers")
        for name, url in self.peers.items():
            try:
                check_url(url)
            except ConfigError as error:
                msg = f"{url!r} is not a valid peer URL: expected for example http://10.0.0.5:9470"
                raise InvalidValue(msg, "peers", name) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalVerdict:
    """Decision on whether this VM approves.

    Attributes:
        may_approve: True to approve now.
        ask_again_at: Otherwise, time to ask again if nothing changes; None if only a change can help.
        reason: Reason in words.
    """

    may_approve: bool
    ask_again_at: datetime | None = None
    reason: str


def may_approve(  # noqa: PLR0913 - each is a separate fact
    record: EventRecord,
    vm: str,
    together: TogetherSettings,
    reports: Mapping[str, PeerReport],
    now: datetime,
    cutoff: datetime | None,
) -> ApprovalVerdict:
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
    # In every mode, because no other VM has to prepare for it.
    if event.resources == (vm,):
        return ApprovalVerdict(may_approve=True, reason="the event affects only this VM")
    match together.mode:
        # One approval counts for all VMs (R50), and a second one does no harm (R49).
        case "each" | "primary":
            return ApprovalVerdict(may_approve=True, reason="this VM approves for all")
        case "secondary":
            return _judge_secondary(record, together, now)
        case "leader":
            # Without Resources, each VM is its own leader: a second approval is harmless, none is not.
            leader = event.resources[0] if event.resources else vm
            return ApprovalVerdict(
                may_approve=leader == vm, reason=f"{leader} is the first in Resources and approves for all"
            )
        case "all-prepared":
            return _judge_all_prepared(record, vm, together, reports, now, cutoff)


def _judge_secondary(record: EventRecord, together: TogetherSettings, now: datetime) -> ApprovalVerdict:
    if record.event.source not in together.secondary_sources:
        return ApprovalVerdict(
            may_approve=False, reason=f"a secondary leaves events of source {record.event.source} to the primary"
        )
    # `prepared_at` is None if the preparation failed and the rule approves anyway.
    at = (record.prepared_at or record.seen_at) + together.secondary_after
    return ApprovalVerdict(may_approve=now >= at, ask_again_at=at, reason="waiting for the primary to approve first")


def _judge_all_prepared(  # noqa: PLR0913 - as above
    record: EventRecord,
    vm: str,
    together: TogetherSettings,
    reports: Mapping[str, PeerReport],
    now: datetime,
    cutoff: datetime | None,
) -> ApprovalVerdict:
    members = record.event.resources
    if vm not in members:
        return ApprovalVerdict(may_approve=False, reason="the affected VMs approve")
    others = [name for name in members if name != vm]
    unasked = [name for name in others if reports.get(name) is UNASKED]
    if unasked:
        return ApprovalVerdict(may_approve=False, reason=f"asking {', '.join(unasked)}")
    held = [name for name in others if name in reports and reports[name].state is PeerState.HELD]
    # Neither the deadline nor the cutoff overrides a VM that wants the event held: it starts at NotBefore.
    if held:
        return ApprovalVerdict(may_approve=False, reason=f"held by {', '.join(held)}")
    missing = [name for name in others if name not in reports or reports[name].state is not PeerState.PREPARED]
    deadline = record.seen_at + together.deadline
    # After the cutoff, waiting gains nothing: the event starts at NotBefore in any case.
    at = deadline if cutoff is None else min(deadline, cutoff)
    if not missing:
        # A peer that keeps restarting its report must not delay what the deadline has allowed.
        at = min(at, max([record.prepared_at or record.seen_at, *(reports[name].since for name in others)]))
    # Staggered by position, so that a VM approves only if those before it have not.
    at += members.index(vm) * together.stagger
    return ApprovalVerdict(
        may_approve=now >= at,
        ask_again_at=at,
        reason=f"waiting for {', '.join(missing)}" if missing else "all are prepared",
    )
