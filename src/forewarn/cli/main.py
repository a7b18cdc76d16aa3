"""`forewarn`: the command line as a whole, and its error output.

Exit status: 0 done, 1 failed, 2 usage, 3 cannot reach the service, 130 Ctrl-C. Errors are one line on stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forewarn import __version__
from forewarn.cli.command import BROKEN_PIPE
from forewarn.errors import ForewarnError, ServerUnreachable
from forewarn.util.escape import escape_controls
from forewarn.util.garbage import pause_collections

__all__ = ["NOUNS", "format_error", "main", "make_app", "run_command_line"]

_FAILED, _UNREACHABLE, _INTERRUPTED = 1, 3, 130

NOUNS = {
    "serve": "serve",
    "endpoint": "endpoint",
    "agent": "agent",
    "demo": "demo",
    "database": "database",
    "inventory": "inventory",
    "vm": "vm",
    "status": "status",
    "doctor": "doctor",
    "scope": "scope",
    "policy": "policy",
    "host": "host",
    "token": "token",
    "limit": "limit",
    "maintenance": "maintenance",
    "rollout": "rollout",
    "event": "event",
    "audit-log": "audit_log",
    "dashboard": "dashboard",
    "subscription": "subscription",
    "clock": "clock",
    "try": "try_command",
    "scenario": "scenario",
    "fault": "fault",
    "requests": "requests",
    "record": "record",
    "replay": "record",
    "conformance": "conformance",
    "config": "config",
    "openapi": "openapi",
    "completion": "completion",
    "version": "version",
}
"""Single commands and groups in the order of the help, each with its module in `forewarn.cli`."""

_ORDER = list(NOUNS)


class _OrderedGroup(TyperGroup):
    """Lists commands in the order of `NOUNS`."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - Typer's context
        """Return the names, in order."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)


def make_app(nouns: Iterable[str] = NOUNS) -> typer.Typer:
    """Return the command line with all of `NOUNS`, or only with those of some modules, which takes half the time.

    Args:
        nouns: Names from `NOUNS`; a module brings all of its commands.
    """
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
    app.callback()(_add_global_options)
    modules = dict.fromkeys(NOUNS[noun] for noun in nouns)
    parts: list[typer.Typer] = [import_module(f"forewarn.cli.{module}").app for module in modules]
    # Commands are added first, then groups: the order of docs/reference/commands.md. Without the argument, Typer would
    # ignore the panel of a group.
    for part in sorted(parts, key=_is_group):
        app.add_typer(part, rich_help_panel=part.rich_help_panel)
    return app


def _is_group(part: typer.Typer) -> bool:
    return isinstance(part.info.name, str)


def _print_version(is_wanted: bool) -> None:
    """Print the version and exit, before any command runs."""
    if is_wanted:
        sys.stdout.write(f"forewarn {__version__}\n")
        raise typer.Exit


def _add_global_options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line of this process, and exit."""
    # Importing httpx would also import its own command line, with rich and pygments, which takes twice as long.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type] # None: the import fails
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
        # Importing the modules of all commands takes longer than most commands do.
        with pause_collections():
            app = make_app(arguments[:1] if set(arguments[:1]) & NOUNS.keys() else NOUNS)
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
    return escape_controls(" ".join(text.split()))


def _find_exit_status(error: Exception) -> int:
    if isinstance(error, ServerUnreachable):
        return _UNREACHABLE
    return error.exit_code if isinstance(error, typer.TyperException) else _FAILED
