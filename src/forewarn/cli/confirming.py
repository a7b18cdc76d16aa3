"""What cannot be taken back asks first: on a terminal by a question, elsewhere by `--yes`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from forewarn.cli.output import Output

__all__ = ["NotConfirmed", "Yes", "confirm"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


class NotConfirmed(typer.TyperException):
    """It needs a confirmation, and there is no terminal to ask on."""

    exit_code = 2


def confirm(output: Output, describe: Callable[[], str], *, yes: bool) -> None:
    """Go on only if the user confirms what will happen.

    Args:
        output: Where it is asked.
        describe: Says what will happen, and to whom; called only when it is asked.
        yes: It was confirmed on the command line.

    Raises:
        NotConfirmed: There is no terminal to ask on.
        Exit: The user said no; nothing is done.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        msg = "this cannot be taken back, and there is no terminal to ask on: pass --yes to confirm"
        raise NotConfirmed(msg)
    output.notice(describe())
    if not typer.confirm("Go on?", err=True):
        output.notice("nothing was done")
        raise typer.Exit(1)
