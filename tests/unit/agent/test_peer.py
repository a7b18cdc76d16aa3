"""What is known of one peer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from forewarn.agent.peer import Peer
from forewarn.agent.seal import EVENTS_MAX, Response
from forewarn.agent.together import UNASKED, PeerState, Report

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NONCE = "0" * 32
E1, E2 = "E1", "E2"
PREPARING, PREPARED, HELD = PeerState.PREPARING, PeerState.PREPARED, PeerState.HELD


def test_a_peer_that_could_not_be_asked_yet_is_waited_for() -> None:
    peer = Peer("b")
    assert peer.report(E1) is UNASKED
    assert peer.note_asked((E1,))
    assert peer.report(E1) is None
    assert not peer.note_asked((E1,))


def test_the_last_word_holds_until_there_is_another_one() -> None:
    peer = Peer("b")

    def say(standings: dict[str, PeerState], seconds: int) -> dict[str, PeerState]:
        response = Response(nonce=NONCE, version=str(seconds), standings=standings)
        return peer.take((E1,), response, NOW + timedelta(seconds=seconds))

    assert say({E1: PREPARING}, 1) == {E1: PREPARING}
    assert say({E1: PREPARING}, 2) == {}
    assert peer.report(E1) == Report(state=PREPARING, since=NOW + timedelta(seconds=1))
    assert say({E1: PREPARED}, 3) == {E1: PREPARED}
    assert say({}, 4) == {}
    assert peer.report(E1) == Report(state=PREPARED, since=NOW + timedelta(seconds=3))
    assert say({E1: PREPARING, E2: PREPARED}, 5) == {E1: PREPARING}
    assert peer.report(E2) is UNASKED
    assert peer.version == "5"


def test_an_event_that_is_no_more_is_forgotten() -> None:
    peer = Peer("b")
    peer.take((E1, E2), Response(nonce=NONCE, standings={E1: HELD, E2: HELD}), NOW)
    peer.note_asked((E1, E2))
    peer.forget_all_but({E2: PREPARING})
    assert peer.report(E1) is UNASKED
    assert peer.report(E2) == Report(state=HELD, since=NOW)


def test_of_many_events_those_that_waited_longest_are_asked_first_and_all_in_turn() -> None:
    peer = Peer("b")
    events = [f"E{number}" for number in range(3 * EVENTS_MAX // 2)]
    first = peer.choose(events)
    assert first == tuple(events[:EVENTS_MAX])
    peer.note_asked(first)
    second = peer.choose(events)
    assert set(events) - set(first) <= set(second)
    peer.note_asked(second)
    assert all(peer.report(event_id) is None for event_id in events)
