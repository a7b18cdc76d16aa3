"""ASGI app of the metadata endpoint: handles every request that the hot path does not answer.

Checks run in the order of R62. Every error response is JSON (R8, R65).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from http import HTTPStatus

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forewarn.clock import Clock
from forewarn.core.fault import FaultPoint, InjectedFault
from forewarn.core.maintenance.approval import Approver
from forewarn.endpoint import faulty_responses
from forewarn.endpoint.authority import Authority
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.quota import HeldBody, OverLimit, find_exceeded_limit
from forewarn.endpoint.request_check import (
    RequestRefused,
    build_payload_refusal,
    build_size_refusal,
    check_events_request,
    check_metadata,
    check_method,
    check_sender,
    check_single_parameters,
    encode_error_response,
    encode_json_response,
    parse_query,
)
from forewarn.endpoint.traffic import Traffic
from forewarn.errors import ForewarnError, LimitExceeded
from forewarn.publishing.feed import Channel
from forewarn.publishing.identity import Caller
from forewarn.util.fair_share import FairGate, QueueLimits
from forewarn.wire import imds, instance

__all__ = ["MetadataApp"]

_log = structlog.get_logger("forewarn.endpoint")

_EVENTS = "/metadata/scheduledevents"
_LEGACY = "/metadata/latest/scheduledevents"
_VERSIONS = "/metadata/versions"
_INSTANCE = "/metadata/instance"
# Many clients read the response only after they have sent the whole body. Up to this size they get to see the refusal;
# beyond it, the connection is closed.
_DRAINED_BYTES_MAX = 16 << 20
_RETRY_AFTER_S = 1
_REFUSAL_DELAY_S = 1.0
_SMALL_BODY_BYTES = 4096
"""Largest body that is decoded at once; larger ones take turns."""

_UNKNOWN_IDS_MAX = 10_000
_UNKNOWN_IDS_OF_ONE = 8
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
# With one of these headers the response may be something other than the current document, so such a request must not be
# remembered for the fast path.
_NOT_PLAIN = frozenset(
    {"if-none-match", "prefer", "content-length", "transfer-encoding", "expect", "upgrade", "x-forwarded-for", "range"}
)


class MetadataApp:
    """ASGI app that answers VMs.

    Args:
        authority: Enables audiences and accepts approvals.
        clock: Service clock; a virtual one also ends waits.
        traffic: State shared with the connections.
        first_answer_delay_s: Delay of the response to the enabling GET, in seconds (R67).

    Attributes:
        before_answer: Hook awaited with the VM's name and the method before a request for events is answered. While
            it is set, no request is remembered for the fast path, so that none bypasses it; None if there is none.
    """

    def __init__(self, authority: Authority, clock: Clock, traffic: Traffic, first_answer_delay_s: float = 0.0) -> None:
        self.before_answer: Callable[[str, str], Awaitable[None]] | None = None
        self._authority = authority
        self._clock = clock
        self._traffic = traffic
        self._first_answer_delay_s = first_answer_delay_s
        self._enabling: dict[str, asyncio.Task[None]] = {}
        self._unknown_ids: dict[tuple[str, int, int, str], None] = {}
        self._turns = FairGate(
            # Weights are bytes here, not event ids as in the defaults. The quotas have bounded these bytes already.
            QueueLimits(weight_max=traffic.limits.body_bytes_max, owner_weight_max=traffic.limits.body_bytes_max)
        )
        self._dialect = authority.feed.dialect
        self._versions = {version.name: version for version in authority.feed.versions}
        self._indexes = {name: index for index, name in enumerate(self._versions)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        began_s = asyncio.get_running_loop().time()
        try:
            response = await self._route_request(request)
        except RequestRefused as refused:
            response = refused.response
        except ClientDisconnect:
            return
        except ForewarnError as error:
            _log.warning("a request failed", path=scope["path"], error=error.message)
            response = self._build_failure_response(request, error)
        except Exception:  # noqa: BLE001 - one request must not end the endpoint; the log has the trace
            _log.exception("a request raised", path=scope["path"])
            response = encode_error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal server error")
        version = request.query_params.get("api-version", "")
        # Unknown versions share one label: a VM must not be able to create metrics without limit.
        label = version if version in self._versions else "other"
        self._traffic.outcomes[label, _label_method(request.method), response.status_code] += 1
        fault: InjectedFault | None = scope["state"].get("fault")
        is_over = fault is not None and await self._carry_out_fault(request, response, fault)
        # An ordinary response is recorded before it is sent: a client that has received it finds the request here.
        # The journal must not claim an answer that the client could not receive.
        is_whole = not is_over or (fault is not None and fault.kind.name in faulty_responses.WHOLE)
        self._record_in_journal(request, response, began_s, fault, is_answered=is_whole)
        if not is_over:
            await response(scope, receive, send)

    def _build_failure_response(self, request: Request, error: ForewarnError) -> Response:
        """Return the response for an error, and count the error if it is about a limit."""
        limit = find_exceeded_limit(error)
        if limit:
            connection: VmConnection = request.scope["state"]["connection"]
            vm = "" if connection.caller is None else connection.caller.vm.name
            self._traffic.quotas.count_refusal(limit, vm, connection.peer)
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _build_unavailable_response()
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            return _build_too_many_response()
        return encode_error_response(error.status, "Service unavailable")

    async def _route_request(self, request: Request) -> Response:
        connection: VmConnection = request.scope["state"]["connection"]
        # Before the checks of R62: an unknown caller gets 404 for every path, and is counted.
        caller = self._require_caller(connection)
        path: str = request.scope["path"].removesuffix("/")
        # Microsoft's C# library asks for `/metadata/scheduledEvents` (R3).
        route = path.lower()
        if route == _EVENTS or (route == _LEGACY and self._dialect.legacy_latest):
            if self.before_answer is not None:
                await self.before_answer(caller.vm.name, request.method)
            if self._traffic.faults.in_force:
                await self._apply_fault(request, connection, caller)
            return await self._answer_events(request, connection, caller, is_legacy=route == _LEGACY)
        if route in {_VERSIONS, _INSTANCE} or route.startswith(_INSTANCE + "/"):
            return self._answer_instance(request, caller, path)
        return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")

    def _record_in_journal(
        self, request: Request, response: Response, began_s: float, fault: InjectedFault | None, *, is_answered: bool
    ) -> None:
        """Record the request in the journal, if there is one."""
        if self._traffic.journal is None:
            return
        scope = request.scope
        connection: VmConnection = scope["state"]["connection"]
        self._traffic.journal.record_request(
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
            is_client_gone=connection.is_client_gone,
        )

    # Faults

    async def _apply_fault(self, request: Request, connection: VmConnection, caller: Caller) -> None:
        """Apply a fault to this request if one matches (R66)."""
        # A POST would use up a fault of the document without showing it: its response has no document by default (A13).
        places = {FaultPoint.STATUS, FaultPoint.TIME, FaultPoint.BYTES} | (
            {FaultPoint.DOCUMENT} if request.method == "GET" else set()
        )
        fault = self._traffic.faults.take_matching_fault(caller.vm.name, request.method, *places)
        request.scope["state"]["fault"] = fault
        if fault is not None and fault.kind.name == "dropped":
            now_s = asyncio.get_running_loop().time()
            self._record_in_journal(request, Response(), now_s, fault, is_answered=False)
            connection.reset()
            # Return only after the loss: uvicorn answers 500 for an app that returns early without a response.
            await connection.wait_until_lost()
            raise ClientDisconnect
        if fault is not None and fault.kind.place is FaultPoint.STATUS:
            raise RequestRefused(faulty_responses.build_status_response(fault))
        if fault is not None and fault.kind.name == "late":
            await self._hold_request(connection, fault.delay.total_seconds())

    def _distort_response(self, request: Request, response: Response, channel: Channel, index: int) -> Response:
        """Return the response, distorted if a fault strikes the document."""
        fault: InjectedFault | None = request.scope["state"].get("fault")
        if fault is None or fault.kind.place is not FaultPoint.DOCUMENT:
            return response
        incarnation, replies = channel.previous_replies
        before = (
            encode_json_response(HTTPStatus.OK, replies[index].body, {"etag": f'"{incarnation}"'}) if replies else None
        )
        return faulty_responses.distort_document(fault, response, before)

    async def _carry_out_fault(self, request: Request, response: Response, fault: InjectedFault) -> bool:
        """Send the response malformed, or not at all, if the fault says so; return True if the connection has ended."""
        connection: VmConnection = request.scope["state"]["connection"]
        if fault.kind.place is FaultPoint.BYTES:
            await faulty_responses.send_malformed(connection, fault, response, self._traffic.common_header_lines)
        elif fault.kind.name == "time-out":
            await self._hold_request(connection, fault.delay.total_seconds())
            connection.close_when_written()
            await connection.wait_until_lost()
        else:
            return False
        return True

    def _require_caller(self, connection: VmConnection) -> Caller:
        """Return the caller; call again after each wait, since the inventory may have changed meanwhile."""
        caller = connection.current_caller()
        # Before the first inventory, any caller may be a VM: 503 makes it retry, where 404 might make it give up.
        if caller is None and not self._authority.identity.is_known:
            raise RequestRefused(_build_unavailable_response())
        if caller is None:
            self._traffic.unknown_callers += 1
            raise RequestRefused(encode_error_response(HTTPStatus.NOT_FOUND, "Not found"))
        return caller

    # Scheduled events

    async def _answer_events(
        self, request: Request, connection: VmConnection, caller: Caller, *, is_legacy: bool
    ) -> Response:
        limits, peer = self._traffic.limits, connection.peer
        version = check_events_request(
            request,
            self._versions,
            # The legacy path names no version, and is answered in the shape of the first one (A4).
            version_name="2017-03-01" if is_legacy else None,
            host_names=limits.host_names,
            is_local=not peer,
        )
        index = self._indexes[version.name]
        # After the checks above and before the body (R62), so a request that they refuse does not count.
        self._check_rate(caller)
        if request.method == "POST":
            return await self._answer_post(request, connection, caller, index)
        return await self._answer_get(request, connection, caller, index)

    async def _answer_get(self, request: Request, connection: VmConnection, caller: Caller, index: int) -> Response:
        channel = await self._ensure_enabled(connection, caller)
        headers = {}
        # A fault must show at once and in a full document: a long poll would delay it, and a 304 has no body to damage.
        is_struck = request.scope["state"].get("fault") is not None
        known = "" if is_struck else ",".join(request.headers.getlist("if-none-match"))
        if known and imds.is_not_modified(known, channel.incarnation):
            wait_s = self._parse_wait_s(request)
            if wait_s > 0:
                headers = {"preference-applied": "wait"}
            # The incarnation alone is not enough: it starts anew after disabling (R46), and audiences count separately.
            seen = (channel.key, channel.epoch, channel.incarnation)
            await self._hold_request(connection, wait_s, channel)
            # During the wait the VM may have moved to another scope, or left the inventory.
            channel = await self._ensure_enabled(connection, self._require_caller(connection))
            if (channel.key, channel.epoch, channel.incarnation) == seen:
                headers["etag"] = f'"{channel.incarnation}"'
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        # The audience may have been disabled while the request was held. The retry enables it anew (R70).
        if not channel.replies:
            return _build_unavailable_response()
        # A request that a fault strikes may be remembered: the memo holds no response, and faults switch it off.
        if self.before_answer is None and _NOT_PLAIN.isdisjoint(request.headers.keys()):
            connection.remember_request(index)
        response = encode_json_response(
            HTTPStatus.OK, channel.replies[index].body, headers | {"etag": f'"{channel.incarnation}"'}
        )
        return self._distort_response(request, response, channel, index)

    async def _ensure_enabled(self, connection: VmConnection, caller: Caller) -> Channel:
        """Return the caller's channel; the first request enables it (R67), and every request keeps it enabled (R69)."""
        channel = caller.channel
        if not channel.is_enabled:
            await self._enable_audience(channel.key, caller.vm.scope)
            await self._hold_request(connection, self._first_answer_delay_s, channel)
        channel.last_polled_at = self._traffic.now
        return channel

    async def _enable_audience(self, key: str, scope: str | None) -> None:
        """Enable an audience once, even if several of its connections ask at the same time."""
        task = self._enabling.get(key)
        if task is None:
            # Enabling writes to the database, so a scope of a thousand VMs that start together must cause it only once.
            task = self._enabling[key] = asyncio.ensure_future(self._authority.enable(key, scope))
            task.add_done_callback(lambda done: self._finish_enabling(key, done))
        await asyncio.shield(task)  # one client that leaves must not cancel it for the others

    def _finish_enabling(self, key: str, task: asyncio.Task[None]) -> None:
        del self._enabling[key]
        if not task.cancelled():
            task.exception()  # retrieve it, since every waiter may be gone

    async def _answer_post(self, request: Request, connection: VmConnection, caller: Caller, index: int) -> Response:
        vm = caller.vm.name
        budgets = self._traffic.quotas
        try:
            with budgets.count_approval(vm):
                event_ids = await self._read_event_ids(request, vm)
                return await self._approve_events(event_ids, connection, index)
        except OverLimit as over:
            budgets.count_refusal(over.limit, vm)
            response = _build_unavailable_response() if over.is_shared else _build_too_many_response(over.retry_after_s)
            if not over.is_read:
                await self._discard_body(request, response)
        except LimitExceeded as error:
            # The authority was asked only after the body had been read, so there is nothing to discard.
            budgets.count_refusal(find_exceeded_limit(error), vm)
            response = _build_too_many_response()
        # The delay makes a client that retries at once cheap.
        # `count_approval` has ended by now, so a refusal that waits does not count as an approval at work.
        await self._hold_request(connection, _REFUSAL_DELAY_S)
        raise RequestRefused(response)

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

    async def _approve_events(self, event_ids: tuple[str, ...], connection: VmConnection, index: int) -> Response:
        caller = self._require_caller(connection)
        channel = caller.channel
        # A repeated approval needs no further decision, and neither does an empty list (R56).
        if not channel.settled.issuperset(event_ids):
            await self._commit_approval(event_ids, connection, caller, index)
        # An approval keeps an audience enabled (R69), but only a GET enables it (R67).
        if channel.is_enabled:
            channel.last_polled_at = self._traffic.now
        if self._dialect.post_body == "document" and channel.replies:
            return encode_json_response(HTTPStatus.OK, channel.replies[index].body)
        return encode_json_response(HTTPStatus.OK, b"")

    async def _read_event_ids(self, request: Request, vm: str) -> tuple[str, ...]:
        """Return the event ids in the body; the body counts towards the budgets until it is decoded.

        Raises:
            OverLimit: This VM, or all VMs together, have too many body bytes pending.
        """
        with self._traffic.quotas.count_body(vm) as held:
            body = await self._read_body(request, held)
            # Decoding blocks the event loop, so large bodies are decoded one per turn, in fair order between VMs.
            if len(body) > _SMALL_BODY_BYTES:
                await self._turns.wait_turn(vm, len(body))
            try:
                return imds.decode_approval(body, self._traffic.limits.start_requests_max)
            except imds.BadPayload as error:
                raise RequestRefused(build_payload_refusal(error)) from error

    async def _commit_approval(
        self, event_ids: tuple[str, ...], connection: VmConnection, caller: Caller, index: int
    ) -> None:
        """Have the approval decided and committed.

        It is refused if an id is unknown and the dialect requires known ids (A11), or if a policy requires other
        approvers.
        """
        channel = caller.channel
        shown = (channel.key, channel.epoch, channel.incarnation)
        refuses_unknown = self._dialect.unknown_event != HTTPStatus.OK
        # A client that repeats an unknown id with every poll must not cost a read of the database each time.
        if refuses_unknown and any(
            (*shown, event_id) in self._unknown_ids for event_id in channel.find_unlisted(event_ids)
        ):
            raise RequestRefused(self._build_unknown_event_response())
        approver = Approver(
            actor=f"vm:{caller.vm.name}",
            audience=channel.key,
            vm=caller.vm.name,
            source_address=connection.peer,
            api_version=self._authority.feed.versions[index].name,
        )
        approval = await self._authority.approve(event_ids, approver)
        if approval.unknown:
            if refuses_unknown:
                self._remember_unknown((*shown, event_id) for event_id in approval.unknown[:_UNKNOWN_IDS_OF_ONE])
                raise RequestRefused(self._build_unknown_event_response())
            # This dialect accepts unknown ids and ignores them (A11), so the other ids are still to be approved.
            known = [i for i in event_ids if i not in set(approval.unknown)]
            approval = await self._authority.approve(known, approver)
        # 400, since the protocol documents no other refusal of an approval (A10).
        if approval.refused:
            raise RequestRefused(
                encode_error_response(HTTPStatus.BAD_REQUEST, "Bad request: . This VM may not approve this event")
            )
        channel.mark_settled((*approval.approved, *approval.unchanged))

    def _remember_unknown(self, keys: Iterable[tuple[str, int, int, str]]) -> None:
        """Remember ids that an audience does not have, until its document changes.

        Ids are random, so an unknown id will not be created later. A few ids per approval are enough, since an
        approval is refused as a whole. The oldest ids are dropped.
        """
        for key in keys:
            self._unknown_ids[key] = None
        while len(self._unknown_ids) > _UNKNOWN_IDS_MAX:
            del self._unknown_ids[next(iter(self._unknown_ids))]

    def _build_unknown_event_response(self) -> Response:
        if self._dialect.unknown_event == HTTPStatus.NOT_FOUND:
            return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")
        return encode_error_response(HTTPStatus.BAD_REQUEST, "Bad request: . EventId is not known")

    async def _read_body(self, request: Request, held: HeldBody) -> bytes:
        limit = self._traffic.limits.body_size_bytes_max
        body = bytearray()
        over: OverLimit | None = None
        # The parser refuses a request in which this is no number.
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
                    held.release()
        if size_bytes > limit:
            raise RequestRefused(build_size_refusal(limit))
        if over is not None:
            over.is_read = True
            raise over
        # For the journal: the stream can be read only once.
        request.scope["state"]["body"] = bytes(body)
        return bytes(body)

    # Instance

    def _answer_instance(self, request: Request, caller: Caller, path: str) -> Response:
        connection: VmConnection = request.scope["state"]["connection"]
        check_method(request, ("GET",))
        check_sender(request, self._traffic.limits.host_names, is_local=not connection.peer)
        check_metadata(request)
        if path.lower() == _VERSIONS:
            return encode_json_response(HTTPStatus.OK, imds.encode_versions(self._authority.feed.versions))
        parameters = parse_query(request)
        refusal = instance.get_version_error(parameters.get("api-version", ""))
        if refusal is not None:
            return encode_json_response(HTTPStatus.BAD_REQUEST, refusal)
        check_single_parameters(request)
        self._check_rate(caller)
        below = path[len(_INSTANCE) :].strip("/")
        value = instance.find_value(instance.build_document(caller.vm, caller.scope), below.split("/") if below else [])
        if value is None:
            return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")
        is_text = parameters.get("format", "").lower() == "text"
        if instance.is_leaf(value) and not is_text:
            return encode_json_response(HTTPStatus.BAD_REQUEST, instance.LEAF_WITHOUT_TEXT)
        body, content_type = instance.render_value(value, is_text)
        return Response(body, headers={"content-type": content_type})

    # Checks

    def _check_rate(self, caller: Caller) -> None:
        """Refuse requests above the rate limit of each second (R9)."""
        limit = self._traffic.limits.rate_limit_per_s
        if limit is None:
            return
        second = int(asyncio.get_running_loop().time())
        # Fixed windows admit a double burst around the change of the second, which does no harm here.
        usage = caller.usage
        if usage.window_s != second:
            usage.window_s, usage.window_requests = second, 0
        usage.window_requests += 1
        if usage.window_requests > limit:
            self._traffic.quotas.count_refusal("rate_limit_per_s", caller.vm.name)
            raise RequestRefused(_build_too_many_response())

    # Waiting

    def _parse_wait_s(self, request: Request) -> float:
        """Return the seconds of ``Prefer: wait=…`` (RFC 7240), capped at `wait_s_max`; 0 without it (X1)."""
        match = _WAIT.search(",".join(request.headers.getlist("prefer")))
        return min(float(match[1]), self._traffic.limits.wait_s_max) if match else 0.0

    async def _hold_request(self, connection: VmConnection, wait_s: float, channel: Channel | None = None) -> None:
        """Wait until the time is over, the client is gone or, with a channel, there is a new incarnation."""
        if wait_s <= 0 or self._traffic.is_stopping or connection.is_client_gone:
            return
        waiter = asyncio.get_running_loop().create_future() if channel is None else channel.add_waiter()
        connection.held = waiter
        try:
            await self._wait_for(waiter, wait_s)
        finally:
            connection.held = None
            if channel is not None:
                channel.remove_waiter(waiter)

    async def _wait_for(self, waiter: asyncio.Future[None], timeout_s: float) -> None:
        """Wait until `waiter` is done or the timeout passes, in real or virtual seconds, whichever is sooner."""
        loop = asyncio.get_running_loop()
        # The real timer runs with a virtual clock, too: no client may hang on a clock that a test has stopped moving.
        timer = loop.call_later(timeout_s, _complete_waiter, waiter)
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
        _complete_waiter(waiter)


def _complete_waiter(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _build_unavailable_response() -> Response:
    """Return 503 with a short ``Retry-After``."""
    response = encode_error_response(HTTPStatus.SERVICE_UNAVAILABLE, "Service unavailable")
    response.headers["retry-after"] = str(_RETRY_AFTER_S)
    return response


def _build_too_many_response(retry_after_s: int = _RETRY_AFTER_S) -> Response:
    """Return 429: this VM exceeds its share (R65)."""
    response = encode_error_response(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests")
    response.headers["retry-after"] = str(retry_after_s)
    return response


def _label_method(method: str) -> str:
    return method if method in {"GET", "POST"} else "other"
