"""`forewarn try`: run a handler against one scenario or all of them, and report its behaviour."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn.cli.command import command, testing_extra
from forewarn.cli.names import scenario_names
from forewarn.cli.output import Column, Output
from forewarn.cli.scenario import ExpectationFailed, SetOption, parse_parameters, teller, waiter
from forewarn.cli.times import as_span_s
from forewarn.errors import InvalidRequest

if TYPE_CHECKING:
    from forewarn.testing.loading import Scenario
    from forewarn.testing.report import Report

__all__ = ["add_try"]

_JOBS_PER_CPU = 4
_JOBS_MAX = 64
_OUTPUT_LINES = 20
_ABSOLUTE = re.compile(r"(?:^|[\s='\"])(/(?!dev/)[^\s'\";|&)]+)")


def add_try(app: typer.Typer) -> None:
    """Add the command `try`."""

    @command(
        app,
        "try",
        "forewarn try -- ./my-handler.sh",
        "forewarn try --all --prepared 'test -e drained' --junit report.xml -- python3 handler.py",
        "forewarn try --scenario spot-eviction --recovered 'test ! -e drained' -- ./my-handler.sh",
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
        is_all: Annotated[
            bool,
            typer.Option("--all", help="Every scenario that handlers can be tried with, several at a time."),
        ] = False,
        jobs: Annotated[
            int | None,
            typer.Option(
                min=1,
                max=_JOBS_MAX,
                help="With --all: how many scenarios at a time. Without it, four for each processor; "
                "one, if --prepared or --recovered names an absolute path, since all scenarios would share that file.",
            ),
        ] = None,
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
        shows_output: Annotated[
            bool, typer.Option("--show-output", help="Show what the handler printed last, also where it passed.")
        ] = False,
        shared_network: Annotated[
            bool,
            typer.Option(
                "--shared-network", help="Leave it this machine's network; it has to ask at $FOREWARN_ENDPOINT then."
            ),
        ] = False,
        parameters: SetOption = None,
    ) -> None:
        """Run a handler while a scenario happens to its VM, and report its actions, their times, and its faults.

        The handler finds the endpoint at 169.254.169.254 port 80, in a separate network, if that can be created;
        otherwise at the address in the variable FOREWARN_ENDPOINT. Time is virtual: it advances once the handler has
        reacted. With --all, each scenario has its own empty folder, in which the handler and the commands run.
        """
        how = {
            "patience_s": as_span_s(patience, "--patience") or 0.0,
            "prepared": prepared,
            "recovered": recovered,
            "reboots": reboot,
            "is_alone": not shared_network,
        }
        if jobs is not None and not is_all:
            msg = "--jobs is for --all: one scenario is tried once"
            raise InvalidRequest(msg)
        if parameters and is_all:
            msg = "--set is for one scenario: name it with --scenario"
            raise InvalidRequest(msg)
        with testing_extra():
            from forewarn.testing.loading import load_scenario
            from forewarn.testing.report import encode_junit

        reports = (
            _try_all(output, handler, jobs or _jobs_for(output, prepared, recovered), how)
            if is_all
            else [_try_one(output, load_scenario(which, parse_parameters(parameters)), handler, how)]
        )
        if junit is not None:
            junit.write_bytes(encode_junit(reports))
        _show(output, reports, is_all=is_all, shows_output=shows_output)
        failed = [report for report in reports if not report.has_passed]
        if is_all and failed:
            names = ", ".join(report.scenario for report in failed)
            msg = f"the handler did not pass {len(failed)} of {len(reports)} scenarios: {names}"
            raise ExpectationFailed(msg)
        if failed:
            msg = f"the handler did not pass {failed[0].scenario}: {failed[0].faults[0]}"
            raise ExpectationFailed(msg)


def _try_one(output: Output, scenario: Scenario, handler: list[str], how: dict[str, Any]) -> Report:
    from forewarn.testing.trial import try_handler

    on_wait = waiter(output, len(scenario.steps))
    return asyncio.run(try_handler(scenario, handler, on_step=teller(output), on_wait=on_wait, **how))


def _try_all(output: Output, handler: list[str], jobs: int, how: dict[str, Any]) -> list[Report]:
    with testing_extra():
        from forewarn.testing.loading import load_scenario, shipped_scenarios
        from forewarn.testing.trial import try_all

    scenarios = [scenario for scenario in map(load_scenario, shipped_scenarios()) if scenario.only != "play"]
    return asyncio.run(try_all(scenarios, handler, jobs=jobs, on_report=_counter(output, len(scenarios)), **how))


def _counter(output: Output, count: int) -> Callable[[Report], None]:
    """Return a callback that shows on a terminal how many scenarios are done."""
    done: list[str] = []

    def count_one(report: Report) -> None:
        done.append(report.scenario)
        word = "passed" if report.has_passed else "failed"
        output.passing(f"{len(done)} of {count} scenarios: {report.scenario} {word}")

    output.passing(f"0 of {count} scenarios")
    return count_one


def _jobs_for(output: Output, prepared: str, recovered: str) -> int:
    """Return the number of scenarios to try at a time, if the user gives none."""
    shared = _ABSOLUTE.search(f"{prepared} {recovered}")
    if shared is None:
        return _JOBS_PER_CPU * (os.cpu_count() or 1)
    output.notice(
        f"one scenario at a time, because all would share {shared[1]}: use a relative path, since each scenario has a "
        "folder of its own, or pass --jobs"
    )
    return 1


def _show(output: Output, reports: list[Report], *, is_all: bool, shows_output: bool) -> None:
    if is_all:
        content: Any = {"passed": all(r.has_passed for r in reports), "scenarios": [r.as_json() for r in reports]}
        if output.show(content):
            return
        output.passing()
        output.table(
            [Column("scenario"), Column("result"), Column("took"), Column("what", is_whole=False)],
            [
                (
                    r.scenario,
                    "passed" if r.has_passed else "failed",
                    f"{r.took_s:.1f} s",
                    r.faults[0] if r.faults else "",
                )
                for r in reports
            ],
        )
    elif output.show(reports[0].as_json()):
        return
    for report in reports:
        if not is_all:
            _show_summary(output, report)
        if is_all and not report.has_passed:
            output.heading(report.scenario)
            for line in report.faults:
                output.line(f"  {line}")
        if report.output and (shows_output or not report.has_passed):
            output.heading(f"what it printed last in {report.scenario}")
            for line in report.output.splitlines()[-_OUTPUT_LINES:]:
                output.line(f"  {line}")


def _show_summary(output: Output, report: Report) -> None:
    output.line()
    look = "never" if report.first_look_s is None else f"{report.first_look_s:.1f} s after its start"
    pause = "" if report.interval_s is None else f", every {report.interval_s:.1f} s"
    reboots = [("rebooted", f"{report.reboots} times")] if report.reboots else []
    output.fields(
        [
            ("network", "its own, endpoint at 169.254.169.254" if report.is_alone else "this machine's"),
            ("first asked", look),
            ("requests", f"{report.requests}{pause}"),
            *reboots,
            *(("approved", f"{event_id} after {after_s:.1f} s") for event_id, after_s in report.approvals),
        ]
    )
    output.table(
        [Column("finding"), Column("times"), Column("what", is_whole=False)],
        [("wrong" if f.is_wrong else "note", f.count, f.text) for f in report.findings],
        empty="nothing to complain of",
    )
