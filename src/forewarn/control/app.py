"""The control API, put together: routes, one shape of errors, limits."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn import __version__
from forewarn.control import (
    clock,
    endpoint,
    event,
    fault,
    health,
    history,
    host,
    inventory,
    ledger,
    login,
    maintenance,
    request,
    rollout,
    subscription,
    token,
    verification,
    vm,
)
from forewarn.control.access import check_routes
from forewarn.control.context import Context, check_caller
from forewarn.control.refusal import REFUSED
from forewarn.errors import ForewarnError, TooManyFailures
from forewarn.wire.control import ErrorOut

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

__all__ = ["make_control_app"]

_log = structlog.get_logger("forewarn.control")

_DRAINED_BYTES_MAX = 16 << 20
_ROUTERS = (
    maintenance,
    rollout,
    endpoint,
    event,
    vm,
    history,
    host,
    inventory,
    ledger,
    verification,
    subscription,
    clock,
    fault,
    request,
    token,
    login,
    health,
)
_INVENTORIES = frozenset({"/v1/inventory", "/v1/inventory/diff"})
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 500, 503)
}


def make_control_app(context: Context, telemetry: TelemetryConfig | None = None) -> FastAPI:
    """The control API over the parts of a service.

    Args:
        context: The parts.
        telemetry: What FastAPI is to be told for the spans of requests; None: nothing.
    """
    app = FastAPI(
        title="Forewarn",
        version=__version__,
        description="Announce maintenance to VMs, collect their approvals, carry it out.",
        responses=_ERRORS,
        docs_url=None,  # the dashboard has its own
        redoc_url=None,
        telemetry=telemetry,
    )
    app.state.context = context
    check_routes(route for module in _ROUTERS for route in module.router.routes)
    for module in _ROUTERS:
        # Here, so that no route can do without it; those of health ask nobody on loopback.
        app.include_router(module.router, dependencies=[] if module is health else [Depends(check_caller)])
    app.add_exception_handler(ForewarnError, _ours)  # type: ignore[arg-type] # the handler takes the subclass
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type] # as above
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type] # as above
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(_BodyLimit, context=context)
    return app


def _error(status: int, code: str, message: str, details: dict[str, Any] | None = None, **headers: str) -> Response:
    content = {"error": {"code": code, "message": message, "details": details or {}}}
    # Escaped: a message may quote what cannot be said in UTF-8, such as half a surrogate pair.
    return Response(
        json.dumps(content, separators=(",", ":")), status_code=status, headers=headers, media_type="application/json"
    )


async def _ours(request: Request, error: ForewarnError) -> Response:
    headers = {"www-authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if "retry_after_s" in error.details:
        headers["retry-after"] = str(error.details["retry_after_s"])
    if error.status in REFUSED or isinstance(error, TooManyFailures):
        request.app.state.context.refused.note(request, error)
    return _error(error.status, error.code, error.message, error.details, **headers)


async def _invalid(_request: Request, error: RequestValidationError) -> Response:
    faults = [
        {"where": ".".join(str(part) for part in fault["loc"]), "what": fault["msg"].removeprefix("Value error, ")}
        for fault in error.errors()
    ]
    first = faults[0]
    message = f"{first['where']}: {first['what']}"
    return _error(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", message, {"faults": faults[:20]})


async def _http(request: Request, error: HTTPException) -> Response:
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _allowed(request)
    return _error(error.status_code, code, str(error.detail), None, **headers)


def _allowed(request: Request) -> str:
    """Every method of that path; Starlette itself names those of its first route only."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    methods = {
        m.upper() for path, found in paths.items() if compile_path(path)[0].match(request.url.path) for m in found
    }
    return ", ".join(sorted(methods))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("a request raised", path=request.url.path, exc_info=error)
    message = "an unexpected error; the log of the service has it"
    # Starlette raises the error once more after this answer, and uvicorn ends the connection then.
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "server_error", message, connection="close")


class _BodyLimit:
    """Refuses a body over the limit; reads on for a while, since a client that is still sending would not see why."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_inventory = scope["path"] in _INVENTORIES
        limit = self._context.inventory_size_bytes_max if is_inventory else self._context.body_size_bytes_max
        received_bytes = 0
        body: list[Message] = []
        while True:
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes <= limit:
                body.append(message)
            is_last = message["type"] == "http.disconnect" or not message.get("more_body", False)
            if is_last or received_bytes > limit + _DRAINED_BYTES_MAX:
                break
        if received_bytes > limit:
            message_text = f"the body is larger than {limit} bytes"
            refusal = _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", message_text, connection="close")
            await refusal(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)


def _replay(messages: list[Message], receive: Receive) -> Callable[[], Awaitable[Message]]:
    waiting = iter(messages)

    async def replay() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return replay
