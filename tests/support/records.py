"""Records of the agent as tests need them: an event, what became of it, and a memory without a disk."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.record import EventRecord, StepRun, StepRunState
from forewarn.agent.registry import EventRegistry
from forewarn.agent.rule import LOG_ONLY, EventStep, Hook, Rule
from forewarn.agent.state import AgentState
from forewarn.wire.document import Document, Event
from tests.support.occasion import an_event

__all__ = ["DRAIN", "NOT_BEFORE", "NOW", "A", "B", "C", "InMemory", "a_book", "a_record", "a_run", "after", "document"]

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOT_BEFORE = NOW + timedelta(minutes=15)
DRAIN = Hook(command=("drain",))
A, B, C = (f"{letter * 8}-0000-0000-0000-000000000000" for letter in "ABC")


def after(**span: float) -> datetime:
    return NOW + timedelta(**span)


def a_run(state: StepRunState = StepRunState.DONE, began: datetime = NOW, **members: Any) -> StepRun:  # noqa: ANN401 - of a run
    is_over = state in {StepRunState.DONE, StepRunState.FAILED}
    given: dict[str, Any] = {"state": state, "began_at": began, "ended_at": began if is_over else None}
    return StepRun(**(given | members))


def a_record(
    rule: Rule | None = None,
    event: Event | Mapping[str, Any] | None = None,
    runs: Mapping[EventStep, StepRun | StepRunState] | None = None,
    **members: Any,  # noqa: ANN401 - of a record
) -> EventRecord:
    """A record that was seen at `NOW`, of a Freeze at `NOT_BEFORE` unless its event says otherwise."""
    found = event if isinstance(event, Event) else an_event(**(event or {}))
    took_place = {step: run if isinstance(run, StepRun) else a_run(run) for step, run in (runs or {}).items()}
    given: dict[str, Any] = {"event": found, "rule": rule or Rule(), "seen_at": NOW, "runs": took_place}
    return EventRecord(**(given | members))


def document(*events: Event, incarnation: int = 1) -> Document:
    return Document(incarnation=incarnation, events=events)


class InMemory:
    """A `StateStorage` that holds what a file would hold.

    Attributes:
        content: As it was saved last; empty when it never was.
        is_full: Whether the next saves fail as on a full disk.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self.is_full = False

    def load(self) -> AgentState:
        return decode_json(self.content, AgentState) if self.content else AgentState()

    def save(self, state: AgentState) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.content = encode_json(state)


def a_book(
    rule: Rule = LOG_ONLY,
    memory: InMemory | None = None,
    *,
    vm: str = "db",
    records_max: int = 10,
    history_max: int = 3,
) -> EventRegistry:
    """A registry with one rule for every event."""
    book = EventRegistry(
        memory or InMemory(), lambda _event, _now: rule, records_max=records_max, history_max=history_max
    )
    book.vm = vm
    return book
