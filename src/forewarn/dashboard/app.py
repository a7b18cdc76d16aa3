"""Routes of the dashboard: pages, live parts, button actions, and static files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from forewarn.control.access import ROUTES, caller_of
from forewarn.control.board import filter_board
from forewarn.control.context import Context
from forewarn.core.access import Principal
from forewarn.dashboard import actions
from forewarn.dashboard.button_routes import ButtonRoutes
from forewarn.dashboard.live import LivePages
from forewarn.dashboard.login import LoginRoutes
from forewarn.dashboard.name_index import InventoryNameIndex
from forewarn.dashboard.page import Collect, Make, PageModel, PageView
from forewarn.dashboard.pages.access import collect_use, make_access_page
from forewarn.dashboard.pages.administration import SECTIONS, make_administration_page
from forewarn.dashboard.pages.audit_log import make_audit_log_page
from forewarn.dashboard.pages.host import make_host_list, make_host_page
from forewarn.dashboard.pages.maintenance import make_maintenance_page
from forewarn.dashboard.pages.overview import make_overview_page
from forewarn.dashboard.pages.replica import collect_replica_state, make_replica_page
from forewarn.dashboard.pages.rollout import make_rollout_list, make_rollout_page
from forewarn.dashboard.pages.schedule import make_schedule_page
from forewarn.dashboard.pages.scope import make_scope_page
from forewarn.dashboard.pages.search import make_search_page
from forewarn.dashboard.pages.setting import make_settings_page
from forewarn.dashboard.pages.subscription import make_subscription_list, make_subscription_page
from forewarn.dashboard.pages.token import make_token_form_page, make_token_list
from forewarn.dashboard.pages.vm import make_vm_list, make_vm_page
from forewarn.dashboard.render import STATIC, render_template, static_path
from forewarn.dashboard.request_guard import HEADERS, PageAnswer, PageRequest, RequestGuard, format_address
from forewarn.dashboard.session import Sessions
from forewarn.dashboard.subscription_routes import SubscriptionRoutes
from forewarn.dashboard.token_routes import TokenRoutes
from forewarn.engine.clock_guard import describe_jump
from forewarn.errors import ForewarnError, InvalidRequest, NotFound
from forewarn.store.contract import Reader

__all__ = ["PAGES", "add_dashboard"]

PAGES: Mapping[str, tuple[Make, str]] = {
    "/": (make_overview_page, "GET /v1/maintenance"),
    "/maintenance/{id}": (make_maintenance_page, "GET /v1/maintenance/{maintenance_id}"),
    "/hosts": (make_host_list, "GET /v1/hosts"),
    "/hosts/{name:path}": (make_host_page, "GET /v1/hosts"),
    "/scopes/{name:path}": (make_scope_page, "GET /v1/maintenance"),
    "/vms": (make_vm_list, "GET /v1/vms"),
    "/vms/{name:path}": (make_vm_page, "GET /v1/vms/{name}"),
    "/rollouts": (make_rollout_list, "GET /v1/rollouts"),
    "/rollouts/{id}": (make_rollout_page, "GET /v1/rollouts/{rollout_id}"),
    "/audit-log": (make_audit_log_page, "GET /v1/audit-log"),
    "/search": (make_search_page, "GET /v1/vms"),
    "/schedule": (make_schedule_page, "POST /v1/maintenance"),
    # Tenants have no use for the index: every page that it leads to is about the whole service.
    "/administration": (make_administration_page, "GET /v1/tokens"),
    "/administration/tokens": (make_token_list, "GET /v1/tokens"),
    "/administration/tokens/create": (make_token_form_page, "POST /v1/tokens"),
    "/administration/subscriptions": (make_subscription_list, "GET /v1/subscriptions"),
    "/administration/subscriptions/{name}": (make_subscription_page, "GET /v1/subscriptions/{name}"),
    # The API has no routes for these; as metrics, they are about the process and not about its objects.
    "/administration/settings": (make_settings_page, "GET /metrics"),
    "/administration/replicas": (make_replica_page, "GET /metrics"),
    "/administration/access": (make_access_page, "GET /v1/limits"),
}
"""Function and API route for each page's path: the roles that may call the route may see the page."""

_COLLECTORS: Mapping[Make, Collect] = {make_replica_page: collect_replica_state, make_access_page: collect_use}
"""What a page needs from the event loop, by its function."""

_NAVIGATION = (
    ("Overview", "/"),
    ("Schedule", "/schedule"),
    ("Rollouts", "/rollouts"),
    ("Hosts", "/hosts"),
    ("VMs", "/vms"),
    ("Audit log", "/audit-log"),
    ("Administration", "/administration"),
)

_FOR_EVER = "public, max-age=31536000, immutable"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def add_dashboard(app: FastAPI, context: Context) -> None:
    """Add the dashboard to the control API's app, at paths that the API does not use."""
    app.router.routes.extend(_Dashboard(context).make_routes())


class _Dashboard:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._boards = context.boards
        self._directory = InventoryNameIndex(context.engine.identity)
        self._live = LivePages(context, self._boards)
        self._sessions = Sessions(
            context.authenticator.operator_token, context.settings.session_lifetime, context.engine.tokens
        )
        self._login = LoginRoutes(
            context, self._sessions, lambda request, title: self._make_common_values(request, title, None)
        )
        self._guard = RequestGuard(context, self._sessions, self._render_error)
        self._buttons = ButtonRoutes(context, self._make_common_values)
        self._tokens = TokenRoutes(context, self._make_common_values)
        self._subscriptions = SubscriptionRoutes(context, self._make_common_values)

    def make_routes(self) -> list[Route]:
        found = [
            *self._login.make_routes(self._guard.guard),
            Route("/docs", self._guard.guard(self._serve_api_page), methods=["GET"]),
            Route("/static/{mark}/{name}", self._guard.guard(self._serve_static_file), methods=["GET"]),
            *self._buttons.make_routes(self._guard.require_same_origin),
            *self._tokens.make_routes(self._guard.require_same_origin),
            *self._subscriptions.make_routes(self._guard.require_same_origin),
        ]
        for path, (make, beside) in PAGES.items():
            for at, answer in (
                (f"/live{path}", self._make_stream_handler(make)),
                (path, self._make_page_handler(make)),
            ):
                found.append(Route(at, self._guard.require_session(answer, ROUTES[beside]), methods=["GET"]))
        return found

    # Pages

    async def _render_error(self, request: Request, error: ForewarnError) -> Response:
        values = self._make_common_values(request, "Not possible", caller_of(request))
        content = render_template("error.html", values | {"error": error, "status": error.status})
        headers = {"retry-after": str(error.details["retry_after_s"])} if "retry_after_s" in error.details else None
        return HTMLResponse(content, error.status, headers)

    def _make_page_handler(self, make: Make) -> PageAnswer:
        async def show(visit: PageRequest) -> Response:
            return HTMLResponse(await self._render_page(visit, make))

        return show

    def _make_stream_handler(self, make: Make) -> PageAnswer:
        async def stream(visit: PageRequest) -> Response:
            if self._live.is_full:
                raise InvalidRequest("too many dashboard pages are open: close some and reload")
            address = format_address(visit.request)
            watched = self._live.watch(visit.caller, address, lambda: self._render_page(visit, make, is_whole=False))
            pieces = self._while_logged_in(visit, watched)
            return StreamingResponse(pieces, media_type="text/event-stream", headers=HEADERS)

        return stream

    async def _while_logged_in(self, visit: PageRequest, pieces: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
        """Yield pieces until the session that the stream was opened in ends; it is checked before each piece."""
        async with aclosing(pieces):
            async for piece in pieces:
                if await self._sessions.find(visit.request, self._context.clock.now()) is None:
                    return
                if piece:
                    yield piece

    async def _render_page(self, visit: PageRequest, make: Make, *, is_whole: bool = True) -> bytes:
        board = await self._boards.get_current()
        # Only these pages show requests and refusals that may have to be fetched from another process.
        if make in (make_vm_page, make_access_page):
            await self._context.refresh_endpoint_state()
        request = visit.request
        address = format_address(request).removeprefix("/live")
        collect = _COLLECTORS.get(make)
        collected = None if collect is None else collect(self._context, request.query_params)

        def work(reader: Reader) -> bytes:
            look = PageView(
                context=self._context,
                board=board,
                visible_board=filter_board(visit.caller, reader, board, self._context.engine.feed.last_polled_at),
                name_index=self._directory,
                caller=visit.caller,
                path_params=request.path_params,
                query_params=request.query_params,
                address=address,
                collected=collected,
            )
            try:
                page = make(reader, look)
            except NotFound as error:
                # A live page shows the error and goes on: its object may have been removed while it was watched.
                if is_whole:
                    raise
                page = PageModel(template="error.html", title="Gone", values={"error": error, "status": error.status})
            values = {**self._make_common_values(request, page.title, visit.caller), **page.values}
            live = f"/live{address}" if page.is_live else None
            return render_template(page.template, values | {"page_live": live}, is_whole=is_whole)

        return await self._context.engine.read(work)

    def _make_common_values(self, request: Request, title: str, caller: Principal | None) -> dict[str, object]:
        jump = self._context.engine.clock.guard.jump

        def may_see(path: str) -> bool:
            return caller is not None and caller.role in ROUTES[PAGES[path][1]]

        return {
            "title": title,
            "actor": None if caller is None else caller.actor,
            "pages": [(name, at) for name, at in _NAVIGATION if may_see(at)],
            "sections": [section for section in SECTIONS if may_see(section.path)],
            "may": set() if caller is None else actions.list_allowed_buttons(caller),
            "has_hosts": caller is not None and caller.ownership is None,
            "now": self._context.clock.now(),
            "is_virtual": self._context.clock.is_virtual,
            "clock_jump": None if jump is None or caller is None else describe_jump(jump),
            "page_live": None,
            "path": request.url.path.removeprefix("/live") or "/",
            "search": request.query_params.get("q", "") if request.url.path == "/search" else "",
        }

    # Files

    async def _serve_api_page(self, _request: Request) -> Response:
        """Return the API documentation page; it loads only local files, since a private cloud may have no internet."""
        return HTMLResponse(render_template("api.html", {}))

    async def _serve_static_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = _TYPES.get(name[name.rfind(".") :])
        file = STATIC / name
        if kind is None or "/" in name or not file.is_file():
            raise NotFound(f"file {name!r} does not exist")
        # Any hash is served, since a page from before an upgrade asks for the old one; only the current one is cached.
        is_current = static_path(name) == request.url.path
        cache = _FOR_EVER if is_current else "no-cache"
        return Response(file.read_bytes(), media_type=kind, headers={"cache-control": cache})
