"""The listener of the control API and the dashboard, as the settings describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

from forewarn.config.settings import Settings
from forewarn.control.listener import ControlServer, ListenerLimits
from forewarn.errors import ConfigError
from forewarn.net.pool import PoolLimits, parse_networks

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["make_control_server"]


def make_control_server(settings: Settings, app: ASGIApp) -> ControlServer:
    """Return the listener, with certificate and key read before the service reports that it is ready.

    Raises:
        ConfigError: Certificate or key cannot be read, or they do not belong together.
    """
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # `control_proxies` decides which proxies are trusted; uvicorn would also trust those on this machine.
        proxy_headers=False,
        # Watches are answers that last for days; waiting longer would only delay the stop.
        timeout_graceful_shutdown=1,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    limits = ListenerLimits(
        header_size_bytes_max=settings.header_size_bytes_max,
        request_timeout_s=settings.request_timeout.total_seconds(),
        idle_timeout_s=settings.control_idle_timeout.total_seconds(),
        pool=PoolLimits(
            connections_max=settings.control_connections_max,
            unknown_max=settings.control_unknown_connections_max,
            per_address_max=settings.control_unknown_connections_per_address_max,
            unknown_size_bytes_max=settings.control_unknown_size_bytes_max,
            proxies=parse_networks(settings.control_proxies),
        ),
    )
    try:
        config.load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        msg = f"cannot use certificate {config.ssl_certfile} with key {config.ssl_keyfile}: {reason}"
        raise ConfigError(msg) from error
    return ControlServer(config, limits)
