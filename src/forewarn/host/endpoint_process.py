"""Process of `forewarn endpoint`."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from forewarn.errors import ConfigError
from forewarn.host.control_plane_client import ControlPlaneClient
from forewarn.host.listener_settings import ListenerSettings
from forewarn.host.service import HostService
from forewarn.net.listen_address import parse_host_names
from forewarn.observability.logs import configure_logging
from forewarn.util.secrets import read_token

__all__ = ["run_endpoint"]


def run_endpoint(  # noqa: PLR0913 - the options of the command
    *,
    host: str,
    control_urls: Sequence[str],
    token_file: Path,
    ca_file: Path | None,
    settings: ListenerSettings,
    answers_dhcp: bool,
    listen: str,
    state_file: Path | None,
    host_names: Sequence[str] = (),
) -> None:
    """Answer VMs until SIGTERM or SIGINT.

    Raises:
        ConfigError: An argument cannot be used.
    """
    # All arguments are checked first, so that a mistake ends the command before a socket is opened.
    for url in control_urls:
        _check_url(url)
    names = _parse_names(host_names)
    token = read_token(token_file)
    configure_logging()

    async def run() -> None:
        link = ControlPlaneClient(host, control_urls, token, _create_tls_context(ca_file))
        service = HostService(link, settings, listen, state_file, answers_dhcp=answers_dhcp, host_names=names)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with service.running():
            health = f", health and metrics at {service.url}" if service.url else ""
            where = ", ".join(service.metadata_urls) or f"{len(service.listeners.open_addresses)} listeners"
            print(f"forewarn endpoint of {host} is ready: metadata {where}{health}", flush=True)  # noqa: T201 - output of the command
            await stop.wait()

    uvloop.run(run())


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"{url!r} is expected to be a URL such as https://control.example:8170")


def _parse_names(names: Sequence[str]) -> frozenset[str]:
    try:
        return parse_host_names(",".join(names))
    except ValueError as error:
        raise ConfigError(f"--metadata-host-name: {error}") from error


def _create_tls_context(ca_file: Path | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the certificates of {ca_file}: {error.strerror or error}") from error
