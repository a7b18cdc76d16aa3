"""What agents believe of each other: nothing but the answer to their own question, by who knows the secret."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent import peer_exchange as module
from forewarn.agent.agreement import ApprovalVerdict, PeerReport, PeerState, TogetherSettings, may_approve
from forewarn.agent.codec import Duration, InvalidValue, convert
from forewarn.agent.listener import ListenerRequest
from forewarn.agent.peer_exchange import PATH, PeerExchange
from forewarn.agent.record import ApprovalState, EventRecord
from forewarn.agent.rule import Rule
from forewarn.agent.signing import SIGNATURE, MessageSigner, PeerQuery
from forewarn.client.exchange import HttpAnswer, HttpRequest
from forewarn.errors import EndpointUnreachable
from forewarn.wire.document import Event

pytestmark = pytest.mark.anyio

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECRET = b"0123456789abcdef"
NONCE = "0" * 32
E1, E2 = "E1", "E2"
PREPARING, PREPARED, HELD = PeerState.PREPARING, PeerState.PREPARED, PeerState.HELD

# Several agents


class Vm:
    """A `LocalAgent` that says what a test wants."""

    def __init__(self, name: str, **standings: PeerState) -> None:
        self.vm = name
        self.listeners: list[Callable[[], None]] = []
        self.resources: tuple[str, ...] = ("a", "b")
        self.said: dict[str, PeerState] = dict(standings)
        self.approved: set[str] = set()
        self.seconds = 0
        self.wakes = 0

    @property
    def records(self) -> tuple[EventRecord, ...]:
        return tuple(
            EventRecord(
                event=Event(id=event_id, type="Freeze", status="Scheduled", resources=self.resources),
                rule=Rule(),
                seen_at=NOW,
                approval=ApprovalState.ACCEPTED if event_id in self.approved else ApprovalState.NONE,
            )
            for event_id in self.said
        )

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def get_reported_states(self) -> dict[str, PeerState]:
        return dict(self.said)

    def wake(self) -> None:
        self.wakes += 1


class Wire:
    """An `AsyncTransport` to an agent in the same process.

    Attributes:
        to: Who is there; None for nobody.
        seen: Everything that went over it.
        bend: Changes answers.
    """

    def __init__(self) -> None:
        self.to: PeerExchange | None = None
        self.seen: list[tuple[HttpRequest, HttpAnswer]] = []
        self.bend: Callable[[HttpRequest, HttpAnswer], HttpAnswer] = lambda _, answer: answer

    async def send(self, request: HttpRequest) -> HttpAnswer:
        if self.to is None:
            url = "http://b"
            raise EndpointUnreachable(f"the metadata endpoint {url} does not answer: connection refused")
        assert request.path == PATH
        answer = self.bend(request, await put(self.to, request.body, request.headers, request.method))
        self.seen.append((request, answer))
        return answer

    async def close(self) -> None:
        pass


async def put(
    peers: PeerExchange, body: bytes, headers: Mapping[str, str], method: str = "POST", path: str = PATH
) -> HttpAnswer:
    """One request, as the listener would hand it over."""
    lowered = {name.lower(): value for name, value in headers.items()}
    reply = await peers.answer_request(ListenerRequest(method=method, path=path, headers=lowered, body=body))
    said = {name.lower(): value for name, value in reply.headers.items()}
    return HttpAnswer(status=int(reply.status), headers=said, body=reply.body)


def of_group(*members: str) -> TogetherSettings:
    return TogetherSettings(
        mode="all-prepared",
        listen="127.0.0.1:0",
        peers={name: f"http://{name}:1" for name in members},
        secret_file="secret",
    )


class Group:
    """Agents of several VMs, with a wire from each to each."""

    def __init__(self, *vms: Vm, secrets: Mapping[str, bytes] | None = None) -> None:
        self.vms = {vm.vm: vm for vm in vms}
        self.wires: dict[tuple[str, str], Wire] = {}
        self.peers: dict[str, PeerExchange] = {}
        self._secrets = secrets or {}
        self._nonces = itertools.count()  # an agent that starts anew draws others than before
        for vm in vms:
            self.start(vm)

    def start(self, vm: Vm, *, is_mute: bool = False) -> PeerExchange:
        """The agent of that VM, perhaps anew."""
        names = iter(self.vms)

        def connect(_url: str) -> Wire:
            return self.wires.setdefault((vm.vm, next(names)), Wire())

        peers = PeerExchange(
            of_group(*self.vms),
            self._secrets.get(vm.vm, SECRET),
            connect=connect,
            is_mute=is_mute,
            make_nonce=lambda: f"{vm.vm}{id(vm)}{next(self._nonces):032}"[-64:],
        )
        peers._agent = vm
        self.peers[vm.vm] = peers
        for (_, there), wire in self.wires.items():
            if there == vm.vm:
                wire.to = peers
        for (here, there), wire in self.wires.items():
            if here == vm.vm:
                wire.to = self.peers.get(there)
        vm.listeners = [peers.publish_states]
        peers.publish_states()
        return peers

    async def ask(self, sender: str, receiver: str) -> None:
        """One question, if there is anything to ask."""
        peers = self.peers[sender]
        line = peers._connections[receiver]
        events = line.peer.choose_events(peers._list_open_event_ids(receiver))
        if events:
            await peers._query_peer(line, events)

    def heard(self, who: str, of: str, event_id: str = E1) -> PeerState | None:
        """What one believes of another."""
        report = self.peers[who].get_reports(event_id).get(of)
        return None if report is None else report.state


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals come at once."""
    monkeypatch.setattr(module, "_REFUSAL_S", 0)


@pytest.fixture
def pair() -> Group:
    return Group(Vm("a", E1=PREPARED), Vm("b", E1=PREPARING))


async def test_an_answer_says_how_far_the_peer_is_and_wakes_the_agent(pair: Group) -> None:
    assert pair.heard("a", "b") is HELD  # it stands for: not asked yet
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is PREPARING
    assert pair.vms["a"].wakes == 1
    await pair.ask("a", "b")
    assert pair.vms["a"].wakes == 1
    pair.vms["b"].said = {E1: PREPARED}
    pair.peers["b"].publish_states()
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is PREPARED
    assert pair.vms["a"].wakes == 2


async def test_an_event_that_came_again_is_asked_about_again(pair: Group) -> None:
    await pair.ask("a", "b")
    for said in ({}, {E1: PREPARED}):
        pair.vms["a"].said = said
        pair.peers["a"].publish_states()
    assert pair.heard("a", "b") is HELD


async def test_silence_is_no_word_and_wakes_the_agent_once(pair: Group) -> None:
    pair.wires["a", "b"].to = None
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is None
    assert pair.vms["a"].wakes == 1
    await pair.ask("a", "b")
    assert pair.vms["a"].wakes == 1


async def test_a_word_outlasts_silence(pair: Group) -> None:
    """R103: a VM that wants it held, and then cannot be reached, wants it held still."""
    pair.vms["b"].said = {E1: HELD}
    pair.peers["b"].publish_states()
    await pair.ask("a", "b")
    pair.wires["a", "b"].to = None
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is HELD


async def test_a_word_outlasts_a_peer_that_has_not_seen_the_event_again_after_its_start(pair: Group) -> None:
    pair.vms["b"].said = {E1: HELD}
    pair.peers["b"].publish_states()
    await pair.ask("a", "b")
    pair.vms["b"].said = {}
    pair.start(pair.vms["b"])
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is HELD


async def test_an_agent_that_has_not_judged_yet_says_nothing(pair: Group) -> None:
    fresh = pair.start(pair.vms["b"])
    fresh._states = None
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is None
    assert pair.wires["a", "b"].seen[-1][1].status == 503


async def test_nothing_is_told_before_it_is_saved(pair: Group) -> None:
    """The agent calls its listeners once it has saved; until then a crash could take it back."""
    pair.vms["b"].said = {E1: PREPARED}
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is PREPARING
    pair.peers["b"].publish_states()
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is PREPARED


async def test_a_dry_run_asks_and_does_not_say(pair: Group) -> None:
    pair.start(pair.vms["b"], is_mute=True)
    await pair.ask("b", "a")
    await pair.ask("a", "b")
    assert pair.heard("b", "a") is PREPARED
    assert pair.heard("a", "b") is None


async def test_only_events_that_hit_the_peer_and_are_open_are_asked_about() -> None:
    group = Group(Vm("a", E1=PREPARED, E2=PREPARED), Vm("b"), Vm("c"))
    assert group.peers["a"]._list_open_event_ids("b") == [E1, E2]
    assert group.peers["a"]._list_open_event_ids("c") == []
    assert group.peers["a"]._list_open_event_ids("a") == []
    assert group.peers["b"]._list_open_event_ids("a") == []
    group.vms["a"].approved = {E1}
    assert group.peers["a"]._list_open_event_ids("b") == [E2]


async def test_a_question_with_news_is_asked_back_at_once_and_one_without_is_not(pair: Group) -> None:
    wake = pair.peers["a"]._connections["b"].wake
    wake.clear()
    await pair.ask("b", "a")
    assert wake.is_set()
    await pair.ask("a", "b")
    wake.clear()
    await pair.ask("b", "a")
    assert not wake.is_set()
    pair.vms["b"].said = {E1: PREPARED}
    pair.peers["b"].publish_states()
    await pair.ask("b", "a")
    assert wake.is_set()


def test_a_change_wakes_every_line_and_the_lack_of_one_none(pair: Group) -> None:
    line = pair.peers["a"]._connections["b"]
    line.wake.clear()
    pair.peers["a"].publish_states()
    assert not line.wake.is_set()
    pair.vms["a"].said = {E1: HELD}
    pair.peers["a"].publish_states()
    assert line.wake.is_set()


async def test_each_of_three_hears_the_other_two() -> None:
    group = Group(Vm("a", E1=PREPARED), Vm("b", E1=HELD), Vm("c", E1=PREPARING))
    for vm in group.vms.values():
        vm.resources = ("a", "b", "c")
    for here, there in itertools.permutations("abc", 2):
        await group.ask(here, there)
    said = {name: vm.said[E1] for name, vm in group.vms.items()}
    for name, peers in group.peers.items():
        heard = {peer: report.state for peer, report in peers.get_reports(E1).items()}
        assert heard == {peer: state for peer, state in said.items() if peer != name}


async def test_a_vm_with_another_name_is_silent_and_says_why(pair: Group, caplog: pytest.LogCaptureFixture) -> None:
    pair.vms["b"].vm = "b2"
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is None
    assert "it is b2, not b; check together.peers" in caplog.text


async def test_a_vm_that_is_not_among_the_peers_is_told_nothing(pair: Group, caplog: pytest.LogCaptureFixture) -> None:
    pair.vms["a"].vm = "a2"
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is None
    assert "a2 is not in together.peers of b" in caplog.text


def test_a_vm_of_the_event_that_is_not_among_the_peers_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    vm = Vm("a", E1=PREPARING)
    vm.resources = ("a", "b", "c")
    group = Group(vm, Vm("b"))
    vm.said = {E1: PREPARED}
    group.peers["a"].publish_states()
    assert [record.getMessage() for record in caplog.records] == [
        "event E1: c is not in together.peers and cannot be asked"
    ]


async def test_silence_is_logged_less_and_less_and_its_end_once(pair: Group, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pair.wires["a", "b"].to = None
    for _ in range(20):
        await pair.ask("a", "b")
    assert [record.getMessage() for record in caplog.records] == [
        f"no state from peer b: connection refused ({failures} in a row)" for failures in (1, 2, 4, 8, 16)
    ]
    caplog.clear()
    pair.wires["a", "b"].to = pair.peers["b"]
    await pair.ask("a", "b")
    await pair.ask("a", "b")
    assert [record.getMessage() for record in caplog.records] == [
        "peer b answers again",
        "event E1: peer b reports: preparing",
    ]


async def test_whatever_breaks_while_one_is_asked_the_deadline_holds(pair: Group) -> None:
    def bend(request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
        raise RuntimeError

    pair.wires["a", "b"].bend = bend
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is None


# Attackers


async def test_an_answer_that_was_recorded_is_not_believed_again(pair: Group) -> None:
    wire = pair.wires["a", "b"]
    pair.vms["b"].said = {E1: PREPARED}
    pair.peers["b"].publish_states()
    await pair.ask("a", "b")
    recorded = wire.seen[-1][1]
    for state in (PREPARING, HELD):
        pair.vms["b"].said = {E1: state}
        pair.peers["b"].publish_states()
        wire.bend = lambda _, answer: answer
        await pair.ask("a", "b")
        wire.bend = lambda *_: recorded
        await pair.ask("a", "b")
        assert pair.heard("a", "b") is state


async def test_an_answer_that_was_recorded_is_not_believed_by_an_agent_that_has_started_since(pair: Group) -> None:
    wire = pair.wires["a", "b"]
    pair.vms["b"].said = {E1: PREPARED}
    pair.peers["b"].publish_states()
    await pair.ask("a", "b")
    recorded = wire.seen[-1][1]
    pair.vms["a"] = again = Vm("a", E1=PREPARED)
    pair.start(again)
    wire.bend = lambda *_: recorded
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is None


async def test_a_question_that_was_recorded_changes_nothing_but_who_is_asked_next(pair: Group) -> None:
    pair.vms["b"].said = {E1: PREPARED}
    pair.peers["b"].publish_states()
    await pair.ask("b", "a")
    question, _ = pair.wires["b", "a"].seen[-1]
    pair.vms["b"].said = {E1: PREPARING}
    pair.peers["b"].publish_states()
    await pair.ask("a", "b")
    answer = await put(pair.peers["a"], question.body, question.headers)
    assert answer.status == 200
    assert pair.heard("a", "b") is PREPARING


async def test_ones_own_answer_is_not_believed_when_it_comes_back(pair: Group) -> None:
    """a is prepared, and an attacker lets a answer itself."""
    pair.wires["a", "b"].to = pair.peers["a"]
    await pair.ask("a", "b")
    assert pair.heard("a", "b") is None


async def test_the_answer_of_another_peer_is_not_believed() -> None:
    group = Group(Vm("a", E1=PREPARED), Vm("b", E1=PREPARING), Vm("c", E1=PREPARED))
    for vm in group.vms.values():
        vm.resources = ("a", "b", "c")
    group.wires["a", "b"].to = group.peers["c"]
    await group.ask("a", "b")
    assert group.heard("a", "b") is None


async def test_an_impostor_is_refused_and_reported_once_a_minute(pair: Group, caplog: pytest.LogCaptureFixture) -> None:
    body, signature = MessageSigner(b"another secret of 16 bytes").sign_message(
        PeerQuery(sender="b", receiver="a", nonce=NONCE, version="x", events=(E1,))
    )
    pair.peers["a"]._connections["b"].wake.clear()
    for _ in range(5):
        answer = await put(pair.peers["a"], body, {SIGNATURE: signature})
        assert (answer.status, answer.headers.get("connection")) == (401, "close")
        assert await put(pair.peers["a"], b"nonsense", {}) == HttpAnswer(
            status=401,
            headers={"connection": "close"},
            body=b"its signature does not match this agent's secret\n",
        )
    assert not pair.peers["a"]._connections["b"].wake.is_set()
    claims = [record.getMessage() for record in caplog.records]
    assert len(claims) == 2
    assert "refused a query that claims to come from b:" in claims[0]
    assert "refused a query that claims to come from an unknown sender:" in claims[1]
    assert all(claim.endswith("(0 suppressed)") for claim in claims)


async def test_a_peer_with_another_secret_is_silent_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(Vm("a", E1=PREPARED), Vm("b", E1=PREPARED), secrets={"b": b"another secret of 16 bytes"})
    await group.ask("a", "b")
    await group.ask("b", "a")
    assert group.heard("a", "b") is None
    assert group.heard("b", "a") is None
    assert caplog.text.count("check that both use the same secret_file") == 4


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", PATH, 405), ("PUT", PATH, 405), ("POST", "/", 404), ("GET", "/metrics", 404)]
)
async def test_there_is_one_route(pair: Group, method: str, path: str, status: int) -> None:
    answer = await put(pair.peers["a"], b"", {}, method, path)
    assert (answer.status, answer.headers.get("allow")) == (status, "POST" if status == 405 else None)


@given(tampering=st.data())
async def test_no_answer_that_was_changed_on_its_way_is_believed(tampering: st.DataObject) -> None:
    pair = Group(Vm("a", E1=PREPARED), Vm("b", E1=PREPARING))

    def bend(_: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
        position = tampering.draw(st.integers(0, len(answer.body)))
        length = tampering.draw(st.integers(0, 20))
        body = answer.body[:position] + tampering.draw(st.binary(max_size=20)) + answer.body[position + length :]
        other = body.replace(b"preparing", b"prepared") if tampering.draw(st.booleans()) else body
        signature = tampering.draw(st.sampled_from([answer.headers[SIGNATURE.lower()], "0" * 64, ""]))
        status = tampering.draw(st.sampled_from([200, 204, 401, 500]))
        return HttpAnswer(status=status, headers={SIGNATURE.lower(): signature}, body=other)

    pair.wires["a", "b"].bend = bend
    await pair.ask("a", "b")
    assert pair.heard("a", "b") in {None, PREPARING}


_names = st.sampled_from("abc")
_acts = st.lists(
    st.one_of(
        st.tuples(st.just("say"), _names, st.sampled_from(PeerState)),
        st.tuples(st.sampled_from(["ask", "replay", "cut"]), _names, _names),
        st.tuples(st.sampled_from(["restart", "lose"]), _names, st.just("")),
    ),
    max_size=40,
)


@given(acts=_acts, chance=st.randoms(use_true_random=False))
async def test_what_is_believed_is_what_the_peer_was_when_it_answered_last(
    acts: list[tuple[str, str, str]], chance: Random
) -> None:
    """Whoever restarts, loses its disk, is cut off, or meets somebody who plays back what was said to anybody."""
    group = Group(*(Vm(name, E1=PREPARING) for name in "abc"))
    for vm in group.vms.values():
        vm.resources = ("a", "b", "c")
    words: dict[tuple[str, str], PeerState] = {}
    asked: set[tuple[str, str]] = set()

    def play_back(_request: HttpRequest, _answer: HttpAnswer) -> HttpAnswer:
        recorded = [answer for wire in group.wires.values() for _, answer in wire.seen]
        return chance.choice(recorded) if recorded else HttpAnswer(status=200)

    for act, who, other in acts:
        vm = group.vms[who]
        if act == "say":
            vm.said = {E1: PeerState(other)}
            group.peers[who].publish_states()
        elif act in {"restart", "lose"}:
            vm.said = {} if act == "lose" else vm.said
            group.start(vm)
            words = {pair: word for pair, word in words.items() if pair[0] != who}
            asked = {pair for pair in asked if pair[0] != who}
        elif who != other and vm.said:
            wire = group.wires[who, other]
            wire.to = None if act == "cut" else group.peers[other]
            wire.bend = play_back if act == "replay" else lambda _, answer: answer
            await group.ask(who, other)
            asked.add((who, other))
            if act == "ask" and group.vms[other].said:
                words[who, other] = group.vms[other].said[E1]
        for pair in itertools.permutations("abc", 2):
            if group.vms[pair[0]].said:
                assert group.heard(*pair) is words.get(pair, None if pair in asked else HELD)


# The rule that it is for


@pytest.mark.parametrize("word", [None, PREPARING, HELD, PREPARED])
def test_no_word_of_a_peer_makes_anybody_wait_past_the_deadline_but_that_it_wants_it_held(
    word: PeerState | None,
) -> None:
    """R103: and what is held starts at NotBefore."""
    together = TogetherSettings(
        mode="all-prepared",
        deadline=Duration(minutes=5),
        stagger=Duration(seconds=10),
        listen="127.0.0.1:0",
        peers={"b": "http://b:1"},
        secret_file="secret",
    )
    record = Vm("a", E1=PREPARED).records[0]
    reports = {} if word is None else {"b": PeerReport(state=word, since=NOW)}

    def verdict(vm: str, seconds: int) -> ApprovalVerdict:
        return may_approve(record, vm, together, reports, NOW + timedelta(seconds=seconds), None)

    assert verdict("a", 299).may_approve == (word is PREPARED)
    assert verdict("a", 300).may_approve == (word is not HELD)


# Settings


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"listen": "localhost:1"}, ("listen",), "cannot listen on 'localhost:1'"),
        ({"listen": "127.0.0.1"}, ("listen",), "cannot listen on '127.0.0.1'"),
        ({"peers": {"b": "10.0.0.5:9470"}}, ("peers", "b"), "'10.0.0.5:9470' is not a valid peer URL"),
        ({"peers": {"b": ""}}, ("peers", "b"), "'' is not a valid peer URL"),
        ({"peers": {"b": "http://b:1?x"}}, ("peers", "b"), "is not a valid peer URL"),
        ({"peers": {f"vm-{n}": "http://b:1" for n in range(51)}}, ("peers",), "too many peers: 51"),
    ],
)
def test_addresses_that_are_none_are_refused(settings: dict[str, object], key: tuple[str, ...], reason: str) -> None:
    usual: dict[str, object] = {"listen": "127.0.0.1:0", "peers": {"b": "http://b:1"}, "secret_file": "secret"}
    with pytest.raises(msgspec.ValidationError) as caught:
        convert(usual | settings, TogetherSettings)
    mistake = caught.value.__cause__
    assert isinstance(mistake, InvalidValue)
    assert reason in str(mistake)
    assert mistake.keys == key
