"""A run as sentences, for people who look for the cause of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from forewarn.testing.simulation.machine_clock import START
from forewarn.testing.simulation.outcome import Outcome
from forewarn.testing.simulation.trace import Fact

__all__ = ["tell"]


def tell(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each fact and each entry of the audit log, in the order of time."""
    lines = [(fact.at_s, _describe_fact(fact)) for fact in outcome.facts]
    for entry in outcome.entries:
        about = " ".join(part for part in (entry.maintenance_id, entry.event_id, entry.vm, entry.reason) if part)
        lines.append((_to_seconds(entry.at), f"audit log: {entry.kind.value} {about} by {entry.actor}"))
    # Sorted by time alone: what happens at one moment keeps its order.
    for at_s, line in sorted(lines, key=lambda each: each[0]):
        yield f"{at_s // 60:3.0f}:{at_s % 60:06.3f}  {line}"


def _to_seconds(moment: datetime) -> float:
    return (moment - START).total_seconds()


def _describe_fact(fact: Fact) -> str:
    if fact.subject == "chaos":
        match fact.kind:
            case "kinds":
                return f"faults: kinds: {', '.join(fact.details['kinds'])}"
            case "over":
                return f"faults: {fact.details['fault']} is over"
        return f"faults: {fact.kind}"
    if fact.subject == "operator":
        return f"an operator or a tenant asks: {fact.kind}; the answer is {fact.details['status']}"
    describe = _SENTENCES.get(fact.kind)
    if describe is None:
        return f"{fact.subject} {fact.kind}: {', '.join(f'{key}={value}' for key, value in fact.details.items())}"
    return f"{fact.subject} {describe(fact.details)}"


def _describe_events(events: Mapping[str, Any]) -> str:
    shown = (f"{key} {' of '.join(map(str, value))}" for key, value in events.items())
    return "; ".join(shown) or "no event"


_SENTENCES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "start": lambda _: "starts",
    "ready": lambda _: "serves",
    "kill": lambda d: "loses its power" if d["power"] else "is killed",
    "halt": lambda _: "is halted",
    "resume": lambda _: "goes on",
    "not-saved": lambda _: "cannot write its state to its disk",
    "saved": lambda _: "can write its state to its disk again",
    "failed": lambda d: f"ends with {d['error']}",
    "document": lambda d: f"is shown, in document {d['incarnation']}: {_describe_events(d['events'])}",
    "published": lambda d: f"shows {d['audience']}, in document {d['version'][1]}: {_describe_events(d['events'])}",
    "view": lambda d: f"is listed to its tenant with {_describe_events({k: [v] for k, v in d['events'].items()})}",
    "refused": lambda d: f"is answered {d['status']} to its {d['method']}",
    "approved": lambda d: f"has approved {d['event']}",
    "step": lambda d: f"begins the step {d['step']} for {d['event']}",
    "step-end": lambda d: f"ends the step {d['step']} for {d['event']}: {d['how']}",
    "execute": lambda d: f"begins {d['maintenance']} of {', '.join(d['vms'])}",
    "impact": lambda d: f"interrupts {', '.join(d['vms'])} for {d['maintenance']}",
    "complete": lambda d: f"returns {', '.join(d['vms'])} from {d['maintenance']}",
    "abort": lambda d: f"is asked to stop {d['maintenance']}",
    "webhook": lambda d: f"takes the notification that {d['about']} is {d['type']}",
}
