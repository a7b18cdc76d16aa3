"""`forewarn endpoint`: the metadata endpoint on a hypervisor; runs until a signal."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.command import command, server_extra

__all__ = ["add_endpoint"]

_LINK = "Control plane"
_WAYS = "Who asks"


class Way(StrEnum):
    """Method of identifying VMs."""

    ADDRESS = "address"
    INTERFACE = "interface"
    SOCKET = "socket"


def add_endpoint(app: typer.Typer) -> None:
    """Add the command `endpoint`."""

    @command(
        app,
        "endpoint",
        "forewarn endpoint --host host-1 --control-url https://control.example:8170 --token-file host-1.token",
        "forewarn endpoint --host host-2 --control-url http://10.0.0.1:8170 --control-url http://10.0.0.2:8170 "
        "--token-file host-2.token --metadata-listen 169.254.169.254:80 --state-file /var/lib/forewarn/endpoint.json",
        panel="Run",
    )
    def endpoint(  # one parameter for each flag
        host: Annotated[
            str, typer.Option(metavar="NAME", envvar="FOREWARN_HOST", help="This host, as the inventory calls it.")
        ],
        token_file: Annotated[
            Path,
            typer.Option(
                metavar="FILE",
                envvar="FOREWARN_HOST_TOKEN_FILE",
                help="Its token: 'forewarn host create-token NAME'.",
                rich_help_panel=_LINK,
            ),
        ],
        control_url: Annotated[
            list[str],
            typer.Option(
                metavar="URL",
                envvar="FOREWARN_CONTROL_URLS",
                help="A replica of the control plane; repeatable.",
                rich_help_panel=_LINK,
            ),
        ],
        ca_file: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Who signs their certificates, PEM.", rich_help_panel=_LINK),
        ] = None,
        metadata_listen: Annotated[
            list[str] | None,
            typer.Option(metavar="ADDRESS:PORT", help="For VMs; repeatable. (default: 169.254.169.254:80)"),
        ] = None,
        metadata_host_name: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME",
                help="Name by which VMs call the endpoint, beside addresses and localhost; repeatable.",
            ),
        ] = None,
        identify: Annotated[
            list[Way] | None,
            typer.Option(
                metavar="address|interface|socket",
                help="How VMs are told apart. (default: address)",
                rich_help_panel=_WAYS,
            ),
        ] = None,
        interfaces: Annotated[
            str, typer.Option(metavar="PATTERN", help="A VM's interface, such as 'tap-{vm}'.", rich_help_panel=_WAYS)
        ] = "",
        interface_file: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE", help="Which interface is whose: 'interfaces: {vnet0: web-0}'.", rich_help_panel=_WAYS
            ),
        ] = None,
        interface_macs: Annotated[
            bool,
            typer.Option(
                "--interface-macs",
                help="An interface is that VM's whose MAC it has, but for 'fe:'.",
                rich_help_panel=_WAYS,
            ),
        ] = False,
        socket_folder: Annotated[
            Path | None,
            typer.Option(metavar="FOLDER", help="Where each VM has its Unix socket, NAME.sock.", rich_help_panel=_WAYS),
        ] = None,
        socket_group: Annotated[
            str, typer.Option(metavar="GROUP", help="Who else may connect to these.", rich_help_panel=_WAYS)
        ] = "",
        answer_dhcp: Annotated[
            bool,
            typer.Option(
                "--answer-dhcp",
                help="Tell guests that ask by DHCP where the endpoint is; with interfaces.",
                rich_help_panel=_WAYS,
            ),
        ] = False,
        listen: Annotated[
            str, typer.Option(metavar="ADDRESS:PORT", help="For /healthz, /readyz and /metrics; empty for none.")
        ] = "127.0.0.1:8171",
        state_file: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="What is known is kept there, and served while no replica answers."),
        ] = None,
    ) -> None:
        """Serve events to the VMs on this host, using state from the control plane, also while that is unreachable.

        Needs no database. Approvals are forwarded; the answer is 200 only once the control plane has stored them.
        """
        with server_extra():
            from forewarn.host.listeners import Way as KnownBy
            from forewarn.host.listeners import Ways
            from forewarn.host.running import run_endpoint

        run_endpoint(
            host=host,
            control_urls=[url for text in control_url for url in text.split(",")],
            token_file=token_file,
            ca_file=ca_file,
            ways=Ways(
                by=tuple(KnownBy(way.value) for way in identify or [Way.ADDRESS]),
                listen=tuple(metadata_listen or ["169.254.169.254:80"]),
                pattern=interfaces,
                file=interface_file,
                by_mac=interface_macs,
                folder=socket_folder,
                group=socket_group,
            ),
            answers_dhcp=answer_dhcp,
            listen=listen,
            state_file=state_file,
            host_names=metadata_host_name or (),
        )
