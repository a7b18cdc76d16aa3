"""Service of `forewarn endpoint`: the metadata endpoint of one host, with its state from a remote control plane."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forewarn.clock import RealClock
from forewarn.endpoint import MetadataApp, MetadataServer
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from forewarn.errors import ConfigError
from forewarn.host.control_plane_client import ControlPlaneClient
from forewarn.host.dhcp import DhcpResponder
from forewarn.host.listener_settings import IdentificationMethod, ListenerSettings
from forewarn.host.listeners import Listeners
from forewarn.host.remote_authority import RemoteAuthority, build_empty_state, read_state
from forewarn.net.listen_address import bind_listener, build_socket_url, is_loopback, is_own_host, parse_listen
from forewarn.util.files import replace_file
from forewarn.util.tasks import cancel_tasks

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["HostService"]

_GRACE_S = 2.0


class HostService:
    """All parts of `forewarn endpoint`.

    Args:
        control_plane: Connection to the control plane.
        settings: Settings for identifying VMs and for listening.
        listen: Address for `/healthz`, `/readyz` and `/metrics`; empty for none.
        state_file: State file; None if the state is not stored.
        answers_dhcp: True to announce the endpoint to guests by DHCP (R94, R95).
        host_names: Names by which VMs call the endpoint, besides addresses and ``localhost``.

    Raises:
        ConfigError: The state file cannot be used, or DHCP is on and VMs are not identified by interface.
    """

    def __init__(  # noqa: PLR0913 - the options of the command
        self,
        control_plane: ControlPlaneClient,
        settings: ListenerSettings,
        listen: str = "",
        state_file: Path | None = None,
        *,
        answers_dhcp: bool = False,
        host_names: frozenset[str] = frozenset(),
    ) -> None:
        self._control_plane = control_plane
        self._host_names = host_names
        self._listen = parse_listen(listen) if listen else None
        clock = RealClock()
        known = None if state_file is None else read_state(state_file, control_plane.host)
        self.is_from_file = known is not None
        state = known or build_empty_state(control_plane.host)
        save = None if state_file is None else partial(replace_file, state_file)
        self.remote = RemoteAuthority(control_plane, state, clock, save)
        self.traffic = Traffic(
            EndpointLimits(host_names=host_names), len(self.remote.feed.versions), FaultRegistry(clock)
        )
        app = MetadataApp(self.remote, clock, self.traffic, state.first_answer_delay_s)
        self.endpoint = MetadataServer(app, self.traffic, self.remote.identity, clock)
        self.listeners = Listeners(settings, lambda: self.remote.identity.vms, self.endpoint.listen)
        self.remote.on_inventory = self.listeners.request_check
        self.url = ""
        if answers_dhcp and IdentificationMethod.INTERFACE not in settings.identify_by:
            raise ConfigError("answering DHCP requires identification of VMs by interface")
        self._responder: DhcpResponder | None = None
        if answers_dhcp:
            self._responder = DhcpResponder(settings.addresses[0][0], lambda: self.listeners.interfaces)

    @property
    def metadata_urls(self) -> list[str]:
        """URLs of the endpoint on TCP sockets."""
        return [build_socket_url("http", sock) for sock in self.endpoint.sockets if sock.family != socket.AF_UNIX]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HostService]:
        """Run the endpoint until the block ends.

        Raises:
            ConfigError: The address for health and metrics, or the DHCP port, cannot be bound.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._control_plane.close)
            # No sockets yet: the listeners open them, as VMs and interfaces appear.
            await self.endpoint.start([])
            await stack.enter_async_context(self.listeners.running())
            if self._responder is not None:
                await stack.enter_async_context(self._responder.running())
            stack.push_async_callback(self.endpoint.stop, _GRACE_S)  # before listeners close: answers held requests
            for work in (self.remote.watch(), self.remote.report_periodically(), self.remote.save_updates()):
                stack.push_async_callback(cancel_tasks, asyncio.create_task(work))
            if self._listen is not None:
                await stack.enter_async_context(self._serve_health(*self._listen))
            yield self

    @asynccontextmanager
    async def _serve_health(self, host: str, port: int) -> AsyncIterator[None]:
        """Serve health and metrics until the block ends."""
        routes = [Route("/healthz", self._healthz), Route("/readyz", self._readyz), Route("/metrics", self._metrics)]
        with bind_listener(host, port) as sock:
            self.url = build_socket_url("http", sock)
            app: ASGIApp = Starlette(routes=routes)
            if is_loopback(host):  # on other addresses a scraper may use any name
                app = _HostHeaderCheck(app, self._host_names)
            server = _HealthServer(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none"))
            task = asyncio.create_task(server.serve(sockets=[sock]))
            try:
                yield
            finally:
                server.should_exit = True
                await asyncio.gather(task, return_exceptions=True)

    async def _healthz(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readyz(self, _request: Request) -> Response:
        """Return 200 once the VMs are known, from the control plane or from the state file; 503 before."""
        is_ready = self.remote.age_s is not None or self.is_from_file
        return JSONResponse(
            {"status": "ready" if is_ready else "waiting for the control plane"}, 200 if is_ready else 503
        )

    async def _metrics(self, _request: Request) -> Response:
        # A new registry for each request, as the values are read from their owners and not counted here.
        registry = CollectorRegistry()
        age_s = self.remote.age_s
        for name, what, value in (
            ("forewarn_endpoint_age_seconds", "Time since the last message from the control plane.", age_s),
            ("forewarn_endpoint_vms", "VMs of this host.", self.remote.identity.vm_count),
            ("forewarn_endpoint_connections", "Open connections of VMs.", self.endpoint.connection_count),
            (
                "forewarn_endpoint_answers",
                "GETs that were answered with a ready-made document of events. Other requests are not counted.",
                sum(self.traffic.fast_path_counts),
            ),
            (
                "forewarn_endpoint_over_limit",
                "Requests and connections of VMs over a limit.",
                self.traffic.over_limit.total(),
            ),
            (
                "forewarn_endpoint_unknown_callers",
                "Requests of callers that are not VMs of this host.",
                self.traffic.unknown_callers,
            ),
        ):
            if value is not None:
                Gauge(name, what, registry=registry).set(value)
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


class _HealthServer(uvicorn.Server):
    """Server whose process handles signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


class _HostHeaderCheck:
    """Middleware that refuses other host names than ours, against DNS rebinding by web pages."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = Headers(scope=scope).getlist("host")
        is_ours = len(hosts) == 1 and is_own_host(hosts[0], self._names)
        if is_ours or (not hosts and scope["http_version"] == "1.0"):
            await self._app(scope, receive, send)
        else:
            error = {"error": "the Host header is missing or names another host: use an address or localhost"}
            await JSONResponse(error, HTTPStatus.BAD_REQUEST)(scope, receive, send)
