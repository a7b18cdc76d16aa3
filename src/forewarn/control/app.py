"""FastAPI app of the control API: routes, error responses, limits."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from forewarn import __version__
from forewarn.control import (
    audit_log,
    clock,
    event,
    fault,
    health,
    history,
    host,
    host_endpoint,
    id_lookup,
    inventory,
    limit,
    login,
    maintenance,
    policy,
    request,
    rollout,
    scope,
    status,
    subscription,
    token,
    verification,
    vm,
)
from forewarn.control.access import check_routes, list_allowed_methods
from forewarn.control.context import Context, check_caller
from forewarn.control.error_response import make_error_response, respond_to_error
from forewarn.control.gate import RequestGate
from forewarn.errors import ForewarnError
from forewarn.wire.control_response import ErrorOut

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

__all__ = ["make_control_app"]

_log = structlog.get_logger("forewarn.control")

_ROUTERS = (
    maintenance,
    rollout,
    host_endpoint,
    event,
    vm,
    history,
    scope,
    policy,
    host,
    inventory,
    audit_log,
    verification,
    subscription,
    clock,
    fault,
    request,
    token,
    id_lookup,
    limit,
    login,
    status,
    health,
)
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 431, 500, 503)
}


def make_control_app(context: Context, telemetry: TelemetryConfig | None = None) -> FastAPI:
    """Build the control API of a service; `telemetry` is FastAPI's configuration for request spans."""
    app = FastAPI(
        title="Forewarn",
        version=__version__,
        description="Announce maintenance to VMs, collect their approvals, carry it out.",
        responses=_ERRORS,
        docs_url=None,  # the dashboard has its own
        openapi_url=None,  # as below
        redoc_url=None,
        telemetry=telemetry,
    )
    app.state.context = context
    check_routes(route for module in _ROUTERS for route in module.router.routes)
    for module in _ROUTERS:
        # Added here so that no route can omit it. Health routes check the caller themselves, except on loopback.
        app.include_router(module.router, dependencies=[] if module is health else [Depends(check_caller)])
    app.add_exception_handler(ForewarnError, respond_to_error)  # type: ignore[arg-type] # the handler takes the subclass
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)  # type: ignore[arg-type] # as above
    app.add_exception_handler(HTTPException, _answer_http_error)  # type: ignore[arg-type] # as above
    app.add_exception_handler(Exception, _answer_unexpected_error)
    app.add_middleware(RequestGate, context=context, answer_directly=host_endpoint.answer_directly)
    _add_openapi_route(app)
    return app


def _add_openapi_route(app: FastAPI) -> None:
    """Add the route of the OpenAPI document, which takes a second to build: once, and off the event loop."""
    making = asyncio.Lock()

    async def describe(_request: Request) -> Response:
        async with making:
            document = await asyncio.to_thread(app.openapi)
        return JSONResponse(document)

    app.add_route("/openapi.json", describe, include_in_schema=False)


async def _answer_invalid_request(_request: Request, error: RequestValidationError) -> Response:
    faults = [
        {"where": ".".join(str(part) for part in fault["loc"]), "what": fault["msg"].removeprefix("Value error, ")}
        for fault in error.errors()
    ]
    first = faults[0]
    message = f"{first['where']}: {first['what']}"
    return make_error_response(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", message, {"faults": faults[:20]})


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    headers = dict(error.headers or {})
    # Starlette names only the methods of the first route with this path.
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(list_allowed_methods(request.url.path)) or headers.get("Allow", "")
    return make_error_response(error.status_code, code, str(error.detail), None, **headers)


async def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    _log.error("unexpected error in a request", path=request.url.path, exc_info=error)
    message = "unexpected error: see the log of the service"
    # Starlette raises the error again after this response, and uvicorn then ends the connection.
    return make_error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "server_error", message, connection="close")
