"""`forewarn`: the command line as a whole, and its error output.

Exit status: 0 done, 1 failed, 2 usage, 3 cannot reach the service, 130 Ctrl-C. Errors are one line on stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forewarn import __version__
from forewarn.cli.about import add_demo, add_version
from forewarn.cli.agent import add_agent
from forewarn.cli.audit_log import add_audit_log
from forewarn.cli.clock import add_clock
from forewarn.cli.command import BROKEN_PIPE
from forewarn.cli.completion import add_completion
from forewarn.cli.config import add_config
from forewarn.cli.conformance import add_conformance
from forewarn.cli.dashboard import add_dashboard
from forewarn.cli.database import add_database
from forewarn.cli.endpoint import add_endpoint
from forewarn.cli.event import add_event
from forewarn.cli.fault import add_fault
from forewarn.cli.host import add_host
from forewarn.cli.inventory import add_inventory
from forewarn.cli.limit import add_limit
from forewarn.cli.maintenance import add_maintenance
from forewarn.cli.openapi import add_openapi
from forewarn.cli.output import escape_text
from forewarn.cli.record import add_record, add_replay
from forewarn.cli.requests import add_requests
from forewarn.cli.rollout import add_rollout
from forewarn.cli.scenario import add_scenario
from forewarn.cli.serve import add_serve
from forewarn.cli.subscription import add_subscription
from forewarn.cli.token import add_token
from forewarn.cli.try_command import add_try
from forewarn.cli.vm import add_vm
from forewarn.errors import ForewarnError, ServerUnreachable

__all__ = ["app", "format_error", "main", "run_command_line"]

_FAILED, _UNREACHABLE, _INTERRUPTED = 1, 3, 130


class _OrderedGroup(TyperGroup):
    """Lists commands in the order of `_ADDERS`; Typer would put all groups behind all commands."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - Typer's context
        """Return the names, in order."""
        return sorted(super().list_commands(ctx), key=_NOUNS.index)


_ADDERS = (
    add_serve,
    add_endpoint,
    add_agent,
    add_demo,
    add_database,
    add_inventory,
    add_vm,
    add_host,
    add_token,
    add_limit,
    add_maintenance,
    add_rollout,
    add_event,
    add_audit_log,
    add_dashboard,
    add_subscription,
    add_clock,
    add_try,
    add_scenario,
    add_fault,
    add_requests,
    add_record,
    add_replay,
    add_conformance,
    add_config,
    add_openapi,
    add_completion,
    add_version,
)
_NOUNS = [add.__name__.removeprefix("add_").replace("_", "-") for add in _ADDERS]

app = typer.Typer(
    name="forewarn",
    cls=_OrderedGroup,
    help="Warn virtual machines of maintenance, collect their approvals, carry it out, and report its end.",
    epilog="Begin with:\n\n    $ forewarn serve\n\nand in a second terminal:\n\n    $ forewarn vm list",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    """Print the version and exit, before any command runs."""
    if is_wanted:
        sys.stdout.write(f"forewarn {__version__}\n")
        raise typer.Exit


@app.callback()
def _add_global_options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


for _add in _ADDERS:
    _add(app)


def main() -> None:
    """Run the command line of this process, and exit."""
    # Flushed below, inside the try: an error during the interpreter's own flush would print a trace.
    status = run_command_line(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        status = status or BROKEN_PIPE
    if status == BROKEN_PIPE:
        # Buffered output has nowhere to go; without this, the interpreter would complain about it on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(status)


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    try:
        # Without standalone mode, Typer returns the status of `typer.Exit` and leaves all other errors to this
        # function.
        return app(args=list(arguments), prog_name="forewarn", standalone_mode=False) or 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except typer.Abort:
        return _INTERRUPTED
    except (typer.TyperException, ForewarnError, OSError) as error:
        if "--debug" in arguments:
            traceback.print_exc()
        line = format_error(error)
        if line:
            sys.stderr.write(f"forewarn: {line}\n")
        return _find_exit_status(error)


def format_error(error: Exception) -> str:
    """Return the message of an error, in one line without control characters."""
    if isinstance(error, ForewarnError):
        text = error.message
    elif isinstance(error, typer.TyperException):
        # pydantic puts "Value error, " before the messages of our own validators.
        text = error.format_message().replace("Value error, ", "").rstrip(".")
        text = text[:1].lower() + text[1:]
        context: Any = getattr(error, "ctx", None)
        if text and context is not None and "see 'forewarn" not in text:
            text = f"{text} (see '{context.command_path} --help')"
    else:
        assert isinstance(error, OSError)  # noqa: S101 - `run_command_line` catches no other kind
        where = "cannot write the output" if error.filename is None else error.filename
        text = f"{where}: {error.strerror or error}"
    return escape_text(" ".join(text.split()))


def _find_exit_status(error: Exception) -> int:
    if isinstance(error, ServerUnreachable):
        return _UNREACHABLE
    return error.exit_code if isinstance(error, typer.TyperException) else _FAILED
