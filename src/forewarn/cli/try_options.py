"""Arguments and options of `forewarn try`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.completers import scenario_names

__all__ = [
    "AllOption",
    "HandlerArgument",
    "JobsOption",
    "JunitOption",
    "PatienceOption",
    "PreparedOption",
    "RebootOption",
    "RecoveredOption",
    "ScenarioOption",
    "SharedNetworkOption",
    "ShowOutputOption",
]

_JOBS_MAX = 64

HandlerArgument = Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Command that starts the handler.")]
ScenarioOption = Annotated[
    str,
    typer.Option(
        "--scenario",
        metavar="NAME_OR_FILE",
        help="Scenario to run the handler in.",
        autocompletion=scenario_names,
    ),
]
AllOption = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Run the handler in every shipped scenario except those that only 'forewarn scenario play' accepts. "
        "Several scenarios run at a time.",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=_JOBS_MAX,
        help="With --all: number of scenarios at a time. (default: four per processor; one if --prepared or "
        "--recovered names an absolute path, since all scenarios would share that file)",
    ),
]
PatienceOption = Annotated[
    str, typer.Option(metavar="SPAN", help="Maximum real time for the handler to react to each change.")
]
PreparedOption = Annotated[
    str, typer.Option(metavar="SHELL", help="Command that succeeds only while the VM is prepared.")
]
RecoveredOption = Annotated[
    str,
    typer.Option(
        metavar="SHELL", help="Command that succeeds once the VM is back at work; run when no event affects the VM."
    ),
]
RebootOption = Annotated[bool, typer.Option("--reboot", help="Kill and restart the handler when its VM reboots.")]
JunitOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report as JUnit XML.")]
ShowOutputOption = Annotated[
    bool, typer.Option("--show-output", help="Show the handler's last output even if it passed.")
]
SharedNetworkOption = Annotated[
    bool,
    typer.Option("--shared-network", help="Use this machine's network; the handler must then use $FOREWARN_ENDPOINT."),
]
