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
from forewarn.core.budget import Use
from forewarn.dashboard import act, confirming
from forewarn.dashboard.board import Boards, seen_by
from forewarn.dashboard.forms import read_form
from forewarn.dashboard.live import Live
from forewarn.dashboard.login import Login
from forewarn.dashboard.names import Directory
from forewarn.dashboard.page import Look, Make, Page
from forewarn.dashboard.pages.audit_log import audit_log
from forewarn.dashboard.pages.host import host, hosts
from forewarn.dashboard.pages.maintenance import maintenance
from forewarn.dashboard.pages.overview import overview
from forewarn.dashboard.pages.rollout import rollout, rollouts
from forewarn.dashboard.pages.schedule import read_request, schedule, schedule_preview
from forewarn.dashboard.pages.scope import scope
from forewarn.dashboard.pages.search import search
from forewarn.dashboard.pages.vm import vm, vms
from forewarn.dashboard.render import STATIC, render, static_path
from forewarn.dashboard.session import Sessions, check_origin, is_rebound
from forewarn.engine.clock_guard import describe_jump
from forewarn.errors import Forbidden, ForewarnError, InvalidRequest, NotFound, Unauthorized
from forewarn.store.contract import Reader

__all__ = ["PAGES", "add_dashboard"]

PAGES: Mapping[str, tuple[Make, str]] = {
    "/": (overview, "GET /v1/maintenance"),
    "/maintenance/{id}": (maintenance, "GET /v1/maintenance/{maintenance_id}"),
    "/hosts": (hosts, "GET /v1/hosts"),
    "/hosts/{name:path}": (host, "GET /v1/hosts"),
    "/scopes/{name:path}": (scope, "GET /v1/maintenance"),
    "/vms": (vms, "GET /v1/vms"),
    "/vms/{name:path}": (vm, "GET /v1/vms/{name}"),
    "/rollouts": (rollouts, "GET /v1/rollouts"),
    "/rollouts/{id}": (rollout, "GET /v1/rollouts/{rollout_id}"),
    "/audit-log": (audit_log, "GET /v1/audit-log"),
    "/search": (search, "GET /v1/vms"),
    "/schedule": (schedule, "POST /v1/maintenance"),
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
    app.router.routes.extend(_Dashboard(context).routes())


@dataclass(frozen=True, slots=True)
class _Visit:
    """A request from a caller who has logged in."""

    request: Request
    caller: Principal


class _Dashboard:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._boards = Boards(context)
        self._directory = Directory(context.engine.identity)
        self._live = Live(context, self._boards)
        self._sessions = Sessions(context.tokens.operator, context.session_lifetime, context.engine)
        self._login = Login(context, self._sessions, lambda request, title: self._around(request, title, None))

    def routes(self) -> list[Route]:
        found = [
            *self._login.routes(self._guarded),
            Route("/docs", self._guarded(self._api), methods=["GET"]),
            Route("/static/{mark}/{name}", self._guarded(self._static), methods=["GET"]),
            Route("/schedule", self._for_sender(self._schedule), methods=["POST"]),
            Route("/maintenance/{id}/approve/{event}", self._for_sender(self._approve), methods=["POST"]),
            Route("/maintenance/{id}/{verb}", self._for_sender(self._act_on_maintenance), methods=["POST"]),
            Route("/hosts/{name}/recover", self._for_sender(self._recover_host), methods=["POST"]),
            Route("/rollouts/{id}/{verb}", self._for_sender(self._act_on_rollout), methods=["POST"]),
        ]
        for path, (make, beside) in PAGES.items():
            for at, answer in ((f"/live{path}", self._streamed(make)), (path, self._shown(make))):
                found.append(Route(at, self._for_visitor(answer, ROUTES[beside]), methods=["GET"]))
        return found

    # Access

    def _guarded(self, answer: Answer) -> Answer:
        """Wrap a handler: render errors as pages, and add the headers that every response has."""

        async def guarded(request: Request) -> Response:
            try:
                if is_rebound(request):
                    msg = "this service is asked for by a name that is not this machine's: use localhost"
                    raise Forbidden(msg)
                if request.method == "GET" and is_cross_origin(request.headers):  # forms have a separate check
                    msg = "this page was asked for by a page of another site: open the dashboard"
                    raise Forbidden(msg)
                response = await answer(request)
            except ForewarnError as error:
                if isinstance(error, Forbidden):
                    self._context.refused.note(request, error)
                response = await self._failed(request, error)
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    def _for_visitor(
        self, answer: Callable[[_Visit], Awaitable[Response]], roles: frozenset[Role] = frozenset(Role)
    ) -> Answer:
        """Wrap a handler: redirect callers without a session to the login page, and refuse callers of other roles.

        The request is charged to the caller's account until the response has ended.
        """

        async def visited(request: Request) -> Response:
            session = await self._sessions.find(request, self._context.clock.now())
            if session is not None:
                request.state.caller = session.caller
                if session.caller.role not in roles:
                    msg = f"{session.caller.actor} may not look at this: it is not for the role {session.caller.role}"
                    raise Forbidden(msg, role=session.caller.role.value)
                self._admit(request, session.caller)
                return await answer(_Visit(request, session.caller))
            if request.url.path.startswith("/live/"):
                msg = "this session is over: log in again"
                raise Unauthorized(msg)
            return RedirectResponse(f"/login?{urlencode({'next': _address(request)})}", HTTPStatus.SEE_OTHER)

        return self._guarded(visited)

    def _admit(self, request: Request, caller: Principal) -> None:
        admission = self._context.admission
        is_live = request.url.path.startswith("/live/")
        account = admission.admit(request, caller, Use.LIVE_PAGES if is_live else Use.REQUESTS)
        if request.method == "POST":
            admission.change(request, account)
            request.state.exchange.size_bytes_max = self._context.body_size_bytes_max

    def _for_sender(self, answer: Callable[[_Visit], Awaitable[Response]]) -> Answer:
        async def sent(visit: _Visit) -> Response:
            check_origin(visit.request)
            return await answer(visit)

        return self._for_visitor(sent)

    async def _failed(self, request: Request, error: ForewarnError) -> Response:
        values = self._around(request, "Not possible", caller_of(request))
        content = render("error.html", values | {"error": error, "status": error.status, "page_live": None})
        headers = {"retry-after": str(error.details["retry_after_s"])} if "retry_after_s" in error.details else None
        return Response(content, error.status, headers, media_type="text/html; charset=utf-8")

    # Pages

    def _shown(self, make: Make) -> Callable[[_Visit], Awaitable[Response]]:
        async def show(visit: _Visit) -> Response:
            return Response(await self._content(visit, make), media_type="text/html; charset=utf-8")

        return show

    def _streamed(self, make: Make) -> Callable[[_Visit], Awaitable[Response]]:
        async def stream(visit: _Visit) -> Response:
            if self._live.is_full:
                msg = "too many dashboards watch this service already"
                raise InvalidRequest(msg)
            address = _address(visit.request)
            watched = self._live.watch(visit.caller, address, lambda: self._content(visit, make, is_whole=False))
            pieces = self._while_logged_in(visit, watched)
            return StreamingResponse(pieces, media_type="text/event-stream", headers=_HEADERS)

        return stream

    async def _while_logged_in(self, visit: _Visit, pieces: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
        """Yield pieces until the session that the stream was opened in ends; it is checked before each piece."""
        async with aclosing(pieces):
            async for piece in pieces:
                if await self._sessions.find(visit.request, self._context.clock.now()) is None:
                    return
                if piece:
                    yield piece

    async def _content(self, visit: _Visit, make: Make, *, is_whole: bool = True) -> bytes:
        board = await self._boards.current()
        if make is vm:
            await self._context.look()
        request = visit.request
        address = _address(request).removeprefix("/live")

        def work(reader: Reader) -> bytes:
            look = Look(
                context=self._context,
                board=board,
                seen=seen_by(visit.caller, reader, board, self._context.engine.feed.asked_at),
                directory=self._directory,
                caller=visit.caller,
                path=request.path_params,
                params=request.query_params,
                address=address,
            )
            try:
                page = make(reader, look)
            except NotFound as error:
                if is_whole:
                    raise
                page = Page(template="error.html", title="Gone", values={"error": error, "status": error.status})
            values = {**self._around(request, page.title, visit.caller), **page.values}
            live = f"/live{address}" if page.is_live else None
            return render(page.template, values | {"page_live": live}, is_whole=is_whole)

        return await self._context.engine.read(work)

    def _around(self, request: Request, title: str, caller: Principal | None) -> dict[str, object]:
        jump = self._context.engine.clock_guard.jump
        pages = [] if caller is None else [(n, at) for n, at in _NAVIGATION if caller.role in ROUTES[PAGES[at][1]]]
        return {
            "title": title,
            "actor": None if caller is None else caller.actor,
            "pages": pages,
            "may": set() if caller is None else act.may(caller),
            "has_hosts": caller is not None and caller.owned is None,
            "now": self._context.clock.now(),
            "is_virtual": self._context.clock.is_virtual,
            "clock_jump": None if jump is None or caller is None else describe_jump(jump),
            "path": request.url.path.removeprefix("/live") or "/",
            "search": request.query_params.get("q", "") if request.url.path == "/search" else "",
        }

    # Buttons

    async def _act_on_maintenance(self, visit: _Visit) -> Response:
        maintenance_id, verb = visit.request.path_params["id"], visit.request.path_params["verb"]
        form = await read_form(visit.request)
        act.check_maintenance(verb, form, visit.caller)
        path = visit.request.url.path
        question = await confirming.on_maintenance(self._context, verb, maintenance_id, path, form)
        if question is not None:
            return self._asked(visit, question)
        await act.on_maintenance(self._context, verb, maintenance_id, form, visit.caller)
        return _back(f"/maintenance/{quote(maintenance_id)}")

    async def _approve(self, visit: _Visit) -> Response:
        maintenance_id, event_id = visit.request.path_params["id"], visit.request.path_params["event"]
        await act.approve(self._context, event_id, visit.caller)
        return _back(f"/maintenance/{quote(maintenance_id)}")

    async def _act_on_rollout(self, visit: _Visit) -> Response:
        rollout_id, verb = visit.request.path_params["id"], visit.request.path_params["verb"]
        form = await read_form(visit.request)
        act.check_may(visit.caller, "rollout")
        question = await confirming.on_rollout(self._context, verb, rollout_id, visit.request.url.path, form)
        if question is not None:
            return self._asked(visit, question)
        await act.on_rollout(self._context, verb, rollout_id, form, visit.caller)
        return _back(f"/rollouts/{quote(rollout_id)}")

    async def _recover_host(self, visit: _Visit) -> Response:
        name = visit.request.path_params["name"]
        await act.recover_host(self._context, name, await read_form(visit.request), visit.caller)
        return _back(f"/hosts/{quote(name)}")

    def _asked(self, visit: _Visit, question: confirming.Question) -> Response:
        """Return the page that asks for confirmation."""
        values = {**self._around(visit.request, question.title, visit.caller), "question": question, "page_live": None}
        return Response(render("confirm.html", values), media_type="text/html; charset=utf-8")

    async def _schedule(self, visit: _Visit) -> Response:
        act.check_may(visit.caller, "schedule")
        form = await read_form(visit.request)
        try:
            wanted = read_request(form, self._context.request_vms_max)
            if form.get("step") == "send":
                made = await act.schedule(self._context, wanted, form.get("key", ""), visit.caller)
                return _back(f"/maintenance/{quote(made[0])}" if len(made) == 1 else "/")
            rehearsed = await self._context.engine.rehearse(wanted.to_request(), actor=visit.caller.actor)
        except ForewarnError as error:
            page, status = schedule_preview(form, None, error.message), error.status
        else:
            page, status = schedule_preview(form, rehearsed, ""), HTTPStatus.OK
        values = {**self._around(visit.request, page.title, visit.caller), **page.values, "page_live": None}
        return Response(render(page.template, values), status, media_type="text/html; charset=utf-8")

    # Files

    async def _api(self, _request: Request) -> Response:
        """Return the API documentation page; it loads only local files, since a private cloud may have no internet."""
        return Response(render("api.html", {}), media_type="text/html; charset=utf-8")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = _TYPES.get(name[name.rfind(".") :])
        file = STATIC / name
        if kind is None or "/" in name or not file.is_file():
            msg = f"there is no file {name!r}"
            raise NotFound(msg)
        is_current = static_path(name) == request.url.path
        cache = _FOR_EVER if is_current else "no-cache"
        return Response(file.read_bytes(), media_type=kind, headers={"cache-control": cache})


def _address(request: Request) -> str:
    # Starlette's URL holds the decoded path, where a question mark in a name would end the path.
    return quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")


def _back(path: str) -> Response:
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)
