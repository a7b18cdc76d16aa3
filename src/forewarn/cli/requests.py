"""`forewarn requests`: requests of VMs to the metadata endpoint, with warnings about unsafe assumptions of clients."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from forewarn.cli.command import command
from forewarn.cli.completers import vm_names
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import Output, format_moment

__all__ = ["app"]

_POLL_S = 0.5
_PAGE = 1000
_METHOD_WIDTH = 4


app = typer.Typer()


@command(
    app,
    "requests",
    "forewarn requests",
    "forewarn requests --vm vm-1 --follow",
    "forewarn requests --warnings",
    panel="Test",
)
def requests(
    connection: ControlConnection,
    output: Output,
    vm: Annotated[
        str, typer.Option(metavar="NAME", help="Only requests of this VM. (default: all)", autocompletion=vm_names)
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new requests until Ctrl-C.")] = False,
    warnings: Annotated[bool, typer.Option("--warnings", help="Only requests with warnings.")] = False,
    bodies: Annotated[bool, typer.Option("--bodies", help="Also show headers and bodies.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=_PAGE, metavar="COUNT", help="Maximum number of requests.")] = 50,
) -> None:
    """Show the requests of VMs and the answers to them, with warnings about mistakes in the requests."""
    # One more than is shown, to know if there are more.
    newest = connection.get("/v1/requests", vm=vm, limit=min(limit + 1, _PAGE))["items"]
    found = _filter_exchanges(newest[-limit:], only_warned=warnings)
    if follow or not output.print_if_json(found):
        for exchange in found:
            _print_exchange(output, exchange, with_bodies=bodies)
        if not found and not follow:
            output.print_notice("no request has a warning" if warnings else "no requests yet")
    if len(newest) > limit and not follow:
        output.print_notice(f"there are earlier requests: use --limit {min(limit * 10, _PAGE)}")
    after = found[-1]["number"] if found else 0
    while follow:
        time.sleep(_POLL_S)
        new = connection.get("/v1/requests", vm=vm, after=after, limit=_PAGE)["items"]
        after = new[-1]["number"] if new else after
        for exchange in _filter_exchanges(new, only_warned=warnings):
            _print_exchange(output, exchange, with_bodies=bodies)


def _filter_exchanges(exchanges: list[dict[str, Any]], *, only_warned: bool) -> list[dict[str, Any]]:
    return [exchange for exchange in exchanges if exchange["warnings"] or not only_warned]


def _print_exchange(output: Output, exchange: dict[str, Any], *, with_bodies: bool) -> None:
    if output.is_json:
        output.print_json_line(exchange)
        return
    output.print_line(format_request(exchange))
    if with_bodies:
        for name, value in exchange["headers"]:
            output.print_line(f"         {name}: {value}")
        for word, body in (("sent", exchange["body"]), ("got", exchange["answer"])):
            if body:
                output.print_line(f"         {word}: {body}")
    for warning in exchange["warnings"]:
        word = "wrong" if warning["is_wrong"] else "unwise"
        output.print_line(f"         {word}: it {warning['text']} ({warning['spec']})")


def format_request(exchange: dict[str, Any]) -> str:
    """Format a request as one line: number, time, VM, status, target, and duration."""
    who = exchange["vm"] or exchange["source_address"]
    status = exchange["status"] or "no answer"
    fault = f"  fault {exchange['fault']}" if exchange["fault"] else ""
    took = f"  after {exchange['took_s']:.1f} s" if exchange["took_s"] >= 1 else ""
    gone = "  the client had closed the connection" if exchange["is_client_gone"] else ""
    what = f"{exchange['method']:<{_METHOD_WIDTH}} {exchange['target']}" if exchange["method"] else "(unreadable)"
    return f"{exchange['number']:>6}  {format_moment(exchange['at'])}  {who:<12}  {status}  {what}{took}{gone}{fault}"
