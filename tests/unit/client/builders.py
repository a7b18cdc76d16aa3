"""Short ways to events, documents and answers, and a driver that answers a flow from a script."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from forewarn.client.exchange import FlowPause, HttpAnswer, HttpRequest
from forewarn.client.flow import API_VERSIONS, Conversation
from forewarn.client.pace import Pace
from forewarn.errors import EndpointUnreachable
from forewarn.wire.document import Document, Event

__all__ = [
    "AWAY",
    "FIRST",
    "HELD",
    "SECOND",
    "SILENT",
    "Step",
    "body",
    "conversation",
    "document",
    "event",
    "finish",
    "ok",
    "pauses",
    "play",
    "refused",
    "requests",
    "same",
]

T = TypeVar("T")

FIRST = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
SECOND = "F1A2E3B4-0000-4000-8000-AA5F13A16123"

AWAY = EndpointUnreachable("the metadata endpoint does not answer: connection refused")
SILENT = EndpointUnreachable("the metadata endpoint does not answer", timed_out=True, elapsed_s=10.0)
HELD = {"preference-applied": "wait"}

Step = HttpAnswer | EndpointUnreachable


def event(event_id: str = FIRST, status: str = "Scheduled", **members: Any) -> Event:  # noqa: ANN401 - of any kind
    """A Freeze of ``vm-1``."""
    return Event(**({"id": event_id, "type": "Freeze", "status": status, "resources": ("vm-1",)} | members))


def document(*events: Event, incarnation: int | None = 1) -> Document:
    """A document of these events."""
    return Document(incarnation=incarnation, events=events)


def body(incarnation: object, *events: Event) -> bytes:
    """The body of a GET that shows these events."""
    shown = [
        {"EventId": e.id, "EventType": e.type, "EventStatus": e.status, "Resources": list(e.resources)} for e in events
    ]
    return json.dumps({"DocumentIncarnation": incarnation, "Events": shown}).encode()


def ok(
    incarnation: object = 1, *events: Event, elapsed_s: float = 0.0, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """A document."""
    return HttpAnswer(status=200, headers=headers or {}, body=body(incarnation, *events), elapsed_s=elapsed_s)


def same(elapsed_s: float = 20.0, headers: Mapping[str, str] = HELD) -> HttpAnswer:
    """A 304: by default of a held request whose time was over."""
    return HttpAnswer(status=304, headers=headers, elapsed_s=elapsed_s)


def refused(status: int, error: object = "", elapsed_s: float = 0.0, **more: object) -> HttpAnswer:
    """An error; with an underscore for a hyphen, `more` are members of its body."""
    content = {"error": error} | {name.replace("_", "-"): value for name, value in more.items()}
    return HttpAnswer(status=status, body=json.dumps(content).encode(), elapsed_s=elapsed_s)


def conversation(*versions: str, chance: float = 1.0, **pace: float) -> Conversation:
    """A talk that spreads its pauses as told."""
    return Conversation(Pace(**pace), versions or API_VERSIONS, lambda: chance)


def play(flow: Generator[Any, HttpAnswer | None, object], *script: Step) -> list[Any]:
    """What the flow yields until it asks for an answer that is not in the script; pauses pass at once."""
    told: list[Any] = []
    left = list(script)
    step = next(flow)
    while True:
        told.append(step)
        if isinstance(step, HttpRequest):
            if not left:
                return told
            came = left.pop(0)
            step = flow.throw(came) if isinstance(came, EndpointUnreachable) else flow.send(came)
        else:
            step = next(flow)


def finish(
    flow: Generator[HttpRequest | FlowPause, HttpAnswer | None, T], *script: Step
) -> tuple[T, list[HttpRequest | FlowPause]]:
    """What the flow returns, and what it asked for; every answer of the script is used."""
    asked: list[HttpRequest | FlowPause] = []
    left = list(script)
    came: Step | None = None
    while True:
        try:
            step = flow.throw(came) if isinstance(came, EndpointUnreachable) else flow.send(came)
        except StopIteration as end:
            assert not left, f"{len(left)} answers were not asked for"
            result: T = end.value
            return result, asked
        asked.append(step)
        came = left.pop(0) if isinstance(step, HttpRequest) else None


def requests(told: list[Any]) -> list[HttpRequest]:
    """The requests among these."""
    return [step for step in told if isinstance(step, HttpRequest)]


def pauses(told: list[Any]) -> list[float]:
    """The pauses among these, in seconds."""
    return [step.seconds for step in told if isinstance(step, FlowPause)]
