"""`forewarn dashboard`: open the dashboard in a browser, logged in."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from forewarn.cli.command import command
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import Output

__all__ = ["app"]


app = typer.Typer()


@command(app, "dashboard", "forewarn dashboard", "forewarn dashboard --open", panel="Operate")
def dashboard(
    connection: ControlConnection,
    output: Output,
    is_to_open: Annotated[bool, typer.Option("--open", help="Also open the link in this machine's browser.")] = False,
) -> None:
    """Print a login link for the dashboard. The link is valid for one minute, and works only once."""
    # Not retried: each try would create another valid link.
    link = connection.send_change("POST", "/v1/login-links", None, is_repeatable=False)
    if not output.print_if_json(link):
        output.print_line(link["url"])
        output.print_notice("the link is valid for one minute, and works only once")
    if is_to_open and not webbrowser.open(link["url"]):
        output.print_notice("cannot open a browser: open the link manually")
