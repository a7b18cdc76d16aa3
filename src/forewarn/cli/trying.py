"""`forewarn try`: run a handler against a scenario, and say what it did."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.command import command, server_extra
from forewarn.cli.names import scenario_names
from forewarn.cli.output import Column, Output
from forewarn.cli.scenario import ExpectationFailed, teller, waiter
from forewarn.cli.times import as_span_s

if TYPE_CHECKING:
    from forewarn.testing.trial import Report

__all__ = ["add_try"]


def add_try(app: typer.Typer) -> None:
    """Add the command `try`."""

    @command(
        app,
        "try",
        "forewarn try -- ./my-handler.sh",
        "forewarn try --scenario spot-eviction --junit report.xml -- python3 handler.py",
        "forewarn try --prepared 'test -e /run/drained' --recovered 'test ! -e /run/drained' -- ./my-handler.sh",
        panel="Test",
    )
    def try_it(
        handler: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The handler, with its arguments.")],
        output: Output,
        which: Annotated[
            str,
            typer.Option(
                "--scenario", metavar="NAME_OR_FILE", help="What happens to its VM.", autocompletion=scenario_names
            ),
        ] = "live-migration",
        patience: Annotated[
            str, typer.Option(metavar="SPAN", help="How long it may take to react to each change, by real time.")
        ] = "5s",
        prepared: Annotated[
            str, typer.Option(metavar="SHELL", help="Succeeds while the VM is prepared, and fails otherwise.")
        ] = "",
        recovered: Annotated[
            str,
            typer.Option(
                metavar="SHELL", help="Succeeds once the VM is as before; asked when no event hits it any more."
            ),
        ] = "",
        reboot: Annotated[
            bool, typer.Option("--reboot", help="A reboot of its VM kills the handler, and starts it again.")
        ] = False,
        junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML there.")] = None,
        shared_network: Annotated[
            bool,
            typer.Option(
                "--shared-network", help="Leave it this machine's network; it has to ask at $FOREWARN_ENDPOINT then."
            ),
        ] = False,
    ) -> None:
        """Run a handler while a scenario happens to its VM, and report what it did, when, and what was wrong.

        It finds the endpoint at 169.254.169.254 port 80, in a network of its own, where that can be made; else at
        the address that the variable FOREWARN_ENDPOINT holds. Time is virtual: it goes on once the handler has reacted.
        """
        with server_extra():
            from forewarn.testing.loading import load_scenario
            from forewarn.testing.trial import try_handler

        scenario = load_scenario(which)
        report = asyncio.run(
            try_handler(
                scenario,
                handler,
                patience_s=as_span_s(patience, "--patience") or 0.0,
                prepared=prepared,
                recovered=recovered,
                reboots=reboot,
                is_alone=not shared_network,
                on_step=teller(output),
                on_wait=waiter(output, len(scenario.steps)),
            )
        )
        if junit is not None:
            junit.write_bytes(report.as_junit())
        if not output.show(report.as_json()):
            _print(output, report)
        if not report.has_passed:
            wrong = [finding.text for finding in report.findings if finding.is_wrong]
            wrong += [f"step {outcome.number}: {outcome.fault}" for outcome in report.outcomes if outcome.fault]
            msg = f"the handler did not pass {report.scenario}: {wrong[0]}"
            raise ExpectationFailed(msg)


def _print(output: Output, report: Report) -> None:
    output.line()
    look = "never" if report.first_look_s is None else f"{report.first_look_s:.1f} s after its start"
    pause = "" if report.interval_s is None else f", every {report.interval_s:.1f} s"
    output.fields(
        [
            ("network", "its own, endpoint at 169.254.169.254" if report.is_alone else "this machine's"),
            ("first asked", look),
            ("requests", f"{report.requests}{pause}"),
            *(("approved", f"{event_id} after {after_s:.1f} s") for event_id, after_s in report.approvals),
        ]
    )
    output.table(
        [Column("finding"), Column("times"), Column("what", is_whole=False)],
        [("wrong" if f.is_wrong else "note", f.count, f.text) for f in report.findings],
        empty="nothing to complain of",
    )
    if not report.has_passed and report.output:
        output.heading("what it printed last")
        for line in report.output.splitlines()[-20:]:
            output.line(f"  {line}")
