"""What one VM may have in hand, and what is told of those that want more."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from forewarn.core.limit_log import CallerKind, CallerLimitHits
from forewarn.endpoint.quota import OverLimit, VmQuotas, find_exceeded_limit
from forewarn.endpoint.traffic import EndpointLimits
from forewarn.errors import CallerError, LimitExceeded, StoreUnavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def budgets(**limits: int) -> VmQuotas:
    made = VmQuotas(replace(EndpointLimits(), **limits))  # type: ignore[arg-type] # those given are numbers
    made.tick(NOW, 1000.0)
    return made


def is_untouched(made: VmQuotas) -> bool:
    return not made._pending and made._body_bytes == 0


def test_only_so_many_approvals_of_one_vm_are_at_work() -> None:
    made = budgets(approvals_at_work_per_vm_max=2)
    with made.count_approval("a"), made.count_approval("a"):
        with pytest.raises(OverLimit, match="approvals_at_work_per_vm_max") as caught, made.count_approval("a"):
            pass
        assert (caught.value.retry_after_s, caught.value.is_shared) == (1, False)
        with made.count_approval("b"):
            pass
    with made.count_approval("a"):
        pass
    assert is_untouched(made)


def test_bodies_are_counted_for_each_vm_and_for_all_until_they_are_decoded() -> None:
    made = budgets(body_bytes_per_vm_max=100, body_bytes_max=150)
    with made.count_body("a") as one, made.count_body("a") as two, made.count_body("b") as three:
        one.add(60)
        with pytest.raises(OverLimit, match="body_bytes_per_vm_max") as own:
            two.add(41)
        two.add(40)
        with pytest.raises(OverLimit, match="body_bytes_max") as shared:
            three.add(51)
        assert (own.value.is_shared, shared.value.is_shared) == (False, True)
        one.release()
        three.add(51)
    assert is_untouched(made)


def test_a_body_that_fails_is_given_back() -> None:
    made = budgets(body_bytes_per_vm_max=100)
    with contextlib.suppress(OverLimit), made.count_approval("a"), made.count_body("a") as held:
        held.add(60)
        held.add(60)
    assert is_untouched(made)


def test_what_a_vm_may_send_in_a_minute_comes_back_with_the_next() -> None:
    made = budgets(approval_bytes_per_vm_minute_max=1024)
    for size in (10, 256, 600):  # the first counts 256
        with made.count_approval("a"), made.count_body("a") as held:
            held.add(size)
    made.tick(NOW, 1025.0)
    with pytest.raises(OverLimit, match="approval_bytes_per_vm_minute_max") as caught, made.count_approval("a"):
        pass
    assert caught.value.retry_after_s == 35
    with made.count_approval("b"):
        pass
    made.tick(NOW, 1061.0)
    with made.count_approval("a"):
        pass


def test_the_worst_offenders_are_named_in_a_few_lines_a_minute() -> None:
    made = budgets()
    for number in range(2000):
        for _ in range(3 if number == 7 else 1):
            made.count_refusal("body_bytes_per_vm_max", f"vm-{number}")
    made.count_refusal("connections_per_vm_max", "vm-7")
    assert made.refusals == {"body_bytes_per_vm_max": 2002, "connections_per_vm_max": 1}
    assert len(made._offenders) == 1000
    with capture_logs() as lines:
        for second in (1001.0, 1059.0, 1060.0, 1061.0, 1130.0):
            made.tick(NOW, second)
    assert len(lines) == 10
    assert (lines[0]["vm"], lines[0]["refused"]) == ("vm-7", 4)
    assert lines[0]["limits"] == ["body_bytes_per_vm_max", "connections_per_vm_max"]
    assert not made._offenders


def test_a_refusal_is_noted_by_vm_or_else_by_address() -> None:
    made = budgets()
    made.count_refusal("connections_max", "vm-1", "127.0.0.1")
    made.count_refusal("connections_max", "", "127.0.0.2")
    made.count_refusal("connections_max", "")
    assert list(made.limit_log) == [
        CallerLimitHits(guest=CallerKind.VM, name="vm-1", limited={"connections_max": 1}, limited_at=NOW),
        CallerLimitHits(guest=CallerKind.ADDRESS, name="127.0.0.2", limited={"connections_max": 1}, limited_at=NOW),
    ]
    assert made.refusals == {"connections_max": 3}


def test_errors_name_the_setting_that_is_the_limit() -> None:
    assert find_exceeded_limit(StoreUnavailable("full", limit="commands_max")) == "commands_max"
    assert find_exceeded_limit(LimitExceeded("too many", limit=3)) == "limit_exceeded"
    assert find_exceeded_limit(CallerError("no")) == ""
