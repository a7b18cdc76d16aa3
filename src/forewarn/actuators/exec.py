"""An actuator that runs the operator's command: one process for each maintenance, whose id is the key.

What was begun stands in a folder of this machine (`exec_run`), so a service that stops, crashes and comes back finds
its commands still running, or what became of them. What no folder knows of, an observe command may.

Exit statuses of the command: 0 it is complete; 75 (``EX_TEMPFAIL``) nothing was done, run it again later, as often as
any call of an actuator is repeated; any other fails, and it is not run again. Of the observe command: 0 it is complete,
3 still running, 4 never begun.
"""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from forewarn.actuators.contract import BEGIN_BEFORE_S, TRACEPARENT, Progress
from forewarn.actuators.exec_run import Outcome, Run, RunState, prune
from forewarn.actuators.payload import describe, encode
from forewarn.core.model import Maintenance
from forewarn.errors import ActuationFailed, ActuatorBusy, ActuatorError, ConfigError
from forewarn.util.duration import format_span
from forewarn.util.secrets import make_private_folder, tighten

__all__ = ["EXIT_NEVER_BEGUN", "EXIT_RUN_AGAIN", "EXIT_STILL_RUNNING", "VARIABLES", "Exec", "Limits"]

EXIT_RUN_AGAIN = 75
"""Of the command: nothing was done, and it may be run again."""

EXIT_STILL_RUNNING = 3
"""Of the observe command: what was begun goes on."""

EXIT_NEVER_BEGUN = 4
"""Of the observe command: nothing was begun under that id."""

VARIABLES = {
    "FOREWARN_MAINTENANCE_ID": "its id",
    "FOREWARN_TYPE": "Freeze, Reboot, Redeploy, Preempt or Terminate, as announced",
    "FOREWARN_IMPACT": "what is really to happen: another than announced only where a Reboot turns out as a Freeze",
    "FOREWARN_VMS": "names of the VMs, with spaces between",
    "FOREWARN_HOSTS": "names of the hosts that they run on, with spaces between",
    "FOREWARN_DURATION_S": "announced seconds; 0 no interruption, -1 unknown",
    "FOREWARN_DESCRIPTION": "what the VMs were told",
    "FOREWARN_CAUSE": "why, for example host-maintenance",
    "FOREWARN_NOT_BEFORE": "RFC 3339",
    "FOREWARN_STARTED_AT": "RFC 3339",
}
"""What a command finds in its environment."""

_VARIABLE_BYTES_MAX = 32_000
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long commands may take, and how much they may leave behind.

    Attributes:
        deadline: For the command, and for the abort command; then it is ended with its process group.
        observe_deadline: For the observe command; shorter than one call of an actuator may take.
        look_every: From one look at a running command to the next.
        output_size_bytes_max: How much of the end of its output is kept.
        runs_max: Runs that are remembered; beyond it the oldest that have ended are forgotten.
    """

    deadline: timedelta = timedelta(hours=1)
    observe_deadline: timedelta = timedelta(seconds=30)
    look_every: timedelta = timedelta(seconds=1)
    output_size_bytes_max: int = 64 << 10
    runs_max: int = 1000


class Exec:
    """Runs a command for each started maintenance.

    Args:
        command: Program and arguments; no shell.
        folder: Where it is kept what was begun; made when it is not there. On one machine.
        observe_command: Tells how far a maintenance is that was begun elsewhere; None: nobody can.
        abort_command: Run when a maintenance is given up, after the command was ended; None: nothing is.
        on_lost: What to do about a maintenance that was begun, of which nothing is known any more: let it fail, or run
            the command again.
        limits: How long and how much.

    Raises:
        ConfigError: There is no command.
    """

    def __init__(  # noqa: PLR0913 - two that say what and where, four with a default
        self,
        command: Sequence[str],
        folder: Path,
        *,
        observe_command: Sequence[str] | None = None,
        abort_command: Sequence[str] | None = None,
        on_lost: Literal["fail", "repeat"] = "fail",
        limits: Limits | None = None,
    ) -> None:
        if not command:
            msg = "the actuator exec needs a command: set exec_command"
            raise ConfigError(msg, setting="exec_command")
        self._command = tuple(command)
        self._folder = folder
        self._observe_command = tuple(observe_command or ())
        self._abort_command = tuple(abort_command or ())
        self._on_lost = on_lost
        self._limits = limits or Limits()

    @property
    def is_observable(self) -> bool:
        """Only the observe command can know of what was begun on another machine."""
        return bool(self._observe_command)

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Say what would be run."""
        words = shlex.join(self._command)
        return (f"run {words} for {', '.join(maintenance.vms)}, at most {format_span(self._limits.deadline)}",)

    async def check(self) -> None:
        """See whether the commands and the folder are there."""
        for command in (self._command, self._observe_command, self._abort_command):
            if command and shutil.which(command[0]) is None:
                msg = f"{command[0]} is no program that can be run here"
                raise ActuatorError(msg)
        self._make_folder()
        if not os.access(self._folder, os.W_OK | os.X_OK):
            msg = f"the folder {self._folder} cannot be written to"
            raise ActuatorError(msg)

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Run the command, unless it was; a failure after it has begun is for `observe` to tell."""
        self._make_folder()
        run = self._run(maintenance)
        state = run.look()
        if state is RunState.LOST and not self._may_repeat:
            raise ActuatorError(self._lost(maintenance))
        if state in {RunState.LOST, RunState.UNKNOWN} or run.is_marked("told"):
            await self._begin(
                run,
                self._command,
                maintenance,
                self._limits.deadline,
                may_again=lambda: run.left_behind() is not RunState.ENDED or run.is_marked("told"),
                begin_before_s=BEGIN_BEFORE_S.get(),
            )
        if run.look() is RunState.ENDED and _is_success(outcome := run.outcome()):
            return _completed(outcome)
        return Progress(check_at=now if run.look() is RunState.ENDED else now + self._limits.look_every)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """Look at the process, at what it left, or ask the observe command."""
        run = self._run(maintenance)
        match run.look():
            case RunState.RUNNING:
                return Progress(check_at=now + self._limits.look_every)
            case RunState.ENDED:
                return self._judge(run)
            case RunState.UNKNOWN if run.folder.exists():
                return None  # a service that died at the wrong moment has come no further than that
            case state:
                return await self._unknown(maintenance, state, now)

    def _judge(self, run: Run) -> Progress | None:
        outcome = run.outcome()
        if _is_success(outcome):
            return _completed(outcome)
        reason = outcome.explain(self._command[0], self._limits.deadline.total_seconds())
        if outcome.status != EXIT_RUN_AGAIN or outcome.is_late or outcome.is_stopped:
            raise ActuationFailed(reason)
        if run.mark("told"):
            raise ActuatorBusy(reason, tries=run.number())
        return None  # the scheduler has been told, and asks again after its pause

    async def _unknown(self, maintenance: Maintenance, state: RunState, now: datetime) -> Progress | None:
        """Nobody here has seen it end."""
        if self._observe_command:
            return await self._ask(maintenance, now)
        if state is RunState.UNKNOWN and maintenance.begun_at is None:
            return None
        if self._may_repeat:
            return None
        raise ActuatorError(self._lost(maintenance))

    @property
    def _may_repeat(self) -> bool:
        """Whether a run that was lost may be begun again: so it was said, or the observe command has denied it."""
        return self._on_lost == "repeat" or self.is_observable

    def _lost(self, maintenance: Maintenance) -> str:
        return (
            f"{self._command[0]} was begun for maintenance {maintenance.id} by a process that is gone, and what became "
            "of it is unknown: see to it, then 'forewarn maintenance complete'"
        )

    async def _ask(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """Run the observe command."""
        self._make_folder()
        run = self._run(maintenance, ".observe")
        if run.look() is not RunState.RUNNING:  # an answer that nobody waited for is old
            deadline = self._limits.observe_deadline
            await self._begin(run, self._observe_command, maintenance, deadline, may_again=lambda: True)
        outcome = await self._ended(run, self._observe_command)
        await asyncio.to_thread(run.forget)
        if _is_success(outcome):
            return Progress(is_impacted=True, is_complete=True)
        if outcome.status == EXIT_STILL_RUNNING:
            return Progress(check_at=now + self._limits.look_every)
        if outcome.status == EXIT_NEVER_BEGUN:
            return None
        raise ActuatorError(outcome.explain(self._observe_command[0], self._limits.observe_deadline.total_seconds()))

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        """End the command with its process group; then run the abort command, once."""
        if not await self._was_begun(maintenance, now):
            return
        run = self._run(maintenance)
        run.stop()
        while run.look() is RunState.RUNNING:  # noqa: ASYNC110 - no one tells when a process ends that is not our child
            await asyncio.sleep(_POLL_S)
        if self._abort_command:
            await self._run_abort(maintenance)

    async def _was_begun(self, maintenance: Maintenance, now: datetime) -> bool:
        if self._run(maintenance).look() is not RunState.UNKNOWN or maintenance.begun_at is not None:
            return True
        return bool(self._observe_command) and await self._ask(maintenance, now) is not None

    async def _run_abort(self, maintenance: Maintenance) -> None:
        self._make_folder()
        run = self._run(maintenance, ".abort")
        state = run.look()
        if state is RunState.ENDED and _is_success(run.outcome()):
            return
        if state is not RunState.RUNNING:
            await self._begin(
                run,
                self._abort_command,
                maintenance,
                self._limits.deadline,
                may_again=lambda: run.left_behind() is not RunState.ENDED or not _is_success(run.outcome()),
            )
        outcome = await self._ended(run, self._abort_command)
        if not _is_success(outcome):
            raise ActuatorError(outcome.explain(self._abort_command[0], self._limits.deadline.total_seconds()))

    async def close(self) -> None:
        """There is nothing to let go of: commands go on, and their keepers stay with them."""

    async def _begin(  # noqa: PLR0913 - what is begun for what, and until when it may be
        self,
        run: Run,
        command: Sequence[str],
        maintenance: Maintenance,
        deadline: timedelta,
        *,
        may_again: Callable[[], bool],
        begin_before_s: float = math.inf,
    ) -> None:
        """Begin it, in the place of an earlier run if it may. Once called, it begins, also when cancelled at once.

        Whoever is told to go on with a maintenance that was claimed, and finds nothing begun, must take it for lost.
        """
        start = partial(
            run.begin,
            command,
            environment=_with_trace(environment_of(maintenance, os.environ)),
            stdin=encode(maintenance),
            deadline_s=deadline.total_seconds(),
            output_size_bytes_max=self._limits.output_size_bytes_max,
            number=run.number() + 1,
            begin_before_s=begin_before_s,
        )

        def make_room_and_start() -> None:
            run.forget(may_again)
            prune(self._folder, self._limits.runs_max)
            start()

        await asyncio.shield(asyncio.to_thread(make_room_and_start))

    async def _ended(self, run: Run, command: Sequence[str]) -> Outcome:
        """Wait for its end; its deadline bounds that."""
        while (state := run.look()) is RunState.RUNNING:  # noqa: ASYNC110 - as in `abort`
            await asyncio.sleep(_POLL_S)
        if state is not RunState.ENDED:
            msg = f"{command[0]} was begun, and what became of it is unknown"
            raise ActuatorError(msg)
        return run.outcome()

    def _run(self, maintenance: Maintenance, suffix: str = "") -> Run:
        # An id that begins with a dot would be one of our own names.
        return Run(self._folder / f"{quote(maintenance.id, safe='').replace('.', '%2E')}{suffix}")

    def _make_folder(self) -> None:
        try:
            make_private_folder(self._folder)
            tighten(self._folder)
        except OSError as error:
            msg = f"cannot make the folder {self._folder}: {error.strerror}"
            raise ActuatorError(msg) from error


def environment_of(maintenance: Maintenance, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: what the service has, but for its settings, and `VARIABLES`.

    Settings may hold passwords. A value that is too long for a variable is left out: half a list of VMs would be
    mistaken for the whole.
    """
    shown = describe(maintenance)
    values = {
        "id": maintenance.id,
        "vms": " ".join(maintenance.vms),
        "hosts": " ".join(dict.fromkeys(claim.host for claim in maintenance.claims)),
    }
    texts = {}
    for name in VARIABLES:
        member = name.removeprefix("FOREWARN_").removeprefix("MAINTENANCE_").lower()
        value = values.get(member, shown.get(member))
        texts[name] = "" if value is None else str(value)
    kept = {name: value for name, value in inherited.items() if not name.startswith("FOREWARN_")}
    return kept | {name: text for name, text in texts.items() if len(text.encode()) <= _VARIABLE_BYTES_MAX}


def _with_trace(environment: dict[str, str]) -> dict[str, str]:
    """The environment with the trace of this call, in the place of one that the service was itself started in."""
    traceparent = TRACEPARENT.get()
    if not traceparent:
        return environment
    kept = {name: value for name, value in environment.items() if name not in {"TRACESTATE", "BAGGAGE"}}
    return kept | {"TRACEPARENT": traceparent}


def _is_success(outcome: Outcome) -> bool:
    return outcome.status == 0 and not (outcome.is_late or outcome.is_stopped)


def _completed(outcome: Outcome) -> Progress:
    return Progress(is_impacted=True, is_complete=True, impact_s=outcome.took_s)
