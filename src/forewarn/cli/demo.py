"""`forewarn demo`."""

from __future__ import annotations

import typer

from forewarn.cli.command import command, require_extra

__all__ = ["app"]

app = typer.Typer()


@command(app, "demo", "forewarn demo", panel="Run")
def demo() -> None:
    """Demonstrate an announced migration and a host failure, in under 30 s."""
    with require_extra("server"):
        from forewarn.demo import run_demo
    raise typer.Exit(run_demo())
