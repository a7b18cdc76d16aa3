"""The story: plays the acts in order, and reports the actions of the operator and the platform."""

from __future__ import annotations

import asyncio
from functools import partial

import httpx

from forewarn.clock import Clock
from forewarn.demo.act_record import ActRecord, DemoFailed, WatchedEntry
from forewarn.demo.acts import MIGRATION, Act
from forewarn.demo.claims import find_broken_claim
from forewarn.demo.lanes import LaneState, Mark
from forewarn.demo.operator_client import request_maintenance
from forewarn.demo.sentences import describe_approval
from forewarn.demo.timeline import Timeline, TimelineLine
from forewarn.demo.vms import CAST, PLATFORM

__all__ = ["ActPlayer"]

_BREATH_S = 0.4
_STATES = {
    "scheduled": LaneState.PREPARING,
    "approved": LaneState.PREPARING,
    "started": LaneState.STARTED,
    "impacted": LaneState.STARTED,
    "completed": LaneState.QUIET,
}
"""State of the platform's lane after each kind of audit log entry; other kinds are not shown."""


class ActPlayer:
    """Plays acts.

    Args:
        client: HTTP client with the address and the token of the service.
        timeline: Timeline that shows the lines.
        clock: Clock for the times of the operator's actions.

    Attributes:
        record: Record of the current act.
    """

    def __init__(self, client: httpx.AsyncClient, timeline: Timeline, clock: Clock) -> None:
        self._client = client
        self._timeline = timeline
        self._clock = clock
        self._act: Act = MIGRATION
        self.record = ActRecord()

    async def wait_for_first_polls(self) -> None:
        """Wait until each VM has asked once, which enables the service for it (R67)."""
        await self.record.wait_until(lambda record: record.are_all_without_events(CAST), "a first answer for every VM")
        await asyncio.sleep(_BREATH_S)

    async def play_act(self, act: Act) -> ActRecord:
        """Play one act to its end, and return its record.

        Raises:
            DemoFailed: A claim of the act does not hold.
        """
        self._timeline.begin_act(act.title, act.promise)
        self._act = act
        # A new record for each act: handlers ask for the current one at each line, and claims of one act may not hold
        # in the other.
        self.record = record = ActRecord(check=partial(find_broken_claim, act.claims))
        self._show_request(act)
        maintenance = await request_maintenance(self._client, act.path, act.body)
        if maintenance["state"] != act.state or len(maintenance["events"]) != len(CAST):
            msg = f"the service created a {maintenance['state']} maintenance with {len(maintenance['events'])} events"
            raise DemoFailed(msg)
        await record.wait_until(lambda r: r.find_time("started") is not None, "the start after the last approval")
        await record.wait_until(lambda r: r.find_time("impacted") is not None, "the impact")
        await record.wait_until(lambda r: r.find_time("completed") is not None, "the completion")
        await record.wait_until(lambda r: r.are_all_without_events(CAST), "the removal of every VM's event")
        await asyncio.sleep(_BREATH_S)
        return record

    def record_entry(self, entry: WatchedEntry) -> None:
        """Record an audit log entry and show it on the timeline."""
        state = _STATES.get(entry.kind)
        if state is None:
            return
        self.record.add_observation(entry)
        is_vote = entry.kind == "approved"
        text = describe_approval(entry.vm or "a VM", self.record) if is_vote else self._act.sentences[entry.kind]
        mark = Mark.APPROVES if is_vote else Mark.ACTS
        self._timeline.queue_line(TimelineLine(at=entry.at, lane=PLATFORM, state=state, text=text, mark=mark))

    def _show_request(self, act: Act) -> None:
        text = f"{act.opening}\n  POST {act.path}"
        line = TimelineLine(
            at=self._clock.now(), lane=PLATFORM, state=LaneState.QUIET, text=text, speaker="operator", mark=act.mark
        )
        self._timeline.queue_line(line)
