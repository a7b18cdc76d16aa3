"""What became of the events from one document to the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.client.change import Change, ChangeKind, diff
from forewarn.wire.document import Document, Event
from tests.unit.client.builders import FIRST, SECOND, document, event

SCHEDULED = event()
STARTED = event(status="Started")


def kinds(changes: tuple[Change, ...]) -> list[tuple[str, str]]:
    return [(change.kind.value, change.event.id) for change in changes]


def test_everything_in_the_first_document_is_new() -> None:
    """R100: there is nothing to compare it with."""
    current = document(SCHEDULED, event(SECOND, "Started"))
    assert kinds(diff(None, current)) == [("prepare", FIRST), ("started", SECOND)]
    assert all(change.previous is None and change.document is current for change in diff(None, current))


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        (None, SCHEDULED, "prepare"),
        (None, STARTED, "started"),
        (SCHEDULED, STARTED, "started"),
        (SCHEDULED, event(duration_s=9), "updated"),
        (STARTED, event(status="Started", duration_s=9), "updated"),
        (STARTED, SCHEDULED, "updated"),
        (SCHEDULED, event(status="Paused"), "updated"),
    ],
)
def test_what_is_there_is_told_by_what_was_there(before: Event | None, now: Event, kind: str) -> None:
    """R35, R75, R100: the same id, so Scheduled to Started is neither an end nor a new event."""
    previous = document(*([before] if before else []))
    (change,) = diff(previous, document(now))
    assert (change.kind, change.event, change.previous) == (kind, now, before)


@pytest.mark.parametrize(("before", "kind"), [(SCHEDULED, "canceled"), (STARTED, "recovered")])
def test_what_is_gone_is_told_by_whether_it_had_started(before: Event, kind: str) -> None:
    """R77, R79, R100: it is handed over as it was last."""
    current = document(incarnation=3)
    (change,) = diff(document(before), current)
    assert change == Change(kind=ChangeKind(kind), event=before, previous=before, document=current)


def test_what_has_not_changed_is_not_told() -> None:
    """R100, R101: also where the incarnation is another."""
    assert diff(document(SCHEDULED, incarnation=2), document(SCHEDULED, incarnation=3)) == ()


def test_events_are_told_apart_by_their_ids_only() -> None:
    """R30, A19: the same members under another id are another event."""
    changes = diff(document(SCHEDULED), document(event(SECOND)))
    assert kinds(changes) == [("canceled", FIRST), ("prepare", SECOND)]


def test_ends_are_told_before_beginnings() -> None:
    """R61: one event may follow right upon another, and the handler is free again before the next one comes."""
    before = document(event("A"), event("B", "Started"), event("C"))
    after = document(event("D"), event("C", "Started"))
    assert kinds(diff(before, after)) == [("canceled", "A"), ("recovered", "B"), ("prepare", "D"), ("started", "C")]


EVENTS = st.builds(
    event,
    st.sampled_from("ABCDEF"),
    st.sampled_from(["Scheduled", "Started", "", "Paused"]),
    duration_s=st.sampled_from([-1, 5]),
)
DOCUMENTS = st.builds(
    Document,
    incarnation=st.none() | st.integers(),
    events=st.lists(EVENTS, max_size=6, unique_by=lambda e: e.id).map(tuple),
)


@given(previous=st.none() | DOCUMENTS, current=DOCUMENTS)
def test_new_events_are_prepared_for_and_gone_ones_recovered_from(previous: Document | None, current: Document) -> None:
    """R100, A19: and each id is told at most once."""
    changes = diff(previous, current)
    told = {change.event.id: change.kind for change in changes}
    assert len(told) == len(changes)
    before = {e.id: e for e in previous.events} if previous else {}
    after = {e.id: e for e in current.events}
    new = {ChangeKind.PREPARE, ChangeKind.STARTED}
    gone = {ChangeKind.RECOVERED, ChangeKind.CANCELED}
    assert {i for i in told if told[i] in gone} == before.keys() - after.keys()
    assert {i for i in told if told[i] in new} >= after.keys() - before.keys()
    for event_id in after.keys() & before.keys():
        assert told.get(event_id) in {None, ChangeKind.STARTED, ChangeKind.UPDATED}
        assert (event_id in told) == (before[event_id] != after[event_id])
    for event_id, kind in told.items():
        if kind in gone:
            assert (kind is ChangeKind.RECOVERED) == (before[event_id].status == "Started")
        elif event_id not in before:
            assert (kind is ChangeKind.STARTED) == (after[event_id].status == "Started")


@given(st.lists(DOCUMENTS, max_size=6))
def test_whoever_applies_the_changes_knows_the_last_document(documents: list[Document]) -> None:
    """R100: nothing is lost on the way, whatever the documents are."""
    known: dict[str, Event] = {}
    previous = None
    for current in documents:
        for change in diff(previous, current):
            if change.kind in {ChangeKind.RECOVERED, ChangeKind.CANCELED}:
                del known[change.event.id]
            else:
                known[change.event.id] = change.event
        previous = current
        assert known == {e.id: e for e in current.events}
