"""`forewarn conformance`: check an endpoint for conformance to the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.command import command, require_extra
from forewarn.cli.output import Column, Output
from forewarn.cli.times import as_span_s, split_names
from forewarn.errors import ConfigError, EndpointRefused, EndpointUnreachable, ServerUnreachable

if TYPE_CHECKING:
    from forewarn.testing.conformance import ConformanceCheck, ConformanceReport

__all__ = ["app"]

_BROKEN = 1
_TIMEOUT_S_MAX = 600.0


app = typer.Typer()


@command(
    app,
    "conformance",
    "forewarn conformance http://169.254.169.254",
    "forewarn conformance http://127.0.0.1:8169 --allow-approve",
    "forewarn conformance http://127.0.0.1:8169 --only R10,R15 --json",
    "forewarn conformance http://127.0.0.1:8169 --junit conformance.xml",
    panel="Test",
)
def conformance(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the metadata endpoint.")],
    output: Output,
    allow_approve: Annotated[
        bool,
        typer.Option(
            "--allow-approve",
            help="Also approve existing events. This lets their maintenance start, which can restart, move or "
            "delete a VM.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Check only these requirements or checks, comma-separated, for example R10,R15,etag."
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Time limit for each answer. The time limit for the first answer is never less than 130 s.",
        ),
    ] = "5s",
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a report as JUnit XML.")] = None,
    source_address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Local address to send requests from.")
    ] = None,
) -> None:
    """Check a Scheduled Events endpoint against the protocol, as a client sees it.

    By default, the command approves nothing: it sends GETs, and POSTs without approvals. The first GET
    enables scheduled events for the VM's scope, if no client has enabled them before.

    The exit status is 1 if a requirement is not met, 3 if the endpoint does not answer or refuses the source
    address.
    """
    with require_extra("testing"):
        from forewarn.testing.conformance import check_endpoint, select_checks
    timeout_s = as_span_s(timeout, "--timeout") or 0.0
    if not 0 < timeout_s <= _TIMEOUT_S_MAX:
        msg = f"{timeout!r} must be more than 0 s and at most {_TIMEOUT_S_MAX:.0f} s"
        raise typer.BadParameter(msg, param_hint="--timeout")
    try:
        checks = select_checks(split_names(only or []))
    except ConfigError as error:
        raise typer.BadParameter(error.message, param_hint="--only") from error
    try:
        report = check_endpoint(
            url,
            checks=checks,
            timeout_s=timeout_s,
            allow_approve=allow_approve,
            source_address=source_address,
            on_check=_make_progress_printer(output, len(checks)),
        )
    except EndpointRefused as error:
        raise ServerUnreachable(f"{error.message}; try another address with --source-address") from error
    except EndpointUnreachable as error:
        raise ServerUnreachable(error.message) from error
    finally:
        output.show_progress()
    # Written before anything is printed: CI needs the report even if the reader of the output has gone.
    if junit is not None:
        junit.write_bytes(report.as_junit())
    if not output.print_if_json(report.as_json()):
        _print_report(output, report)
    if not report.is_conformant:
        raise typer.Exit(_BROKEN)


def _make_progress_printer(output: Output, count: int) -> Callable[[ConformanceCheck], None]:
    """Return a callback that shows the current check on a terminal."""
    numbers = itertools.count(1)
    return lambda check: output.show_progress(f"{next(numbers)}/{count} {check.code}")


def _print_report(output: Output, report: ConformanceReport) -> None:
    from forewarn.testing.conformance import SUITE_VERSION

    output.print_line(f"Conformance suite {SUITE_VERSION}, {report.url}")
    output.print_line()
    output.print_table(
        report.findings,
        [
            Column("outcome", lambda finding: finding.outcome.verdict),
            Column("requirements", lambda finding: " ".join(finding.check.numbers)),
            Column("check", lambda finding: finding.check.code),
            Column("seen", lambda finding: finding.outcome.seen, is_whole=False),
        ],
    )
    if report.broken:
        output.print_heading("Deviations")
        for finding in report.broken:
            output.print_line(f"{', '.join(finding.check.numbers)}  {finding.check.title}")
            output.print_line(f"    {finding.outcome.seen}")
    output.print_line()
    requirements = report.judge_requirements()
    for verdict, count in sorted(report.count_verdicts().items()):
        names = ", ".join(number for number, found in requirements.items() if found is verdict)
        checks = "check" if count == 1 else "checks"
        output.print_line(f"{count} {checks} {_VERBS[verdict]}{': ' if names else ''}{names}")


_VERBS = {"holds": "held", "breaks": "broken", "note": "noted", "inconclusive": "inconclusive"}
"""Verb for a count of checks, by verdict."""
