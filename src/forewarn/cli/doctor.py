"""`forewarn doctor`: checks of a set-up, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.command import command, require_extra
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import Column, Output
from forewarn.clock import RealClock

__all__ = ["app"]

_UNWELL = 1

app = typer.Typer()


@command(
    app,
    "doctor",
    "forewarn doctor --config /etc/forewarn/forewarn.toml",
    "forewarn doctor --remote --control-url https://control.example.com:8170 --token-file operator.token",
    "forewarn doctor --json",
    panel="Operate",
)
def doctor(
    connection: ControlConnection,
    output: Output,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="Check only the service, because this is not its machine.")
    ] = False,
) -> None:
    """Check the set-up of the service, and say what to do.

    Run it on the machine of the service, as the user of the service and with its configuration: it checks the machine
    as well as the control API. It changes nothing.

    Exit status: 0 if no check warns or fails, otherwise 1.
    """
    with require_extra("server"):
        from forewarn.doctor.checks import run_checks
        from forewarn.doctor.finding import CheckResult
        from forewarn.doctor.situation import Situation
    situation = Situation(now=RealClock().now(), fetch=connection.get, config=config)
    found = [
        {"name": check.name, "result": finding.result.value, "reason": finding.reason, "advice": finding.advice}
        for check, finding in run_checks(situation, is_remote=remote)
    ]
    output.print_list(
        found,
        [
            Column("check", "name"),
            Column("result"),
            Column("reason", is_whole=False),
            Column("what to do", "advice", is_whole=False),
        ],
    )
    if any(each["result"] in {CheckResult.WARN, CheckResult.FAIL} for each in found):
        raise typer.Exit(_UNWELL)
