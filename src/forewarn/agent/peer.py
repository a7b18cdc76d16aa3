"""State of one peer: the events that it was asked about, and its latest report on each. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from forewarn.agent.agreement import UNASKED, PeerReport, PeerState
from forewarn.agent.signing import EVENTS_MAX, PeerResponse

__all__ = ["Peer"]


class Peer:
    """One peer.

    Args:
        name: Name of its VM.

    Attributes:
        version: Version of its states, as it last reported it; empty before the first.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = ""
        self._round_number = 0
        self._rounds_by_event: dict[str, int] = {}
        self._reports: dict[str, PeerReport] = {}

    def get_report(self, event_id: str) -> PeerReport | None:
        """Return its latest report on that event; `UNASKED` before it was asked, None if it was but never reported."""
        return self._reports.get(event_id, None if event_id in self._rounds_by_event else UNASKED)

    def choose_events(self, event_ids: Iterable[str]) -> tuple[str, ...]:
        """Choose the events to ask about now: as many as fit into one question, longest waiting first."""
        return tuple(sorted(event_ids, key=lambda event_id: self._rounds_by_event.get(event_id, 0))[:EVENTS_MAX])

    def record_answer(self, event_ids: Collection[str], response: PeerResponse, now: datetime) -> dict[str, PeerState]:
        """Take in its answer about these events, and return the changed states.

        An event that it leaves out is not yet, or no longer, known to it: its latest report stays valid.
        """
        self.version = response.version
        changed: dict[str, PeerState] = {}
        for event_id in event_ids:
            state = response.standings.get(event_id)
            last = self._reports.get(event_id)
            # A repeated report keeps its time: staggered approvals count from the moment when all were prepared.
            if state is not None and (last is None or last.state is not state):
                self._reports[event_id] = PeerReport(state=state, since=now)
                changed[event_id] = state
        return changed

    def record_query(self, event_ids: Collection[str]) -> bool:
        """Record the end of a question about these events, answered or not; return True if it was the first for any."""
        self._round_number += 1
        is_first = any(event_id not in self._rounds_by_event for event_id in event_ids)
        self._rounds_by_event |= dict.fromkeys(event_ids, self._round_number)
        return is_first

    def forget_all_but(self, event_ids: Collection[str]) -> None:
        """Forget everything but these events."""
        # An id that comes back is UNASKED again, because a report on the earlier event must not count.
        self._rounds_by_event = {
            event_id: number for event_id, number in self._rounds_by_event.items() if event_id in event_ids
        }
        self._reports = {event_id: report for event_id, report in self._reports.items() if event_id in event_ids}
