"""`forewarn version`."""

from __future__ import annotations

import platform

import typer

from forewarn import __version__
from forewarn.cli.command import command
from forewarn.cli.output import Output

__all__ = ["app"]

app = typer.Typer()


@command(app, "version", "forewarn version", panel="About")
def version(output: Output) -> None:
    """Show the version."""
    output.print_result({"version": __version__, "python": platform.python_version()}, f"forewarn {__version__}")
