"""`forewarn inventory`: declare hosts, scopes and VMs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn.cli.command import command, make_group, require_extra
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.inventory_document import decode_pieces, format_json, format_yaml, parse_document
from forewarn.cli.output import Output, format_count
from forewarn.errors import ConfigError, ForewarnError, InvalidRequest

if TYPE_CHECKING:
    from forewarn.wire.inventory import HostDeclarationIn

__all__ = ["CUT", "DIFFERS", "app", "print_pieces"]

DIFFERS = 4
"""Exit status of `inventory diff` if something would change."""

_File = Annotated[Path, typer.Argument(metavar="FILE", help="Inventory, YAML or JSON; - for standard input.")]
_EMPTY_VALUES: tuple[object, ...] = (None, "", [], {})
"""Values that mean the same as an absent member."""
CUT = "] the inventory above is incomplete\n"
"""Last line of an incomplete inventory, which makes it invalid YAML."""

_Uri = Annotated[str, typer.Argument(metavar="URI", help="URI of libvirt, for example qemu:///system.")]
_NOUNS = {"hosts": "host", "scopes": "scope", "vms": "vm"}

app = make_group("inventory", "Declare hosts, scopes and VMs.", "Declare")


@command(
    app,
    "from-libvirt",
    "forewarn inventory from-libvirt qemu:///system",
    "forewarn inventory from-libvirt qemu+ssh://root@host-1/system --host host-1 --out inventory.yaml",
)
def from_libvirt(
    uri: _Uri,
    output: Output,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="NAME", help="Name of the host in the inventory. (default: the name in libvirt)"
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write. (default: standard output)")
    ] = None,
) -> None:
    """Print the VMs of a libvirt host as an inventory file.

    If a VM's metadata in libvirt contains an element of Forewarn, the VM's scope, fault domain, update domain and
    addresses are read from this element: see docs/how-to/actuators.md.
    """
    with require_extra("server"):
        from forewarn.actuators.libvirt_inventory import read_inventory
        from forewarn.wire.inventory import to_inventory_in
    declared = to_inventory_in(read_inventory(uri, host)).model_dump(mode="json")
    if out is None and output.print_if_json(declared):
        return
    text = "".join(format_yaml(declared.items()))
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from error
    if not output.print_if_json(declared):
        words = f"{format_count(len(declared['vms']), 'VM')} of {declared['hosts'][0]['name']}"
        output.print_notice(f"{words} written to {out}")


@command(
    app,
    "follow-libvirt",
    "forewarn inventory follow-libvirt qemu:///system",
    "forewarn inventory follow-libvirt qemu+ssh://root@host-1/system --host host-1",
)
def follow_libvirt(
    uri: _Uri,
    connection: ControlConnection,
    output: Output,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="NAME",
            envvar="FOREWARN_HOST",
            help="Name of the host in the inventory. (default: the name in libvirt)",
        ),
    ] = "",
    remove_missing: Annotated[
        bool,
        typer.Option("--remove-missing", help="In the first declaration, remove all VMs that libvirt no longer has."),
    ] = False,
) -> None:
    """Declare the VMs of one libvirt host in the inventory, and keep the inventory up to date until Ctrl-C.

    Run the command once for each host. If a VM moves, the command for its new host declares it. A VM that libvirt
    no longer has is removed from the inventory, but not while it has active maintenance. If libvirt has no
    value for a field of a VM, such as its scope, the field keeps the value that was declared for the VM before.

    If many VMs are missing at once, the service refuses the declaration, and the command tries again: most often
    these VMs have moved, and their new host declares them soon. If these VMs are gone for good, run the command
    once with --remove-missing.
    """
    with require_extra("server"):
        from forewarn.actuators.libvirt_events import keep_declared
        from forewarn.observability.logs import configure_logging
    import asyncio

    configure_logging()

    confirmed = [True] if remove_missing else []

    # Confirmed for the first declaration only: later ones follow unattended, and must not remove half a host.
    async def declare(name: str, declaration: HostDeclarationIn) -> None:
        # Members that libvirt does not know are absent rather than null, so the service keeps their declared
        # values.
        body = declaration.model_dump(mode="json", exclude_unset=True)
        flag = confirmed[0] if confirmed else None
        path = f"/v1/hosts/{quote_segment(name)}/vms"
        # In a thread, because the connection is synchronous and the loop has to keep libvirt's connection alive.
        change = await asyncio.to_thread(connection.send_change, "PUT", path, body, remove_missing=flag)
        confirmed.clear()
        counts = [f"{change[what]} {what}" for what in ("added", "changed", "removed") if change[what]]
        if output.is_json:
            output.print_json_line({"host": name, **change})
        elif counts:
            output.print_line(f"{name} has {format_count(len(declaration.vms), 'VM')}: {', '.join(counts)}")

    asyncio.run(keep_declared(uri, declare, host))


@command(
    app,
    "apply",
    "forewarn inventory apply inventory.yaml",
    "forewarn inventory apply inventory.yaml --remove-missing",
    "generate-inventory | forewarn inventory apply -",
)
def apply(
    file: _File,
    connection: ControlConnection,
    output: Output,
    remove_missing: Annotated[
        bool,
        typer.Option(
            "--remove-missing",
            help="Remove all objects missing from the file, even if they are a large part of the inventory.",
        ),
    ] = False,
) -> None:
    """Replace the declared inventory with this file.

    Objects missing from the file are removed. If these objects are a large part of the inventory, the service
    refuses the file, because the file may be truncated: check the changes with 'forewarn inventory diff', then pass
    --remove-missing. The service always refuses a file that leaves out a VM under maintenance. A refused file
    changes nothing.
    """
    flag = True if remove_missing else None
    with _add_file_to_errors(file):
        change = connection.send_change("PUT", "/v1/inventory", _read_file(file), remove_missing=flag)
    if not output.print_if_json(change):
        counts = [f"{change[what]} {what}" for what in ("added", "changed", "removed", "unchanged")]
        output.print_line(f"inventory applied: {', '.join(counts)}")


@command(app, "diff", "forewarn inventory diff inventory.yaml", "generate-inventory | forewarn inventory diff - --json")
def diff(file: _File, connection: ControlConnection, output: Output) -> None:
    """Show the changes that 'forewarn inventory apply' would make with this file, without making them.

    The exit status is 0 if nothing would change and 4 if something would.
    """
    with _add_file_to_errors(file):
        found = connection.send_change("POST", "/v1/inventory/diff", _read_file(file), is_repeatable=False)
    if not output.print_if_json(found):
        _print_difference(output, found)
    if any(found[noun][what] for noun in _NOUNS for what in ("added", "changed", "removed")):
        raise typer.Exit(DIFFERS)


@command(app, "show", "forewarn inventory show", "forewarn inventory show > inventory.yaml")
def show(connection: ControlConnection, output: Output) -> None:
    """Print the declared inventory, in the format that 'forewarn inventory apply' reads.

    The output begins at once, and shows the inventory as it was then. If it is cut off, the command fails, and the
    output ends with a line that 'forewarn inventory apply' refuses.
    """
    pieces = parse_document(connection.stream_pieces("/v1/inventory"))
    if output.is_json:
        print_pieces(format_json(pieces, is_indented=sys.stdout.isatty()))
    else:
        print_pieces(format_yaml(decode_pieces(pieces)), if_cut=CUT)


def print_pieces(texts: Iterable[str], *, if_cut: str = "") -> None:
    """Print texts as they come; after an error, print `if_cut` if anything was printed before."""
    has_begun = False
    try:
        for text in texts:
            sys.stdout.write(text)
            sys.stdout.flush()
            has_begun = True
    except (ForewarnError, KeyboardInterrupt):
        if has_begun:
            sys.stdout.write(if_cut)
        raise


def _print_difference(output: Output, found: dict[str, Any]) -> None:
    for noun, word in _NOUNS.items():
        kind = found[noun]
        for name in kind["added"]:
            output.print_line(f"+ {word} {name}")
        for change in kind["changed"]:
            fields = [
                f"{f['field']} {_format_value(f['before'])} -> {_format_value(f['after'])}" for f in change["fields"]
            ]
            output.print_line(f"~ {word} {change['name']}: {', '.join(fields)}")
        for name in kind["removed"]:
            output.print_line(f"- {word} {name}")
    counts = [
        f"{noun}: {', '.join(parts)}"
        for noun in _NOUNS
        if (parts := [f"{len(found[noun][w])} {w}" for w in ("added", "changed", "removed") if found[noun][w]])
    ]
    output.print_line("; ".join(counts) or "nothing would change")
    if found["refusal"] is not None:
        output.print_notice(f"the file would be refused: {found['refusal']}")


def _format_value(value: Any) -> str:  # noqa: ANN401 - JSON
    return (
        "none" if value in _EMPTY_VALUES else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )


@contextmanager
def _add_file_to_errors(file: Path) -> Iterator[None]:
    """Add the name of the file to errors about its contents."""
    try:
        yield
    except InvalidRequest as error:
        # Other errors are about the request rather than the contents, so the name of the file would mislead.
        if not error.message.startswith("inventory: "):
            raise
        from forewarn.wire.inventory import format_file_error

        name = "standard input" if str(file) == "-" else str(file)
        raise InvalidRequest(format_file_error(error, name), **error.details) from error


def _read_file(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the inventory {file}: {error.strerror}") from error
