"""`forewarn conformance`: check an endpoint for conformance to the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.command import command, testing_extra
from forewarn.cli.output import Column, Output
from forewarn.cli.times import as_span_s, split_names
from forewarn.errors import ConfigError, EndpointRefused, EndpointUnreachable, ServerUnreachable

if TYPE_CHECKING:
    from forewarn.testing.conformance import Check, Report

__all__ = ["add_conformance"]

_BROKEN = 1
_TIMEOUT_S_MAX = 600.0


def add_conformance(app: typer.Typer) -> None:
    """Add the command `conformance`."""

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
        url: Annotated[str, typer.Argument(metavar="URL", help="The endpoint: ours, a VM's, an emulator's.")],
        output: Output,
        allow_approve: Annotated[
            bool,
            typer.Option(
                "--allow-approve",
                help="Approve events that are there, too. This lets their maintenance start: a VM may be restarted, "
                "moved or deleted.",
            ),
        ] = False,
        only: Annotated[
            list[str] | None,
            typer.Option(metavar="NAMES", help="Only these requirements or checks, with commas: R10,R15,etag."),
        ] = None,
        timeout: Annotated[
            str, typer.Option(metavar="SPAN", help="For each answer but the first, which may take 130 s.")
        ] = "5s",
        junit: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write a report in JUnit's XML as well.")
        ] = None,
        source_address: Annotated[
            str | None, typer.Option(metavar="ADDRESS", help="Ask from this local address.")
        ] = None,
    ) -> None:
        """Check an endpoint of Scheduled Events against the protocol, as a client sees it.

        Read-only by default: it sends GETs, and POSTs that approve nothing.

        Exit status 1 if a requirement is broken, 3 if no one answers or the endpoint refuses the source address.
        """
        with testing_extra():
            from forewarn.testing.conformance import check_endpoint, choose
        timeout_s = as_span_s(timeout, "--timeout") or 0.0
        if not 0 < timeout_s <= _TIMEOUT_S_MAX:
            msg = f"{timeout!r} is expected to be more than 0 s and at most {_TIMEOUT_S_MAX:.0f} s"
            raise typer.BadParameter(msg, param_hint="--timeout")
        try:
            checks = choose(split_names(only or []))
        except ConfigError as error:
            raise typer.BadParameter(error.message, param_hint="--only") from error
        try:
            report = check_endpoint(
                url,
                checks=checks,
                timeout_s=timeout_s,
                allow_approve=allow_approve,
                source_address=source_address,
                tell=_teller(output, len(checks)),
            )
        except EndpointRefused as error:
            msg = f"{error.message}; --source-address asks from another address"
            raise ServerUnreachable(msg) from error
        except EndpointUnreachable as error:
            raise ServerUnreachable(error.message) from error
        finally:
            output.passing()
        if junit is not None:
            junit.write_bytes(report.as_junit())
        if not output.show(report.as_json()):
            _print(output, report)
        if not report.is_conformant:
            raise typer.Exit(_BROKEN)


def _teller(output: Output, count: int) -> Callable[[Check], None]:
    """Return a callback that shows the current check on a terminal."""
    numbers = itertools.count(1)
    return lambda check: output.passing(f"{next(numbers)}/{count} {check.code}")


def _print(output: Output, report: Report) -> None:
    from forewarn.testing.conformance import SUITE_VERSION

    output.line(f"Conformance suite {SUITE_VERSION}, {report.url}")
    output.line()
    columns = [Column("outcome"), Column("requirements"), Column("check"), Column("seen", is_whole=False)]
    rows = [(f.outcome.verdict, " ".join(f.check.numbers), f.check.code, f.outcome.seen) for f in report.findings]
    output.table(columns, rows)
    if report.broken:
        output.heading("What differs")
        for finding in report.broken:
            output.line(f"{', '.join(finding.check.numbers)}  {finding.check.title}")
            output.line(f"    {finding.outcome.seen}")
    output.line()
    requirements = report.requirements()
    for verdict, count in sorted(report.count().items()):
        names = ", ".join(number for number, found in requirements.items() if found is verdict)
        checks = "check" if count == 1 else "checks"
        output.line(f"{count} {checks} {_VERBS[verdict]}{': ' if names else ''}{names}")


_VERBS = {"holds": "held", "breaks": "broken", "note": "noted", "inconclusive": "inconclusive"}
"""Verb for a count of checks, by verdict."""
