"""Every retry that the page about actuators promises, through the real scheduler.

An actuator that is called by a test alone can promise a retry that the scheduler never makes: here the scheduler calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from structlog.testing import capture_logs

from forewarn.actuators import Actuator
from forewarn.actuators.exec import CommandLimits, Exec
from forewarn.actuators.webhook import Webhook
from forewarn.core.maintenance.actuator_result import RetryPolicy
from forewarn.core.model import EntryKind, Maintenance
from forewarn.scheduling.scheduler import SchedulerSettings
from tests.support.operator_service import Asked, answer, operator_service
from tests.support.processes import is_written
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS, seconds

pytestmark = pytest.mark.anyio

K = EntryKind
_STEPS_MAX = 20_000
_PAUSE_S = 0.005


def exec_of(
    folder: Path, script: str, *, observe: str = "", on_lost: Literal["fail", "repeat"] = "fail", runs: str = "runs"
) -> Exec:
    command = ["bash", "-c", script]
    observe_command = ["bash", "-c", observe] if observe else None
    return Exec(command, folder / runs, observe_command=observe_command, on_lost=on_lost, limits=CommandLimits())


async def begun(actuator: Actuator, *, attempts_max: int = 10) -> tuple[Simulated, Maintenance]:
    """A maintenance of `db` that is due to be carried out."""
    pace = SchedulerSettings(retry=RetryPolicy(attempts_max=attempts_max, pause=seconds(5)))
    made = await simulated(inventory(*VMS, scopes=SCOPES), actuator=actuator, pace=pace)
    maintenance = await made.schedule_one("host-maintenance", "db")
    await made.approve_all("db")
    return made, maintenance


async def over(made: Simulated, maintenance: Maintenance, until: Callable[[], bool] = lambda: False) -> str:
    """Move the virtual clock while real processes and requests come to their end; returns the last state."""
    for _ in range(_STEPS_MAX):
        await made.advance(timedelta(seconds=1))
        if until() or not made.get_maintenance(maintenance).is_active:
            return made.state(maintenance)
        await asyncio.sleep(_PAUSE_S)
    pytest.fail("it did not come to its end")


def attempts(made: Simulated, maintenance: Maintenance) -> list[str | None]:
    return [entry.reason for entry in made.entries(maintenance) if entry.kind is K.ATTEMPT_FAILED]


def pauses_s(made: Simulated, maintenance: Maintenance) -> list[float]:
    """From one failed attempt to the next, in virtual seconds."""
    moments = [entry.at for entry in made.entries(maintenance) if entry.kind is K.ATTEMPT_FAILED]
    return [(after - before).total_seconds() for before, after in pairwise(moments)]


# The command


async def test_a_command_that_exits_with_75_is_run_again_until_it_succeeds(tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/begun; [ $(wc -l < {tmp_path}/begun) -ge 4 ] || {{ echo busy; exit 75; }}"
    made, maintenance = await begun(exec_of(tmp_path, script))
    with capture_logs() as logs:
        assert await over(made, maintenance) == "completed"
    assert (tmp_path / "begun").read_text() == "x\n" * 4
    assert attempts(made, maintenance) == ["bash ended with exit status 75: busy"] * 3
    failed = [log for log in logs if log["event"] == "an actuator call failed"]
    assert [(log["maintenance_id"], log["reason"]) for log in failed] == [
        (maintenance.id, reason) for reason in attempts(made, maintenance)
    ]
    first, second = pauses_s(made, maintenance)
    assert first >= 5
    assert second >= 10


async def test_with_an_observe_command_too(tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/begun; [ $(wc -l < {tmp_path}/begun) -ge 3 ] || exit 75"
    made, maintenance = await begun(exec_of(tmp_path, script, observe="exit 4"))
    assert await over(made, maintenance) == "completed"
    assert (tmp_path / "begun").read_text() == "x\n" * 3


async def test_a_restart_of_the_service_between_two_runs_changes_nothing(tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/begun; [ $(wc -l < {tmp_path}/begun) -ge 3 ] || exit 75"
    made, maintenance = await begun(exec_of(tmp_path, script))
    await over(made, maintenance, until=lambda: bool(attempts(made, maintenance)))
    made.actuator = exec_of(tmp_path, script)
    await made.crash()
    assert await over(made, maintenance) == "completed"
    assert (tmp_path / "begun").read_text() == "x\n" * 3


async def test_a_command_that_always_exits_with_75_fails_after_as_many_runs_as_there_may_be_attempts(
    tmp_path: Path,
) -> None:
    made, maintenance = await begun(exec_of(tmp_path, f"echo x >> {tmp_path}/begun; exit 75"), attempts_max=3)
    assert await over(made, maintenance) == "failed"
    assert (tmp_path / "begun").read_text() == "x\n" * 3
    last = made.entries(maintenance)[-1]
    assert last.reason == "the actuator failed 3 times; last error: bash ended with exit status 75"


async def test_a_command_that_fails_otherwise_is_run_once(tmp_path: Path) -> None:
    made, maintenance = await begun(exec_of(tmp_path, f"echo x >> {tmp_path}/begun; exit 1"))
    assert await over(made, maintenance) == "failed"
    assert (tmp_path / "begun").read_text() == "x\n"
    assert attempts(made, maintenance) == []


async def test_a_command_that_is_missing_for_a_while_is_run_once_it_is_there(tmp_path: Path) -> None:
    command = tmp_path / "carry-out"
    made, maintenance = await begun(Exec([str(command)], tmp_path / "runs"))
    await over(made, maintenance, until=lambda: bool(attempts(made, maintenance)))
    command.write_text("#!/bin/sh\nexit 0\n")
    command.chmod(0o700)
    assert await over(made, maintenance) == "completed"


async def test_an_observe_command_that_cannot_tell_is_asked_again(tmp_path: Path) -> None:
    observe = (
        f"echo x >> {tmp_path}/asked; case $(wc -l < {tmp_path}/asked) in 1) exit 4;; 2|3) exit 9;; *) exit 0;; esac"
    )
    script = f"echo x >> {tmp_path}/begun; sleep 600"
    made, maintenance = await begun(exec_of(tmp_path, script, observe=observe))
    await over(made, maintenance, until=lambda: is_written(tmp_path / "begun"))
    await made.actuator.abort(maintenance, made.now)
    made.actuator = exec_of(tmp_path, script, observe=observe, runs="of-another-machine")
    await made.crash()
    assert await over(made, maintenance) == "completed"
    assert attempts(made, maintenance) == ["bash ended with exit status 9"] * 2
    assert (tmp_path / "begun").read_text() == "x\n"


async def test_a_run_that_was_lost_is_repeated_where_that_is_allowed(tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/begun; [ $(wc -l < {tmp_path}/begun) -ge 2 ] || sleep 600"
    made, maintenance = await begun(exec_of(tmp_path, script, on_lost="repeat"))
    await over(made, maintenance, until=lambda: is_written(tmp_path / "begun"))
    await made.actuator.abort(maintenance, made.now)
    made.actuator = exec_of(tmp_path, script, on_lost="repeat", runs="of-another-machine")
    await made.crash()
    assert await over(made, maintenance) == "completed"
    assert (tmp_path / "begun").read_text() == "x\n" * 2


# The webhook


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize(
    "refusal",
    [
        answer(429, headers="Retry-After: 1\r\n"),
        answer(503),
        answer(302, headers="Location: /elsewhere\r\n"),
        answer(200, b"no JSON"),
        answer(200, {"state": "unknown", "reason": "the scheduler is away"}),
        answer(200, {"state": "completed", "reason": "x" * 200_000}),
    ],
    ids=["429", "503", "a redirect", "no JSON", "unknown", "too large"],
)
async def test_a_webhook_that_cannot_answer_is_asked_again_and_begins_once(method: str, refusal: bytes) -> None:
    async with operator_service() as service:
        refused: list[Asked] = []

        def script(asked: Asked) -> bytes | None:
            if asked.method != method or len(refused) == 2 or (method == "GET" and not service.begun):
                return None
            refused.append(asked)
            return refusal

        service.script = script
        actuator = Webhook(service.url, "shared")
        made, maintenance = await begun(actuator)
        await over(made, maintenance, until=lambda: len(refused) == 2 and bool(service.begun))
        service.state = {"state": "completed"}
        assert await over(made, maintenance) == "completed"
        assert service.begun == {maintenance.id: 1}
        assert len(attempts(made, maintenance)) == 2
        await actuator.close()


async def test_a_webhook_that_says_failed_is_not_asked_again() -> None:
    async with operator_service() as service:
        service.state = {"state": "failed", "reason": "no capacity"}
        actuator = Webhook(service.url, "shared")
        made, maintenance = await begun(actuator)
        assert await over(made, maintenance) == "failed"
        assert attempts(made, maintenance) == []
        assert "no capacity" in str(made.entries(maintenance)[-1].reason)
        await actuator.close()
