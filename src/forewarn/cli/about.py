"""`forewarn version` and `forewarn demo`."""

from __future__ import annotations

import platform

import typer

from forewarn import __version__
from forewarn.cli.command import command, require_extra
from forewarn.cli.output import Output

__all__ = ["app"]

app = typer.Typer()


@command(app, "version", "forewarn version", panel="About")
def version(output: Output) -> None:
    """Show the version."""
    output.print_result({"version": __version__, "python": platform.python_version()}, f"forewarn {__version__}")


@command(app, "demo", "forewarn demo", panel="Run")
def demo() -> None:
    """Demonstrate an announced migration and a host failure, in under 30 s."""
    with require_extra("server"):
        from forewarn.demo import run_demo
    raise typer.Exit(run_demo())
