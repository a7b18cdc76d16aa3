"""`forewarn endpoint`: the metadata endpoint on a hypervisor; runs until a signal."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.command import command, require_extra
from forewarn.host.listener_settings import IdentificationMethod, ListenerSettings

__all__ = ["app"]

_control_option = partial(typer.Option, rich_help_panel="Control plane")
_identification_option = partial(typer.Option, rich_help_panel="Identification of VMs")


app = typer.Typer()


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
        str, typer.Option(metavar="NAME", envvar="FOREWARN_HOST", help="Name of this host in the inventory.")
    ],
    token_file: Annotated[
        Path,
        _control_option(
            metavar="FILE",
            envvar="FOREWARN_HOST_TOKEN_FILE",
            help="File with the host's token, from 'forewarn host create-token'.",
        ),
    ],
    control_url: Annotated[
        list[str],
        _control_option(
            metavar="URL",
            envvar="FOREWARN_CONTROL_URLS",
            help="URL of a replica of the control plane; repeatable or comma-separated.",
        ),
    ],
    ca_file: Annotated[
        Path | None, _control_option(metavar="FILE", help="CA of the replicas' certificates, PEM.")
    ] = None,
    metadata_listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS:PORT", help="Address to serve VMs on; repeatable. (default: 169.254.169.254:80)"),
    ] = None,
    metadata_host_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name by which VMs may call the endpoint; repeatable. Addresses and localhost always work.",
        ),
    ] = None,
    identify: Annotated[
        list[IdentificationMethod] | None,
        _identification_option(
            metavar="address|interface|socket", help="How to identify VMs; repeatable. (default: address)"
        ),
    ] = None,
    interfaces: Annotated[
        str,
        _identification_option(metavar="PATTERN", help="Pattern for the name of a VM's interface, such as 'tap-{vm}'."),
    ] = "",
    interface_file: Annotated[
        Path | None,
        _identification_option(metavar="FILE", help="File that maps interfaces to VMs: 'interfaces: {vnet0: web-0}'."),
    ] = None,
    interface_macs: Annotated[
        bool,
        _identification_option(
            "--interface-macs",
            help="Match interfaces to VMs by MAC address. The MAC address of an interface must be that of the VM "
            "with the first byte replaced by 'fe'; libvirt sets it so.",
        ),
    ] = False,
    socket_folder: Annotated[
        Path | None,
        _identification_option(metavar="FOLDER", help="Folder for the Unix sockets of the VMs, each NAME.sock."),
    ] = None,
    socket_group: Annotated[
        str, _identification_option(metavar="GROUP", help="Group that gets access to the sockets.")
    ] = "",
    answer_dhcp: Annotated[
        bool,
        _identification_option(
            "--answer-dhcp", help="Announce the endpoint to VMs by DHCP; requires '--identify interface'."
        ),
    ] = False,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Address for /healthz, /readyz and /metrics; empty to disable.")
    ] = "127.0.0.1:8171",
    state_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the last known state, which is served while no replica answers."),
    ] = None,
) -> None:
    """Serve events to the VMs on this host, using state from the control plane.

    While no replica of the control plane answers, VMs get the last known state. Approvals are forwarded to the
    control plane, and answered with 200 only after the control plane has stored them. No database is needed.
    """
    with require_extra("server"):
        from forewarn.host.endpoint_process import run_endpoint

    run_endpoint(
        host=host,
        control_urls=[url for text in control_url for url in text.split(",")],
        token_file=token_file,
        ca_file=ca_file,
        settings=ListenerSettings(
            identify_by=tuple(identify or [IdentificationMethod.ADDRESS]),
            listen=tuple(metadata_listen or ["169.254.169.254:80"]),
            interface_pattern=interfaces,
            interface_file=interface_file,
            by_mac=interface_macs,
            socket_folder=socket_folder,
            socket_group=socket_group,
        ),
        answers_dhcp=answer_dhcp,
        listen=listen,
        state_file=state_file,
        host_names=metadata_host_name or (),
    )
