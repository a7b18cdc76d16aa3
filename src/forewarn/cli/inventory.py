"""`forewarn inventory`: declare hosts, scopes and VMs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn.cli.command import add_group, command
from forewarn.cli.connection import ControlConnection
from forewarn.cli.inventory_defaults import EMPTY_VALUES, drop_defaults
from forewarn.cli.inventory_libvirt import add_follow_libvirt, add_from_libvirt
from forewarn.cli.output import Output, as_yaml
from forewarn.errors import ConfigError, InvalidRequest

__all__ = ["DIFFERS", "add_inventory"]

DIFFERS = 4
"""Exit status of `inventory diff` if something would change."""

_File = Annotated[Path, typer.Argument(metavar="FILE", help="Inventory, YAML or JSON; - for standard input.")]
_NOUNS = {"hosts": "host", "scopes": "scope", "vms": "vm"}


def add_inventory(app: typer.Typer) -> None:
    """Add the commands of `inventory`."""
    noun = add_group(app, "inventory", "Declare hosts, scopes and VMs.", "Declare")
    add_from_libvirt(noun)
    add_follow_libvirt(noun)

    _add_apply(noun)
    _add_diff(noun)

    @command(noun, "show", "forewarn inventory show", "forewarn inventory show > inventory.yaml")
    def show(connection: ControlConnection, output: Output) -> None:
        """Print the declared inventory, in the format that 'forewarn inventory apply' reads."""
        declared = connection.get("/v1/inventory")
        if not output.print_if_json(declared):
            sys.stdout.write(as_yaml(drop_defaults(declared)))


def _add_apply(noun: typer.Typer) -> None:
    @command(
        noun,
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


def _add_diff(noun: typer.Typer) -> None:
    @command(
        noun,
        "diff",
        "forewarn inventory diff inventory.yaml",
        "generate-inventory | forewarn inventory diff - --json",
    )
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
        "none" if value in EMPTY_VALUES else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
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
