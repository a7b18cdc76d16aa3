"""What is known of one peer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from forewarn.agent.agreement import UNASKED, PeerReport, PeerState
from forewarn.agent.peer import Peer
from forewarn.agent.signing import EVENTS_MAX, PeerResponse

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NONCE = "0" * 32
E1, E2 = "E1", "E2"
PREPARING, PREPARED, HELD = PeerState.PREPARING, PeerState.PREPARED, PeerState.HELD


def test_a_peer_that_could_not_be_asked_yet_is_waited_for() -> None:
    peer = Peer("b")
    assert peer.get_report(E1) is UNASKED
    assert peer.record_query((E1,))
    assert peer.get_report(E1) is None
    assert not peer.record_query((E1,))


def test_the_last_word_holds_until_there_is_another_one() -> None:
    peer = Peer("b")

    def say(standings: dict[str, PeerState], seconds: int) -> dict[str, PeerState]:
        response = PeerResponse(nonce=NONCE, version=str(seconds), standings=standings)
        return peer.record_answer((E1,), response, NOW + timedelta(seconds=seconds))

    assert say({E1: PREPARING}, 1) == {E1: PREPARING}
    assert say({E1: PREPARING}, 2) == {}
    assert peer.get_report(E1) == PeerReport(state=PREPARING, since=NOW + timedelta(seconds=1))
    assert say({E1: PREPARED}, 3) == {E1: PREPARED}
    assert say({}, 4) == {}
    assert peer.get_report(E1) == PeerReport(state=PREPARED, since=NOW + timedelta(seconds=3))
    assert say({E1: PREPARING, E2: PREPARED}, 5) == {E1: PREPARING}
    assert peer.get_report(E2) is UNASKED
    assert peer.version == "5"


def test_an_event_that_is_no_more_is_forgotten() -> None:
    peer = Peer("b")
    peer.record_answer((E1, E2), PeerResponse(nonce=NONCE, standings={E1: HELD, E2: HELD}), NOW)
    peer.record_query((E1, E2))
    peer.forget_all_but({E2: PREPARING})
    assert peer.get_report(E1) is UNASKED
    assert peer.get_report(E2) == PeerReport(state=HELD, since=NOW)


def test_of_many_events_those_that_waited_longest_are_asked_first_and_all_in_turn() -> None:
    peer = Peer("b")
    events = [f"E{number}" for number in range(3 * EVENTS_MAX // 2)]
    first = peer.choose_events(events)
    assert first == tuple(events[:EVENTS_MAX])
    peer.record_query(first)
    second = peer.choose_events(events)
    assert set(events) - set(first) <= set(second)
    peer.record_query(second)
    assert all(peer.get_report(event_id) is None for event_id in events)
