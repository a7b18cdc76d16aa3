"""`forewarn inventory`: declare hosts, scopes and VMs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn.cli.command import command, group
from forewarn.cli.connection import Connection
from forewarn.cli.inventory_libvirt import add_follow_libvirt, add_from_libvirt
from forewarn.cli.output import Output
from forewarn.core.policy import ALL_APPROVERS
from forewarn.errors import ConfigError

__all__ = ["add_inventory", "without_defaults"]

_NOTHING: tuple[object, ...] = (None, "", [], {})


def add_inventory(app: typer.Typer) -> None:
    """Add the commands of `inventory`."""
    noun = group(app, "inventory", "Declare hosts, scopes and VMs.", "Declare")
    add_from_libvirt(noun)
    add_follow_libvirt(noun)

    @command(
        noun, "apply", "forewarn inventory apply inventory.yaml", "generate-inventory | forewarn inventory apply -"
    )
    def apply(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON; - for standard input.")],
        connection: Connection,
        output: Output,
    ) -> None:
        """Make the declared state exactly this file.

        What is no longer in the file is removed. Either all of it is applied or nothing.
        """
        change = connection.change("PUT", "/v1/inventory", _read(file))
        if not output.show(change):
            counts = [f"{change[what]} {what}" for what in ("added", "changed", "removed", "unchanged")]
            output.line(f"inventory applied: {', '.join(counts)}")

    @command(noun, "show", "forewarn inventory show", "forewarn inventory show > inventory.yaml")
    def show(connection: Connection, output: Output) -> None:
        """Print what is declared, in the form of the file."""
        declared = connection.get("/v1/inventory")
        if not output.show(declared):
            import yaml

            text: str = yaml.safe_dump(without_defaults(declared), sort_keys=False, allow_unicode=True, width=120)
            sys.stdout.write(text)


def without_defaults(value: Any) -> Any:  # noqa: ANN401 - JSON
    """The same inventory, without the members of hosts, scopes and VMs that say nothing."""
    return {
        noun: [{name: _said(name, member) for name, member in item.items() if member not in _NOTHING} for item in items]
        for noun, items in value.items()
    }


def _said(name: str, member: Any) -> Any:  # noqa: ANN401 - JSON
    """A policy without what it does not say; anything else as it is."""
    if name != "policy":
        return member
    is_default = {"approve_user_operations": False, "approvers": list(ALL_APPROVERS)}
    return {key: value for key, value in member.items() if value not in _NOTHING and value != is_default.get(key)}


def _read(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        msg = f"cannot read the inventory {file}: {error.strerror}"
        raise ConfigError(msg) from error
