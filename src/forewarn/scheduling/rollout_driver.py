"""Driver of rollouts, after each change and at their deadlines; runs their health commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from datetime import datetime

import structlog

from forewarn.clock import Clock
from forewarn.core.rollout.rollout import HealthResult
from forewarn.core.rollout.rollout_step_types import CheckHealth
from forewarn.engine.rollouts import RolloutCommands
from forewarn.util.duration import format_duration
from forewarn.util.tasks import cancel_tasks

__all__ = ["RolloutDriver"]

_log = structlog.get_logger("forewarn.scheduling.rollout_driver")

_OUTPUT_BYTES_MAX = 64 << 10
_DETAIL_LENGTH_MAX = 500


class RolloutDriver:
    """Driver of the active rollouts, with the health commands that run on this replica.

    Args:
        rollouts: Commands that drive rollouts.
        clock: Source of the time; a virtual clock stands still while a health command runs.
        wake: Called when a health command has ended.

    Attributes:
        until: Time to drive again if nothing happens before; None for no such time.
    """

    def __init__(self, rollouts: RolloutCommands, clock: Clock, wake: Callable[[], None]) -> None:
        self.until: datetime | None = None
        self._rollouts = rollouts
        self._clock = clock
        self._wake = wake
        self._health: dict[str, HealthResult] = {}
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def drive_rollouts(self) -> bool:
        """Take every rollout as far as it can go now; return True if anything was changed."""
        has_changed = False
        while self._rollouts.may_be_active:
            driven = await self._rollouts.drive(self._health)
            self.until = driven.until
            has_changed |= driven.has_changed
            for rollout_id, check in driven.checks.items():
                self._begin_check(rollout_id, check)
            # Virtual time must not move while a check runs, or its result would depend on real time.
            if self._clock.is_virtual and self._running:
                await asyncio.gather(*self._running.values())
                continue
            if not driven.has_more:
                return has_changed
        self.until = None
        return has_changed

    def _begin_check(self, rollout_id: str, check: CheckHealth) -> None:
        key = (rollout_id, check.number)
        known = self._health.get(rollout_id)
        # The check is requested in each round until its result is taken over, but must run only once.
        if key in self._running or (known is not None and known.number == check.number):
            return
        self._running[key] = asyncio.ensure_future(self._run_check(rollout_id, check))

    async def _run_check(self, rollout_id: str, check: CheckHealth) -> None:
        try:
            is_healthy, detail = await _run_health_command(check)
        except Exception as error:  # noqa: BLE001 - a health check that cannot run has failed
            _log.exception("a health check raised an exception", rollout=rollout_id)
            is_healthy, detail = False, f"{type(error).__name__}: {error}"
        finally:
            self._running.pop((rollout_id, check.number), None)
        self._health[rollout_id] = HealthResult(
            number=check.number, batch=check.batch, is_healthy=is_healthy, detail=detail[:_DETAIL_LENGTH_MAX]
        )
        self._wake()

    async def stop(self) -> None:
        """Cancel the running health commands; they run again after the next start."""
        await cancel_tasks(*self._running.values())


async def _run_health_command(check: CheckHealth) -> tuple[bool, str]:
    """Run the command; return whether it succeeded, and its last line of output."""
    try:
        process = await asyncio.create_subprocess_exec(
            *check.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # A separate process group, so that what the command has started can be killed with it.
            start_new_session=True,
        )
    except OSError as error:
        return False, f"cannot run {check.command[0]}: {error.strerror}"
    assert process.stdout is not None  # noqa: S101 - started with a pipe
    output = b""
    try:
        async with asyncio.timeout(check.timeout.total_seconds()):
            while piece := await process.stdout.read(4096):
                output = (output + piece)[-_OUTPUT_BYTES_MAX:]
            status = await process.wait()
    except TimeoutError:
        return False, f"no answer within {format_duration(check.timeout)}"
    finally:
        # After success too: the command may have left processes in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    lines = output.decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return status == 0, last or f"exit status {status}"
