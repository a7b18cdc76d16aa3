"""`forewarn inventory from-libvirt` and `follow-libvirt`: the VMs of a libvirt as a file, or kept up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.command import command, require_extra
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.inventory_defaults import drop_defaults
from forewarn.cli.output import Output, as_yaml
from forewarn.errors import ConfigError

if TYPE_CHECKING:
    from forewarn.wire.inventory import HostDeclarationIn

__all__ = ["add_follow_libvirt", "add_from_libvirt"]


def add_from_libvirt(noun: typer.Typer) -> None:
    """Add the command `inventory from-libvirt`."""

    @command(
        noun,
        "from-libvirt",
        "forewarn inventory from-libvirt qemu:///system",
        "forewarn inventory from-libvirt qemu+ssh://root@host-1/system --host host-1 --out inventory.yaml",
    )
    def from_libvirt(
        uri: Annotated[str, typer.Argument(metavar="URI", help="URI of libvirt, for example qemu:///system.")],
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
        text = as_yaml(drop_defaults(declared))
        if out is None:
            sys.stdout.write(text)
            return
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {out}: {error.strerror}") from error
        if not output.print_if_json(declared):
            count = len(declared["vms"])
            words = f"{count} VM{'' if count == 1 else 's'} of {declared['hosts'][0]['name']}"
            output.print_notice(f"{words} written to {out}")


def add_follow_libvirt(noun: typer.Typer) -> None:
    """Add the command `inventory follow-libvirt`."""

    @command(
        noun,
        "follow-libvirt",
        "forewarn inventory follow-libvirt qemu:///system",
        "forewarn inventory follow-libvirt qemu+ssh://root@host-1/system --host host-1",
    )
    def follow_libvirt(
        uri: Annotated[str, typer.Argument(metavar="URI", help="URI of libvirt, for example qemu:///system.")],
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
            typer.Option(
                "--remove-missing", help="In the first declaration, remove all VMs that libvirt no longer has."
            ),
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
                count = len(declaration.vms)
                output.print_line(f"{name} has {count} VM{'' if count == 1 else 's'}: {', '.join(counts)}")

        asyncio.run(keep_declared(uri, declare, host))
