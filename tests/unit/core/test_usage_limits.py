"""How much one principal may use at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.access import FILE_OPERATOR, Principal, Role
from forewarn.core.usage_limits import A_MINUTE, UsageAccount, UsageAccounts, UsageLimits, UseKind

SMALL = UsageLimits(
    connections_max=3,
    requests_max=2,
    watches_max=2,
    live_pages_max=2,
    body_size_bytes_max=100,
    changes_per_minute_max=6,
    watch_starts_per_minute_max=6,
    refusals_per_minute_max=6,
)
CONCURRENT = [use for use in UseKind if use not in A_MINUTE]


def account() -> UsageAccount:
    return UsageAccount(name="tenant:acme", role=Role.TENANT, budget=SMALL)


def accounts(most: int = 10) -> UsageAccounts:
    return UsageAccounts(dict.fromkeys(Role, SMALL), most)


def tenant(name: str, *scopes: str) -> Principal:
    return Principal(actor=f"tenant:{name}", role=Role.TENANT, scopes=frozenset(scopes or {name}))


@pytest.mark.parametrize("use", CONCURRENT)
def test_what_is_given_back_can_be_taken_again(use: UseKind) -> None:
    held, most = account(), SMALL.limit_of(use)
    assert [held.acquire(use, 0.0) for _ in range(most)] == [None] * most
    exceeded = held.acquire(use, 5.0)
    assert exceeded is not None
    assert (exceeded.use, exceeded.limit) == (use, most)
    assert (held.limited[use], held.limited_s) == (1, 5.0)
    held.release(use)
    assert held.acquire(use, 0.0) is None


def test_what_would_go_over_the_limit_is_not_taken_in_part() -> None:
    held = account()
    assert held.acquire(UseKind.BODY_BYTES, 0.0, 90) is None
    assert held.acquire(UseKind.BODY_BYTES, 0.0, 11) is not None
    assert held.acquire(UseKind.BODY_BYTES, 0.0, 10) is None


def test_changes_come_back_with_time_and_the_refusal_says_when() -> None:
    held = account()
    assert [held.count_use(UseKind.CHANGES, 0.0) for _ in range(6)] == [None] * 6
    exceeded = held.count_use(UseKind.CHANGES, 0.0)
    assert exceeded is not None
    assert exceeded.retry_after_s == pytest.approx(10.0)
    assert held.count_use(UseKind.CHANGES, 9.9) is not None
    assert held.count_use(UseKind.CHANGES, 10.1) is None
    assert held.count_use(UseKind.CHANGES, 10.1) is not None


@given(st.lists(st.floats(0, 30), max_size=200))
def test_no_more_changes_are_taken_than_the_limit_and_what_time_has_given_back(pauses_s: list[float]) -> None:
    held, now_s, taken = account(), 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        taken += held.count_use(UseKind.CHANGES, now_s) is None
        assert taken <= SMALL.changes_per_minute_max * (1 + now_s / 60) + 1e-6


def test_after_too_many_refusals_of_a_kind_requests_of_that_kind_are_refused_unread() -> None:
    held = account()
    for _ in range(6):
        assert held.refuse_unread(UseKind.WATCHES, 0.0) is None
        held.record_refusal(UseKind.WATCHES, 0.0)
    exceeded = held.refuse_unread(UseKind.WATCHES, 0.0)
    assert exceeded is not None
    assert exceeded.use is UseKind.REFUSALS
    assert exceeded.retry_after_s == pytest.approx(10.0)
    assert held.limited == {UseKind.REFUSALS: 1}
    assert held.refuse_unread(UseKind.CHANGES, 0.0) is None
    assert held.refuse_unread(UseKind.WATCHES, 10.1) is None
    assert held.measure_use(UseKind.REFUSALS, 0.0) == 6


def test_tokens_of_one_tenant_share_an_account_and_others_do_not() -> None:
    kept = accounts()
    acme = kept.get_account(tenant("acme", "web", "db"))
    assert kept.get_account(tenant("acme-ci", "db", "web")) is acme
    assert acme.name == "tenant:acme-ci"
    assert kept.get_account(tenant("other", "web")) is not acme
    hosts = [Principal(actor="host:one", role=Role.HOST, host="one"), FILE_OPERATOR]
    assert len({id(kept.get_account(each)) for each in hosts}) == 2


def test_so_many_accounts_are_remembered_and_those_in_use_stay() -> None:
    kept = accounts(most=5)
    busy = kept.get_account(tenant("busy"))
    assert busy.acquire(UseKind.WATCHES, 0.0) is None
    for number in range(100):
        kept.get_account(tenant(f"idle-{number}"))
    assert len(kept) == 5
    assert kept.get_account(tenant("busy")) is busy
