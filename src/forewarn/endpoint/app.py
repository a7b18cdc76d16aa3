"""ASGI app of the metadata endpoint: handles every request that the hot path does not answer.

Checks run in the order of R62. Every error response is JSON (R8, R65).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from forewarn.clock import Clock
from forewarn.core.approval import Approval, Approver
from forewarn.core.fault import Fault, Place
from forewarn.endpoint import misconduct
from forewarn.endpoint.authority import Authority
from forewarn.endpoint.budget import HeldBody, OverLimit, limit_of
from forewarn.endpoint.request_check import (
    Refused,
    check_events_request,
    check_metadata,
    check_method,
    check_sender,
    check_single_parameters,
    encode_error_response,
    encode_json_response,
    parse_query,
    payload_refusal,
    size_refusal,
)
from forewarn.errors import ForewarnError, LimitExceeded
from forewarn.publishing.feed import Channel
from forewarn.publishing.identity import Caller
from forewarn.util.fair_share import Room, Turns
from forewarn.wire import imds, instance

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from forewarn.endpoint.fastpath import Connection
    from forewarn.endpoint.traffic import Traffic

__all__ = ["MetadataApp"]

_log = structlog.get_logger("forewarn.endpoint")

_EVENTS = "/metadata/scheduledevents"
_LEGACY = "/metadata/latest/scheduledevents"
_VERSIONS = "/metadata/versions"
_INSTANCE = "/metadata/instance"
_DRAINED_BYTES_MAX = 16 << 20
_RETRY_AFTER_S = 1
_REFUSAL_DELAY_S = 1.0
_SMALL_BODY_BYTES = 4096
"""Largest body that is decoded at once; larger ones take turns."""

_UNKNOWN_IDS_MAX = 10_000
_UNKNOWN_IDS_OF_ONE = 8
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
_NOT_PLAIN = frozenset(
    {"if-none-match", "prefer", "content-length", "transfer-encoding", "expect", "upgrade", "x-forwarded-for", "range"}
)


class MetadataApp:
    """ASGI app that answers VMs.

    Args:
        authority: Enables audiences; also handles approvals unless `approve` is replaced.
        clock: Service clock; a virtual one also ends waits.
        traffic: State shared with the connections.
        first_answer_delay_s: Delay of the response to the enabling GET, in seconds (R67).

    Attributes:
        approve: Callable that handles approvals.
        before_answer: Hook awaited with the VM's name and the method before a request for events is answered. While
            it is set, no request is remembered for the fast path, so that none bypasses it; None if there is none.
    """

    def __init__(self, authority: Authority, clock: Clock, traffic: Traffic, first_answer_delay_s: float = 0.0) -> None:
        self.approve: Callable[[Sequence[str], Approver], Awaitable[Approval]] = authority.approve
        self.before_answer: Callable[[str, str], Awaitable[None]] | None = None
        self._authority = authority
        self._clock = clock
        self._traffic = traffic
        self._first_answer_delay_s = first_answer_delay_s
        self._enabling: dict[str, asyncio.Task[None]] = {}
        self._unknown_ids: dict[tuple[str, int, int, str], None] = {}
        self._turns = Turns(
            Room(weight_max=traffic.limits.body_bytes_max, owner_weight_max=traffic.limits.body_bytes_max)
        )
        self._dialect = authority.feed.dialect
        self._versions = {version.name: version for version in authority.feed.versions}
        self._indexes = {name: index for index, name in enumerate(self._versions)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        began_s = asyncio.get_running_loop().time()
        try:
            response = await self._answer(request)
        except Refused as refused:
            response = refused.response
        except ClientDisconnect:
            return
        except ForewarnError as error:
            _log.warning("a request failed", path=scope["path"], error=error.message)
            response = self._failed(request, error)
        except Exception:  # noqa: BLE001 - one request must not end the endpoint; the log has the trace
            _log.exception("a request raised", path=scope["path"])
            response = encode_error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal server error")
        version = request.query_params.get("api-version", "")
        label = version if version in self._versions else "other"
        self._traffic.outcomes[label, _method_label(request.method), response.status_code] += 1
        fault: Fault | None = scope["state"].get("fault")
        if fault is not None and fault.kind.place in {Place.TIME, Place.BYTES}:
            response_or_none = await self._spoil(request, response, fault)
        else:
            response_or_none = response
        if self._traffic.journal is not None:
            is_whole = response_or_none is not None or (fault is not None and fault.kind.name in misconduct.WHOLE)
            self._write_down(request, response, began_s, fault, is_answered=is_whole)
        if response_or_none is not None:
            await response(scope, receive, send)

    def _failed(self, request: Request, error: ForewarnError) -> Response:
        """Return the response for an error, and count the error if it is about a limit."""
        limit = limit_of(error)
        if limit:
            connection: Connection = request.scope["state"]["connection"]
            vm = "" if connection.caller is None else connection.caller.vm.name
            self._traffic.budgets.note(limit, vm, connection.peer)
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _unavailable()
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            return _too_many()
        return encode_error_response(error.status, "Service unavailable")

    async def _answer(self, request: Request) -> Response:
        connection: Connection = request.scope["state"]["connection"]
        caller = self._caller(connection)
        path: str = request.scope["path"].removesuffix("/")
        route = path.lower()
        if route == _EVENTS or (route == _LEGACY and self._dialect.legacy_latest):
            if self.before_answer is not None:
                await self.before_answer(caller.vm.name, request.method)
            if self._traffic.faults.in_force:
                await self._strike(request, connection, caller)
            return await self._events(request, connection, caller, is_legacy=route == _LEGACY)
        if route in {_VERSIONS, _INSTANCE} or route.startswith(_INSTANCE + "/"):
            return self._instance(request, caller, path)
        return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")

    def _write_down(
        self, request: Request, response: Response, began_s: float, fault: Fault | None, *, is_answered: bool
    ) -> None:
        """Record the request in the journal."""
        scope = request.scope
        connection: Connection = scope["state"]["connection"]
        assert self._traffic.journal is not None  # noqa: S101 - checked by the caller
        self._traffic.journal.note(
            vm="" if connection.caller is None else connection.caller.vm.name,
            source_address=connection.peer,
            method=request.method,
            target=scope["state"]["target"].decode("latin-1"),
            headers=((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]),
            body=scope["state"].get("body", b""),
            status=response.status_code if is_answered else 0,
            answer=bytes(response.body) if is_answered else b"",
            took_s=asyncio.get_running_loop().time() - began_s,
            fault="" if fault is None else fault.kind.name,
        )

    # Faults

    async def _strike(self, request: Request, connection: Connection, caller: Caller) -> None:
        """Apply a fault to this request if one matches (R66)."""
        places = {Place.STATUS, Place.TIME, Place.BYTES} | ({Place.DOCUMENT} if request.method == "GET" else set())
        fault = self._traffic.faults.strike(caller.vm.name, request.method, *places)
        request.scope["state"]["fault"] = fault
        if fault is not None and fault.kind.name == "dropped":
            if self._traffic.journal is not None:
                now_s = asyncio.get_running_loop().time()
                self._write_down(request, Response(), now_s, fault, is_answered=False)
            connection.reset()
            await connection.wait_until_lost()
            raise ClientDisconnect
        if fault is not None and fault.kind.place is Place.STATUS:
            raise Refused(_response(misconduct.refuse(fault)))
        if fault is not None and fault.kind.name == "late":
            await self._hold_back(connection, fault.delay.total_seconds())

    def _distorted(self, request: Request, response: Response, channel: Channel, index: int) -> Response:
        """Return the response, distorted if a fault strikes the document."""
        fault: Fault | None = request.scope["state"].get("fault")
        if fault is None or fault.kind.place is not Place.DOCUMENT:
            return response
        incarnation, replies = channel.before
        before = (
            encode_json_response(HTTPStatus.OK, replies[index].body, {"etag": f'"{incarnation}"'}) if replies else None
        )
        return _response(
            misconduct.distort(fault, _taken(response), None if before is None else _taken(before)),
        )

    async def _spoil(self, request: Request, response: Response, fault: Fault) -> Response | None:
        """Send the response late or malformed; return what is left to send."""
        connection: Connection = request.scope["state"]["connection"]
        if fault.kind.place is Place.BYTES:
            await misconduct.send_badly(connection, fault, _taken(response), self._traffic.stamp)
            return None
        if fault.kind.name == "time-out":
            await self._hold_back(connection, fault.delay.total_seconds())
            connection.end()
            await connection.wait_until_lost()
            return None
        return response

    async def _hold_back(self, connection: Connection, span_s: float) -> None:
        """Wait for `span_s` seconds, or until the client is gone."""
        if span_s <= 0 or self._traffic.is_stopping or connection.is_lost:
            return
        waiter = connection.held = asyncio.get_running_loop().create_future()
        try:
            await self._wait(waiter, span_s)
        finally:
            connection.held = None

    def _caller(self, connection: Connection) -> Caller:
        """Return the caller; call again after each wait, since the inventory may have changed meanwhile."""
        caller = connection.current_caller()
        if caller is None and not self._authority.identity.is_known:
            raise Refused(_unavailable())
        if caller is None:
            self._traffic.unknown_callers += 1
            raise Refused(encode_error_response(HTTPStatus.NOT_FOUND, "Not found"))
        return caller

    # Scheduled events

    async def _events(self, request: Request, connection: Connection, caller: Caller, *, is_legacy: bool) -> Response:
        limits, peer = self._traffic.limits, connection.peer
        version = check_events_request(
            request,
            self._versions,
            version_name="2017-03-01" if is_legacy else None,
            host_names=limits.host_names,
            is_local=not peer,
        )
        index = self._indexes[version.name]
        self._check_rate(caller)
        if request.method == "POST":
            return await self._approve(request, connection, caller, index)
        return await self._document(request, connection, caller, index)

    async def _document(self, request: Request, connection: Connection, caller: Caller, index: int) -> Response:
        channel = await self._enabled(connection, caller)
        headers = {}
        # A fault must show at once and in a full document: a long poll would delay it, and a 304 has no body to damage.
        is_struck = request.scope["state"].get("fault") is not None
        known = "" if is_struck else ",".join(request.headers.getlist("if-none-match"))
        if known and imds.is_not_modified(known, channel.incarnation):
            wait_s = self._wait_s(request)
            if wait_s > 0:
                headers = {"preference-applied": "wait"}
            seen = (channel.key, channel.epoch, channel.incarnation)
            await self._hold(connection, channel, wait_s)
            channel = await self._enabled(connection, self._caller(connection))
            if (channel.key, channel.epoch, channel.incarnation) == seen:
                headers["etag"] = f'"{channel.incarnation}"'
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if not channel.replies:
            return _unavailable()
        if self.before_answer is None and _NOT_PLAIN.isdisjoint(request.headers.keys()):
            connection.learn(index)
        response = encode_json_response(
            HTTPStatus.OK, channel.replies[index].body, headers | {"etag": f'"{channel.incarnation}"'}
        )
        return self._distorted(request, response, channel, index)

    async def _enabled(self, connection: Connection, caller: Caller) -> Channel:
        """Return the caller's channel; the first request enables it (R67), and every request keeps it enabled (R69)."""
        channel = caller.channel
        if not channel.is_enabled:
            await self._enable(channel.key, caller.vm.scope)
            await self._hold(connection, channel, self._first_answer_delay_s)
        channel.asked_at = self._traffic.now
        return channel

    async def _enable(self, key: str, scope: str | None) -> None:
        """Enable an audience once, even if several of its connections ask at the same time."""
        task = self._enabling.get(key)
        if task is None:
            task = self._enabling[key] = asyncio.ensure_future(self._authority.enable(key, scope))
            task.add_done_callback(lambda done: self._enabled_now(key, done))
        await asyncio.shield(task)  # one client that leaves must not cancel it for the others

    def _enabled_now(self, key: str, task: asyncio.Task[None]) -> None:
        del self._enabling[key]
        if not task.cancelled():
            task.exception()  # retrieve it, since every waiter may be gone

    async def _approve(self, request: Request, connection: Connection, caller: Caller, index: int) -> Response:
        vm = caller.vm.name
        budgets = self._traffic.budgets
        try:
            with budgets.approval(vm):
                event_ids = await self._event_ids(request, vm)
                return await self._approve_ids(event_ids, connection, index)
        except OverLimit as over:
            budgets.note(over.limit, vm)
            response = _unavailable() if over.is_shared else _too_many(over.retry_after_s)
            if not over.is_read:
                await self._discard_body(request, response)
        except LimitExceeded as error:
            budgets.note(limit_of(error), vm)
            response = _too_many()
        # The delay makes a client that retries at once cheap.
        await self._hold_back(connection, _REFUSAL_DELAY_S)
        raise Refused(response)

    async def _discard_body(self, request: Request, response: Response) -> None:
        """Read the rest of the body, up to a limit: a client that is still sending might not see the response."""
        if "expect" in request.headers:
            response.headers["connection"] = "close"  # its body would be parsed as the next request
            return
        size_bytes = 0
        async for piece in request.stream():
            size_bytes += len(piece)
            if size_bytes > _DRAINED_BYTES_MAX:
                response.headers["connection"] = "close"
                return

    async def _approve_ids(self, event_ids: tuple[str, ...], connection: Connection, index: int) -> Response:
        caller = self._caller(connection)
        channel = caller.channel
        # A repeated approval needs no further decision.
        if not channel.settled.issuperset(event_ids):
            await self._carry_approval(event_ids, connection, caller, index)
        if channel.is_enabled:
            channel.asked_at = self._traffic.now
        if self._dialect.post_body == "document" and channel.replies:
            return encode_json_response(HTTPStatus.OK, channel.replies[index].body)
        return encode_json_response(HTTPStatus.OK, b"")

    async def _event_ids(self, request: Request, vm: str) -> tuple[str, ...]:
        """Return the event ids in the body; the body counts towards the budgets until it is decoded.

        Raises:
            OverLimit: This VM, or all VMs together, have too many body bytes pending.
        """
        with self._traffic.budgets.body(vm) as held:
            body = await self._body(request, held)
            if len(body) > _SMALL_BODY_BYTES:
                await self._turns.take(vm, len(body))
            try:
                return imds.decode_approval(body, self._traffic.limits.start_requests_max).event_ids
            except imds.BadPayload as error:
                raise Refused(payload_refusal(error)) from error

    async def _carry_approval(
        self, event_ids: tuple[str, ...], connection: Connection, caller: Caller, index: int
    ) -> None:
        """Have the approval decided and committed.

        It is refused if an id is unknown and the dialect requires known ids (A11), or if a policy requires other
        approvers.
        """
        channel = caller.channel
        shown = (channel.key, channel.epoch, channel.incarnation)
        refuses_unknown = self._dialect.unknown_event != HTTPStatus.OK
        if refuses_unknown and any((*shown, event_id) in self._unknown_ids for event_id in channel.unlisted(event_ids)):
            raise Refused(self._unknown())
        approver = Approver(
            actor=f"vm:{caller.vm.name}",
            audience=channel.key,
            vm=caller.vm.name,
            source_address=connection.peer,
            api_version=self._authority.feed.versions[index].name,
        )
        approval = await self.approve(event_ids, approver)
        if approval.unknown:
            if refuses_unknown:
                self._remember_unknown((*shown, event_id) for event_id in approval.unknown[:_UNKNOWN_IDS_OF_ONE])
                raise Refused(self._unknown())
            known = [i for i in event_ids if i not in set(approval.unknown)]
            approval = await self.approve(known, approver)
        if approval.refused:
            raise Refused(
                encode_error_response(HTTPStatus.BAD_REQUEST, "Bad request: . This VM may not approve this event")
            )
        channel.settle((*approval.approved, *approval.unchanged))

    def _remember_unknown(self, keys: Iterable[tuple[str, int, int, str]]) -> None:
        """Remember ids that an audience does not have, until its document changes.

        Ids are random, so an unknown id will not be created later. A few ids per approval are enough, since an
        approval is refused as a whole. The oldest ids are dropped.
        """
        for key in keys:
            self._unknown_ids[key] = None
        while len(self._unknown_ids) > _UNKNOWN_IDS_MAX:
            del self._unknown_ids[next(iter(self._unknown_ids))]

    def _unknown(self) -> Response:
        if self._dialect.unknown_event == HTTPStatus.NOT_FOUND:
            return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")
        return encode_error_response(HTTPStatus.BAD_REQUEST, "Bad request: . EventId is not known")

    async def _body(self, request: Request, held: HeldBody) -> bytes:
        limit = self._traffic.limits.body_size_bytes_max
        body = bytearray()
        over: OverLimit | None = None
        size_bytes = int(request.headers.get("content-length", 0))
        is_refused = size_bytes > limit and "expect" in request.headers  # client awaits 100 Continue
        if not is_refused:
            size_bytes = 0
            async for piece in request.stream():
                size_bytes += len(piece)
                if size_bytes > limit + _DRAINED_BYTES_MAX:
                    break  # below this, keep reading: a client that is still sending might not see the response
                if size_bytes > limit or over is not None:
                    continue
                try:
                    held.add(len(piece))
                    body += piece
                except OverLimit as found:
                    over = found
                    body.clear()
                    held.drop()
        if size_bytes > limit:
            raise Refused(size_refusal(limit))
        if over is not None:
            over.is_read = True
            raise over
        request.scope["state"]["body"] = bytes(body)
        return bytes(body)

    # Instance

    def _instance(self, request: Request, caller: Caller, path: str) -> Response:
        connection: Connection = request.scope["state"]["connection"]
        check_method(request, ("GET",))
        check_sender(request, self._traffic.limits.host_names, is_local=not connection.peer)
        check_metadata(request)
        if path.lower() == _VERSIONS:
            return encode_json_response(HTTPStatus.OK, imds.encode_versions(self._authority.feed.versions))
        parameters = parse_query(request)
        refusal = instance.refuse_version(parameters.get("api-version", ""))
        if refusal is not None:
            return encode_json_response(HTTPStatus.BAD_REQUEST, refusal)
        check_single_parameters(request)
        self._check_rate(caller)
        below = path[len(_INSTANCE) :].strip("/")
        value = instance.look_up(instance.describe(caller.vm, caller.scope), below.split("/") if below else [])
        if value is None:
            return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")
        is_text = parameters.get("format", "").lower() == "text"
        if instance.is_leaf(value) and not is_text:
            return encode_json_response(HTTPStatus.BAD_REQUEST, instance.LEAF_WITHOUT_TEXT)
        body, content_type = instance.render(value, is_text)
        return Response(body, headers={"content-type": content_type})

    # Checks

    def _check_rate(self, caller: Caller) -> None:
        """Refuse requests above the rate limit of each second (R9)."""
        limit = self._traffic.limits.rate_limit_per_s
        if limit is None:
            return
        second = int(asyncio.get_running_loop().time())
        if caller.window_s != second:
            caller.window_s, caller.window_requests = second, 0
        caller.window_requests += 1
        if caller.window_requests > limit:
            self._traffic.budgets.note("rate_limit_per_s", caller.vm.name)
            raise Refused(_too_many())

    # Waiting

    def _wait_s(self, request: Request) -> float:
        """Return the seconds of ``Prefer: wait=…`` (RFC 7240), capped at `wait_s_max`; 0 without it (X1)."""
        match = _WAIT.search(",".join(request.headers.getlist("prefer")))
        return min(float(match[1]), self._traffic.limits.wait_s_max) if match else 0.0

    async def _hold(self, connection: Connection, channel: Channel, wait_s: float) -> None:
        """Wait for a new incarnation, until the time is over or the client is gone."""
        if wait_s <= 0 or self._traffic.is_stopping or connection.is_lost:
            return
        waiter = connection.held = channel.hold()
        try:
            await self._wait(waiter, wait_s)
        finally:
            connection.held = None
            channel.let_go(waiter)

    async def _wait(self, waiter: asyncio.Future[None], timeout_s: float) -> None:
        """Wait until `waiter` is done or the timeout passes, in real or virtual seconds, whichever is sooner."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_s, _release, waiter)
        virtual = None
        if self._clock.is_virtual:
            virtual = loop.create_task(self._release_when_due(waiter, timeout_s))
        try:
            await waiter
        finally:
            timer.cancel()
            if virtual is not None:
                virtual.cancel()

    async def _release_when_due(self, waiter: asyncio.Future[None], timeout_s: float) -> None:
        await self._clock.wait_until(self._clock.now() + timedelta(seconds=timeout_s))
        _release(waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _unavailable() -> Response:
    """Return 503 with a short ``Retry-After``."""
    response = encode_error_response(HTTPStatus.SERVICE_UNAVAILABLE, "Service unavailable")
    response.headers["retry-after"] = str(_RETRY_AFTER_S)
    return response


def _too_many(retry_after_s: int = _RETRY_AFTER_S) -> Response:
    """Return 429: this VM exceeds its share (R65)."""
    response = encode_error_response(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests")
    response.headers["retry-after"] = str(retry_after_s)
    return response


def _response(answer: misconduct.Answer) -> Response:
    return Response(answer.body, status_code=answer.status, headers=answer.headers)


def _taken(response: Response) -> misconduct.Answer:
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return misconduct.Answer(response.status_code, headers, bytes(response.body))


def _method_label(method: str) -> str:
    return method if method in {"GET", "POST"} else "other"
