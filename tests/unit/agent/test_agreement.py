from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.agreement import UNASKED, ApprovalVerdict, PeerReport, PeerState, TogetherSettings, may_approve
from forewarn.agent.codec import Duration, InvalidValue
from forewarn.agent.record import EventRecord, StepRunState
from forewarn.agent.rule import EventStep, Rule
from tests.support.records import DRAIN, NOT_BEFORE, NOW, a_record, a_run, after

P = PeerState
DB, WEB, LB = "db", "web", "lb"
ALL = (DB, WEB, LB)
PREPARING = Rule(prepare=(DRAIN,))
WITH_PEERS: dict[str, Any] = {
    "listen": "0.0.0.0:9470",
    "peers": {"web": "http://10.0.0.5:9470"},
    "secret_file": "/etc/secret",
}
ALL_PREPARED = TogetherSettings(
    mode="all-prepared", deadline=Duration(minutes=5), stagger=Duration(seconds=10), **WITH_PEERS
)
CUTOFF = NOT_BEFORE - timedelta(seconds=5)


def of(*resources: str, **event: Any) -> EventRecord:  # noqa: ANN401 - members of an event
    return a_record(Rule(), {"resources": resources} | event)


def asked(
    record: EventRecord,
    vm: str = DB,
    together: TogetherSettings = ALL_PREPARED,
    reports: Mapping[str, PeerReport] | None = None,
    now: datetime = NOW,
    cutoff: datetime | None = CUTOFF,
) -> ApprovalVerdict:
    return may_approve(record, vm, together, reports or {}, now, cutoff)


def said(state: PeerState, *names: str, **since: float) -> dict[str, PeerReport]:
    return {name: PeerReport(state=state, since=after(**since)) for name in names}


@pytest.mark.parametrize("mode", ["each", "leader", "primary", "secondary", "all-prepared"])
def test_a_vm_approves_at_once_what_concerns_it_alone(mode: Any) -> None:  # noqa: ANN401 - one of the modes
    assert asked(of(DB), together=TogetherSettings(mode=mode, **WITH_PEERS)).may_approve


@pytest.mark.parametrize("mode", ["each", "primary"])
def test_whoever_approves_for_all_does_so_at_once(mode: Any) -> None:  # noqa: ANN401 - one of the modes
    """R50."""
    assert asked(of(WEB, DB), together=TogetherSettings(mode=mode)).may_approve
    assert asked(
        of(WEB), together=TogetherSettings(mode=mode)
    ).may_approve  # what a rule wants approved that is about others


def test_the_leader_is_the_first_in_resources() -> None:
    """R103."""
    assert asked(of(*ALL), DB, TogetherSettings()).may_approve
    verdict = asked(of(*ALL), WEB, TogetherSettings())
    assert not verdict.may_approve
    assert verdict.ask_again_at is None
    assert verdict.reason == "db is the first in Resources and approves for all"
    assert asked(of(), DB, TogetherSettings()).may_approve  # the endpoint does not say whom it concerns


def test_a_secondary_steps_in_for_its_primary_when_the_time_is_over() -> None:
    """R103."""
    together = TogetherSettings(mode="secondary", secondary_after=Duration(seconds=60))
    record = of(*ALL, source="User")
    assert asked(record, WEB, together, now=after(seconds=59)) == ApprovalVerdict(
        may_approve=False, ask_again_at=after(seconds=60), reason="waiting for the primary to approve first"
    )
    assert asked(record, WEB, together, now=after(seconds=60)).may_approve


def test_a_secondary_counts_from_when_it_is_ready_itself() -> None:
    """R103."""
    together = TogetherSettings(mode="secondary", secondary_after=Duration(seconds=60))
    ready = a_run(StepRunState.DONE, ended_at=after(seconds=100))
    record = a_record(PREPARING, {"resources": ALL, "source": "User"}, {EventStep.PREPARE: ready})
    assert not asked(record, WEB, together, now=after(seconds=159)).may_approve
    assert asked(record, WEB, together, now=after(seconds=160)).may_approve


def test_a_secondary_leaves_what_the_platform_does_to_its_primary_unless_it_is_told_not_to() -> None:
    """R103: a secondary approves user events."""
    record = of(*ALL, source="Platform")
    verdict = asked(record, WEB, TogetherSettings(mode="secondary"), now=after(days=1))
    assert verdict == ApprovalVerdict(
        may_approve=False, reason="a secondary leaves events of source Platform to the primary"
    )
    both = TogetherSettings(mode="secondary", secondary_sources=("Platform", "User"))
    assert asked(record, WEB, both, now=after(days=1)).may_approve


# all-prepared


def test_once_all_are_prepared_the_leader_approves_and_the_others_step_in_one_after_the_other() -> None:
    reports = said(P.PREPARED, *ALL, seconds=20)
    at = {vm: asked(of(*ALL), vm, reports=reports, now=after(seconds=20)).ask_again_at for vm in ALL}
    assert at == {DB: after(seconds=20), WEB: after(seconds=30), LB: after(seconds=40)}
    may = {vm: asked(of(*ALL), vm, reports=reports, now=after(seconds=30)).may_approve for vm in ALL}
    assert may == {DB: True, WEB: True, LB: False}


def test_a_vm_that_is_prepared_last_counts_from_its_own_readiness() -> None:
    ready = a_run(StepRunState.DONE, ended_at=after(seconds=50))
    record = a_record(PREPARING, {"resources": ALL}, {EventStep.PREPARE: ready})
    assert asked(record, WEB, reports=said(P.PREPARED, DB, LB, seconds=20)).ask_again_at == after(seconds=60)


@pytest.mark.parametrize("reports", [{}, said(P.PREPARING, WEB, LB), said(P.PREPARED, WEB)])
def test_who_is_silent_or_slow_is_waited_for_until_the_deadline(reports: dict[str, PeerReport]) -> None:
    verdict = asked(of(*ALL), reports=reports, now=after(seconds=299))
    assert not verdict.may_approve
    assert verdict.ask_again_at == after(seconds=300)
    assert verdict.reason.startswith("waiting for ")
    assert "lb" in verdict.reason
    assert asked(of(*ALL), reports=reports, now=after(seconds=300)).may_approve


def test_nobody_is_waited_for_past_the_moment_at_which_it_is_worth_while() -> None:
    soon = after(seconds=40)
    assert asked(of(*ALL), cutoff=soon).ask_again_at == soon
    assert asked(of(*ALL), LB, cutoff=soon).ask_again_at == soon + timedelta(seconds=20)
    assert asked(of(*ALL), cutoff=None).ask_again_at == after(seconds=300)


def test_what_a_peer_wants_held_is_held() -> None:
    reports = said(P.HELD, LB) | said(P.PREPARED, WEB)
    assert asked(of(*ALL), reports=reports, now=after(days=1)) == ApprovalVerdict(
        may_approve=False, reason="held by lb"
    )


def test_nothing_is_approved_before_every_peer_has_been_asked_once() -> None:
    """Not even when the deadline is over: an agent that has just started does not know yet what its peers want."""
    reports = {WEB: UNASKED} | said(P.PREPARED, LB)
    assert asked(of(*ALL), reports=reports, now=after(days=1)) == ApprovalVerdict(
        may_approve=False, reason="asking web"
    )


def test_who_is_not_concerned_leaves_it_to_those_who_are() -> None:
    verdict = asked(of(WEB, LB), now=after(days=1))
    assert verdict == ApprovalVerdict(may_approve=False, reason="the affected VMs approve")


def test_a_peer_that_says_ever_anew_that_it_is_prepared_puts_nothing_off() -> None:
    """Each restart of a peer's agent is a new `since`."""
    reports = said(P.PREPARED, WEB, LB, seconds=400)
    assert asked(of(*ALL), WEB, reports=reports | said(P.PREPARED, DB), now=after(seconds=400)).may_approve


@pytest.mark.parametrize(
    ("members", "key", "message"),
    [
        ({"mode": "all-prepared"}, "mode", "'all-prepared' needs listen, peers and secret_file; listen is missing"),
        (
            {"mode": "all-prepared", "listen": "127.0.0.1:1", "peers": {"a": "b"}},
            "mode",
            "'all-prepared' needs listen, peers and secret_file; secret_file is missing",
        ),
        ({"listen": "web"}, "listen", "cannot listen on 'web'"),
        ({"peers": {str(n): "http://web" for n in range(51)}}, "peers", "too many peers: 51, expected at most 50"),
        ({"deadline": Duration(days=2)}, "deadline", "2d is out of range: expected at most 1d"),
        ({"stagger": Duration(hours=25)}, "stagger", "25h is out of range: expected at most 1d"),
        ({"secondary_after": Duration(days=2)}, "secondary_after", "2d is out of range: expected at most 1d"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(members: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        TogetherSettings(**members)
    assert caught.value.keys == (key,)
    assert str(caught.value).startswith(message)


def test_a_peer_has_an_address() -> None:
    with pytest.raises(InvalidValue, match="'web:9470' is not a valid peer URL") as caught:
        TogetherSettings(peers={"web": "web:9470"})
    assert caught.value.keys == ("peers", "web")


# Whatever the peers report

NAMES = ("a", "b", "c", "d")
seconds = st.integers(0, 900)
states = st.sampled_from([P.PREPARING, P.PREPARED])
togethers = st.builds(
    lambda deadline, stagger: TogetherSettings(
        mode="all-prepared", deadline=Duration(seconds=deadline), stagger=Duration(seconds=stagger), **WITH_PEERS
    ),
    st.integers(0, 600),
    st.integers(0, 30),
)
cutoffs = st.none() | st.integers(-60, 900).map(lambda at: after(seconds=at))


@st.composite
def some_reports(draw: st.DrawFn, names: tuple[str, ...] = NAMES) -> dict[str, PeerReport]:
    told = draw(st.dictionaries(st.sampled_from(names), st.tuples(states, seconds)))
    return {name: PeerReport(state=state, since=after(seconds=since)) for name, (state, since) in told.items()}


def ready(at: int) -> EventRecord:
    run = a_run(StepRunState.DONE, ended_at=after(seconds=at))
    return a_record(PREPARING, {"resources": NAMES}, {EventStep.PREPARE: run})


@given(together=togethers, reports=some_reports(), ready_at=seconds, cutoff=cutoffs, place=st.integers(0, 3))
def test_whatever_the_peers_report_there_is_a_moment_at_which_somebody_may_approve(
    together: TogetherSettings, reports: dict[str, PeerReport], ready_at: int, cutoff: datetime | None, place: int
) -> None:
    """Once that moment has come it does not go away again, whatever they report then."""
    last = (len(NAMES) - 1) * together.stagger
    bound = min(moment for moment in (NOW + together.deadline, cutoff) if moment is not None) + last
    verdict = asked(ready(ready_at), NAMES[place], together, reports, max(bound, after(seconds=ready_at)), cutoff)
    assert verdict.may_approve
    assert verdict.ask_again_at is not None
    assert verdict.ask_again_at <= bound


@given(
    together=togethers,
    first=some_reports(),
    second=some_reports(),
    cutoff=cutoffs,
    place=st.integers(0, 3),
    late=st.integers(0, 60),
)
def test_a_silent_peer_that_speaks_up_again_does_not_stop_who_steps_in(
    together: TogetherSettings,
    first: dict[str, PeerReport],
    second: dict[str, PeerReport],
    cutoff: datetime | None,
    place: int,
    late: int,
) -> None:
    """Unless the first reports were of peers that were all prepared, and are not any more."""
    at = asked(ready(0), NAMES[place], together, first, NOW, cutoff).ask_again_at
    assert at is not None
    others = set(NAMES) - {NAMES[place]}
    if {name for name, report in first.items() if report.state is P.PREPARED} >= others:
        return
    now = max(at, NOW) + timedelta(seconds=late)
    assert asked(ready(0), NAMES[place], together, second, now, cutoff).may_approve


@given(together=togethers, moments=st.tuples(*[seconds] * 4), cutoff=cutoffs)
def test_with_all_prepared_the_leader_may_at_once(
    together: TogetherSettings, moments: tuple[int, ...], cutoff: datetime | None
) -> None:
    reports = {
        name: PeerReport(state=P.PREPARED, since=after(seconds=at)) for name, at in zip(NAMES, moments, strict=True)
    }
    now = after(seconds=max(moments))
    assert asked(ready(moments[0]), NAMES[0], together, reports, now, cutoff).may_approve


@given(
    together=togethers,
    truth=st.tuples(*[st.none() | seconds] * 4),
    cutoff=cutoffs,
    now=st.integers(0, 2000),
)
def test_no_two_may_before_the_leader_has_had_its_stagger(
    together: TogetherSettings, truth: tuple[int | None, ...], cutoff: datetime | None, now: int
) -> None:
    """As long as all know the same: who is prepared, and since when."""
    prepared = {name: at for name, at in zip(NAMES, truth, strict=True) if at is not None and at <= now}
    known = {name: PeerReport(state=P.PREPARING, since=NOW) for name in NAMES}
    known |= {name: PeerReport(state=P.PREPARED, since=after(seconds=at)) for name, at in prepared.items()}
    begins = set()
    may = []
    for name, at in prepared.items():
        verdict = asked(ready(at), name, together, known, after(seconds=now), cutoff)
        assert verdict.ask_again_at is not None
        begins.add(verdict.ask_again_at - NAMES.index(name) * together.stagger)
        may += [name] if verdict.may_approve else []
    assert len(begins) <= 1
    assert may == list(prepared)[: len(may)]
    if begins and after(seconds=now) < begins.pop() + together.stagger:
        assert may in ([], [NAMES[0]])


@given(reports=some_reports(), holder=st.sampled_from(NAMES[1:]), now=st.integers(0, 10_000), together=togethers)
def test_while_one_wants_it_held_nobody_else_approves(
    reports: dict[str, PeerReport], holder: str, now: int, together: TogetherSettings
) -> None:
    held = reports | {holder: PeerReport(state=P.HELD, since=NOW)}
    for name in NAMES:
        if name != holder:
            assert not asked(ready(0), name, together, held, after(seconds=now)).may_approve
