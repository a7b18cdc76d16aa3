"""The dashboard's routes: pages, their live parts, what their buttons do, and the files they load."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from forewarn.control.context import Context
from forewarn.core.access import Role
from forewarn.dashboard import act
from forewarn.dashboard.board import Boards
from forewarn.dashboard.live import Live
from forewarn.dashboard.page import Look, Make, Page
from forewarn.dashboard.pages.host import host, hosts
from forewarn.dashboard.pages.ledger import ledger
from forewarn.dashboard.pages.maintenance import maintenance
from forewarn.dashboard.pages.overview import overview
from forewarn.dashboard.pages.rollout import rollout, rollouts
from forewarn.dashboard.pages.schedule import read_form, schedule, schedule_preview
from forewarn.dashboard.pages.scope import scope
from forewarn.dashboard.pages.search import search
from forewarn.dashboard.pages.vm import vm, vms
from forewarn.dashboard.render import STATIC, render, static_path
from forewarn.dashboard.session import Sessions, check_origin, is_rebound
from forewarn.errors import Forbidden, ForewarnError, InvalidRequest, NotFound, Unauthorized
from forewarn.store.contract import Reader

__all__ = ["PAGES", "add_dashboard"]

PAGES: Mapping[str, Make] = {
    "/": overview,
    "/maintenance/{id}": maintenance,
    "/hosts": hosts,
    "/hosts/{name:path}": host,
    "/scopes/{name:path}": scope,
    "/vms": vms,
    "/vms/{name:path}": vm,
    "/rollouts": rollouts,
    "/rollouts/{id}": rollout,
    "/ledger": ledger,
    "/search": search,
    "/schedule": schedule,
}
"""Where each page is."""

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
    """Give the control API's app the dashboard, at every path that is not the API's."""
    app.router.routes.extend(_Dashboard(context).routes())


@dataclass(frozen=True, slots=True)
class _Visit:
    """A request of somebody who has logged in."""

    request: Request
    actor: str


class _Dashboard:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._boards = Boards(context)
        self._live = Live(context, self._boards)
        self._sessions = Sessions(context.tokens.operator)

    def routes(self) -> list[Route]:
        found = [
            Route("/login", self._guarded(self._login_page), methods=["GET"]),
            Route("/login", self._guarded(self._login), methods=["POST"]),
            Route("/logout", self._guarded(self._logout), methods=["POST"]),
            Route("/static/{mark}/{name}", self._guarded(self._static), methods=["GET"]),
            Route("/schedule", self._for_sender(self._schedule), methods=["POST"]),
            Route("/maintenance/{id}/approve/{event}", self._for_sender(self._approve), methods=["POST"]),
            Route("/maintenance/{id}/{verb}", self._for_sender(self._act_on_maintenance), methods=["POST"]),
            Route("/rollouts/{id}/{verb}", self._for_sender(self._act_on_rollout), methods=["POST"]),
        ]
        for path, make in PAGES.items():
            found.append(Route(f"/live{path}", self._for_visitor(self._streamed(make)), methods=["GET"]))
            found.append(Route(path, self._for_visitor(self._shown(make)), methods=["GET"]))
        return found

    # Who may

    def _guarded(self, answer: Answer) -> Answer:
        """Errors as pages, and the headers that every answer has."""

        async def guarded(request: Request) -> Response:
            try:
                if is_rebound(request):
                    msg = "this service is asked for by a name that is not this machine's: use localhost"
                    raise Forbidden(msg)
                response = await answer(request)
            except ForewarnError as error:
                response = self._failed(request, error)
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    def _for_visitor(self, answer: Callable[[_Visit], Awaitable[Response]]) -> Answer:
        """Whoever has not logged in does so first."""

        async def visited(request: Request) -> Response:
            session = self._sessions.find(request, self._context.clock.now())
            if session is not None:
                return await answer(_Visit(request, session.actor))
            if request.url.path.startswith("/live/"):
                msg = "this session is over: log in again"
                raise Unauthorized(msg)
            return RedirectResponse(f"/login?{urlencode({'next': _address(request)})}", HTTPStatus.SEE_OTHER)

        return self._guarded(visited)

    def _for_sender(self, answer: Callable[[_Visit], Awaitable[Response]]) -> Answer:
        async def sent(visit: _Visit) -> Response:
            check_origin(visit.request)
            return await answer(visit)

        return self._for_visitor(sent)

    def _failed(self, request: Request, error: ForewarnError) -> Response:
        session = self._sessions.find(request, self._context.clock.now())
        values = self._around(request, "Not possible", session.actor if session else None)
        content = render("error.html", values | {"error": error, "status": error.status, "page_live": None})
        return Response(content, error.status, media_type="text/html; charset=utf-8")

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
            key = f"{visit.actor}\n{_address(visit.request)}"
            watched = self._live.watch(key, lambda: self._content(visit, make, is_whole=False))
            pieces = self._while_logged_in(visit, watched)
            return StreamingResponse(pieces, media_type="text/event-stream", headers=_HEADERS)

        return stream

    async def _while_logged_in(self, visit: _Visit, pieces: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
        """A stream ends with the session that it was opened in; each piece, and each sign of life, is an occasion."""
        async with aclosing(pieces):
            async for piece in pieces:
                if self._sessions.find(visit.request, self._context.clock.now()) is None:
                    return
                yield piece

    async def _content(self, visit: _Visit, make: Make, *, is_whole: bool = True) -> bytes:
        board = await self._boards.current()
        request = visit.request
        address = _address(request).removeprefix("/live")
        look = Look(
            context=self._context,
            board=board,
            actor=visit.actor,
            path=request.path_params,
            params=request.query_params,
            address=address,
        )

        def work(reader: Reader) -> bytes:
            try:
                page = make(reader, look)
            except NotFound as error:
                if is_whole:
                    raise
                page = Page(template="error.html", title="Gone", values={"error": error, "status": error.status})
            values = {**self._around(request, page.title, visit.actor), **page.values}
            live = f"/live{address}" if page.is_live else None
            return render(page.template, values | {"page_live": live}, is_whole=is_whole)

        return await self._context.engine.read(work)

    def _around(self, request: Request, title: str, actor: str | None) -> dict[str, object]:
        return {
            "title": title,
            "actor": actor,
            "now": self._context.clock.now(),
            "is_virtual": self._context.clock.is_virtual,
            "path": request.url.path.removeprefix("/live") or "/",
            "search": request.query_params.get("q", "") if request.url.path == "/search" else "",
        }

    # Logging in

    async def _login_page(self, request: Request) -> Response:
        values = self._around(request, "Log in", None) | {"next": _inside(request.query_params.get("next", "/"))}
        return Response(render("login.html", values | {"page_live": None, "wrong": ""}), media_type="text/html")

    async def _login(self, request: Request) -> Response:
        check_origin(request)
        form = await _form(request)
        target = _inside(form.get("next", "/"))
        try:
            header = f"Bearer {form.get('token', '').strip() or '-'}"
            now = self._context.clock.now()
            caller = await self._context.tokens.principal(header, self._context.engine.token, now)
        except Unauthorized:
            caller = None
        if caller is None or caller.role is not Role.OPERATOR:
            wrong = "This token is not known here. The operator's token is in the service's state folder."
            values = self._around(request, "Log in", None) | {"next": target, "wrong": wrong, "page_live": None}
            return Response(render("login.html", values), HTTPStatus.UNAUTHORIZED, media_type="text/html")
        response = RedirectResponse(target, HTTPStatus.SEE_OTHER)
        self._sessions.begin(caller.actor, self._context.clock.now(), request, response)
        return response

    async def _logout(self, request: Request) -> Response:
        check_origin(request)
        response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        self._sessions.end(request, response)
        return response

    # What buttons do

    async def _act_on_maintenance(self, visit: _Visit) -> Response:
        maintenance_id, verb = visit.request.path_params["id"], visit.request.path_params["verb"]
        await act.on_maintenance(self._context, verb, maintenance_id, await _form(visit.request), visit.actor)
        return _back(f"/maintenance/{quote(maintenance_id)}")

    async def _approve(self, visit: _Visit) -> Response:
        maintenance_id, event_id = visit.request.path_params["id"], visit.request.path_params["event"]
        await act.approve(self._context, event_id, visit.actor)
        return _back(f"/maintenance/{quote(maintenance_id)}")

    async def _act_on_rollout(self, visit: _Visit) -> Response:
        rollout_id, verb = visit.request.path_params["id"], visit.request.path_params["verb"]
        await act.on_rollout(self._context, verb, rollout_id, await _form(visit.request), visit.actor)
        return _back(f"/rollouts/{quote(rollout_id)}")

    async def _schedule(self, visit: _Visit) -> Response:
        form = await _form(visit.request)
        try:
            wanted = read_form(form, self._context.request_vms_max)
            if form.get("step") == "send":
                made = await act.schedule(self._context, wanted, form.get("key", ""), visit.actor)
                return _back(f"/maintenance/{quote(made[0])}" if len(made) == 1 else "/")
            rehearsed = await self._context.engine.rehearse(wanted.to_request(), actor=visit.actor)
        except ForewarnError as error:
            page, status = schedule_preview(form, None, error.message), error.status
        else:
            page, status = schedule_preview(form, rehearsed, ""), HTTPStatus.OK
        values = {**self._around(visit.request, page.title, visit.actor), **page.values, "page_live": None}
        return Response(render(page.template, values), status, media_type="text/html; charset=utf-8")

    # Files

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


async def _form(request: Request) -> dict[str, str]:
    """What a form says; of what is said twice, the last.

    Raises:
        InvalidRequest: It is not what forms send.
    """
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if body and kind != "application/x-www-form-urlencoded":
        msg = "a form is expected (application/x-www-form-urlencoded)"
        raise InvalidRequest(msg)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        msg = "this form cannot be read"
        raise InvalidRequest(msg) from None
    return dict(pairs)


def _address(request: Request) -> str:
    # Starlette's URL holds the path decoded, so that a question mark in a name would end it.
    return quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")


def _inside(target: str) -> str:
    """A path of ours, whatever was asked for."""
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_ours else "/"


def _back(path: str) -> Response:
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)
