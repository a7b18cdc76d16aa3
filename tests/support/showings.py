"""Transcripts made up for tests: what an endpoint may have shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from forewarn.testing.transcript.transcript import Transcript, TranscriptEntry

__all__ = ["BEGAN", "ID", "event", "shown", "transcript", "transcripts"]

VERSION = "2020-07-01"
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
ID = "C7061BAC-AFDC-4513-B24B-AA5F13A1612{}"


def event(number: int = 0, *, start_s: float | None = 900, **members: Any) -> dict[str, Any]:  # noqa: ANN401 - of any kind
    moment = "" if start_s is None else (BEGAN + timedelta(seconds=start_s)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    whole = {
        "EventId": ID.format(number),
        "EventStatus": "Scheduled" if moment else "Started",
        "EventType": "Freeze",
        "ResourceType": "VirtualMachine",
        "Resources": ["vm-1"],
        "NotBefore": moment,
        "Description": "Host server is undergoing maintenance.",
        "EventSource": "Platform",
        "DurationInSeconds": 9,
    }
    return whole | members


def shown(at_s: float, incarnation: int, *events: dict[str, Any]) -> TranscriptEntry:
    body = json.dumps({"DocumentIncarnation": incarnation, "Events": events}).encode()
    return TranscriptEntry(at_s=at_s, status=200, body=body)


def transcript(*entries: TranscriptEntry, end_s: float = 3600.0) -> Transcript:
    return Transcript(api_version=VERSION, began=BEGAN, interval_s=1.0, entries=entries, end_s=end_s)


_TEXTS = st.text(max_size=12) | st.sampled_from(
    ["Freeze", "Reboot", "Preempt", "Terminate", "User", "a: b", "x\ny", ""]
)
_MEMBERS = st.fixed_dictionaries(
    {"EventId": st.sampled_from([ID.format(n) for n in range(4)]) | _TEXTS},
    optional={
        "EventType": st.sampled_from(["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"]) | _TEXTS,
        "EventStatus": st.sampled_from(["Scheduled", "Started"]) | _TEXTS,
        "Resources": st.lists(st.sampled_from(["a", "b", "A B", "_c"]) | _TEXTS, max_size=3),
        "EventSource": st.sampled_from(["User", "Platform"]) | _TEXTS,
        "Description": _TEXTS,
        "DurationInSeconds": st.integers(-5, 10**12),
        "NotBefore": st.sampled_from(["Sun, 01 Mar 2026 12:15:00 GMT", "", "9999-12-31T23:59:59Z"]) | _TEXTS,
    },
)
_SHOWN = st.builds(
    lambda incarnation, events: {"DocumentIncarnation": incarnation, "Events": events},
    st.integers(-1, 2**40) | st.none(),
    st.lists(_MEMBERS, max_size=4),
)
_ENTRIES = st.builds(
    TranscriptEntry,
    at_s=st.just(0.0),
    took_s=st.sampled_from([0.0, 0.4, 130.0]),
    status=st.sampled_from([200, 200, 200, 304, 404, 500, 599]),
    headers=st.dictionaries(st.just("date"), st.sampled_from(["Sun, 01 Mar 2026 12:00:00 GMT", "x"])),
    body=_SHOWN.map(lambda content: json.dumps(content).encode()) | st.binary(max_size=5),
)


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    """Whatever may be recorded, sense or nonsense."""
    step_s = draw(st.floats(0, 2000))
    drawn = draw(st.lists(_ENTRIES, max_size=10))
    entries = [
        TranscriptEntry(at_s=n * step_s, took_s=min(e.took_s, step_s), status=e.status, headers=e.headers, body=e.body)
        for n, e in enumerate(drawn)
    ]
    return transcript(*entries, end_s=len(entries) * step_s)
