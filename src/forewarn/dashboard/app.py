"""Routes of the dashboard: pages, live parts, button actions, and static files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from forewarn.control.access import ROUTES, caller_of
from forewarn.control.context import Context
from forewarn.control.gate import is_cross_origin
from forewarn.core.access import Principal, Role
from forewarn.core.usage_limits import UseKind
from forewarn.dashboard import actions, confirmation
from forewarn.dashboard.board import BoardCache, filter_board
from forewarn.dashboard.forms import read_form
from forewarn.dashboard.live import LivePages
from forewarn.dashboard.login import LoginRoutes
from forewarn.dashboard.name_index import InventoryNameIndex
from forewarn.dashboard.page import Make, PageModel, PageView
from forewarn.dashboard.pages.audit_log import make_audit_log_page
from forewarn.dashboard.pages.host import make_host_list, make_host_page
from forewarn.dashboard.pages.maintenance import make_maintenance_page
from forewarn.dashboard.pages.overview import make_overview_page
from forewarn.dashboard.pages.rollout import make_rollout_list, make_rollout_page
from forewarn.dashboard.pages.schedule import make_schedule_page, make_schedule_preview, read_request
from forewarn.dashboard.pages.scope import make_scope_page
from forewarn.dashboard.pages.search import make_search_page
from forewarn.dashboard.pages.vm import make_vm_list, make_vm_page
from forewarn.dashboard.render import STATIC, render_template, static_path
from forewarn.dashboard.session import Sessions, check_origin, is_rebound
from forewarn.engine.clock_guard import describe_jump
from forewarn.errors import Forbidden, ForewarnError, InvalidRequest, NotFound, Unauthorized
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
}
"""Function and API route for each page's path: the roles that may call the route may see the page."""

_NAVIGATION = (
    ("Overview", "/"),
    ("Schedule", "/schedule"),
    ("Rollouts", "/rollouts"),
    ("Hosts", "/hosts"),
    ("VMs", "/vms"),
    ("Audit log", "/audit-log"),
)

_HEADERS = {
    "content-security-policy": (
        # Nothing from other sites and no inline code. Images as `data:` are those of Swagger UI's style sheet.
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_FIELDS_MAX = 100
_FOR_EVER = "public, max-age=31536000, immutable"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

Answer = Callable[[Request], Awaitable[Response]]


def add_dashboard(app: FastAPI, context: Context) -> None:
    """Add the dashboard to the control API's app, at paths that the API does not use."""
    app.router.routes.extend(_Dashboard(context).make_routes())


@dataclass(frozen=True, slots=True)
class _PageRequest:
    """A request from a caller who has logged in."""

    request: Request
    caller: Principal


class _Dashboard:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._boards = BoardCache(context)
        self._directory = InventoryNameIndex(context.engine.identity)
        self._live = LivePages(context, self._boards)
        self._sessions = Sessions(context.authenticator.operator_token, context.session_lifetime, context.engine.tokens)
        self._login = LoginRoutes(
            context, self._sessions, lambda request, title: self._make_common_values(request, title, None)
        )

    def make_routes(self) -> list[Route]:
        found = [
            *self._login.make_routes(self._guard),
            Route("/docs", self._guard(self._serve_api_page), methods=["GET"]),
            Route("/static/{mark}/{name}", self._guard(self._serve_static_file), methods=["GET"]),
            Route("/schedule", self._require_same_origin(self._handle_schedule_form), methods=["POST"]),
            Route(
                "/maintenance/{id}/approve/{event}", self._require_same_origin(self._approve_event), methods=["POST"]
            ),
            Route("/maintenance/{id}/{verb}", self._require_same_origin(self._act_on_maintenance), methods=["POST"]),
            Route("/hosts/{name}/recover", self._require_same_origin(self._recover_host), methods=["POST"]),
            Route("/rollouts/{id}/{verb}", self._require_same_origin(self._act_on_rollout), methods=["POST"]),
        ]
        for path, (make, beside) in PAGES.items():
            for at, answer in (
                (f"/live{path}", self._make_stream_handler(make)),
                (path, self._make_page_handler(make)),
            ):
                found.append(Route(at, self._require_session(answer, ROUTES[beside]), methods=["GET"]))
        return found

    # Access

    def _guard(self, answer: Answer) -> Answer:
        """Wrap a handler: render errors as pages, and add the headers that every response has."""

        async def guarded(request: Request) -> Response:
            try:
                if is_rebound(request):
                    msg = "the Host header does not name this machine: use localhost"
                    raise Forbidden(msg)
                if request.method == "GET" and is_cross_origin(request.headers):  # forms have a separate check
                    msg = "cross-site request refused: open the dashboard directly"
                    raise Forbidden(msg)
                response = await answer(request)
            except ForewarnError as error:
                if isinstance(error, Forbidden):
                    self._context.refusal_log.record_refusal(request, error)
                response = await self._render_error(request, error)
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    def _require_session(
        self, answer: Callable[[_PageRequest], Awaitable[Response]], roles: frozenset[Role] = frozenset(Role)
    ) -> Answer:
        """Wrap a handler: redirect callers without a session to the login page, and refuse callers of other roles.

        The request is charged to the caller's account until the response has ended.
        """

        async def visited(request: Request) -> Response:
            session = await self._sessions.find(request, self._context.clock.now())
            if session is not None:
                request.state.caller = session.caller
                if session.caller.role not in roles:
                    msg = f"{session.caller.actor} may not view this page: not allowed for role {session.caller.role}"
                    raise Forbidden(msg, role=session.caller.role.value)
                self._charge_request(request, session.caller)
                return await answer(_PageRequest(request, session.caller))
            if request.url.path.startswith("/live/"):
                msg = "the session has ended: log in again"
                raise Unauthorized(msg)
            return RedirectResponse(f"/login?{urlencode({'next': _format_address(request)})}", HTTPStatus.SEE_OTHER)

        return self._guard(visited)

    def _charge_request(self, request: Request, caller: Principal) -> None:
        admission = self._context.admission
        is_live = request.url.path.startswith("/live/")
        account = admission.charge_request(request, caller, UseKind.LIVE_PAGES if is_live else UseKind.REQUESTS)
        if request.method == "POST":
            admission.charge_change(request, account)
            # The limit was that of an unknown caller until now.
            request.state.exchange.size_bytes_max = self._context.body_size_bytes_max

    def _require_same_origin(self, answer: Callable[[_PageRequest], Awaitable[Response]]) -> Answer:
        async def sent(visit: _PageRequest) -> Response:
            check_origin(visit.request)
            return await answer(visit)

        return self._require_session(sent)

    async def _render_error(self, request: Request, error: ForewarnError) -> Response:
        values = self._make_common_values(request, "Not possible", caller_of(request))
        content = render_template("error.html", values | {"error": error, "status": error.status, "page_live": None})
        headers = {"retry-after": str(error.details["retry_after_s"])} if "retry_after_s" in error.details else None
        return Response(content, error.status, headers, media_type="text/html; charset=utf-8")

    # Pages

    def _make_page_handler(self, make: Make) -> Callable[[_PageRequest], Awaitable[Response]]:
        async def show(visit: _PageRequest) -> Response:
            return Response(await self._render_page(visit, make), media_type="text/html; charset=utf-8")

        return show

    def _make_stream_handler(self, make: Make) -> Callable[[_PageRequest], Awaitable[Response]]:
        async def stream(visit: _PageRequest) -> Response:
            if self._live.is_full:
                msg = "too many dashboard pages are open: close some and reload"
                raise InvalidRequest(msg)
            address = _format_address(visit.request)
            watched = self._live.watch(visit.caller, address, lambda: self._render_page(visit, make, is_whole=False))
            pieces = self._while_logged_in(visit, watched)
            return StreamingResponse(pieces, media_type="text/event-stream", headers=_HEADERS)

        return stream

    async def _while_logged_in(self, visit: _PageRequest, pieces: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
        """Yield pieces until the session that the stream was opened in ends; it is checked before each piece."""
        async with aclosing(pieces):
            async for piece in pieces:
                if await self._sessions.find(visit.request, self._context.clock.now()) is None:
                    return
                if piece:
                    yield piece

    async def _render_page(self, visit: _PageRequest, make: Make, *, is_whole: bool = True) -> bytes:
        board = await self._boards.get_current()
        # Only this page shows requests, which may have to be fetched from another process.
        if make is make_vm_page:
            await self._context.refresh_endpoint_state()
        request = visit.request
        address = _format_address(request).removeprefix("/live")

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
        pages = [] if caller is None else [(n, at) for n, at in _NAVIGATION if caller.role in ROUTES[PAGES[at][1]]]
        return {
            "title": title,
            "actor": None if caller is None else caller.actor,
            "pages": pages,
            "may": set() if caller is None else actions.list_allowed_buttons(caller),
            "has_hosts": caller is not None and caller.ownership is None,
            "now": self._context.clock.now(),
            "is_virtual": self._context.clock.is_virtual,
            "clock_jump": None if jump is None or caller is None else describe_jump(jump),
            "path": request.url.path.removeprefix("/live") or "/",
            "search": request.query_params.get("q", "") if request.url.path == "/search" else "",
        }

    # Buttons

    async def _act_on_maintenance(self, visit: _PageRequest) -> Response:
        maintenance_id, verb = visit.request.path_params["id"], visit.request.path_params["verb"]
        form = await read_form(visit.request)
        actions.check_maintenance_action(verb, form, visit.caller)
        path = visit.request.url.path
        question = await confirmation.confirm_maintenance_action(self._context, verb, maintenance_id, path, form)
        if question is not None:
            return self._render_confirmation(visit, question)
        await actions.act_on_maintenance(self._context, verb, maintenance_id, form, visit.caller)
        return _redirect_to(f"/maintenance/{quote(maintenance_id)}")

    async def _approve_event(self, visit: _PageRequest) -> Response:
        maintenance_id, event_id = visit.request.path_params["id"], visit.request.path_params["event"]
        await actions.approve_event(self._context, event_id, visit.caller)
        return _redirect_to(f"/maintenance/{quote(maintenance_id)}")

    async def _act_on_rollout(self, visit: _PageRequest) -> Response:
        rollout_id, verb = visit.request.path_params["id"], visit.request.path_params["verb"]
        form = await read_form(visit.request)
        actions.check_button_allowed(visit.caller, "rollout")
        question = await confirmation.confirm_rollout_action(
            self._context, verb, rollout_id, visit.request.url.path, form
        )
        if question is not None:
            return self._render_confirmation(visit, question)
        await actions.act_on_rollout(self._context, verb, rollout_id, form, visit.caller)
        return _redirect_to(f"/rollouts/{quote(rollout_id)}")

    async def _recover_host(self, visit: _PageRequest) -> Response:
        name = visit.request.path_params["name"]
        await actions.recover_host(self._context, name, await read_form(visit.request), visit.caller)
        return _redirect_to(f"/hosts/{quote(name)}")

    def _render_confirmation(self, visit: _PageRequest, question: confirmation.Confirmation) -> Response:
        """Return the page that asks for confirmation."""
        values = {
            **self._make_common_values(visit.request, question.title, visit.caller),
            "question": question,
            "page_live": None,
        }
        return Response(render_template("confirm.html", values), media_type="text/html; charset=utf-8")

    async def _handle_schedule_form(self, visit: _PageRequest) -> Response:
        actions.check_button_allowed(visit.caller, "schedule")
        form = await read_form(visit.request)
        try:
            wanted = read_request(form, self._context.request_vms_max)
            if form.get("step") == "send":
                made = await actions.schedule_maintenance(self._context, wanted, form.get("key", ""), visit.caller)
                return _redirect_to(f"/maintenance/{quote(made[0])}" if len(made) == 1 else "/")
            rehearsed = await self._context.engine.maintenances.preview(wanted.to_request(), actor=visit.caller.actor)
        except ForewarnError as error:
            page, status = make_schedule_preview(form, None, error.message), error.status
        else:
            page, status = make_schedule_preview(form, rehearsed, ""), HTTPStatus.OK
        values = {**self._make_common_values(visit.request, page.title, visit.caller), **page.values, "page_live": None}
        return Response(render_template(page.template, values), status, media_type="text/html; charset=utf-8")

    # Files

    async def _serve_api_page(self, _request: Request) -> Response:
        """Return the API documentation page; it loads only local files, since a private cloud may have no internet."""
        return Response(render_template("api.html", {}), media_type="text/html; charset=utf-8")

    async def _serve_static_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = _TYPES.get(name[name.rfind(".") :])
        file = STATIC / name
        if kind is None or "/" in name or not file.is_file():
            msg = f"file {name!r} does not exist"
            raise NotFound(msg)
        # Any hash is served, since a page from before an upgrade asks for the old one; only the current one is cached.
        is_current = static_path(name) == request.url.path
        cache = _FOR_EVER if is_current else "no-cache"
        return Response(file.read_bytes(), media_type=kind, headers={"cache-control": cache})


def _format_address(request: Request) -> str:
    # Starlette's URL holds the decoded path, where a question mark in a name would end the path.
    return quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")


def _redirect_to(path: str) -> Response:
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)
