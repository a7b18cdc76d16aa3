"""Options of `forewarn try`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.command import OptionGroup
from forewarn.cli.completers import scenario_names
from forewarn.cli.scenario import SetOption

__all__ = ["TryOptions"]

_JOBS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TryOptions(OptionGroup):
    """Options of `forewarn try`."""

    which: Annotated[
        str,
        typer.Option(
            "--scenario",
            metavar="NAME_OR_FILE",
            help="Scenario to run the handler in.",
            autocompletion=scenario_names,
        ),
    ] = "live-migration"
    is_all: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Run the handler in every shipped scenario. Scenarios that run only with 'forewarn scenario play' are "
            "left out. Several scenarios run at a time.",
        ),
    ] = False
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_JOBS_MAX,
            help="With --all: number of scenarios that run at a time. (default: four per processor. If --prepared "
            "or --recovered names an absolute path, scenarios run one after another, because they would all use that "
            "path)",
        ),
    ] = None
    patience: Annotated[
        str, typer.Option(metavar="SPAN", help="Maximum real time for the handler to react to each change.")
    ] = "5s"
    prepared: Annotated[
        str, typer.Option(metavar="SHELL", help="Command that succeeds only while the VM is prepared.")
    ] = ""
    recovered: Annotated[
        str,
        typer.Option(
            metavar="SHELL",
            help="Command that succeeds only if the VM is back at work. It runs when no event affects the VM.",
        ),
    ] = ""
    reboot: Annotated[bool, typer.Option("--reboot", help="Kill and restart the handler when its VM reboots.")] = False
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report as JUnit XML.")] = None
    shows_output: Annotated[
        bool, typer.Option("--show-output", help="Show the end of the handler's output, even if the handler passed.")
    ] = False
    shared_network: Annotated[
        bool,
        typer.Option(
            "--shared-network", help="Use this machine's network; the handler must then use $FOREWARN_ENDPOINT."
        ),
    ] = False
    parameters: SetOption = None
