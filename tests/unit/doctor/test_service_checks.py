"""Checks of the service by its answers: each fails when what it is about is wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forewarn.doctor.checks.clock import check_machine_clock, check_service_clock
from forewarn.doctor.checks.control_api import check_control_api
from forewarn.doctor.checks.database import check_database
from forewarn.doctor.checks.endpoints import check_endpoints
from forewarn.doctor.checks.leadership import check_leadership
from forewarn.doctor.checks.open_files import check_open_files
from forewarn.doctor.checks.tokens import check_token_expiry, check_token_use
from forewarn.doctor.finding import CheckResult, Finding
from forewarn.doctor.situation import Situation
from forewarn.errors import Forbidden, ServerUnreachable

NOW = datetime(2030, 1, 31, 10, 0, tzinfo=UTC)
WELL: dict[str, Any] = {
    "version": "1",
    "now": "2030-01-31T10:00:01Z",
    "replicas": {"role": "single", "name": None, "leader": None, "count": None, "up_s": 8 * 86400.0},
    "clock": {"clock": "real", "now": "2030-01-31T10:00:01Z", "jump_s": None},
    "skew_s": 0.0,
    "database": {"kind": "sqlite", "is_writable": True},
    "endpoints": {"connected": 2, "oldest_s": 7200.0, "newest_s": 3.0},
    "inventory": {"hosts": 1, "scopes": 0, "vms": 5000},
    "open_files_max": 65536,
    "problems": [],
}
SHARED = {"role": "leader", "name": "a", "leader": "a", "count": 2, "up_s": 60.0}
TOKEN = {"name": "ci", "role": "operator", "created_at": "2030-01-01T00:00:00Z", "expires_at": "2030-03-01T00:00:00Z"}


def situation(
    status: dict[str, Any] | Exception,
    tokens: list[dict[str, Any]] | Exception | None = None,
    callers: tuple[str, ...] = (),
) -> Situation:
    def fetch(path: str, **_params: object) -> Any:  # noqa: ANN401 - JSON
        answer: Any = {
            "/v1/status": status,
            "/v1/tokens": tokens if isinstance(tokens, Exception) else {"items": tokens or []},
            "/v1/limits": {"items": [{"name": name} for name in callers]},
        }[path]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Situation(now=NOW, fetch=fetch)


CheckFunction = Callable[[Situation], Finding]


@pytest.mark.parametrize(
    ("check", "changes", "result", "reason"),
    [
        (check_control_api, {}, "ok", "version 1 answers"),
        (check_database, {}, "ok", "takes changes"),
        (
            check_database,
            {"database": {"kind": "sqlite", "is_writable": False}, "problems": [{"name": "x", "text": "disk full"}]},
            "fail",
            "disk full",
        ),
        (check_service_clock, {}, "ok", "trusted"),
        (check_service_clock, {"clock": WELL["clock"] | {"jump_s": -1200.0}}, "fail", "jumped by -1200 s"),
        (check_service_clock, {"skew_s": -1.5}, "fail", "-1.5 s from the database's: it cannot lead"),
        (check_service_clock, {"skew_s": 0.5}, "warn", "+0.5 s"),
        (check_machine_clock, {}, "ok", "agrees"),
        (check_machine_clock, {"now": "2030-01-31T09:59:00Z"}, "warn", "+60 s"),
        (check_machine_clock, {"clock": WELL["clock"] | {"clock": "virtual"}}, "skipped", "virtual"),
        (check_leadership, {}, "skipped", "SQLite"),
        (check_leadership, {"replicas": SHARED}, "ok", "a leads"),
        (check_leadership, {"replicas": SHARED | {"role": "follower", "leader": None}}, "fail", "no replica"),
        (check_leadership, {"replicas": SHARED | {"count": 1}}, "warn", "only replica"),
        (check_open_files, {}, "ok", "65536"),
        (check_open_files, {"open_files_max": None}, "ok", "any number"),
        (check_open_files, {"open_files_max": 1024}, "warn", "1024 files, and each of 5000 VMs"),
        (check_endpoints, {}, "ok", "the first for 2h"),
        (check_endpoints, {"endpoints": {"connected": 0, "oldest_s": None, "newest_s": None}}, "skipped", "no host"),
        (check_endpoints, {"endpoints": {"connected": 3, "oldest_s": 9.0, "newest_s": 1.0}}, "warn", "younger"),
    ],
)
def test_a_check_finds_what_the_status_shows(
    check: CheckFunction, changes: dict[str, Any], result: str, reason: str
) -> None:
    found = check(situation(WELL | changes))
    assert (found.result.value, reason in found.reason) == (result, True), found
    assert bool(found.advice) is (found.result in {CheckResult.WARN, CheckResult.FAIL})


def test_a_service_that_does_not_answer_fails_and_one_that_refuses_is_skipped() -> None:
    gone = check_control_api(situation(ServerUnreachable("cannot reach http://x")))
    assert (gone.result, gone.reason) == (CheckResult.FAIL, "cannot reach http://x")
    assert check_control_api(situation(Forbidden("tenant:a may not do this"))).result is CheckResult.SKIPPED


def test_a_token_that_expires_soon_is_named() -> None:
    assert check_token_expiry(situation(WELL, [TOKEN, TOKEN | {"expires_at": None}])).result is CheckResult.OK
    near = (NOW + timedelta(days=3)).isoformat()
    found = check_token_expiry(situation(WELL, [TOKEN, TOKEN | {"name": "old", "expires_at": near}]))
    assert (found.result, "old on 2030-02-03" in found.reason) == (CheckResult.WARN, True)
    assert check_token_expiry(situation(WELL, Forbidden("no"))).result is CheckResult.SKIPPED


def test_a_token_without_calls_is_named_once_the_service_can_know() -> None:
    used = situation(WELL, [TOKEN], callers=("operator:ci",))
    assert check_token_use(used).result is CheckResult.OK
    unused = situation(WELL, [TOKEN | {"name": f"t{n}"} for n in range(7)])
    found = check_token_use(unused)
    assert (found.result, "t4 and 2 more" in found.reason) == (CheckResult.WARN, True)
    new = situation(WELL, [TOKEN | {"created_at": "2030-01-30T00:00:00Z"}])
    assert check_token_use(new).result is CheckResult.OK
    for replicas in (WELL["replicas"] | {"up_s": 60.0}, SHARED):
        assert check_token_use(situation(WELL | {"replicas": replicas}, [TOKEN])).result is CheckResult.SKIPPED
    assert check_token_use(situation(WELL, Forbidden("no"))).result is CheckResult.SKIPPED


def test_the_status_is_requested_once() -> None:
    calls: list[str] = []

    def fetch(path: str, **_params: object) -> Any:  # noqa: ANN401 - JSON
        calls.append(path)
        return WELL

    one = Situation(now=NOW, fetch=fetch)
    assert one.status == one.status == WELL
    assert calls == ["/v1/status"]
