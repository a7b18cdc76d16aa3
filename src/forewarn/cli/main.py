"""`forewarn`: the commands put together, and how errors come out.

Exit status: 0 done, 1 failed, 2 usage, 3 cannot reach the service, 130 Ctrl-C. Errors are one line on stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from forewarn.cli.command import BROKEN_PIPE
from forewarn.cli.output import plain
from forewarn.cli.serve import add_serve
from forewarn.errors import ForewarnError, ServerUnreachable

__all__ = ["app", "error_line", "main", "run"]

_FAILED, _UNREACHABLE, _INTERRUPTED = 1, 3, 130

app = typer.Typer(
    name="forewarn",
    help="Tell virtual machines about maintenance before it happens, collect their approvals, and only then do it.",
    epilog="Begin with:\n\n  $ forewarn serve\n\nand in a second terminal:\n\n  $ forewarn vm list",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_serve(app)


@app.callback()
def _options() -> None:
    """Options before the command: none."""


def main() -> None:
    """Run the command line of this process, and exit."""
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        status = status or BROKEN_PIPE
    if status == BROKEN_PIPE:
        # What is still buffered has nowhere to go; the interpreter must not complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and hand back its exit status."""
    try:
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
        line = error_line(error)
        if line:
            sys.stderr.write(f"forewarn: {line}\n")
        return _status(error)


def error_line(error: Exception) -> str:
    """What went wrong, in one line without control characters."""
    if isinstance(error, ForewarnError):
        text = error.message
    elif isinstance(error, typer.TyperException):
        text = error.format_message()
        context: Any = getattr(error, "ctx", None)
        if text and context is not None:
            text = f"{text.rstrip('.')} (see '{context.command_path} --help')"
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = str(error)
    return plain(" ".join(text.split()))


def _status(error: Exception) -> int:
    if isinstance(error, ServerUnreachable):
        return _UNREACHABLE
    return error.exit_code if isinstance(error, typer.TyperException) else _FAILED
