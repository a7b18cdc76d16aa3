"""The control API, put together: routes, one shape of errors, limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn import __version__
from forewarn.control import clock, event, health, host, inventory, ledger, maintenance, vm
from forewarn.control.context import Context
from forewarn.errors import ForewarnError
from forewarn.wire.control import ErrorOut

__all__ = ["make_control_app"]

_log = structlog.get_logger("forewarn.control")

_ROUTERS = (maintenance, event, vm, host, inventory, ledger, clock, health)
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 500, 503)
}


def make_control_app(context: Context) -> FastAPI:
    """The control API over the parts of a service."""
    app = FastAPI(
        title="Forewarn",
        version=__version__,
        description="Announce maintenance to VMs, collect their approvals, carry it out.",
        responses=_ERRORS,
        redoc_url=None,
    )
    app.state.context = context
    for module in _ROUTERS:
        app.include_router(module.router)
    app.add_exception_handler(ForewarnError, _ours)  # type: ignore[arg-type] # the handler takes the subclass
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type] # as above
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type] # as above
    app.add_exception_handler(Exception, _unexpected)
    app.add_middleware(_BodyLimit, context=context)
    return app


def _error(status: int, code: str, message: str, details: dict[str, Any] | None = None, **headers: str) -> JSONResponse:
    content = {"error": {"code": code, "message": message, "details": details or {}}}
    return JSONResponse(content, status_code=status, headers=headers)


async def _ours(_request: Request, error: ForewarnError) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    return _error(error.status, error.code, error.message, error.details, **headers)


async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    faults = [
        {"where": ".".join(str(part) for part in fault["loc"]), "what": fault["msg"].removeprefix("Value error, ")}
        for fault in error.errors()
    ]
    first = faults[0]
    message = f"{first['where']}: {first['what']}"
    return _error(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", message, {"faults": faults[:20]})


async def _http(_request: Request, error: HTTPException) -> JSONResponse:
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    return _error(error.status_code, code, str(error.detail), None, **(error.headers or {}))


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("a request raised", path=request.url.path, exc_info=error)
    return _error(
        HTTPStatus.INTERNAL_SERVER_ERROR, "server_error", "an unexpected error; the log of the service has it"
    )


class _BodyLimit:
    """Refuses a body over the limit as soon as it is known to be, without reading the rest."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_inventory = scope["path"] == "/v1/inventory"
        limit = self._context.inventory_size_bytes_max if is_inventory else self._context.body_size_bytes_max
        received_bytes = 0
        body: list[Message] = []
        while True:
            message = await receive()
            body.append(message)
            received_bytes += len(message.get("body", b""))
            if received_bytes > limit:
                response = _error(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    "too_large",
                    f"the body is larger than {limit} bytes",
                    connection="close",
                )
                await response(scope, receive, send)
                return
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                break
        await self._app(scope, _replay(body, receive), send)


def _replay(messages: list[Message], receive: Receive) -> Callable[[], Awaitable[Message]]:
    waiting = iter(messages)

    async def replay() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return replay
