"""Confirmation of irreversible commands: by a question on a terminal, by `--yes` elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from forewarn.cli.output import Output

__all__ = ["NotConfirmed", "Yes", "confirm"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class NotConfirmed(typer.TyperException):
    """A confirmation is needed, and there is no terminal to ask on."""

    exit_code = 2


def confirm(output: Output, describe: Callable[[], str | Sequence[str]], *, yes: bool) -> None:
    """Return only if the user confirms.

    Args:
        output: Output for the question.
        describe: Callback that describes the effect, in one line or several; called only if the user is asked.
        yes: True if confirmed on the command line.

    Raises:
        NotConfirmed: There is no terminal to ask on.
        Exit: The user declined; nothing is done.
    """
    if yes:
        return
    # The question goes to stderr, so stdout may be redirected.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotConfirmed("this cannot be undone, and there is no terminal to ask on: pass --yes to confirm")
    described = describe()
    for line in [described] if isinstance(described, str) else described:
        output.print_notice(line)
    if not typer.confirm("Continue?", err=True):
        output.print_notice("nothing was changed")
        raise typer.Exit(1)
