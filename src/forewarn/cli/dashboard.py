"""`forewarn dashboard`: open the dashboard in a browser, logged in."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from forewarn.cli.command import command
from forewarn.cli.connection import Connection
from forewarn.cli.output import Output

__all__ = ["add_dashboard"]


def add_dashboard(app: typer.Typer) -> None:
    """Add the command `dashboard`."""

    @command(app, "dashboard", "forewarn dashboard", "forewarn dashboard --open", panel="Operate")
    def dashboard(
        connection: Connection,
        output: Output,
        is_to_open: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser, too.")] = False,
    ) -> None:
        """Print a link that logs a browser in to the dashboard, once and within a minute."""
        link = connection.change("POST", "/v1/login-links", None, is_repeatable=False)
        if not output.show(link):
            output.line(link["url"])
            output.notice("it holds for a minute, and logs in whoever opens it first")
        if is_to_open and not webbrowser.open(link["url"]):
            output.notice("there is no browser here: open the link yourself")
