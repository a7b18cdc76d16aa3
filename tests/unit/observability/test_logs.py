"""A failure that is repeated is a line a minute, and says how often it was."""

from __future__ import annotations

import io
from typing import Any

import pytest
import structlog

from forewarn.observability.logs import LogRateLimit, SafeStream


class Log:
    """What gets through, as time goes by."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[dict[str, Any]] = []
        self.limit = LogRateLimit(lambda: self.now_s)

    def say(self, event: str, level: str = "warning", **facts: object) -> bool:
        try:
            self.lines.append(self.limit(None, level, {"level": level, "event": event, **facts}))
        except structlog.DropEvent:
            return False
        return True


@pytest.mark.parametrize("level", ["warning", "error", "critical"])
def test_the_same_failure_is_a_line_and_then_a_count_a_minute(level: str) -> None:
    log = Log()
    for second in range(181):
        log.now_s = float(second)
        for _ in range(10):
            log.say("the store cannot be used", level, error="disk full")
    assert [line.get("repeated") for line in log.lines] == [None, 599, 599, 599]


def test_what_is_no_failure_is_always_told() -> None:
    log = Log()
    assert all(log.say("ready", "info") for _ in range(1000))


def test_different_failures_do_not_hide_each_other() -> None:
    log = Log()
    assert log.say("an actuator raised", maintenance_id="a")
    assert log.say("an actuator raised", maintenance_id="b")
    assert log.say("another thing")
    assert not log.say("an actuator raised", maintenance_id="a")


def test_an_event_that_says_something_else_each_time_is_limited_too() -> None:
    log = Log()
    for number in range(5000):
        log.say("refused", address=f"10.0.{number}")
    assert len(log.lines) == 60
    assert log.say("another thing")
    log.now_s = 61
    assert log.say("refused", address="10.0.9999")


def test_what_is_remembered_is_bounded() -> None:
    log = Log()
    for number in range(5000):
        log.say(f"event {number}", error="x" * 10_000)
    assert len(log.limit._known) <= 1000


class Failing(io.StringIO):
    """A stream on a disk that may be full."""

    is_full = False

    def flush(self) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_ends_no_work() -> None:
    stream = Failing()
    safe = SafeStream(stream)
    log = structlog.wrap_logger(
        structlog.PrintLogger(safe),  # type: ignore[arg-type] # as much of a stream as it needs
        processors=[safe.add_failures, structlog.processors.KeyValueRenderer()],
    )
    stream.is_full = True
    log.warning("one")
    log.warning("two")
    stream.is_full = False
    log.warning("three")
    log.warning("four")
    assert stream.getvalue().splitlines()[-2:] == ["event='three' unwritten_lines=2", "event='four'"]
    stream.close()
    log.warning("five")
    assert safe.failures == 1
