"""`forewarn try` judges by whether the handler left before the first answer, not by the seconds that it took."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from forewarn.testing.trial.trial import judge_first_timeout
from forewarn.wire.exchange import Exchange


def make_get(number: int, took_s: float, *, is_client_gone: bool = False, status: int = 200) -> Exchange:
    return Exchange(
        number=number,
        at=datetime(2026, 1, 1, tzinfo=UTC),
        vm="web-0",
        source_address="10.0.0.1",
        method="GET",
        target="/metadata/scheduledevents?api-version=2020-07-01",
        status=status,
        took_s=took_s,
        is_client_gone=is_client_gone,
    )


@pytest.mark.parametrize("noticed_after_s", [0.0, 2.0, 12.4], ids=["read late", "at once", "noticed late"])
def test_a_handler_that_leaves_is_found_however_late_that_is_noticed(noticed_after_s: float) -> None:
    """R67, R104: on a busy machine, an endpoint may notice only after the time of the answer that it left."""
    exchanges = [make_get(1, noticed_after_s, is_client_gone=True), make_get(2, 5.0)]
    [finding] = judge_first_timeout(exchanges, {1: noticed_after_s, 2: 20.0})
    assert finding.code == "time-out-short"
    assert finding.is_failure


def test_a_handler_that_waits_for_its_answer_is_not_blamed_for_leaving_later() -> None:
    refused = make_get(1, 0.0, is_client_gone=True, status=400)
    exchanges = [refused, make_get(2, 11.8), make_get(3, 1.0, is_client_gone=True)]
    assert judge_first_timeout(exchanges, {1: 0.0, 2: 12.0, 3: 20.0}) == []
