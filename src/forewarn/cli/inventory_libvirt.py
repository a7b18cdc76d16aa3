"""`forewarn inventory from-libvirt`: an inventory file of what a libvirt runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.command import command, server_extra
from forewarn.cli.output import Output
from forewarn.errors import ConfigError

__all__ = ["add_from_libvirt"]


def add_from_libvirt(noun: typer.Typer) -> None:
    """Add the command `inventory from-libvirt`."""

    @command(
        noun,
        "from-libvirt",
        "forewarn inventory from-libvirt qemu:///system",
        "forewarn inventory from-libvirt qemu+ssh://root@host-1/system --host host-1 --out inventory.yaml",
    )
    def from_libvirt(
        uri: Annotated[str, typer.Argument(metavar="URI", help="libvirt's, for example qemu:///system.")],
        output: Output,
        host: Annotated[
            str, typer.Option("--host", metavar="NAME", help="What the host is called. (default: its own name)")
        ] = "",
        out: Annotated[
            Path | None, typer.Option("--out", metavar="FILE", help="Write it there. (default: standard output)")
        ] = None,
    ) -> None:
        """Print the VMs of a libvirt as an inventory file.

        Scope, fault and update domain and addresses are taken from an element in the metadata of each domain, where
        there is one: see docs/how-to/actuators.md.
        """
        with server_extra():
            from forewarn.actuators.libvirt_inventory import read_inventory
            from forewarn.cli.inventory import without_defaults
            from forewarn.wire.inventory import show_inventory
        declared = show_inventory(read_inventory(uri, host)).model_dump(mode="json")
        if out is None and output.show(declared):
            return
        import yaml

        text: str = yaml.safe_dump(without_defaults(declared), sort_keys=False, allow_unicode=True, width=120)
        if out is None:
            sys.stdout.write(text)
            return
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            msg = f"cannot write {out}: {error.strerror}"
            raise ConfigError(msg) from error
        if not output.show(declared):
            count = len(declared["vms"])
            words = f"{count} VM{'' if count == 1 else 's'} of {declared['hosts'][0]['name']}"
            output.notice(f"{words} written to {out}")
