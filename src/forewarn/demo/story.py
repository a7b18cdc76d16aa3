"""The story: plays the acts in order, and reports the actions of the operator and the platform."""

from __future__ import annotations

import asyncio
from functools import partial

from forewarn.clock import Clock
from forewarn.demo.acts import MIGRATION, Act
from forewarn.demo.cast import CAST, PLATFORM
from forewarn.demo.claims import first_fault
from forewarn.demo.lanes import LaneState, Mark
from forewarn.demo.narration import tell_approval
from forewarn.demo.operation import Operator
from forewarn.demo.record import DemoFailed, Entry, Record
from forewarn.demo.timeline import Line, Timeline

__all__ = ["Story"]

_BREATH_S = 0.4
_STATES = {
    "scheduled": LaneState.PREPARING,
    "approved": LaneState.PREPARING,
    "started": LaneState.STARTED,
    "impacted": LaneState.STARTED,
    "completed": LaneState.QUIET,
}
"""State of the platform's lane after each kind of audit log entry; other kinds are not shown."""


class Story:
    """Plays acts.

    Args:
        operator: Client that sends the operator's requests.
        timeline: Timeline that shows the lines.
        clock: Clock for the times of the operator's actions.

    Attributes:
        record: Record of the current act.
    """

    def __init__(self, operator: Operator, timeline: Timeline, clock: Clock) -> None:
        self._operator = operator
        self._timeline = timeline
        self._clock = clock
        self._act: Act = MIGRATION
        self.record = Record()

    async def open(self) -> None:
        """Wait until each VM has asked once, which enables the service for it (R67)."""
        await self.record.wait_until(lambda record: record.are_all_quiet(CAST), "a first answer for every VM")
        await asyncio.sleep(_BREATH_S)

    async def play(self, act: Act) -> Record:
        """Play one act to its end, and return its record.

        Raises:
            DemoFailed: A claim of the act does not hold.
        """
        self._timeline.begin_act(act.title, act.promise)
        self._act = act
        self.record = record = Record(check=partial(first_fault, act.claims))
        self._say(act)
        maintenance = await self._operator.post(act.path, act.body)
        if maintenance["state"] != act.state or len(maintenance["events"]) != len(CAST):
            msg = f"the service made a {maintenance['state']} maintenance with {len(maintenance['events'])} events"
            raise DemoFailed(msg)
        await record.wait_until(lambda r: r.moment("started") is not None, "the start after the last approval")
        await record.wait_until(lambda r: r.moment("impacted") is not None, "the impact")
        await record.wait_until(lambda r: r.moment("completed") is not None, "the completion")
        await record.wait_until(lambda r: r.are_all_quiet(CAST), "that every VM sees its event gone")
        await asyncio.sleep(_BREATH_S)
        return record

    def notice(self, entry: Entry) -> None:
        """Record an audit log entry and show it on the timeline."""
        state = _STATES.get(entry.kind)
        if state is None:
            return
        self.record.add(entry)
        is_vote = entry.kind == "approved"
        text = tell_approval(entry.vm or "somebody", self.record) if is_vote else self._act.sentences[entry.kind]
        mark = Mark.APPROVES if is_vote else Mark.ACTS
        self._timeline.tell(Line(at=entry.at, lane=PLATFORM, state=state, text=text, mark=mark))

    def _say(self, act: Act) -> None:
        text = f"{act.opening}\n  POST {act.path}"
        line = Line(
            at=self._clock.now(), lane=PLATFORM, state=LaneState.QUIET, text=text, speaker="operator", mark=act.mark
        )
        self._timeline.tell(line)
