"""`forewarn try`: run a handler against one scenario or all of them, and report its behaviour."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn.cli.command import command, require_extra
from forewarn.cli.output import Column, Output
from forewarn.cli.scenario import ExpectationFailed, make_step_printer, make_wait_printer, parse_parameters
from forewarn.cli.times import as_span_s
from forewarn.cli.try_options import TryOptions
from forewarn.errors import InvalidRequest

if TYPE_CHECKING:
    from forewarn.testing.scenario.scenario_loader import Scenario
    from forewarn.testing.trial.report import TrialReport

__all__ = ["app"]

# A handler mostly sleeps between its requests, so a processor has time for several.
_JOBS_PER_CPU = 4
_OUTPUT_LINES = 20
# An absolute path in a shell command, also after an equals sign or inside quotes; files below /dev are no state.
_ABSOLUTE = re.compile(r"(?:^|[\s='\"])(/(?!dev/)[^\s'\";|&)]+)")


app = typer.Typer()


@command(
    app,
    "try",
    "forewarn try -- ./my-handler.sh",
    "forewarn try --all --prepared 'test -e drained' --junit report.xml -- python3 handler.py",
    "forewarn try --scenario spot-eviction --recovered 'test ! -e drained' -- ./my-handler.sh",
    panel="Test",
)
def try_it(
    handler: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Command that starts the handler.")],
    output: Output,
    wanted: TryOptions,
) -> None:
    """Run a handler in a scenario, and report each action of the handler with its time, and the handler's mistakes.

    The handler runs in a separate network, in which the endpoint is at 169.254.169.254 port 80. If that network
    cannot be created, the handler must use the URL in the variable FOREWARN_ENDPOINT. Time is virtual: it advances
    only after the handler has reacted. With --all, each scenario has its own empty folder. The handler runs in this
    folder, and so do the commands of --prepared and --recovered. Arguments that name existing files become absolute
    paths, so 'python3 handler.py' still works.
    """
    how = {
        "patience_s": as_span_s(wanted.patience, "--patience") or 0.0,
        "prepared": wanted.prepared,
        "recovered": wanted.recovered,
        "reboots": wanted.reboot,
        "is_alone": not wanted.shared_network,
    }
    if wanted.jobs is not None and not wanted.is_all:
        raise InvalidRequest("--jobs requires --all")
    if wanted.parameters and wanted.is_all:
        raise InvalidRequest("--set cannot be combined with --all: name one scenario with --scenario")
    with require_extra("testing"):
        from forewarn.testing.scenario.scenario_loader import load_scenario
        from forewarn.testing.trial.report import encode_junit

    reports = (
        _try_all(output, handler, wanted.jobs or _choose_jobs(output, wanted.prepared, wanted.recovered), how)
        if wanted.is_all
        else [_try_one(output, load_scenario(wanted.which, parse_parameters(wanted.parameters)), handler, how)]
    )
    # Written before anything is printed: CI needs the report even if the reader of the output has gone.
    if wanted.junit is not None:
        wanted.junit.write_bytes(encode_junit(reports))
    _print_reports(output, reports, is_all=wanted.is_all, shows_output=wanted.shows_output)
    failed = [report for report in reports if not report.has_passed]
    if wanted.is_all and failed:
        names = ", ".join(report.scenario for report in failed)
        raise ExpectationFailed(f"the handler failed {len(failed)} of {len(reports)} scenarios: {names}")
    if failed:
        raise ExpectationFailed(f"the handler failed {failed[0].scenario}: {failed[0].faults[0]}")


def _try_one(output: Output, scenario: Scenario, handler: list[str], options: dict[str, Any]) -> TrialReport:
    from forewarn.testing.trial.trial import try_handler

    on_wait = make_wait_printer(output, len(scenario.steps))
    return asyncio.run(try_handler(scenario, handler, on_step=make_step_printer(output), on_wait=on_wait, **options))


def _try_all(output: Output, handler: list[str], jobs: int, options: dict[str, Any]) -> list[TrialReport]:
    with require_extra("testing"):
        from forewarn.testing.scenario.scenario_loader import load_scenario, shipped_scenarios
        from forewarn.testing.trial.trial import try_all_scenarios

    scenarios = [scenario for scenario in map(load_scenario, shipped_scenarios()) if scenario.only != "play"]
    return asyncio.run(
        try_all_scenarios(
            scenarios, handler, jobs=jobs, on_report=_make_progress_printer(output, len(scenarios)), **options
        )
    )


def _make_progress_printer(output: Output, count: int) -> Callable[[TrialReport], None]:
    """Return a callback that shows on a terminal how many scenarios are done."""
    done: list[str] = []

    def count_one(report: TrialReport) -> None:
        done.append(report.scenario)
        word = "passed" if report.has_passed else "failed"
        output.show_progress(f"{len(done)} of {count} scenarios: {report.scenario} {word}")

    output.show_progress(f"0 of {count} scenarios")
    return count_one


def _choose_jobs(output: Output, prepared: str, recovered: str) -> int:
    """Return the number of scenarios to try at a time, if the user gives none."""
    shared = _ABSOLUTE.search(f"{prepared} {recovered}")
    if shared is None:
        return _JOBS_PER_CPU * (os.cpu_count() or 1)
    output.print_notice(
        f"running one scenario at a time, because all would share {shared[1]}: use a relative path, since each "
        "scenario has a separate folder, or pass --jobs"
    )
    return 1


def _print_reports(output: Output, reports: list[TrialReport], *, is_all: bool, shows_output: bool) -> None:
    if is_all:
        content: Any = {"passed": all(r.has_passed for r in reports), "scenarios": [r.as_json() for r in reports]}
        if output.print_if_json(content):
            return
        output.show_progress()
        output.print_table(
            reports,
            [
                Column("scenario"),
                Column("result", lambda report: "passed" if report.has_passed else "failed"),
                Column("time", lambda report: f"{report.took_s:.1f} s"),
                Column("mistake", lambda report: report.faults[0] if report.faults else "", is_whole=False),
            ],
        )
    elif output.print_if_json(reports[0].as_json()):
        return
    for report in reports:
        if not is_all:
            _print_summary(output, report)
        if is_all and not report.has_passed:
            output.print_heading(report.scenario)
            output.print_lines(f"  {line}" for line in report.faults)
        if report.output and (shows_output or not report.has_passed):
            output.print_heading(f"last output in {report.scenario}")
            output.print_lines(f"  {line}" for line in report.output.splitlines()[-_OUTPUT_LINES:])


def _print_summary(output: Output, report: TrialReport) -> None:
    output.print_line()
    first_request = "never" if report.first_request_s is None else f"{report.first_request_s:.1f} s after its start"
    pause = "" if report.interval_s is None else f", every {report.interval_s:.1f} s"
    reboots = [("rebooted", f"{report.reboots} times")] if report.reboots else []
    output.print_fields(
        [
            ("network", "its own, endpoint at 169.254.169.254" if report.has_own_network else "this machine's"),
            ("first request", first_request),
            ("requests", f"{report.requests}{pause}"),
            *reboots,
            *(("approved", f"{event_id} after {after_s:.1f} s") for event_id, after_s in report.approvals),
        ]
    )
    output.print_table(
        report.findings,
        [
            Column("finding", lambda finding: "wrong" if finding.is_failure else "note"),
            Column("times", "count"),
            Column("detail", "text", is_whole=False),
        ],
        empty="no findings",
    )
