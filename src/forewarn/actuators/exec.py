"""Actuator that runs the operator's command: one process for each maintenance, with its id as the key.

Runs are recorded in a folder on this machine (`exec_run`), so a service that stops, crashes and comes back finds its
commands still running, or their outcome. An observe command may know of runs that no folder records.

Exit statuses of the command: 0 complete; 75 (``EX_TEMPFAIL``) nothing was done, run it again later, as often as any
actuator call is retried; any other status fails, and it is not run again. Of the observe command: 0 complete, 3 still
running, 4 never begun.
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
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from forewarn.actuators.contract import BEGIN_BEFORE_S, TRACEPARENT, Progress
from forewarn.actuators.exec_run import CommandOutcome, CommandRun, CommandRunState, prune_runs
from forewarn.actuators.payload import describe_maintenance, encode_maintenance
from forewarn.core.model import Maintenance
from forewarn.errors import ActuationFailed, ActuatorBusy, ActuatorError, ConfigError
from forewarn.util.duration import format_duration
from forewarn.util.secrets import make_private_folder, restrict_to_owner

__all__ = ["EXIT_NEVER_BEGUN", "EXIT_RUN_AGAIN", "EXIT_STILL_RUNNING", "VARIABLES", "CommandLimits", "Exec"]

EXIT_RUN_AGAIN = 75
"""From `exec_command`: the command did nothing, and may be run again."""

EXIT_STILL_RUNNING = 3
"""From `exec_observe_command`: the maintenance is still running."""

EXIT_NEVER_BEGUN = 4
"""From `exec_observe_command`: the maintenance was never begun."""

VARIABLES = {
    "FOREWARN_MAINTENANCE_ID": "id of the maintenance",
    "FOREWARN_TYPE": "Freeze, Reboot, Redeploy, Preempt or Terminate, as announced",
    "FOREWARN_IMPACT": "type to carry out: the announced type. Exception: for a Reboot that was scheduled with "
    "--impact Freeze, the value is Freeze (the VMs are only paused)",
    "FOREWARN_VMS": "names of the VMs, separated by spaces",
    "FOREWARN_HOSTS": "names of the hosts of these VMs, separated by spaces",
    "FOREWARN_DURATION_S": "announced duration of the impact in seconds; 0 for no interruption, -1 for unknown",
    "FOREWARN_DESCRIPTION": "description shown to the VMs",
    "FOREWARN_CAUSE": "cause, such as host-maintenance",
    "FOREWARN_NOT_BEFORE": "NotBefore, RFC 3339",
    "FOREWARN_STARTED_AT": "time of the start, RFC 3339",
}
"""Environment variables of a command."""

# Linux refuses variables of more than 128 KiB, and limits them and the arguments together.
_VARIABLE_BYTES_MAX = 32_000
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """Time and size limits of commands.

    Attributes:
        deadline: Time limit for the command, and for the abort command; then its process group is ended.
        observe_deadline: Time limit for the observe command; shorter than the limit for one actuator call.
        check_every: Interval between checks of a running command.
        output_size_bytes_max: Number of bytes that are kept from the end of the output.
        runs_max: Maximum number of recorded runs; beyond it the oldest that have ended are deleted.
    """

    deadline: timedelta = timedelta(hours=1)
    observe_deadline: timedelta = timedelta(seconds=30)
    check_every: timedelta = timedelta(seconds=1)
    output_size_bytes_max: int = 64 << 10
    runs_max: int = 1000


class Exec:
    """Runs a command for each started maintenance.

    Args:
        command: Program and arguments; no shell.
        folder: Folder for the records of runs, on this machine; created if missing.
        observe_command: Command that reports the progress of a maintenance that was begun elsewhere; None for none.
        abort_command: Command that is run when a maintenance is aborted, after its command was ended; None for none.
        on_lost: Reaction to a maintenance that was begun and whose state is unknown: fail it, or run the command again.
        limits: Time and size limits.

    Raises:
        ConfigError: The command is empty.
    """

    def __init__(  # noqa: PLR0913 - two required, four with a default
        self,
        command: Sequence[str],
        folder: Path,
        *,
        observe_command: Sequence[str] | None = None,
        abort_command: Sequence[str] | None = None,
        on_lost: Literal["fail", "repeat"] = "fail",
        limits: CommandLimits | None = None,
    ) -> None:
        if not command:
            raise ConfigError("the actuator exec needs a command: set exec_command", setting="exec_command")
        self._command = tuple(command)
        self._folder = folder
        self._observe_command = tuple(observe_command or ())
        self._abort_command = tuple(abort_command or ())
        self._on_lost = on_lost
        self._limits = limits or CommandLimits()

    @property
    def is_observable(self) -> bool:
        """True if there is an observe command; nothing else knows of runs on another machine."""
        return bool(self._observe_command)

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return the command that would be run."""
        words = shlex.join(self._command)
        return (f"run {words} for {', '.join(maintenance.vms)}, at most {format_duration(self._limits.deadline)}",)

    async def check(self) -> None:
        """Check that the commands exist and that the folder is writable."""
        for command in (self._command, self._observe_command, self._abort_command):
            if command and shutil.which(command[0]) is None:
                raise ActuatorError(f"cannot find the program {command[0]}, or it is not executable")
        self._make_folder()
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise ActuatorError(f"the folder {self._folder} is not writable")

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """Run the command unless a run exists that must not be repeated; `observe` reports later failures."""
        self._make_folder()
        run = self._get_run(maintenance)
        state = run.read_state()
        if state is CommandRunState.LOST and not self._may_repeat:
            raise ActuatorError(self._describe_lost_run(maintenance))
        # The mark is on a run that ended with `EXIT_RUN_AGAIN` and was reported as such: this call is the retry.
        if state in {CommandRunState.LOST, CommandRunState.UNKNOWN} or run.is_marked("reported"):
            await self._begin_run(
                run,
                self._command,
                maintenance,
                self._limits.deadline,
                # Decided again under the run's lock: another process may have begun a new run meanwhile.
                may_replace=lambda: (
                    run.read_state_without_keeper() is not CommandRunState.ENDED or run.is_marked("reported")
                ),
                begin_before_s=BEGIN_BEFORE_S.get(),
            )
        if run.read_state() is CommandRunState.ENDED and _is_success(outcome := run.read_outcome()):
            return _make_completed_progress(outcome)
        # A failure is left to `observe`, which is called at once: an error here would mean that nothing was begun.
        return Progress(check_at=now if run.read_state() is CommandRunState.ENDED else now + self._limits.check_every)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """Check the process or its result, or ask the observe command."""
        run = self._get_run(maintenance)
        match run.read_state():
            case CommandRunState.RUNNING:
                return Progress(check_at=now + self._limits.check_every)
            case CommandRunState.ENDED:
                return self._evaluate_outcome(run)
            case CommandRunState.UNKNOWN if run.folder.exists():
                return None  # the service died before the keeper began
            case state:
                return await self._resolve_unknown_run(maintenance, state, now)

    def _evaluate_outcome(self, run: CommandRun) -> Progress | None:
        outcome = run.read_outcome()
        if _is_success(outcome):
            return _make_completed_progress(outcome)
        reason = outcome.explain_failure(self._command[0], self._limits.deadline.total_seconds())
        # A command that was ended from outside may have done a part of its work, whatever its exit status is.
        if outcome.status != EXIT_RUN_AGAIN or outcome.is_late or outcome.is_stopped:
            raise ActuationFailed(reason)
        # Of several callers only the first raises, so that one run counts as one failed attempt.
        if run.set_mark("reported"):
            raise ActuatorBusy(reason, tries=run.read_number())
        return None  # already reported as busy; it is executed again after a pause

    async def _resolve_unknown_run(
        self, maintenance: Maintenance, state: CommandRunState, now: datetime
    ) -> Progress | None:
        """Decide about a run that no process on this machine has seen end."""
        if self._observe_command:
            return await self._run_observe_command(maintenance, now)
        # If no process has claimed it, it cannot have been begun on another machine either.
        is_unclaimed = state is CommandRunState.UNKNOWN and maintenance.begun_at is None
        if is_unclaimed or self._may_repeat:
            return None
        raise ActuatorError(self._describe_lost_run(maintenance))

    @property
    def _may_repeat(self) -> bool:
        """True if a lost run may be begun again: the setting says so, or the observe command has denied the run."""
        return self._on_lost == "repeat" or self.is_observable

    def _describe_lost_run(self, maintenance: Maintenance) -> str:
        return (
            f"{self._command[0]} was begun for maintenance {maintenance.id} by a process that is gone, and its "
            "outcome is unknown: check it, then run 'forewarn maintenance complete'"
        )

    async def _run_observe_command(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """Run the observe command, and return the progress that it reports."""
        self._make_folder()
        run = self._get_run(maintenance, ".observe")
        if run.read_state() is not CommandRunState.RUNNING:  # a leftover answer is out of date
            deadline = self._limits.observe_deadline
            await self._begin_run(run, self._observe_command, maintenance, deadline, may_replace=lambda: True)
        outcome = await self._wait_for_end(run, self._observe_command)
        # The answer holds for this moment; the next call has to run the command again.
        await asyncio.to_thread(run.delete_record)
        if _is_success(outcome):
            return Progress(is_impacted=True, is_complete=True)
        if outcome.status == EXIT_STILL_RUNNING:
            return Progress(check_at=now + self._limits.check_every)
        if outcome.status == EXIT_NEVER_BEGUN:
            return None
        raise ActuatorError(
            outcome.explain_failure(self._observe_command[0], self._limits.observe_deadline.total_seconds())
        )

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        """End the command with its process group; then run the abort command, once."""
        if not await self._was_begun(maintenance, now):
            return
        run = self._get_run(maintenance)
        run.request_stop()
        while run.read_state() is CommandRunState.RUNNING:  # noqa: ASYNC110 - the process is not our child, so nothing notifies us
            await asyncio.sleep(_POLL_S)
        if self._abort_command:
            await self._run_abort_command(maintenance)

    async def _was_begun(self, maintenance: Maintenance, now: datetime) -> bool:
        if self._get_run(maintenance).read_state() is not CommandRunState.UNKNOWN or maintenance.begun_at is not None:
            return True
        return bool(self._observe_command) and await self._run_observe_command(maintenance, now) is not None

    async def _run_abort_command(self, maintenance: Maintenance) -> None:
        self._make_folder()
        run = self._get_run(maintenance, ".abort")
        state = run.read_state()
        if state is CommandRunState.ENDED and _is_success(run.read_outcome()):
            return
        if state is not CommandRunState.RUNNING:
            await self._begin_run(
                run,
                self._abort_command,
                maintenance,
                self._limits.deadline,
                may_replace=lambda: (
                    run.read_state_without_keeper() is not CommandRunState.ENDED or not _is_success(run.read_outcome())
                ),
            )
        outcome = await self._wait_for_end(run, self._abort_command)
        if not _is_success(outcome):
            raise ActuatorError(outcome.explain_failure(self._abort_command[0], self._limits.deadline.total_seconds()))

    async def close(self) -> None:
        """Do nothing: commands and their keepers go on."""

    async def _begin_run(  # noqa: PLR0913 - the run, the command, its input and its limits
        self,
        run: CommandRun,
        command: Sequence[str],
        maintenance: Maintenance,
        deadline: timedelta,
        *,
        may_replace: Callable[[], bool],
        begin_before_s: float = math.inf,
    ) -> None:
        """Begin a run, in place of an earlier one if `may_replace` allows it; begins even if cancelled immediately.

        A claimed maintenance without a run would be taken for lost by the replica that continues it.
        """
        number = run.read_number() + 1

        def make_room_and_start() -> None:
            run.delete_record(may_replace)
            prune_runs(self._folder, self._limits.runs_max)
            run.begin(
                command,
                environment=_add_trace(build_environment(maintenance, os.environ)),
                stdin=encode_maintenance(maintenance),
                deadline_s=deadline.total_seconds(),
                output_size_bytes_max=self._limits.output_size_bytes_max,
                number=number,
                begin_before_s=begin_before_s,
            )

        await asyncio.shield(asyncio.to_thread(make_room_and_start))

    async def _wait_for_end(self, run: CommandRun, command: Sequence[str]) -> CommandOutcome:
        """Wait for the end of a run; its deadline bounds the wait."""
        while (state := run.read_state()) is CommandRunState.RUNNING:  # noqa: ASYNC110 - as in `abort`
            await asyncio.sleep(_POLL_S)
        if state is not CommandRunState.ENDED:
            raise ActuatorError(f"{command[0]} was begun, but its outcome is unknown")
        return run.read_outcome()

    def _get_run(self, maintenance: Maintenance, suffix: str = "") -> CommandRun:
        # Names with a leading dot are reserved for temporary folders, so dots are escaped.
        return CommandRun(self._folder / f"{quote(maintenance.id, safe='').replace('.', '%2E')}{suffix}")

    def _make_folder(self) -> None:
        try:
            make_private_folder(self._folder)
            restrict_to_owner(self._folder)
        except OSError as error:
            raise ActuatorError(f"cannot create the folder {self._folder}: {error.strerror}") from error


def build_environment(maintenance: Maintenance, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: that of the service without its settings, and `VARIABLES`.

    Settings may hold passwords. A value that is too long for a variable is left out: half a list of VMs would be
    mistaken for the whole.
    """
    shown = describe_maintenance(maintenance)
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


def _add_trace(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment with the trace of this call instead of the trace that the service was started in."""
    traceparent = TRACEPARENT.get()
    if not traceparent:
        return environment
    kept = {name: value for name, value in environment.items() if name not in {"TRACESTATE", "BAGGAGE"}}
    return kept | {"TRACEPARENT": traceparent}


def _is_success(outcome: CommandOutcome) -> bool:
    return outcome.status == 0 and not (outcome.is_late or outcome.is_stopped)


def _make_completed_progress(outcome: CommandOutcome) -> Progress:
    return Progress(is_impacted=True, is_complete=True, impact_s=outcome.took_s)
