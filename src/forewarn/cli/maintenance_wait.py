"""`forewarn maintenance wait`: wait until a maintenance has reached a stage."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from forewarn.cli.command import command
from forewarn.cli.completers import maintenance_ids
from forewarn.cli.connection import ControlConnection
from forewarn.cli.maintenance_changes import build_maintenance_path
from forewarn.cli.output import Output, format_count, format_moment, format_seconds
from forewarn.cli.times import as_span_s
from forewarn.core.model import MaintenanceState

__all__ = ["MISSED", "TIMED_OUT", "Stage", "app", "has_reached"]

TIMED_OUT = 5
"""Exit status if the stage was not reached in time."""

MISSED = 6
"""Exit status if the stage can no longer be reached."""


class Stage(StrEnum):
    """Stage of a maintenance for which a command can wait."""

    ANNOUNCED = "announced"
    STARTED = "started"
    COMPLETED = "completed"
    ENDED = "ended"


_S = MaintenanceState
_REACHED = {
    Stage.ANNOUNCED: {_S.SCHEDULED, _S.STARTED, _S.COMPLETED, _S.FAILED},
    Stage.STARTED: {_S.STARTED, _S.COMPLETED, _S.FAILED},
    Stage.COMPLETED: {_S.COMPLETED},
    Stage.ENDED: {_S.COMPLETED, _S.FAILED, _S.CANCELED},
}
"""States in which a maintenance has reached a stage. A canceled one has reached none that others could rely on."""

_FINAL = {_S.COMPLETED, _S.FAILED, _S.CANCELED}


class StageTimedOut(typer.TyperException):
    """The stage was not reached in time."""

    exit_code = TIMED_OUT


class StageMissed(typer.TyperException):
    """The stage can no longer be reached."""

    exit_code = MISSED


def has_reached(state: MaintenanceState, stage: Stage) -> bool | None:
    """Return True if a maintenance in this state has reached the stage, False if it may yet, None if it never will."""
    if state in _REACHED[stage]:
        return True
    return None if state in _FINAL else False


app = typer.Typer()


@command(
    app,
    "wait",
    "forewarn maintenance wait k3v9xq2mab",
    "forewarn maintenance wait k3v9xq2mab --for started --timeout 10m",
)
def wait(
    maintenance_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of the maintenance, or its beginning.", autocompletion=maintenance_ids),
    ],
    connection: ControlConnection,
    output: Output,
    stage: Annotated[
        Stage,
        typer.Option(
            "--for",
            metavar="|".join(Stage),
            help="Stage to wait for. Queued maintenance has not been announced; ended means completed, failed or "
            "canceled.",
        ),
    ] = Stage.ENDED,
    timeout: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Maximum time to wait. (default: no limit)")
    ] = None,
) -> None:
    """Wait until a maintenance has reached a stage.

    The exit status is 0 if it has, 5 if it has not within the time of --timeout, and 6 if it no longer can: a canceled
    maintenance is never announced, started or completed, and a failed one is never completed.
    """
    from forewarn.cli.change_hints import ChangeHints, Deadline

    deadline = Deadline(as_span_s(timeout, "--timeout"))
    path = build_maintenance_path(connection, maintenance_id)
    state = None
    with ChangeHints(connection, output) as hints:
        while True:
            m = connection.get(path)
            reached = has_reached(MaintenanceState(m["state"]), stage)
            if m["state"] != state:
                state = m["state"]
                output.show_progress()
                if not output.is_json:
                    output.print_line(f"maintenance {m['id']} is {state}")
            if reached or reached is None or deadline.is_over:
                break
            output.show_progress(_describe_progress(m, stage))
            hints.wait(deadline)
    output.show_progress()
    if output.is_json:
        output.print_json(m)
    if reached is None:
        raise StageMissed(f"maintenance {m['id']} is {state}, so it will not be {stage}")
    if not reached:
        waited = format_seconds(as_span_s(timeout, "--timeout") or 0)
        raise StageTimedOut(f"maintenance {m['id']} is still {state} after {waited}, not {stage}")


def _describe_progress(m: dict[str, Any], stage: Stage) -> str:
    """Describe what the terminal shows while the command waits."""
    approved = sum(event["approved_at"] is not None for event in m["events"])
    parts = [
        f"waiting until it is {stage}",
        f"{approved} of {format_count(len(m['events']), 'event')} approved" if m["state"] == _S.SCHEDULED else "",
        f"not before {format_moment(m['not_before'])}" if m["state"] == _S.SCHEDULED else "",
    ]
    return "; ".join(part for part in parts if part)
