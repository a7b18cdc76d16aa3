"""Checks that every request passes before it reaches a route.

Requests from pages of other sites are refused. Under `/v1` no body is read until the caller is known; for an unknown
caller the route itself returns the error. The request is charged to the caller's account. Elsewhere, where pages log
people in, bodies are small.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.control.access import source_address
from forewarn.control.context import Context, identify_caller
from forewarn.control.error_response import make_error_response, respond_to_error
from forewarn.control.throttle import classify_request, credential_of
from forewarn.core.access import Principal, Role
from forewarn.core.usage_limits import UsageAccount, UseKind
from forewarn.errors import Forbidden, ForewarnError

__all__ = ["DirectAnswer", "RequestGate", "is_cross_origin"]

DirectAnswer = Callable[[Context, Request, Principal], Awaitable[Response | None]]
"""Returns the response to a request of a known caller; None if the app is to answer it."""

_API = "/v1/"
_HEALTH = frozenset({"/healthz", "/readyz", "/metrics"})
_INVENTORIES = frozenset({"/v1/inventory", "/v1/inventory/diff"})
_FORM_SIZE_BYTES_MAX = 64 << 10
_DRAINED_BYTES_MAX = 16 << 20
_DRAINED_UNKNOWN_BYTES_MAX = 1 << 20
_HSTS = (b"strict-transport-security", b"max-age=31536000")


def is_cross_origin(headers: Headers) -> bool:
    """Return True if the browser reports that a page of another site sent this request."""
    origin = headers.get("origin")
    # Programs send no Origin. A sandboxed page sends `null`, which has no network location and never matches.
    return origin is not None and urlsplit(origin).netloc != headers.get("host", "")


def _drop_parts(state: dict[str, Any]) -> None:
    del state["holds"], state["exchange"]


class _BodyTooLarge(Exception):
    """The body exceeds its size limit, which is the argument."""


class RequestGate:
    """ASGI middleware in front of all routes of the control address.

    Args:
        app: App with the routes.
        context: Parts of the service.
        answer_directly: Returns the response to a request that needs no route of the app, and otherwise None.
    """

    def __init__(self, app: ASGIApp, context: Context, answer_directly: DirectAnswer) -> None:
        self._app = app
        self._context = context
        self._answer_directly = answer_directly

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _GuardedExchange(scope, receive, send)
        with ExitStack() as holds:
            state = scope.setdefault("state", {})
            state.update(holds=holds, exchange=exchange)
            # Both refer to this request. Without them it is freed at once, and not by the garbage collector, which
            # is rarely run.
            holds.callback(_drop_parts, state)
            request = Request(scope)
            try:
                if scope["path"].startswith(_API):
                    await self._handle_api_request(request, exchange)
                else:
                    await self._handle_page_request(request, exchange)
            except ForewarnError as error:
                await (await respond_to_error(request, error))(scope, exchange.receive, exchange.send)
            except _BodyTooLarge as error:
                message = f"the body is larger than {error} bytes"
                refusal = make_error_response(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", message, connection="close"
                )
                await refusal(scope, exchange.receive, exchange.send)

    async def _handle_api_request(self, request: Request, exchange: _GuardedExchange) -> None:
        """Handle a request to the API."""
        scope, admission = request.scope, self._context.admission
        _check_origin(request)
        caller = await self._identify_caller(request)
        if caller is None:
            admission.count_unknown(request)
            await self._app(scope, exchange.receive_nothing, exchange.send)
            return
        # Worth reading more for a known caller, so that a large upload gets its error instead of a reset.
        exchange.drained_bytes_max = _DRAINED_BYTES_MAX
        use = classify_request(scope["method"], scope["path"])
        # Before the body is read: bodies of callers over their limits must not fill the memory.
        account = admission.charge_request(
            request, caller, UseKind.WATCHES if use is UseKind.WATCHES else UseKind.REQUESTS
        )
        # A change is charged twice: while it is in progress, and to the number per minute.
        if use is UseKind.CHANGES:
            admission.charge_change(request, account)
        body = await self._read_body(request, exchange, account, self._choose_body_limit(scope, caller))
        receive = exchange.replay_messages(body)
        response = await self._answer_directly(self._context, request, caller)
        await (self._app if response is None else response)(scope, receive, exchange.send)

    async def _handle_page_request(self, request: Request, exchange: _GuardedExchange) -> None:
        """Handle a request to the dashboard or a health route."""
        scope = request.scope
        exchange.size_bytes_max = _FORM_SIZE_BYTES_MAX
        admission = self._context.admission
        if not admission.throttle.is_known(credential_of(scope["headers"])):
            admission.count_unknown(request)
        # The dashboard looks its callers up by session. Health routes may look up a token, so the number of
        # concurrent lookups is limited for them as for the API.
        if scope["path"] not in _HEALTH:
            await self._app(scope, exchange.receive, exchange.send)
            return
        _check_origin(request)
        async with admission.limit_lookups(source_address(request)):
            await self._app(scope, exchange.receive, exchange.send)

    async def _identify_caller(self, request: Request) -> Principal | None:
        """Return the caller; None if unknown, in which case the route raises the same error."""
        header = request.headers.get("authorization")
        async with self._context.admission.limit_lookups(source_address(request)):
            try:
                caller = await identify_caller(self._context, request, header)
            except ForewarnError as error:
                request.state.identified = (header, error)
                return None
        request.state.identified = (header, caller)
        return caller

    def _choose_body_limit(self, scope: Scope, caller: Principal) -> int:
        is_inventory = scope["path"] in _INVENTORIES and caller.role is Role.OPERATOR
        return self._context.inventory_size_bytes_max if is_inventory else self._context.settings.body_size_bytes_max

    async def _read_body(
        self, request: Request, exchange: _GuardedExchange, account: UsageAccount, limit: int
    ) -> list[Message]:
        exchange.size_bytes_max = limit
        body: list[Message] = []
        while exchange.has_body:
            message = await exchange.receive()
            size_bytes = len(message.get("body", b""))
            if size_bytes:
                self._context.admission.charge_body(request, account, size_bytes)
            body.append(message)
        return body


def _check_origin(request: Request) -> None:
    if is_cross_origin(request.headers):
        raise Forbidden("cross-site request refused: it was sent from a page of another site")


class _GuardedExchange:
    """A request and its response: limits the body, and adds headers to the response.

    Attributes:
        has_body: True if more of the body may follow.
        size_bytes_max: Maximum size of the body.
        drained_bytes_max: Maximum number of bytes of an unwanted body to read before the connection ends; a client that
            is still sending would not see the response otherwise.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_secure = scope["scheme"] == "https"
        self._connection = scope.get("state", {}).get("connection")
        names = {name for name, _ in scope["headers"]}
        self.has_body = bool(names & {b"content-length", b"transfer-encoding"})
        self.size_bytes_max = _FORM_SIZE_BYTES_MAX
        self.drained_bytes_max = _DRAINED_UNKNOWN_BYTES_MAX
        self._received_bytes = 0

    async def receive(self) -> Message:
        """Return the next part of the body.

        Raises:
            _BodyTooLarge: The body exceeds its size limit.
        """
        message = await self._receive_next()
        if self._received_bytes > self.size_bytes_max:
            raise _BodyTooLarge(self.size_bytes_max)
        return message

    async def receive_nothing(self) -> Message:
        """Return an empty body if there is one to read, otherwise the next message."""
        if self.has_body:
            return {"type": "http.request", "body": b"", "more_body": False}
        return await self._receive_next()

    def replay_messages(self, messages: list[Message]) -> Receive:
        """Return a receive function that yields the messages already read, then the following ones."""
        waiting: Iterator[Message] = iter(messages)

        async def replay() -> Message:
            message = next(waiting, None)
            return await self._receive_next() if message is None else message

        return replay

    async def send(self, message: Message) -> None:
        """Send a part of the response; drain an unread body before the last one."""
        if message["type"] == "http.response.start":
            more = [_HSTS] if self._is_secure else []
            if self._is_client_sending and all(name != b"connection" for name, _ in message.get("headers", ())):
                more.append((b"connection", b"close"))
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        elif not message.get("more_body", False) and self._is_client_sending:
            # Send the content now, but end the response only after draining: ending it lets the server close, and
            # closing with unread bytes resets the connection before the client has read the response.
            await self._send({**message, "more_body": True})
            await self._drain_body()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    @property
    def _is_client_sending(self) -> bool:
        """True if the client is still sending a body."""
        return self.has_body and (self._connection is None or self._connection.is_receiving)

    async def _receive_next(self) -> Message:
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.has_body = False
        return message

    async def _drain_body(self) -> None:
        most = self._received_bytes + self.drained_bytes_max
        while self.has_body and self._received_bytes <= most:
            await self._receive_next()
